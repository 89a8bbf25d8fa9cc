import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams with exactly_once_v2 against the broker named by the first argument, with state under the second: the
 * six situations of Kafka's EosIntegrationTest. One line `ok NAME` or `FAIL NAME: why` a check. Records are (partition,
 * 0, 1, 2 …), of which each must come out once, in order, to whoever reads only what is committed.
 */
public final class StreamsChecks {
    interface Check {
        void run() throws Exception;
    }

    private static final Duration WAIT = Duration.ofSeconds(60);
    private static final int TEN = 10;
    private static final String SUMS = "sums";

    public static void main(String[] arguments) {
        run("one_partition", () -> new StreamsChecks(arguments).runs(1, false));
        run("several_partitions_and_two_subtopologies", () -> new StreamsChecks(arguments).runs(2, true));
        run("restart_after_close", () -> new StreamsChecks(arguments).restarts());
        run("a_task_fails", () -> new StreamsChecks(arguments).fails(false));
        run("a_task_with_state_fails", () -> new StreamsChecks(arguments).fails(true));
        run("a_stalled_instance_is_fenced", () -> new StreamsChecks(arguments).stalls());
        System.exit(0);
    }

    private static void run(String name, Check check) {
        try {
            check.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("FAIL " + name + ": " + String.valueOf(error).replace('\n', ' '));
            error.printStackTrace();
        }
        System.out.flush();
    }

    private final String bootstrap;
    private final Path directory;
    private final String name = "streams-" + UUID.randomUUID().toString().substring(0, 8);
    private final String in = name + "-in";
    private final String out = name + "-out";
    private int partitions;
    /** Value whose record ends a transaction, by request; others wait for the commit interval. */
    private volatile long commitAt = -1;
    private final AtomicBoolean failing = new AtomicBoolean();
    private final AtomicReference<CountDownLatch> stall = new AtomicReference<>();
    private final CountDownLatch stalled = new CountDownLatch(1);

    private StreamsChecks(String[] arguments) {
        bootstrap = arguments[0];
        directory = Path.of(arguments[1]);
    }

    // -- the six ---------------------------------------------------------------------------------------------------

    private void runs(int count, boolean twice) throws Exception {
        topics(count);
        try (KafkaStreams app = start("a", builder -> {
            var stream = builder.<Long, Long>stream(in);
            (twice ? stream.repartition(Repartitioned.numberOfPartitions(count)) : stream).to(out);
        }, 100)) {
            for (int part = 0; part < 3; part++) {
                produce(part * TEN, (part + 1) * TEN);
                committed((part + 1) * TEN);
            }
        }
    }

    private void restarts() throws Exception {
        topics(1);
        for (int part = 0; part < 3; part++) {
            try (KafkaStreams app = start("a", builder -> builder.<Long, Long>stream(in).to(out), 100)) {
                produce(part * TEN, (part + 1) * TEN);
                committed((part + 1) * TEN);
            }
        }
    }

    /** Ten are committed, five are written and not, then a task fails. Those five are written anew. */
    private void fails(boolean withState) throws Exception {
        topics(1);
        commitAt = TEN - 1;
        try (KafkaStreams app = start("a", builder -> processing(builder, withState), 60_000)) {
            produce(0, TEN);
            committed(TEN, withState);
            produce(TEN, TEN + 5);
            until(() -> read("read_uncommitted").size() >= TEN + 5, "five are written");
            expect(read("read_committed").size() == TEN, "they are not committed");
            failing.set(true);
            commitAt = 2 * TEN - 1;
            produce(TEN + 5, 2 * TEN);
            committed(2 * TEN, withState);
            expect(!failing.get(), "the task failed");
            expect(read("read_uncommitted").size() >= 2 * TEN + 5, "what was written before it failed was aborted");
        }
        if (withState) {
            long sum = LongStream.range(0, 2 * TEN).sum();
            var changes = read(name + "-" + SUMS + "-changelog", "read_committed");
            expect(changes.get(changes.size() - 1).value() == sum, "the store's last change is " + sum);
        }
    }

    /** An instance that does not poll in time is taken its partition, and what it wrote never counts. */
    private void stalls() throws Exception {
        topics(2);
        commitAt = TEN - 1;
        try (KafkaStreams first = start("a", builder -> processing(builder, false), 60_000);
            KafkaStreams second = start("b", builder -> processing(builder, false), 60_000)) {
            until(() -> tasks(first) == 1 && tasks(second) == 1, "each has a partition");
            produce(0, TEN);
            committed(TEN);
            produce(TEN, TEN + 5);
            until(() -> read("read_uncommitted").size() >= 2 * (TEN + 5), "five of each are written");
            var held = new CountDownLatch(1);
            stall.set(held);
            produce(TEN + 5, TEN + 6);
            stalled.await();
            commitAt = 2 * TEN - 1;
            until(() -> Math.max(tasks(first), tasks(second)) == 2, "the other one has both");
            held.countDown();
            produce(TEN + 6, 2 * TEN);
            committed(2 * TEN);
            expect(read("read_uncommitted").size() > 2 * 2 * TEN, "what the stalled one wrote was aborted");
        }
    }

