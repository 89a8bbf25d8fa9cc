import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import reactor.core.publisher.Mono;
import reactor.kafka.receiver.KafkaReceiver;
import reactor.kafka.receiver.ReceiverOptions;
import reactor.kafka.sender.KafkaSender;
import reactor.kafka.sender.SenderOptions;
import reactor.kafka.sender.SenderRecord;
import reactor.kafka.sender.SenderResult;
import reactor.kafka.sender.TransactionManager;

public final class Program {
    public static void main(String[] arguments) {
        Map<String, String> env = System.getenv();
        KafkaSender<String, String> sender = KafkaSender.create(SenderOptions.create(Map.of(
            "bootstrap.servers", env.get("BOOTSTRAP_SERVERS"),
            "transactional.id", env.get("GROUP"),
            "key.serializer", StringSerializer.class,
            "value.serializer", StringSerializer.class,
            "request.timeout.ms", 5000)));
        ReceiverOptions<String, String> receiving = ReceiverOptions.<String, String>create(Map.of(
            "bootstrap.servers", env.get("BOOTSTRAP_SERVERS"),
            "group.id", env.get("GROUP"),
            "key.deserializer", StringDeserializer.class,
            "value.deserializer", StringDeserializer.class,
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed")).subscription(List.of(env.get("INPUT_TOPIC")));
        TransactionManager transactions = sender.transactionManager();
        KafkaReceiver.create(receiving)
            .receiveExactlyOnce(transactions)
            .concatMap(batch -> sender.send(batch.map(record -> SenderRecord.create(
                    new ProducerRecord<>(env.get("OUTPUT_TOPIC"), record.key(), record.value().toUpperCase()), record.offset())))
                .concatWith(transactions.<SenderResult<Long>>commit()))
            .onErrorResume(error -> transactions.<SenderResult<Long>>abort().then(Mono.error(error)))
            .doFinally(signal -> sender.close())
            .subscribe(
                result -> { },
                error -> {
                    System.err.println(error);
                    Runtime.getRuntime().halt(1);
                });
    }
}
