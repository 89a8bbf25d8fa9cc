import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Producers of kafka-clients with the settings of a case. */
final class Producers {
    /** {"key": "value", …}: no JSON library is needed for that. */
    private static final Pattern SETTING = Pattern.compile("\"([^\"]+)\": \"([^\"]*)\"");

    /** A new one in place of `before`, transactional with an `identity`. */
    static KafkaProducer<String, String> open(KafkaProducer<String, String> before, String settings, String identity) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"));
        config.put("linger.ms", "0");
        config.put("enable.idempotence", "true");
        if (identity != null) config.put("transactional.id", identity);
        SETTING.matcher(settings).results().forEach(found -> config.put(found.group(1), found.group(2)));
        if (before != null) before.close(Duration.ZERO);
        var made = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        if (identity != null) made.initTransactions();
        return made;
    }
}
