import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import minibroker.junit.MinibrokerExtension;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class LostReplyTest {
    @RegisterExtension
    static final MinibrokerExtension broker = new MinibrokerExtension("--topic", "orders");

    @Test
    void aCommitWhoseAnswerIsLostCommitsOnce() {
        broker.control("fault.add", "{\"api\": \"EndTxn\", \"action\": \"drop_reply\"}");
        Map<String, Object> config =
                Map.of("bootstrap.servers", broker.bootstrapServers(), "transactional.id", "app");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("orders", "once"));
            producer.commitTransaction(); // the first answer is lost; the client asks again
        }
        assertTrue(broker.control("fault.wait", "{\"id\": 1}").contains("\"fired\": 1"));
        String found =
                broker.control("read.wait_for_records", "{\"topic\": \"orders\", \"isolation\": \"read_committed\"}");
        assertEquals(1, found.split("\"value\": \"once\"", -1).length - 1, found);
    }
}
