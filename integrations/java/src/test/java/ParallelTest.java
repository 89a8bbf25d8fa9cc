import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import minibroker.junit.Fault;
import minibroker.junit.MinibrokerExtension;
import minibroker.junit.StoredRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/**
 * Two tests at the same time. They share the broker of the static field, so each has a topic, a transactional id and
 * rules of its own; the broker of the other field is that of one test alone, where the names can be the same.
 */
@Execution(ExecutionMode.CONCURRENT)
class ParallelTest {
    @RegisterExtension
    static final MinibrokerExtension shared = new MinibrokerExtension();

    @RegisterExtension
    final MinibrokerExtension own = new MinibrokerExtension("--topic", "orders");

    private static final CyclicBarrier BOTH_RUN = new CyclicBarrier(2);
    private static final Queue<String> OWN = new ConcurrentLinkedQueue<>();

    @Test
    void first() throws Exception {
        commitsOnce("first");
    }

    @Test
    void second() throws Exception {
        commitsOnce("second");
    }

    @AfterAll
    static void eachTestHadABrokerOfItsOwn() {
        assertEquals(2, OWN.size());
        assertNotEquals(OWN.poll(), OWN.poll());
    }

    private void commitsOnce(String name) throws Exception {
        OWN.add(own.bootstrapServers());
        commit(own, "orders", "app", name);
        assertEquals(List.of(name), read(own, "orders"));

        shared.createTopic(name, 1);
        Fault lost = shared.faults().on("EndTxn").transactionalId(name).dropReply();
        BOTH_RUN.await(60, TimeUnit.SECONDS); // both rules are set before either transaction
        commit(shared, name, name, name);
        assertEquals(List.of(name), read(shared, name));
        assertEquals(1, lost.fired());
    }

    private static void commit(MinibrokerExtension broker, String topic, String id, String value) {
        Map<String, Object> config = Map.of("bootstrap.servers", broker.bootstrapServers(), "transactional.id", id);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, value));
            producer.commitTransaction();
        }
    }

    private static List<String> read(MinibrokerExtension broker, String topic) {
        broker.control(
                "read.wait_for_records", "{\"topic\": \"%s\", \"isolation\": \"read_committed\"}".formatted(topic));
        return broker.records(topic).stream().map(StoredRecord::valueText).toList();
    }
}
