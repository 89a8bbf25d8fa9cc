import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Two members of a share group (KIP-932): ADDRESS NAME COUNT. The group and its topic have that name. They release each tenth record
 * once, and accept all others and what comes back. Prints `begun`, and `ok` once COUNT records are accepted.
 */
public final class ShareConsumer {
    private static final Set<String> ACCEPTED = new TreeSet<>(), RELEASED = new TreeSet<>();

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        int wanted = Integer.parseInt(arguments[2]);
        Map<String, Object> servers = Map.of("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(servers)) {
            admin.createTopics(List.of(new NewTopic(name, 3, (short) 3))).all().get();
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, name);
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(group, List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET)))).all().get();
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(servers, new StringSerializer(), new StringSerializer());
                KafkaShareConsumer<String, String> one = member(arguments[0], name);
                KafkaShareConsumer<String, String> other = member(arguments[0], name)) {
            for (int number = 0; number < wanted; number++)
                producer.send(new ProducerRecord<String, String>(name, number % 3, null, "" + number));
            producer.flush();
            while (ACCEPTED.size() < wanted) {
                take(one);
                take(other);
            }
        }
        System.out.println("ok " + ACCEPTED.size() + " released " + RELEASED.size());
        System.exit(0);
    }

    private static KafkaShareConsumer<String, String> member(String servers, String name) {
        KafkaShareConsumer<String, String> member = new KafkaShareConsumer<>(
            Map.of("bootstrap.servers", servers, "group.id", name, "share.acknowledgement.mode", "explicit", "max.poll.records", 20),
            new StringDeserializer(), new StringDeserializer());
        member.subscribe(List.of(name));
        return member;
    }

    private static void take(KafkaShareConsumer<String, String> member) {
        for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(500))) {
            if (ACCEPTED.isEmpty()) System.out.println("begun");
            boolean release = record.value().endsWith("7") && RELEASED.add(record.value());
            member.acknowledge(record, release ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            if (!release) ACCEPTED.add(record.value());
        }
        for (Optional<KafkaException> refused : member.commitSync().values())
            refused.ifPresent(error -> System.out.println("refused " + error));
    }
}
