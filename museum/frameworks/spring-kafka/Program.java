import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
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
import org.springframework.kafka.transaction.KafkaTransactionManager;

@Configuration
@EnableKafka
public class Program {
    private static final Map<String, String> ENV = System.getenv();

    @Autowired
    private KafkaTemplate<String, String> template;

    public static void main(String[] arguments) {
        new AnnotationConfigApplicationContext(Program.class).registerShutdownHook();
    }

    @KafkaListener(id = "copy", groupId = "#{systemEnvironment['GROUP']}", topics = "#{systemEnvironment['INPUT_TOPIC']}")
    public void copy(ConsumerRecord<String, String> record) {
        template.send(ENV.get("OUTPUT_TOPIC"), record.key(), record.value().toUpperCase());
    }

    @Bean
    public ProducerFactory<String, String> producerFactory() {
        var factory = new DefaultKafkaProducerFactory<String, String>(Map.of(
            "bootstrap.servers", ENV.get("BOOTSTRAP_SERVERS"),
            "key.serializer", StringSerializer.class,
            "value.serializer", StringSerializer.class,
            "request.timeout.ms", 5000));
        factory.setTransactionIdPrefix(ENV.get("GROUP"));
        return factory;
    }

    @Bean
    public KafkaTemplate<String, String> kafkaTemplate(ProducerFactory<String, String> producers) {
        return new KafkaTemplate<>(producers);
    }

    @Bean
    public KafkaTransactionManager<String, String> kafkaTransactionManager(ProducerFactory<String, String> producers) {
        return new KafkaTransactionManager<>(producers);
    }

    @Bean
    public ConsumerFactory<String, String> consumerFactory() {
        return new DefaultKafkaConsumerFactory<>(Map.of(
            "bootstrap.servers", ENV.get("BOOTSTRAP_SERVERS"),
            "key.deserializer", StringDeserializer.class,
            "value.deserializer", StringDeserializer.class,
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed"));
    }

    @Bean
    public ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
            ConsumerFactory<String, String> consumers, KafkaTransactionManager<String, String> transactions) {
        var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
        factory.setConsumerFactory(consumers);
        factory.getContainerProperties().setKafkaAwareTransactionManager(transactions); // EOSMode.V2 is the default
        return factory;
    }
}
