import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.StringSerializer;

/** Goes through the plan of a case, and writes the history. The words of a plan: docs/museum.md. */
public final class Plan {
    private static final String TOPIC = "orders";
    private static KafkaProducer<String, String> producer;
    private static String settings;
    private static String identity;
    private static int transaction = -1;

    private static synchronized void tell(String event, String fields) {
        String line = "{\"event\": \"" + event + "\", \"topic\": \"" + TOPIC + "\", " + fields + "}\n";
        try {
            Path history = Path.of(System.getenv("MINIBROKER_HISTORY"));
            Files.writeString(history, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (java.io.IOException failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static void ended(String outcome) {
        tell("end", "\"transaction\": " + transaction + ", \"outcome\": \"" + outcome + "\"");
    }

    private static void open() {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"));
        config.put("linger.ms", "0");
        config.put("enable.idempotence", "true");
        // {"key": "value", …}: no JSON library is needed for that.
        var each = java.util.regex.Pattern.compile("\"([^\"]+)\": \"([^\"]*)\"").matcher(settings);
        while (each.find()) config.put(each.group(1), each.group(2));
        if (identity != null) config.put("transactional.id", identity);
        if (producer != null) producer.close(java.time.Duration.ZERO);
        producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        if (identity != null) producer.initTransactions();
    }

    private static void send(String what, boolean insist) throws Exception {
        String[] parts = what.split("@");
        String value = "\"value\": \"" + parts[0] + "\"";
        int partition = parts.length > 1 ? Integer.parseInt(parts[1]) : 0;
        tell("send", value + (identity == null ? "" : ", \"transaction\": " + transaction));
        while (true) {
            try {
                var sent = producer.send(new ProducerRecord<>(TOPIC, partition, null, parts[0]), (metadata, error) -> {
                    if (error == null) tell("ack", value);
                    else System.out.println(parts[0] + ": " + error);
                });
                if (insist) sent.get();
                return;
            } catch (java.util.concurrent.ExecutionException | org.apache.kafka.common.KafkaException failed) {
                if (!insist) throw failed;
                Thread.sleep(300);
            }
        }
    }

    /** One record in a transaction, on the same producer until it is committed. */
    private static void transact(String value) throws InterruptedException {
        while (true) {
            String name = value + "." + ++transaction;
            try {
                producer.beginTransaction();
                tell("send", "\"value\": \"" + name + "\", \"transaction\": " + transaction);
                producer.send(new ProducerRecord<>(TOPIC, 0, null, name));
                producer.commitTransaction();
                ended("commit");
                return;
            } catch (RuntimeException failed) {
                System.out.println(name + ": " + failed);
            }
            try {
                producer.abortTransaction();
                ended("abort");
            } catch (RuntimeException failed) {
                System.out.println("abort: " + failed);
                Thread.sleep(300);
            }
        }
    }

    private static void step(String word, String what) throws Exception {
        switch (word) {
            case "open" -> { identity = what; open(); }
            case "begin" -> { transaction++; producer.beginTransaction(); }
            case "send", "insist" -> send(what, word.equals("insist"));
            case "transact" -> transact(what);
            case "flush" -> producer.flush();
            case "sleep" -> Thread.sleep((long) (1000 * Double.parseDouble(what)));
            case "commit" -> { producer.commitTransaction(); ended(word); }
            case "abort" -> { producer.abortTransaction(); ended(word); }
            default -> throw new IllegalArgumentException(word);
        }
    }

    /** The rest of a transaction is left out when a step of it fails; it is aborted, or its producer replaced. */
    public static void main(String[] arguments) {
        settings = arguments[0];
        Deque<String> steps = new ArrayDeque<>(List.of(arguments).subList(1, arguments.length));
        while (!steps.isEmpty()) {
            String[] words = steps.removeFirst().split(" ");
            try {
                step(words[0], words.length > 1 ? words[1] : null);
            } catch (Exception error) {
                System.out.println(String.join(" ", words) + ": " + error);
                if (identity == null || words[0].equals("open")) continue;
                try {
                    producer.abortTransaction();
                    ended("abort");
                } catch (RuntimeException failed) {
                    System.out.println("abort: " + failed);
                    open();
                }
                for (String word = words[0]; !word.equals("commit") && !word.equals("abort"); ) word = steps.removeFirst();
            }
        }
        System.exit(0);
    }
}
