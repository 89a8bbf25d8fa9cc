import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import minibroker.junit.MinibrokerExtension;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * A rebalance in the middle of a transaction. With the classic protocol what was read before it cannot be committed; with
 * the consumer protocol it can as long as the partition has not moved (KIP-1251), and not by a member that was thrown out.
 */
class RebalanceTest {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int POLLS = 300;

    @RegisterExtension
    final MinibrokerExtension broker =
            new MinibrokerExtension(
                    "--topic", "in", "--topic", "out",
                    "-c", "group.consumer.min.heartbeat.interval.ms=100",
                    "-c", "group.consumer.heartbeat.interval.ms=100");

    @ParameterizedTest
    @CsvSource({
        "classic, state.rebalance_group, true",
        "consumer, state.rebalance_group, false",
        "classic, state.remove_member, true",
        "consumer, state.remove_member, true",
    })
    void offsetsOfTheGenerationBefore(String protocol, String command, boolean refused) {
        String committed = "{\"topic\": \"out\", \"isolation\": \"read_committed\"}";
        Map<String, Object> reading = new HashMap<>();
        reading.put("bootstrap.servers", broker.bootstrapServers());
        reading.put("group.id", "g");
        reading.put("group.protocol", protocol);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        if (protocol.equals("classic")) {
            reading.put("heartbeat.interval.ms", "100"); // the broker says it in the other protocol
        }
        Map<String, Object> writing =
                Map.of("bootstrap.servers", broker.bootstrapServers(), "transactional.id", "app");
        try (KafkaProducer<String, String> producer =
                        new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
                KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("in", "1"));
            producer.commitTransaction();
            consumer.subscribe(List.of("in"));
            for (int i = 0; i < POLLS && consumer.poll(POLL).isEmpty(); i++) {}
            ConsumerGroupMetadata before = consumer.groupMetadata();

            producer.beginTransaction();
            producer.send(new ProducerRecord<>("out", "1"));
            broker.control(command, "{\"group\": \"g\"}");
            for (int i = 0; i < POLLS && consumer.groupMetadata().equals(before); i++) {
                consumer.poll(POLL);
            }
            assertNotEquals(before, consumer.groupMetadata());
            Map<TopicPartition, OffsetAndMetadata> read =
                    Map.of(new TopicPartition("in", 0), new OffsetAndMetadata(1));
            Executable commit =
                    () -> {
                        producer.sendOffsetsToTransaction(read, before);
                        producer.commitTransaction();
                    };
            if (refused) {
                assertThrows(CommitFailedException.class, commit);
                producer.abortTransaction();
            } else {
                assertDoesNotThrow(commit);
                broker.control("read.wait_for_records", committed);
            }
        }
        int found = broker.control("read.records", committed).split("\"value\"", -1).length - 1;
        assertEquals(refused ? 0 : 1, found);
        assertEquals(refused, broker.control("read.committed", "{\"group\": \"g\"}").equals("{\"result\": []}"));
    }
}
