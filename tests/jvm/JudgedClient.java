import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * An application for `minibroker judge`: idempotent sends, transactions of which every third is aborted, another producer
 * when one fails or is fenced, everything read back with read_committed, and a history of what it believes. JUDGED_TIMEOUT_MS and
 * JUDGED_TOGETHER as in judged_client.py.
 */
public final class JudgedClient {
    private static final String SERVERS = System.getenv("BOOTSTRAP_SERVERS");
    private static final Path HISTORY = Path.of(System.getenv("MINIBROKER_HISTORY"));
    private static final String TOPIC = "orders";
    private static final int TIMEOUT_MS = Integer.parseInt(System.getenv().getOrDefault("JUDGED_TIMEOUT_MS", "0"));
    private static final boolean TOGETHER = "1".equals(System.getenv("JUDGED_TOGETHER"));
    private static final int SENDS = TOGETHER ? 20 : 5;
    private static final int TRANSACTIONS = 6;
    private static final int IN_ONE = TOGETHER ? 6 : 2;
    private static final int DELIVERIES = 5;
    private static final String RESTARTS = System.getenv().getOrDefault("MINIBROKER_RESTARTS", "0");
    private static final String AGAIN = RESTARTS.equals("0") ? "" : "again" + RESTARTS + "-";

    private static synchronized void tell(String event, String fields) {
        String line = "{\"event\": \"" + event + "\", \"topic\": \"" + TOPIC + "\", \"client\": \"run " + RESTARTS + "\", " + fields + "}\n";
        try {
            Files.writeString(HISTORY, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static String value(String text) {
        return "\"value\": \"" + text + "\"";
    }

    private static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", SERVERS);
        config.put("linger.ms", "0");
        if (TIMEOUT_MS > 0) {
            config.put("request.timeout.ms", TIMEOUT_MS);
            config.put("delivery.timeout.ms", TIMEOUT_MS * DELIVERIES);
        }
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private static KafkaProducer<String, String> transactional() {
        KafkaProducer<String, String> made = producer(Map.of("transactional.id", "tx"));
        made.initTransactions();
        return made;
    }

    private static void idempotentSends() throws InterruptedException {
        KafkaProducer<String, String> plain = producer(Map.of("enable.idempotence", "true"));
        Map<String, Future<RecordMetadata>> sent = new LinkedHashMap<>();
        for (int number = 0; number < SENDS; number++) {
            String text = AGAIN + "i" + number;
            tell("send", value(text));
            sent.put(text, plain.send(new ProducerRecord<>(TOPIC, 0, null, text)));
            Thread.sleep(1);
            if ((!TOGETHER || number == SENDS - 1) && !allWritten(sent) && TIMEOUT_MS == 0) {
                plain.close(Duration.ZERO);
                plain = producer(Map.of("enable.idempotence", "true"));
            }
        }
        plain.close();
    }

    private static boolean allWritten(Map<String, Future<RecordMetadata>> sent) throws InterruptedException {
        boolean all = true;
        for (Map.Entry<String, Future<RecordMetadata>> one : sent.entrySet()) {
            try {
                one.getValue().get();
                tell("ack", value(one.getKey()));
            } catch (ExecutionException failed) {
                System.out.println(one.getKey() + ": " + failed);
                all = false;
            }
        }
        sent.clear();
        return all;
    }

    private static void transactions() throws Exception {
        KafkaProducer<String, String> sender = transactional();
        for (int transaction = 0; transaction < TRANSACTIONS; transaction++) {
            int own = transaction;
            boolean committing = false;
            List<String> values = IntStream.range(0, IN_ONE).mapToObj(n -> AGAIN + "t" + own + "-" + n).toList();
            try {
                sender.beginTransaction();
                for (String text : values) {
                    tell("send", value(text) + ", \"transaction\": " + transaction);
                    sender.send(new ProducerRecord<>(TOPIC, 0, null, text), (sent, failure) -> {
                        if (failure == null) {
                            tell("ack", value(text));
                        }
                    });
                }
                if (!TOGETHER) {
                    sender.flush();
                }
                boolean abort = transaction % 3 == 2;
                if (abort) {
                    sender.abortTransaction();
                } else {
                    committing = true;
                    sender.commitTransaction();
                }
                tell("end", "\"transaction\": " + transaction + ", \"outcome\": \"" + (abort ? "abort" : "commit") + "\"");
            } catch (KafkaException fenced) {
                System.out.println("transaction " + transaction + ": " + fenced);
                if (!committing) { // nothing asked for its commit
                    tell("end", "\"transaction\": " + transaction + ", \"outcome\": \"abort\"");
                }
                if (!TOGETHER || !aborted(sender, transaction)) {
                    sender.close(Duration.ZERO);
                    sender = transactional();
                }
            }
        }
        sender.close();
    }

    private static boolean aborted(KafkaProducer<String, String> sender, int transaction) {
        try {
            sender.abortTransaction();
        } catch (KafkaException | IllegalStateException impossible) {
            return false;
        }
        tell("end", "\"transaction\": " + transaction + ", \"outcome\": \"abort\"");
        return true;
    }

    private static void readBack() {
        Map<String, Object> config = Map.of("bootstrap.servers", SERVERS, "isolation.level", "read_committed");
        TopicPartition partition = new TopicPartition(TOPIC, 0);
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            reader.assign(List.of(partition));
            reader.seekToBeginning(List.of(partition));
            long end = reader.endOffsets(List.of(partition)).get(partition);
            while (reader.position(partition) < end) {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(200))) {
                    tell("read", value(record.value()) + ", \"partition\": 0, \"offset\": " + record.offset());
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        idempotentSends();
        transactions();
        readBack();
        System.exit(0);
    }
}