    // -- the program -----------------------------------------------------------------------------------------------

    private void processing(StreamsBuilder builder, boolean withState) {
        if (withState) {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(SUMS), Serdes.Long(), Serdes.Long()));
        }
        String[] stores = withState ? new String[] {SUMS} : new String[0];
        builder.<Long, Long>stream(in).process(() -> new Step(withState), stores).to(out);
    }

    /** Passes records on, or their sums; fails once, or stalls once, when it is told to. */
    private final class Step implements Processor<Long, Long, Long, Long> {
        private final boolean withState;
        private ProcessorContext<Long, Long> context;
        private KeyValueStore<Long, Long> sums;

        Step(boolean withState) {
            this.withState = withState;
        }

        @Override
        public void init(ProcessorContext<Long, Long> context) {
            this.context = context;
            sums = withState ? context.getStateStore(SUMS) : null;
        }

        @Override
        public void process(Record<Long, Long> record) {
            if (failing.compareAndSet(true, false)) {
                throw new IllegalStateException("told to fail");
            }
            CountDownLatch held = stall.getAndSet(null);
            if (held != null) {
                stalled.countDown();
                try {
                    held.await();
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            }
            long value = record.value();
            if (sums != null) {
                Long before = sums.get(record.key());
                value += before == null ? 0 : before;
                sums.put(record.key(), value);
            }
            context.forward(record.withValue(value));
            if (record.value() == commitAt) {
                context.commit();
            }
        }
    }

    private KafkaStreams start(String instance, java.util.function.Consumer<StreamsBuilder> topology, int commitMs) {
        StreamsBuilder builder = new StreamsBuilder();
        topology.accept(builder);
        Properties config = new Properties();
        config.putAll(Map.of(
            "application.id", name, "bootstrap.servers", bootstrap, "processing.guarantee", "exactly_once_v2",
            "commit.interval.ms", commitMs, "state.dir", directory.resolve(name + instance).toString(),
            "default.key.serde", Serdes.LongSerde.class.getName(), "default.value.serde",
            Serdes.LongSerde.class.getName(), "replication.factor", 1, "statestore.cache.max.bytes", 0));
        config.put("max.poll.interval.ms", 5000);
        config.put("session.timeout.ms", 6000);
        config.put("heartbeat.interval.ms", 500);
        config.put("metadata.max.age.ms", 1000);
        config.put("auto.offset.reset", "earliest");
        config.put("producer.transaction.timeout.ms", 60_000);
        KafkaStreams app = new KafkaStreams(builder.build(), config);
        app.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        app.start();
        return app;
    }

    private static int tasks(KafkaStreams app) {
        return app.metadataForLocalThreads().stream().mapToInt(thread -> thread.activeTasks().size()).sum();
    }

    // -- the topics ------------------------------------------------------------------------------------------------

    private void topics(int count) throws Exception {
        partitions = count;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(in, count, (short) 1), new NewTopic(out, count, (short) 1)))
                .all().get();
        }
    }

    private void produce(long from, long to) throws Exception {
        try (KafkaProducer<Long, Long> producer = new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap), new LongSerializer(), new LongSerializer())) {
            for (long value = from; value < to; value++) {
                for (int partition = 0; partition < partitions; partition++) {
                    producer.send(new ProducerRecord<>(in, partition, (long) partition, value)).get();
                }
            }
        }
    }

    private void committed(int count) {
        committed(count, false);
    }

    /** Waits until everything is committed; then each value below `count` is there once for each key, in order. */
    private void committed(int count, boolean sums) {
        until(() -> read("read_committed").size() >= count * partitions, count + " of each are committed");
        List<Long> expected = LongStream.range(0, count).map(n -> sums ? n * (n + 1) / 2 : n).boxed().toList();
        Map<Long, List<Long>> found = read("read_committed").stream().collect(Collectors.groupingBy(
            ConsumerRecord::key, HashMap::new, Collectors.mapping(ConsumerRecord::value, Collectors.toList())));
        expect(found.size() == partitions && found.values().stream().allMatch(expected::equals), "each once: " + found);
    }

    private List<ConsumerRecord<Long, Long>> read(String isolation) {
        return read(out, isolation);
    }

    private List<ConsumerRecord<Long, Long>> read(String topic, String isolation) {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", bootstrap, "isolation.level", isolation, "auto.offset.reset", "earliest");
        try (KafkaConsumer<Long, Long> consumer =
            new KafkaConsumer<>(config, new LongDeserializer(), new LongDeserializer())) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition())).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            List<ConsumerRecord<Long, Long>> found = new ArrayList<>();
            while (all.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            }
            return found;
        }
    }

    private static void until(BooleanSupplier condition, String what) {
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (!condition.getAsBoolean()) {
            expect(System.nanoTime() < deadline, "in time: " + what);
            try {
                Thread.sleep(100);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static void expect(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError("expected: " + what);
        }
    }
}
