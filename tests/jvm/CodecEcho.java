import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads lines `MESSAGE VERSION HEX`, decodes with Kafka's generated classes and answers `REENCODED-HEX JSON`
 * (`-` when Kafka has no JSON converter for the message), or `error WHY`.
 */
public final class CodecEcho {
    private static final List<String> PACKAGES = List.of(
            "org.apache.kafka.common.message.", "org.apache.kafka.coordinator.transaction.generated.",
            "org.apache.kafka.coordinator.group.generated.", "org.apache.kafka.common.metadata.");

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            try {
                out.println(echo(words[0], Short.parseShort(words[1]), HexFormat.of().parseHex(words[2])));
            } catch (Throwable wrong) {
                out.println("error " + wrong.toString().replace('\n', ' '));
            }
        }
        out.flush();
    }

    private static String echo(String name, short version, byte[] bytes) throws Exception {
        Class<?> type = find(name);
        Message message = (Message) type.getDeclaredConstructor().newInstance();
        ByteBuffer input = ByteBuffer.wrap(bytes);
        message.read(new ByteBufferAccessor(input), version);
        if (input.hasRemaining()) return "error " + input.remaining() + " bytes left over";
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer output = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(output), cache, version);
        return HexFormat.of().formatHex(output.array()) + " " + json(type, message, version);
    }

    static Class<?> find(String name) throws ClassNotFoundException {
        for (String prefix : PACKAGES) {
            for (String suffix : List.of("Data", "")) {
                try {
                    return Class.forName(prefix + name + suffix);
                } catch (ClassNotFoundException next) {
                    // the next place it may be in
                }
            }
        }
        throw new ClassNotFoundException(name);
    }

    private static String json(Class<?> type, Message message, short version) throws Exception {
        try {
            Class<?> converter = Class.forName(type.getName() + "JsonConverter");
            return ((JsonNode) converter.getMethod("write", type, short.class).invoke(null, message, version)).toString();
        } catch (ClassNotFoundException none) {
            return "-";
        }
    }
}
