import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

/**
 * minibroker under the stock Kafka module of Testcontainers (org.testcontainers:kafka, org.apache.kafka:kafka-clients):
 * a commit whose answer is lost. In JUnit, the body of main is the test.
 */
public class LostReplyTest {
    static final String TOKEN = "a-token-of-this-test";
    static final int CONTROL_PORT = 9094;

    public static void main(String[] arguments) throws Exception {
        DockerImageName image = DockerImageName.parse(arguments.length > 0 ? arguments[0] : "minibroker");
        try (KafkaContainer kafka =
                new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))
                        .withEnv("MINIBROKER_CONTROL_TOKEN", TOKEN)) {
            kafka.addExposedPort(CONTROL_PORT);
            kafka.start();
            String control = kafka.getHost() + ":" + kafka.getMappedPort(CONTROL_PORT);

            tell(control, "fault/add", "{\"api\": \"EndTxn\", \"action\": \"drop_reply\"}");
            try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(
                            Map.of("bootstrap.servers", kafka.getBootstrapServers(), "transactional.id", "app"),
                            new StringSerializer(),
                            new StringSerializer())) {
                producer.initTransactions();
                for (String value : List.of("once", "end")) {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>("orders", value));
                    producer.commitTransaction(); // the first answer is lost; the client asks again
                }
            }
            String rule = tell(control, "fault/wait", "{\"id\": 1}");
            if (!rule.matches(".*\"fired\": ?1\\b.*")) {
                throw new AssertionError("no answer was lost: " + rule);
            }
            List<String> values = readUntil(kafka.getBootstrapServers(), "end");
            if (!values.equals(List.of("once", "end"))) {
                throw new AssertionError(values);
            }
        }
        System.out.println("done");
    }

    /** A command to the broker: a fault, the clock, its state (minibroker control --describe). */
    static String tell(String control, String path, String body) throws Exception {
        HttpRequest request =
                HttpRequest.newBuilder(URI.create("http://" + control + "/v1/" + path))
                        .header("Authorization", "Bearer " + TOKEN)
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body))
                        .build();
        HttpResponse<String> response =
                HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() != 200) {
            throw new IllegalStateException(response.body());
        }
        return response.body();
    }

    static List<String> readUntil(String bootstrap, String last) {
        Map<String, Object> config =
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", "g",
                        "auto.offset.reset", "earliest",
                        "isolation.level", "read_committed");
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            for (int i = 0; i < 30 && !values.contains(last); i++) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }
}
