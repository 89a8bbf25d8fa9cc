package minibroker.junit;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A minibroker for the tests of a class and of its {@code @Nested} classes (a static field with {@code @RegisterExtension})
 * or for each test (one that is not static). It is {@code minibroker serve}, from the PATH or as the variable MINIBROKER names it, and ends with the JVM
 * however that ends. It prints nothing; if it does not start, the exception has its output.
 */
public final class MinibrokerExtension
        implements BeforeAllCallback, AfterAllCallback, BeforeEachCallback, AfterEachCallback, AutoCloseable {
    private static final int STOP_SECONDS = 10;
    private static final String MISSING =
            "install minibroker with pip and have it on PATH, or name it with the variable MINIBROKER";

    private final List<String> arguments;
    private final String token = UUID.randomUUID().toString();
    private Process process;
    private Path log;
    private String bootstrapServers;
    private String control;
    /** Classes whose tests run now: the one that has the field, and its nested ones. JUnit calls beforeAll for each. */
    private int classes;

    /** arguments: further ones of {@code minibroker serve}, such as {@code "--topic", "orders:3"}. */
    public MinibrokerExtension(String... arguments) {
        this.arguments = List.of(arguments);
    }

    /** {@code HOST:PORT} for clients. */
    public String bootstrapServers() {
        return running(bootstrapServers);
    }

    /**
     * Gives the broker a command, such as {@code control("clock.advance", "{\"minutes\": 2}")}, and returns the result as
     * JSON; {@code minibroker control} lists all. Throws IllegalStateException with the reason when it is refused.
     */
    public String control(String command, String json) {
        HttpRequest request =
                HttpRequest.newBuilder(URI.create("http://" + running(control) + "/v1/" + command.replace('.', '/')))
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

    /** Starts the broker; returns once it serves. */
    public void start() throws IOException {
        String named = System.getenv("MINIBROKER");
        List<String> command = new ArrayList<>(List.of(named == null ? "minibroker" : named, "serve"));
        command.addAll(List.of("--port", "0", "--ephemeral", "--control", "127.0.0.1:0"));
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
        // It prints two lines once it serves: bootstrap.servers=… and control=….
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String line;
        while (control == null && (line = lines.readLine()) != null) {
            if (line.startsWith("bootstrap.servers=")) {
                bootstrapServers = line.substring(line.indexOf('=') + 1);
            } else if (line.startsWith("control=")) {
                control = line.substring(line.indexOf('=') + 1);
            }
        }
        if (control == null) {
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
        bootstrapServers = null;
        control = null;
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

    private static String running(String address) {
        if (address == null) {
            throw new IllegalStateException("the broker is not running");
        }
        return address;
    }
}
