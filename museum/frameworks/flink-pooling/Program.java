import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Map;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

public final class Program {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> env = System.getenv();
        System.setProperty("java.io.tmpdir", env.get("STATE_DIR")); // it is removed after a kill too
        Path checkpoints = Path.of(env.get("STATE_DIR"), "checkpoints");
        Configuration config = new Configuration();
        config.setString("execution.checkpointing.interval", "200 ms");
        config.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        config.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        newest(checkpoints).ifPresent(path -> config.setString("execution.state-recovery.path", path.toUri().toString()));
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(1, config);

        KafkaSource<Tuple2<String, String>> source = KafkaSource.<Tuple2<String, String>>builder()
            .setBootstrapServers(env.get("BOOTSTRAP_SERVERS"))
            .setGroupId(env.get("GROUP"))
            .setTopics(env.get("INPUT_TOPIC"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("isolation.level", "read_committed")
            .setDeserializer(new Pairs())
            .build();
        KafkaRecordSerializationSchema<Tuple2<String, String>> records =
            KafkaRecordSerializationSchema.<Tuple2<String, String>>builder()
                .setTopic(env.get("OUTPUT_TOPIC"))
                .setKeySerializationSchema(new Key())
                .setValueSerializationSchema(new Value())
                .build();
        KafkaSink<Tuple2<String, String>> sink = KafkaSink.<Tuple2<String, String>>builder()
            .setBootstrapServers(env.get("BOOTSTRAP_SERVERS"))
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(env.get("GROUP"))
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(env.get("NAMING_STRATEGY")))
            .setProperty("transaction.timeout.ms", "120000")
            .setProperty("request.timeout.ms", "5000")
            .setRecordSerializer(records)
            .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "input").sinkTo(sink);
        flink.execute();
    }

    /** The newest whole checkpoint of a run before this one. */
    private static Optional<Path> newest(Path checkpoints) throws IOException {
        if (!Files.exists(checkpoints)) return Optional.empty();
        try (var files = Files.walk(checkpoints)) {
            return files.filter(path -> path.endsWith("_metadata"))
                .max(Comparator.comparingLong(path -> path.toFile().lastModified()))
                .map(Path::getParent);
        }
    }

    private static final class Pairs implements KafkaRecordDeserializationSchema<Tuple2<String, String>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, String>> out) {
            out.collect(Tuple2.of(new String(record.key()), new String(record.value())));
        }

        @Override
        public TypeInformation<Tuple2<String, String>> getProducedType() {
            return Types.TUPLE(Types.STRING, Types.STRING);
        }
    }

    private static final class Key implements SerializationSchema<Tuple2<String, String>> {
        @Override
        public byte[] serialize(Tuple2<String, String> pair) {
            return pair.f0.getBytes(StandardCharsets.UTF_8);
        }
    }

    private static final class Value implements SerializationSchema<Tuple2<String, String>> {
        @Override
        public byte[] serialize(Tuple2<String, String> pair) {
            return pair.f1.toUpperCase().getBytes(StandardCharsets.UTF_8);
        }
    }
}
