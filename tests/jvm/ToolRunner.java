import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs main classes of Kafka's tools one after the other, in one JVM.
 *
 * <p>Read from standard input, as often as there is one: number of words, the words (class, arguments), what the tool reads.
 * Written: its exit code, and what it said on both streams. Numbers are ints, texts an int and UTF-8.
 */
public final class ToolRunner {
    private static final class Exited extends Error {
        final int code;

        Exited(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] ignored) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        Exited[] first = new Exited[1];
        int[] saidByThen = new int[1];
        Exit.Procedure leave = (code, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            // Some tools take what ends them for an error, tell of it, and exit again.
            if (first[0] == null) {
                first[0] = new Exited(code);
                saidByThen[0] = said.size();
            }
            throw first[0];
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        PrintStream realOut = System.out;
        PrintStream realErr = System.err;
        InputStream realIn = System.in;
        while (true) {
            int count;
            try {
                count = in.readInt();
            } catch (java.io.EOFException end) {
                break;
            }
            String main = text(in);
            String[] arguments = new String[count - 1];
            for (int i = 0; i < arguments.length; i++) {
                arguments[i] = text(in);
            }
            byte[] stdin = text(in).getBytes(StandardCharsets.UTF_8);
            said.reset();
            first[0] = null;
            int code = 0;
            try (PrintStream print = new PrintStream(said, true, "UTF-8")) {
                System.setOut(print);
                System.setErr(print);
                System.setIn(new ByteArrayInputStream(stdin));
                try {
                    Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
                } catch (InvocationTargetException thrown) {
                    code = codeOf(thrown.getCause(), print);
                }
            }
            System.setOut(realOut);
            System.setErr(realErr);
            System.setIn(realIn);
            byte[] bytes = said.toByteArray();
            if (first[0] != null) {
                code = first[0].code;
                bytes = java.util.Arrays.copyOf(bytes, saidByThen[0]);
            }
            out.writeInt(code);
            out.writeInt(bytes.length);
            out.write(bytes);
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static int codeOf(Throwable thrown, PrintStream print) {
        if (thrown instanceof Exited) {
            return ((Exited) thrown).code;
        }
        thrown.printStackTrace(print);
        return 1;
    }

    private static String text(DataInputStream in) throws java.io.IOException {
        byte[] bytes = new byte[in.readInt()];
        in.readFully(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
