import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes `total` numbers to "input" with an idempotent producer and copies them to "output" in transactions, while the
 * brokers come and go. Prints COPYING once the first transaction is committed and DONE in the end.
 */
public final class ExactlyOnceLoop {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        int total = Integer.parseInt(arguments[1]);
        Thread feeder = new Thread(() -> feed(bootstrap, total));
        feeder.start();
        copy(bootstrap, total);
        feeder.join();
        end(bootstrap);
        System.out.println("DONE");
    }

    private static void feed(String bootstrap, int total) {
        Properties config = common(bootstrap);
        config.put("enable.idempotence", "true");
        config.put("acks", "all");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < total; number++) {
                producer.send(new ProducerRecord<>("input", null, Integer.toString(number)), (metadata, error) -> {
                    if (error != null) {
                        error.printStackTrace();
                        System.exit(2);
                    }
                });
                Thread.sleep(5);
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** What a reader of the output stops at. */
    private static void end(String bootstrap) {
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(common(bootstrap), new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("output", null, "end"));
        }
    }

    private static void copy(String bootstrap, int total) {
        Properties reading = common(bootstrap);
        reading.put("group.id", "copiers");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        Properties writing = common(bootstrap);
        writing.put("transactional.id", "copier");
        int copied = 0;
        try (KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
                KafkaProducer<String, String> producer =
                        new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of("input"));
            while (copied < total) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                try {
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    for (ConsumerRecord<String, String> record : records) {
                        producer.send(new ProducerRecord<>("output", null, record.value()));
                        offsets.put(
                                new TopicPartition(record.topic(), record.partition()),
                                new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    producer.commitTransaction();
                    if (copied == 0) {
                        System.out.println("COPYING");
                    }
                    copied += records.count();
                } catch (ProducerFencedException error) {
                    throw error;
                } catch (KafkaException error) {
                    System.err.println("aborting: " + error);
                    producer.abortTransaction();
                    rewind(consumer);
                }
            }
        }
    }

    /** What was read and not committed is read again. */
    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            consumer.seek(partition, offset == null ? 0 : offset.offset());
        }
    }

    private static Properties common(String bootstrap) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("retry.backoff.ms", "20");
        config.put("reconnect.backoff.ms", "20");
        config.put("reconnect.backoff.max.ms", "100");
        config.put("metadata.max.age.ms", "1000");
        return config;
    }

    private ExactlyOnceLoop() {}
}
