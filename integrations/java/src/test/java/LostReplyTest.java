import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.Map;
import minibroker.junit.Fault;
import minibroker.junit.MinibrokerExtension;
import minibroker.junit.StoredRecord;
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
        Fault lost = broker.faults().on("EndTxn").dropReply();
        Map<String, Object> config =
                Map.of("bootstrap.servers", broker.bootstrapServers(), "transactional.id", "app");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("orders", "once"));
            producer.commitTransaction(); // the first answer is lost; the client asks again
        }
        assertEquals(1, lost.fired());
        broker.control("read.wait_for_records", "{\"topic\": \"orders\", \"isolation\": \"read_committed\"}");
        assertEquals(List.of("once"), broker.records("orders").stream().map(StoredRecord::valueText).toList());
    }
}
