import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.IntStream;
import minibroker.junit.MinibrokerExtension;
import minibroker.junit.StoredRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;

/** Kafka Streams with exactly_once_v2: an instance is killed inside a transaction, another one goes on. */
class StreamsTest {
    private static final int RECORDS = 20;

    @RegisterExtension
    static final MinibrokerExtension broker = new MinibrokerExtension("--topic", "in", "--topic", "out");

    @TempDir Path directory;

    @Test
    void aKilledInstanceLeavesNoDuplicatesAndNoGaps() throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", broker.bootstrapServers());
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < RECORDS; i++) {
                producer.send(new ProducerRecord<>("in", Integer.toString(i)));
            }
        }

        // The first instance is a process of its own. Its commit is held, so it is killed with an open transaction.
        var commit = broker.faults().on("TxnOffsetCommit", "EndTxn").always().hold();
        Process first = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-cp",
                        System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
                        StreamsTest.class.getName(),
                        broker.bootstrapServers(),
                        directory.resolve("first").toString())
                .inheritIO()
                .start();
        try {
            broker.control("read.wait_for_records", "{\"topic\": \"out\", \"timeout_ms\": 60000}");
            commit.await(1);
        } finally {
            first.destroyForcibly().waitFor();
        }
        commit.close();
        assertEquals(List.of(), broker.records("out")); // none is committed

        // A minute in which the dead instance sends nothing: its session ends, and its transaction times out.
        broker.control("clock.advance", "{\"minutes\": 1, \"sessions\": true}");
        try (KafkaStreams second = streams(broker.bootstrapServers(), directory.resolve("second").toString())) {
            second.start();
            broker.control(
                    "read.wait_for_committed",
                    "{\"group\": \"copy\", \"topic\": \"in\", \"offset\": %d, \"timeout_ms\": 60000}".formatted(RECORDS));
        }
        assertEquals(
                IntStream.range(0, RECORDS).mapToObj(Integer::toString).toList(),
                broker.records("out").stream().map(StoredRecord::valueText).toList());
    }

    /** The first instance: address of the broker, directory for its state. */
    public static void main(String[] arguments) {
        streams(arguments[0], arguments[1]).start();
    }

    private static KafkaStreams streams(String servers, String directory) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("in").to("out");
        Properties config = new Properties();
        config.putAll(Map.of(
                StreamsConfig.APPLICATION_ID_CONFIG, "copy",
                StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers,
                StreamsConfig.STATE_DIR_CONFIG, directory,
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
                StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass(),
                StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass(),
                "auto.offset.reset", "earliest"));
        return new KafkaStreams(builder.build(), config);
    }
}
