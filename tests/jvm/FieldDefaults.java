import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HexFormat;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads names of messages and says what their new objects have, one line each:
 * `MESSAGE field STRUCT FIELD VALUE` for every field of the message and the structs in it,
 * `MESSAGE bytes VERSION HEX` for the new object in every version, `-` instead of bytes that it cannot be written to,
 * and `MESSAGE unknown` when this release has no such message.
 */
public final class FieldDefaults {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String name = in.readLine(); name != null; name = in.readLine()) {
            Class<?> type;
            try {
                type = CodecEcho.find(name);
            } catch (ClassNotFoundException none) {
                out.println(name + " unknown");
                continue;
            }
            fields(out, name, type, name);
            for (Class<?> inner : type.getDeclaredClasses())
                if (Message.class.isAssignableFrom(inner)) fields(out, name, inner, inner.getSimpleName());
            short low = type.getField("LOWEST_SUPPORTED_VERSION").getShort(null);
            short high = type.getField("HIGHEST_SUPPORTED_VERSION").getShort(null);
            for (short version = low; version <= high; version++)
                out.println(name + " bytes " + version + " " + bytes(made(type), version));
        }
        out.flush();
    }

    private static Message made(Class<?> type) throws Exception {
        return (Message) type.getDeclaredConstructor().newInstance();
    }

    private static void fields(PrintStream out, String name, Class<?> type, String struct) throws Exception {
        Message fresh = made(type);
        for (Field field : type.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("_")) continue;
            if (field.getName().equals("next") || field.getName().equals("prev")) continue; // of a linked collection
            field.setAccessible(true);
            out.println(name + " field " + struct + " " + field.getName() + " " + text(field.get(fresh)));
        }
    }

    private static String text(Object value) {
        if (value instanceof String string) return "'" + string + "'";
        if (value instanceof Uuid id) return "uuid:" + id.getMostSignificantBits() + "," + id.getLeastSignificantBits();
        if (value instanceof byte[] bytes) return "bytes:" + HexFormat.of().formatHex(bytes);
        if (value instanceof ByteBuffer bytes) return "bytes:" + bytes.remaining();
        if (value instanceof Collection<?> items) return "list:" + items.size();
        if (value instanceof Message) return "struct";
        return String.valueOf(value);
    }

    private static String bytes(Message message, short version) {
        try {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer output = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(output), cache, version);
            return "x" + HexFormat.of().formatHex(output.array());
        } catch (RuntimeException refused) {
            return "-";
        }
    }
}
