import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The sample of KIP-588 as the text has it, its callback included, for three transactions instead of for ever. Nothing is
 * flushed. Arguments: bootstrap, what the second transaction meets (see tests/support/applications/sample_loop.py), how many runs,
 * one after the other, each with a producer of its own. Prints "paused" and waits for a line where the timeout shall
 * fall, or its transaction must be open; then "lives", or "ends" and on what, for each run.
 */
public final class SampleLoop {
    private static final int TRANSACTIONS = 3;
    private static final int PATIENCE = 20;
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    private final KafkaProducer<String, String> producer;
    private final int run;
    private final String meets;
    private volatile boolean isRunning = true;
    private volatile String why = "";
    private boolean paused = false;

    private SampleLoop(String bootstrap, String meets, int run) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", "x-" + run);
        config.put("transaction.timeout.ms", "60000");
        producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        this.run = run;
        this.meets = meets;
    }

    private void pause(int transaction) throws Exception {
        if (transaction == 1 && !paused) {
            paused = true;
            System.out.println("paused");
            INPUT.readLine();
        }
    }

    private void send(int partition, int transaction, String part) {
        Callback callback = (metadata, exception) -> {
            if (exception instanceof OutOfOrderSequenceException || exception instanceof AuthorizationException) {
                why = exception.getClass().getSimpleName();
                isRunning = false;
            }
        };
        producer.send(new ProducerRecord<>("t", partition, null, run + ":" + transaction + ":" + part), callback);
    }

    private String loop() throws Exception {
        int transaction = 0;
        int aborted = 0;
        producer.initTransactions();
        while (isRunning && transaction < TRANSACTIONS && aborted < PATIENCE) {
            try {
                producer.beginTransaction();
                send(0, transaction, "a");
                pause(transaction);
                if (meets.equals("produce")) {
                    send(0, transaction, "b");
                } else if (meets.equals("partition")) {
                    send(1, transaction, "b");
                } else if (!meets.equals("commit")) {
                    producer.sendOffsetsToTransaction(
                            Map.of(new TopicPartition("t", 0), new OffsetAndMetadata(transaction + 1)),
                            new ConsumerGroupMetadata("g-" + run));
                }
                producer.commitTransaction();
                transaction++;
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
                why = error.getClass().getSimpleName();
                break;
            } catch (KafkaException error) {
                aborted++;
                producer.abortTransaction();
            }
        }
        if (transaction == TRANSACTIONS) {
            return "lives";
        }
        return "ends " + (aborted == PATIENCE ? "making no progress" : why);
    }

    public static void main(String[] arguments) throws Exception {
        for (int run = 0; run < Integer.parseInt(arguments[2]); run++) {
            SampleLoop sample = new SampleLoop(arguments[0], arguments[1], run);
            String verdict;
            try {
                verdict = sample.loop();
            } catch (KafkaException error) {
                verdict = "ends " + error.getClass().getSimpleName() + " out of abortTransaction";
            }
            sample.producer.close(Duration.ofSeconds(5));
            System.out.println(verdict);
        }
        System.exit(0);
    }
}
