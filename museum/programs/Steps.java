import java.util.Scanner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Does the steps that come on standard input, and answers each with a line: docs/reference/museum.md. */
public final class Steps {
    private static KafkaProducer<String, String> producer;

    private static void send(String value, int partition) {
        producer.send(new ProducerRecord<>("orders", partition, null, value), (metadata, error) ->
            System.out.println(error == null ? "ack " + value : "nack " + value + " " + error));
    }

    private static void step(String settings, String[] words) {
        switch (words[0]) {
            case "open" -> producer = Producers.open(producer, settings, words.length > 1 ? words[1] : null);
            case "begin" -> producer.beginTransaction();
            case "send" -> send(words[1], Integer.parseInt(words[2]));
            case "flush" -> producer.flush();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) {
        for (Scanner lines = new Scanner(System.in); lines.hasNextLine();) {
            try {
                step(arguments[0], lines.nextLine().split(" "));
                System.out.println("ok");
            } catch (RuntimeException failed) {
                System.out.println("error " + failed);
            }
        }
        System.exit(0);
    }
}
