import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import minibroker.junit.Fault;
import minibroker.junit.MinibrokerExtension;
import minibroker.junit.StoredRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.ConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.requestreply.ReplyingKafkaTemplate;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.messaging.handler.annotation.SendTo;
import org.springframework.test.annotation.DirtiesContext;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.test.context.junit.jupiter.SpringJUnitConfig;
import org.springframework.util.backoff.FixedBackOff;

/** Spring Kafka: a transaction of a template, of a listener, and a request with a reply. One broker for the class. */
@SpringJUnitConfig
@DirtiesContext // the context ends with the class: its listeners must not outlive the broker
class SpringTest {
    @RegisterExtension
    static final MinibrokerExtension broker = new MinibrokerExtension(
            "--topic", "orders", "--topic", "in", "--topic", "out", "--topic", "questions", "--topic", "replies");

    @DynamicPropertySource
    static void address(DynamicPropertyRegistry properties) {
        properties.add("spring.kafka.bootstrap-servers", broker::bootstrapServers);
    }

    @Autowired KafkaTemplate<String, String> transactional;
    @Autowired ReplyingKafkaTemplate<String, String, String> asking;
    @Autowired Listeners listeners;

    @Test
    void executeInTransactionCommitsOnceThoughTheAnswerIsLost() {
        try (Fault lost = broker.faults().on("EndTxn").transactionalId("template-*").dropReply()) {
            transactional.executeInTransaction(orders -> orders.send("orders", "once"));
            assertEquals(1, lost.fired());
        }
        assertThrows(IllegalStateException.class, () -> transactional.executeInTransaction(orders -> {
            orders.send("orders", "never");
            throw new IllegalStateException("the work failed");
        }));
        assertEquals(List.of("once"), read("orders", 1));
    }

    @Test
    void aListenerThatFailsProcessesItsRecordOnce() {
        transactional.executeInTransaction(records -> records.send("in", "a"));
        assertEquals(List.of("A"), read("out", 1));
        assertEquals(2, listeners.tries.get());
        broker.control("read.wait_for_committed", "{\"group\": \"upper\", \"topic\": \"in\", \"offset\": 1}");
    }

    @Test
    void aReplyArrivesThoughItsFirstBatchIsRefused() throws Exception {
        asking.waitForAssignment(Duration.ofSeconds(30));
        Fault refused = broker.faults().on("Produce").topic("replies").error("NOT_ENOUGH_REPLICAS");
        String reply = asking.sendAndReceive(new ProducerRecord<>("questions", "how many?"))
                .get(30, TimeUnit.SECONDS)
                .value();
        assertEquals("42", reply);
        assertEquals(1, refused.fired());
    }

    private static List<String> read(String topic, int count) {
        String wanted = "{\"topic\": \"%s\", \"count\": %d, \"isolation\": \"read_committed\", \"timeout_ms\": 30000}";
        broker.control("read.wait_for_records", wanted.formatted(topic, count));
        return broker.records(topic).stream().map(StoredRecord::valueText).toList();
    }

    static class Listeners {
        final AtomicInteger tries = new AtomicInteger();

        @KafkaListener(topics = "in", groupId = "upper", containerFactory = "transactions")
        @SendTo("out")
        String upper(String value) {
            if (tries.incrementAndGet() == 1) {
                throw new IllegalStateException("the first time it fails");
            }
            return value.toUpperCase();
        }

        @KafkaListener(topics = "questions", groupId = "answering", containerFactory = "plain")
        @SendTo
        String answer(String question) {
            return "42";
        }
    }

    @Configuration
    @EnableKafka
    static class Application {
        private final String servers = broker.bootstrapServers();

        @Bean
        Listeners listeners() {
            return new Listeners();
        }

        @Bean
        DefaultKafkaProducerFactory<String, String> transactionalProducers() {
            DefaultKafkaProducerFactory<String, String> factory = producers();
            factory.setTransactionIdPrefix("template-");
            return factory;
        }

        @Bean
        DefaultKafkaProducerFactory<String, String> plainProducers() {
            return producers();
        }

        @Bean
        ConsumerFactory<String, String> consumers() {
            return new DefaultKafkaConsumerFactory<>(
                    Map.of(
                            "bootstrap.servers", servers,
                            "auto.offset.reset", "earliest",
                            "isolation.level", "read_committed"),
                    new StringDeserializer(),
                    new StringDeserializer());
        }

        @Bean
        KafkaTemplate<String, String> transactional(ProducerFactory<String, String> transactionalProducers) {
            return new KafkaTemplate<>(transactionalProducers);
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<String, String> transactions(
                ConsumerFactory<String, String> consumers,
                ProducerFactory<String, String> transactionalProducers,
                KafkaTemplate<String, String> transactional) {
            ConcurrentKafkaListenerContainerFactory<String, String> factory = containers(consumers, transactional);
            factory.getContainerProperties().setKafkaAwareTransactionManager(
                    new KafkaTransactionManager<>(transactionalProducers));
            factory.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(new FixedBackOff(0, 3)));
            return factory;
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<String, String> plain(
                ConsumerFactory<String, String> consumers, ProducerFactory<String, String> plainProducers) {
            return containers(consumers, new KafkaTemplate<>(plainProducers));
        }

        @Bean
        ReplyingKafkaTemplate<String, String, String> asking(
                ProducerFactory<String, String> plainProducers,
                ConcurrentKafkaListenerContainerFactory<String, String> plain) {
            ConcurrentMessageListenerContainer<String, String> replies = plain.createContainer("replies");
            replies.getContainerProperties().setGroupId("asking");
            return new ReplyingKafkaTemplate<>(plainProducers, replies);
        }

        private DefaultKafkaProducerFactory<String, String> producers() {
            return new DefaultKafkaProducerFactory<>(
                    Map.of("bootstrap.servers", servers), new StringSerializer(), new StringSerializer());
        }

        private static ConcurrentKafkaListenerContainerFactory<String, String> containers(
                ConsumerFactory<String, String> consumers, KafkaTemplate<String, String> replies) {
            var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
            factory.setConsumerFactory(consumers);
            factory.setReplyTemplate(replies);
            return factory;
        }
    }
}
