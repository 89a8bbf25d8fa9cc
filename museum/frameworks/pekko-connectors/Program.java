import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.pekko.actor.ActorSystem;
import org.apache.pekko.kafka.ConsumerMessage.PartitionOffset;
import org.apache.pekko.kafka.ConsumerSettings;
import org.apache.pekko.kafka.ProducerMessage;
import org.apache.pekko.kafka.ProducerSettings;
import org.apache.pekko.kafka.Subscriptions;
import org.apache.pekko.kafka.javadsl.Transactional;
import org.apache.pekko.stream.RestartSettings;
import org.apache.pekko.stream.javadsl.RestartSource;
import org.apache.pekko.stream.javadsl.Sink;

public final class Program {
    public static void main(String[] arguments) {
        Map<String, String> env = System.getenv();
        ActorSystem system = ActorSystem.create("copy");
        ConsumerSettings<String, String> consuming =
            ConsumerSettings.create(system, new StringDeserializer(), new StringDeserializer())
                .withBootstrapServers(env.get("BOOTSTRAP_SERVERS"))
                .withGroupId(env.get("GROUP"))
                .withProperty("auto.offset.reset", "earliest");
        ProducerSettings<String, String> producing =
            ProducerSettings.create(system, new StringSerializer(), new StringSerializer())
                .withBootstrapServers(env.get("BOOTSTRAP_SERVERS"))
                .withProperty("request.timeout.ms", "5000");
        RestartSource.onFailuresWithBackoff(
                RestartSettings.create(Duration.ofSeconds(1), Duration.ofSeconds(10), 0.2),
                () -> Transactional.source(consuming, Subscriptions.topics(env.get("INPUT_TOPIC")))
                    .map(message -> ProducerMessage.<String, String, PartitionOffset>single(
                        new ProducerRecord<>(
                            env.get("OUTPUT_TOPIC"), message.record().key(), message.record().value().toUpperCase()),
                        message.partitionOffset()))
                    .via(Transactional.flow(producing, env.get("GROUP"))))
            .runWith(Sink.ignore(), system)
            .whenComplete((done, error) -> system.terminate());
    }
}
