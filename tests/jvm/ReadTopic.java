import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** tests/support/applications/read_client.py with Kafka's Java client. */
public final class ReadTopic {
    public static void main(String[] arguments) {
        TopicPartition topic = new TopicPartition(System.getenv("MINIBROKER_TOPIC"), 0);
        Map<String, Object> config = Map.of(
                "bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"),
                "isolation.level", "read_committed",
                "enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(topic));
            consumer.seekToBeginning(List.of(topic));
            for (boolean last = false; !last; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.offset() + " " + record.value());
                    last |= record.value().equals("end");
                }
            }
        }
        System.exit(0);
    }
}
