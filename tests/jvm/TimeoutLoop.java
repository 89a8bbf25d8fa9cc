import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The loop of KIP-588 without its callback: abort on any error that is not fatal and send the same records again, each
 * flushed, so that a run tells what every single request met. SampleLoop is the text's own. Arguments: bootstrap, then
 * where it stops once and waits for a line on its input: "produce" before the second record of the second transaction,
 * "end" before its commit, "begin" before it begins. Prints what happened, one event a line.
 */
public final class TimeoutLoop {
    private static final int RECORDS = 6;
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    private static boolean paused = false;

    private static void pause() throws Exception {
        paused = true;
        System.out.println("paused");
        INPUT.readLine();
    }

    public static void main(String[] arguments) throws Exception {
        String place = arguments[1];
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("transactional.id", "x");
        config.put("transaction.timeout.ms", "60000");
        config.put("linger.ms", "0");
        config.put("max.block.ms", "15000");
        config.put("delivery.timeout.ms", "15000");
        config.put("request.timeout.ms", "10000");
        KafkaProducer<String, String> producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        int position = 0;
        int aborted = 0;
        while (position < RECORDS && aborted < 5) {
            try {
                if (position == 2 && !paused && place.equals("begin")) {
                    pause();
                }
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("t", 0, null, Integer.toString(position)));
                producer.flush();
                if (position == 2 && !paused && place.equals("produce")) {
                    pause();
                }
                producer.send(new ProducerRecord<>("t", 0, null, Integer.toString(position + 1)));
                producer.flush();
                if (position == 2 && !paused && place.equals("end")) {
                    pause();
                }
                producer.commitTransaction();
                position += 2;
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
                System.out.println("closed on " + error.getClass().getSimpleName());
                producer.close();
                System.exit(0);
            } catch (KafkaException error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println("aborts on " + cause.getClass().getSimpleName());
                aborted++;
                try {
                    producer.abortTransaction();
                } catch (KafkaException failed) {
                    System.out.println("ends on " + failed.getClass().getSimpleName() + ": " + failed.getMessage());
                    producer.close();
                    System.exit(0);
                }
            }
        }
        producer.close();
        System.out.println("done");
        System.exit(0);
    }
}
