import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The loop of tests/support/applications/loop_client.py with Kafka's Java client, for `minibroker judge`: consumes `in`,
 * produces to `out`, commits its offsets. The argument names the mistake in it; `right` has none.
 */
public final class LoopClient {
    private static final int INPUTS = 6;
    private static final String IN_ONE = "2";
    private static final int TRIES = 5;
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    /** Of requests that no script leaves without an answer, in ms: a machine may be busy. */
    private static final String PATIENT = "10000";
    private static final TopicPartition INPUT = new TopicPartition("in", 0);

    private final String mistake;
    private final KafkaConsumer<String, String> consumer;
    private KafkaProducer<String, String> producer;
    private int names = 0;

    private LoopClient(String mistake) {
        this.mistake = mistake;
        Properties config = common();
        config.put("group.id", "loop");
        config.put("isolation.level", "read_committed");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("max.poll.records", IN_ONE);
        config.put("session.timeout.ms", "6000");
        consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    private static Properties common() {
        Properties config = new Properties();
        config.put("bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"));
        config.put("request.timeout.ms", PATIENT);
        config.put("retry.backoff.ms", "50");
        return config;
    }

    private static KafkaProducer<String, String> producer(Map<String, ?> more) {
        Properties config = common();
        config.put("delivery.timeout.ms", "12000");
        config.putAll(more);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    /** The whole input in one Produce, so that the script's failures of Produce are left to the loop. */
    private void fill() {
        if (consumer.endOffsets(List.of(INPUT), PATIENCE).get(INPUT) > 0) {
            return;
        }
        try (KafkaProducer<String, String> feeder = producer(Map.of("linger.ms", "200", "enable.idempotence", "true"))) {
            for (int number = 0; number < INPUTS; number++) {
                feeder.send(new ProducerRecord<>("in", 0, null, "v" + number));
            }
        }
    }

    private KafkaProducer<String, String> opened(String name) {
        if (mistake.equals("delivery_unseen")) {
            return producer(Map.of("linger.ms", "0"));
        }
        boolean once = mistake.equals("new_id");
        KafkaProducer<String, String> opened = producer(Map.of(
                "transactional.id", name, "max.block.ms", once ? "700" : "8000", "transaction.timeout.ms", "20000",
                "request.timeout.ms", "1500"));
        for (int tries = 1; ; tries++) {
            try {
                opened.initTransactions();
                return opened;
            } catch (TimeoutException error) {
                if (tries == TRIES) {
                    throw error;
                }
            }
        }
    }

    private void run() {
        fill();
        producer = opened("loop");
        consumer.subscribe(List.of("in"));
        for (long next = 0; next < INPUTS; ) {
            List<ConsumerRecord<String, String>> batch = new ArrayList<>();
            consumer.poll(Duration.ofMillis(200)).forEach(batch::add);
            if (!batch.isEmpty()) {
                transact(batch, Map.of(INPUT, new OffsetAndMetadata(batch.get(batch.size() - 1).offset() + 1)));
            }
            next = consumer.assignment().isEmpty() ? 0 : consumer.position(INPUT);
        }
        consumer.close();
        producer.close();
    }

    private void transact(List<ConsumerRecord<String, String>> batch, Map<TopicPartition, OffsetAndMetadata> offsets) {
        if (mistake.equals("delivery_unseen")) {
            batch.forEach(record -> producer.send(new ProducerRecord<>("out", record.value())));
            producer.flush();
            consumer.commitSync(offsets);
            return;
        }
        try {
            producer.beginTransaction();
            batch.forEach(record -> producer.send(new ProducerRecord<>("out", record.value())));
            if (!mistake.equals("offsets_outside")) {
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            }
            commit();
            if (mistake.equals("offsets_outside")) {
                consumer.commitSync(offsets);
            }
        } catch (KafkaException error) {
            System.err.println(error);
            failed(batch, offsets, error);
        }
    }

    /** Commit; a timeout says nothing about the outcome, so it is asked for again. */
    private void commit() {
        for (int tries = 1; ; tries++) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                if (tries == TRIES || mistake.equals("new_id")) {
                    throw error;
                }
            }
        }
    }

    private void failed(
            List<ConsumerRecord<String, String>> batch,
            Map<TopicPartition, OffsetAndMetadata> offsets,
            KafkaException error) {
        if (mistake.equals("new_id") && error instanceof TimeoutException) {
            producer.close(Duration.ZERO);
            producer = opened("loop-" + ProcessHandle.current().pid() + "-" + ++names);
            transact(batch, offsets);
            return;
        }
        if (mistake.equals("swallowed")) {
            reopen();
            consumer.commitSync(offsets);
            return;
        }
        try {
            producer.abortTransaction();
        } catch (KafkaException fatal) {
            reopen();
        }
        goBack();
    }

    private void reopen() {
        producer.close(Duration.ZERO);
        producer = opened("loop");
    }

    /** To what the group has committed: a commit whose outcome nobody told may have succeeded. */
    private void goBack() {
        OffsetAndMetadata committed = consumer.committed(Set.of(INPUT)).get(INPUT);
        consumer.seek(INPUT, committed == null ? 0 : committed.offset());
    }

    public static void main(String[] arguments) {
        new LoopClient(arguments[0]).run();
        System.exit(0);
    }
}
