import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import minibroker.junit.Fault;
import minibroker.junit.MinibrokerExtension;
import minibroker.junit.StoredRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

/** Handles of rules, records of a topic, the broker as a parameter, one for the class, and a proxy in front of it. */
@ExtendWith(MinibrokerExtension.class)
class HandlesTest {
    private static KafkaProducer<byte[], byte[]> producer(MinibrokerExtension broker) {
        Map<String, Object> config = Map.of("bootstrap.servers", broker.bootstrapServers(), "retry.backoff.ms", 10);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Test
    void whatIsHeldIsSeenAndReleased(MinibrokerExtension broker) throws Exception {
        broker.createTopic("held", 1);
        byte[] binary = {(byte) 0xff, 0, '"'};
        try (Fault held = broker.faults().on("Produce").topic("he*").hold();
                KafkaProducer<byte[], byte[]> producer = producer(broker)) {
            var sent = producer.send(new ProducerRecord<>("held", "a \"key\"\n\u00e9".getBytes("UTF-8"), binary));
            held.await(1);
            assertEquals(1, held.held());
            assertTrue(broker.waits().stream().anyMatch(line -> line.contains("holds 1 request")), broker.waits()::toString);
            assertEquals(List.of(), broker.records("held"));
            assertEquals(1, held.release());
            assertEquals(0, sent.get(30, TimeUnit.SECONDS).offset());
            held.close();
            assertEquals(1, held.fired());
        }
        StoredRecord record = broker.records("held").get(0);
        assertEquals("a \"key\"\n\u00e9", record.keyText());
        assertArrayEquals(binary, record.value());
        assertEquals("held-0@0", record.topic() + "-" + record.partition() + "@" + record.offset());
    }

    @Test
    void aRuleActsInAProxy(MinibrokerExtension broker) throws Exception {
        broker.createTopic("behind", 1);
        try (MinibrokerExtension proxy = MinibrokerExtension.proxy(broker.bootstrapServers())) {
            proxy.start();
            Fault lost = proxy.faults().on("Produce").dropReply();
            try (KafkaProducer<byte[], byte[]> producer = producer(proxy)) {
                producer.send(new ProducerRecord<>("behind", new byte[] {1})).get(30, TimeUnit.SECONDS);
            }
            assertEquals(1, lost.fired());
            assertThrows(IllegalStateException.class, () -> proxy.control("clock.advance", "{\"hours\": 1}"));
        }
        assertEquals(1, broker.records("behind").size());
    }

    @Test
    void anErrorIsAnswered(MinibrokerExtension broker) throws Exception {
        broker.createTopic("errors", 1);
        try (Fault fault = broker.faults().on("Produce").topic("errors").times(1).error("TOPIC_AUTHORIZATION_FAILED");
                KafkaProducer<byte[], byte[]> producer = producer(broker)) {
            var sent = producer.send(new ProducerRecord<>("errors", new byte[] {1}));
            assertThrows(ExecutionException.class, () -> sent.get(30, TimeUnit.SECONDS));
            assertEquals(1, fault.fired());
        }
        assertEquals(0, broker.faults().on("Fetch").always().delay(Duration.ofMillis(1)).fired());
        broker.faults().clear();
        assertThrows(IllegalStateException.class, () -> broker.faults().on("EndTxm").close());
    }
}
