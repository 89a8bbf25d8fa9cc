import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.testcontainers.kafka.ConfluentKafkaContainer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

/** The Kafka modules of Testcontainers for Java, as they are, with another image. Arguments: image, module. */
public class StockModules {
    public static void main(String[] arguments) {
        DockerImageName image = DockerImageName.parse(arguments[0]);
        if (arguments[1].equals("apache")) {
            try (KafkaContainer kafka = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))) {
                kafka.start();
                roundTrip(kafka.getBootstrapServers());
            }
        } else {
            try (ConfluentKafkaContainer kafka =
                    new ConfluentKafkaContainer(image.asCompatibleSubstituteFor("confluentinc/cp-kafka"))) {
                kafka.start();
                roundTrip(kafka.getBootstrapServers());
            }
        }
        System.out.println("done");
    }

    /** An aborted and a committed transaction; only the second one is read. */
    static void roundTrip(String bootstrap) {
        String name = "t-" + UUID.randomUUID();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(
                        Map.of("bootstrap.servers", bootstrap, "transactional.id", name),
                        new StringSerializer(),
                        new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "no"));
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "yes"));
            producer.commitTransaction();
        }
        Map<String, Object> config =
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", name,
                        "auto.offset.reset", "earliest",
                        "isolation.level", "read_committed");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(name));
            for (int i = 0; i < 30; i++) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (!records.isEmpty()) {
                    String value = records.iterator().next().value();
                    if (!value.equals("yes")) {
                        throw new AssertionError(value);
                    }
                    return;
                }
            }
        }
        throw new AssertionError("nothing was read");
    }
}
