import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

public final class Program {
    public static void main(String[] arguments) {
        Map<String, String> env = System.getenv();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(env.get("INPUT_TOPIC"), Consumed.with(Serdes.String(), Serdes.String()))
            .mapValues(value -> value.toUpperCase())
            .to(env.get("OUTPUT_TOPIC"), Produced.with(Serdes.String(), Serdes.String()));
        Properties config = new Properties();
        config.putAll(Map.of(
            "bootstrap.servers", env.get("BOOTSTRAP_SERVERS"),
            "application.id", env.get("GROUP"),
            "processing.guarantee", "exactly_once_v2",
            "state.dir", env.get("STATE_DIR"),
            "request.timeout.ms", "5000"));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.setUncaughtExceptionHandler(error -> {
            System.err.println(error.getMessage() + ": " + error.getCause());
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT; // the default
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.ERROR) Runtime.getRuntime().halt(1);
        });
        streams.start();
    }
}
