package minibroker.junit;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * A minibroker for the tests of a class and of its {@code @Nested} classes (a static field with {@code @RegisterExtension})
 * or for each test (one that is not static). With {@code @ExtendWith(MinibrokerExtension.class)} there is one for the class,
 * and tests have it as a parameter. It is {@code minibroker serve}, as the variable MINIBROKER names it, as
 * {@code .minibroker/minibroker} in this directory or one above it, or from the PATH, and ends with the JVM
 * however that ends. It prints nothing; if it does not start, the exception has its output.
 */
public final class MinibrokerExtension
        implements BeforeAllCallback,
                AfterAllCallback,
                BeforeEachCallback,
                AfterEachCallback,
                ParameterResolver,
                AutoCloseable {
    private static final int STOP_SECONDS = 10;
    private static final String MISSING =
            "install minibroker with pip and have it on PATH, or its executable file as .minibroker/minibroker, or name it with the variable MINIBROKER";

    private final List<String> what;
    private final List<String> arguments;
    private final String token = UUID.randomUUID().toString();
    private Process process;
    private Path log;
    /** Addresses by name, as the broker prints them. */
    private final Map<String, String> addresses = new LinkedHashMap<>();
    /** Classes whose tests run now: the one that has the field, and its nested ones. JUnit calls beforeAll for each. */
    private int classes;

    /** A broker without further arguments, for {@code @ExtendWith}. */
    public MinibrokerExtension() {
        this(new String[0]);
    }

    /** arguments: further ones of {@code minibroker serve}, such as {@code "--topic", "orders:3"}. */
    public MinibrokerExtension(String... arguments) {
        this(List.of("serve", "--ephemeral"), List.of(arguments));
    }

    private MinibrokerExtension(List<String> what, List<String> arguments) {
        this.what = what;
        this.arguments = arguments;
    }

    /**
     * A proxy in front of a cluster that runs elsewhere, {@code HOST:PORT[,HOST:PORT…]}: faults act on what passes, and
     * commands that need the brokers themselves are refused. arguments: further ones of {@code minibroker proxy}.
     */
    public static MinibrokerExtension proxy(String upstream, String... arguments) {
        return new MinibrokerExtension(List.of("proxy", "--upstream", upstream), List.of(arguments));
    }

    /** {@code HOST:PORT} for clients. */
    public String bootstrapServers() {
        return running("bootstrap.servers");
    }

    /** Address of the live page of a broker with {@code "--page"}. */
    public String page() {
        return running("page");
    }

    /** {@code HOST:PORT} for Prometheus of a broker with {@code "--metrics", "127.0.0.1:0"}. */
    public String metrics() {
        return running("metrics");
    }

    /** Rules that make the broker answer late, wrongly or not at all. */
    public Faults faults() {
        return new Faults(this);
    }

    /** What a read_committed consumer reads of a topic, from its start to its end. */
    public List<StoredRecord> records(String topic) {
        Object found = call("read.records", Map.of("topic", topic, "isolation", "read_committed"));
        List<StoredRecord> records = new ArrayList<>();
        for (Object one : (List<?>) found) {
            Map<?, ?> record = (Map<?, ?>) one;
            int partition = ((Long) record.get("partition")).intValue();
            byte[] key = bytes(record.get("key"));
            byte[] value = bytes(record.get("value"));
            records.add(new StoredRecord(topic, partition, (Long) record.get("offset"), key, value));
        }
        return records;
    }

    /** Creates a topic; returns once its leaders are known. */
    public void createTopic(String topic, int partitions) {
        call("state.create_topic", Map.of("topic", topic, "partitions", partitions));
    }

    /** What the broker waits for, in lines for a person; empty when it waits for nothing. */
    public List<String> waits() {
        return ((List<?>) call("cluster.waits", Map.of())).stream().map(String.class::cast).toList();
    }

    /** The result of a command: a map, a list, a text, a number, a boolean or null. */
    Object call(String command, Map<String, ?> arguments) {
        return ((Map<?, ?>) Json.parse(control(command, Json.write(arguments)))).get("result");
    }

    /** The result of a command that is a map. */
    @SuppressWarnings("unchecked")
    Map<String, Object> ask(String command, Map<String, ?> arguments) {
        return (Map<String, Object>) call(command, arguments);
    }

    private static byte[] bytes(Object told) {
        if (told instanceof Map<?, ?> encoded) {
            return Base64.getDecoder().decode((String) encoded.get("base64"));
        }
        return told == null ? null : ((String) told).getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Gives the broker a command, such as {@code control("clock.advance", "{\"minutes\": 2}")}, and returns the result as
     * JSON; {@code minibroker control} lists all. Throws IllegalStateException with the reason when it is refused.
     */
    public String control(String command, String json) {
        HttpRequest request =
                HttpRequest.newBuilder(URI.create("http://" + running("control") + "/v1/" + command.replace('.', '/')))
                        .header("Authorization", "Bearer " + token)
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(json))
                        .build();
        try {
            HttpResponse<String> response =
                    HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            if (response.statusCode() != 200) {
                throw new IllegalStateException(command + ": " + response.body());
            }
            return response.body();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(command + " was interrupted", error);
        }
    }

    /** The file that the variable MINIBROKER names, .minibroker/minibroker in this directory or one above it, or what the PATH has. */
    private static String program() {
        String named = System.getenv("MINIBROKER");
        if (named != null && !named.isEmpty()) {
            return named;
        }
        for (Path directory = Path.of("").toAbsolutePath(); directory != null; directory = directory.getParent()) {
            Path own = directory.resolve(".minibroker").resolve("minibroker");
            if (Files.isRegularFile(own)) {
                return own.toString();
            }
        }
        return "minibroker";
    }

    /** Starts the broker; returns once it serves. */
    public void start() throws IOException {
        List<String> command = new ArrayList<>(List.of(program()));
        command.addAll(what);
        command.addAll(List.of("--port", "0", "--control", "127.0.0.1:0"));
        command.addAll(List.of("--until-stdin-closes", "--log-level", "warning"));
        command.addAll(arguments);
        log = Files.createTempFile("minibroker", ".log");
        ProcessBuilder builder = new ProcessBuilder(command).redirectError(log.toFile());
        builder.environment().put("MINIBROKER_CONTROL_TOKEN", token);
        try {
            process = builder.start();
        } catch (IOException error) {
            Files.deleteIfExists(log);
            throw new IllegalStateException(error.getMessage() + "; " + MISSING, error);
        }
        // It prints a line for each address once it serves: bootstrap.servers=…, control=…, and those that were asked for.
        List<String> wanted = new ArrayList<>(List.of("bootstrap.servers", "control"));
        for (String name : List.of("page", "metrics")) {
            if (arguments.contains("--" + name)) {
                wanted.add(name);
            }
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String line;
        while (!addresses.keySet().containsAll(wanted) && (line = lines.readLine()) != null) {
            addresses.put(line.substring(0, Math.max(line.indexOf('='), 0)), line.substring(line.indexOf('=') + 1));
        }
        if (!addresses.keySet().containsAll(wanted)) {
            String said = Files.readString(log).strip();
            close();
            throw new IllegalStateException("minibroker did not start: " + said);
        }
    }

    /** Ends the broker; harmless when it has ended. */
    @Override
    public void close() throws IOException {
        if (process == null) {
            return;
        }
        process.getOutputStream().close();
        try {
            if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException error) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
        Files.deleteIfExists(log);
        process = null;
        addresses.clear();
    }

    @Override
    public synchronized void beforeAll(ExtensionContext context) throws IOException {
        if (classes == 0) {
            start();
        }
        classes++;
    }

    @Override
    public synchronized void afterAll(ExtensionContext context) throws IOException {
        if (classes > 0 && --classes == 0) { // it is 0 already where the start failed
            close();
        }
    }

    @Override
    public synchronized void beforeEach(ExtensionContext context) throws IOException {
        if (classes == 0) {
            start();
        }
    }

    @Override
    public synchronized void afterEach(ExtensionContext context) throws IOException {
        if (classes == 0) {
            close();
        }
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == MinibrokerExtension.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return this;
    }

    private String running(String name) {
        String address = addresses.get(name);
        if (address == null) {
            boolean option = process != null && !name.equals("control") && !name.equals("bootstrap.servers");
            throw new IllegalStateException(option ? "it was started without --" + name : "the broker is not running");
        }
        return address;
    }
}
