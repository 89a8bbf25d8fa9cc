import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own Java client against the broker named by the first argument; one line `ok NAME`, `FAIL NAME: why` or `SKIP NAME: why` a check. */
public final class ClientChecks {
    /** What a check needs is not part of what this broker says it serves. */
    static final class NotServed extends Exception {
        NotServed(String why) {
            super(why);
        }
    }

    interface Check {
        void run() throws Exception;
    }

    private static final Duration WAIT = Duration.ofSeconds(30);
    private final String bootstrap;
    private final Admin admin;

    private ClientChecks(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) {
        ClientChecks checks = new ClientChecks(arguments[0]);
        run("idempotent_produce", checks::idempotentProduce);
        run("commit_and_abort", checks::commitAndAbort);
        run("open_transaction_holds_readers_back", checks::openTransaction);
        run("offsets_in_transaction", checks::offsetsInTransaction);
        run("stale_generation_is_fenced", checks::staleGeneration);
        run("second_producer_fences_first", checks::fencing);
        run("admin_fences_producer", checks::adminFencing);
        run("transactions_are_described", checks::describeTransactions);
        run("group_rebalances_classic", () -> checks.groupRebalances("classic"));
        run("group_rebalances_consumer", checks::consumerProtocol);
        run("topics_created_listed_deleted", checks::topics);
        run("timestamps_and_deleted_records", checks::offsets);
        run("compression", checks::compression);
        checks.admin.close(WAIT);
        System.exit(0);
    }

    private static void run(String name, Check check) {
        try {
            check.run();
            System.out.println("ok " + name);
        } catch (NotServed reason) {
            System.out.println("SKIP " + name + ": " + reason.getMessage());
        } catch (Throwable wrong) {
            System.out.println("FAIL " + name + ": " + wrong.toString().replace('\n', ' '));
            wrong.printStackTrace();
        }
    }

    private void idempotentProduce() throws Exception {
        String topic = topic(1);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer(Map.of("batch.size", 300))) {
            for (int number = 0; number < 500; number++) sent.add(producer.send(record(topic, "" + number)));
        }
        for (int number = 0; number < 500; number++) equal((long) number, sent.get(number).get().offset(), "offset");
        equal(numbers(500), values(topic, "read_committed"), "values");
    }

    private void commitAndAbort() throws Exception {
        String topic = topic(1);
        try (KafkaProducer<String, String> producer = transactional(name("tx"))) {
            for (String word : List.of("kept", "dropped", "kept too")) {
                producer.beginTransaction();
                producer.send(record(topic, word)).get();
                if (word.equals("dropped")) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
        equal(List.of("kept", "kept too"), values(topic, "read_committed"), "committed");
        equal(List.of("kept", "dropped", "kept too"), values(topic, "read_uncommitted"), "uncommitted");
    }

    private void openTransaction() throws Exception {
        String topic = topic(1);
        try (KafkaProducer<String, String> producer = transactional(name("tx"))) {
            producer.beginTransaction();
            producer.send(record(topic, "open")).get();
            equal(List.of(), values(topic, "read_committed"), "before the commit");
            equal(List.of("open"), values(topic, "read_uncommitted"), "uncommitted");
            producer.commitTransaction();
            equal(List.of("open"), values(topic, "read_committed"), "after the commit");
        }
    }

    private void offsetsInTransaction() throws Exception {
        String source = topic(1);
        String target = topic(1);
        TopicPartition place = new TopicPartition(source, 0);
        fill(source, 10);
        try (KafkaConsumer<String, String> consumer = consumer(name("group"), Map.of());
                KafkaProducer<String, String> producer = transactional(name("tx"))) {
            consumer.subscribe(List.of(source));
            equal(10, take(consumer, 10).size(), "records taken");
            for (long offset : new long[] {4, 9}) {
                producer.beginTransaction();
                producer.send(record(target, "" + offset));
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(offset)), consumer.groupMetadata());
                if (offset == 4) producer.commitTransaction();
                else producer.abortTransaction();
                equal(4L, consumer.committed(Set.of(place)).get(place).offset(), "committed offset");
            }
        }
        equal(List.of("4"), values(target, "read_committed"), "values");
    }

    private void staleGeneration() throws Exception {
        String source = topic(1);
        String group = name("group");
        TopicPartition place = new TopicPartition(source, 0);
        fill(source, 1);
        ConsumerGroupMetadata stale = joined(group, source);
        try (KafkaConsumer<String, String> consumer = consumer(group, Map.of());
                KafkaProducer<String, String> producer = transactional(name("tx"))) {
            consumer.subscribe(List.of(source));
            equal(1, take(consumer, 1).size(), "records taken");
            producer.beginTransaction();
            fails(CommitFailedException.class, () -> {
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(1)), stale);
                producer.commitTransaction();
            });
            producer.abortTransaction();
            equal(null, consumer.committed(Set.of(place)).get(place), "committed offset");
        }
    }

    private ConsumerGroupMetadata joined(String group, String topic) {
        try (KafkaConsumer<String, String> consumer = consumer(group, Map.of())) {
            consumer.subscribe(List.of(topic));
            take(consumer, 1);
            return consumer.groupMetadata();
        }
    }

    private void fencing() throws Exception {
        String topic = topic(1);
        String id = name("tx");
        try (KafkaProducer<String, String> first = transactional(id)) {
            first.beginTransaction();
            first.send(record(topic, "of the zombie")).get();
            try (KafkaProducer<String, String> second = transactional(id)) {
                second.beginTransaction();
                second.send(record(topic, "of the living"));
                second.commitTransaction();
            }
            failsFenced(() -> {
                first.send(record(topic, "too late")).get();
                first.commitTransaction();
            });
        }
        equal(List.of("of the living"), values(topic, "read_committed"), "values");
    }

    private void adminFencing() throws Exception {
        String topic = topic(1);
        String id = name("tx");
        try (KafkaProducer<String, String> producer = transactional(id)) {
            producer.beginTransaction();
            producer.send(record(topic, "open")).get();
            admin.fenceProducers(List.of(id)).all().get();
            failsFenced(producer::commitTransaction);
        }
        equal(List.of(), values(topic, "read_committed"), "values");
    }

    private void describeTransactions() throws Exception {
        String topic = topic(1);
        String id = name("tx");
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = transactional(id)) {
            producer.beginTransaction();
            producer.send(record(topic, "open")).get();
            TransactionDescription open = admin.describeTransactions(List.of(id)).description(id).get();
            equal(TransactionState.ONGOING, open.state(), "state");
            equal(Set.of(place), open.topicPartitions(), "partitions");
            Set<String> listed = admin.listTransactions().all().get().stream()
                    .map(one -> one.transactionalId()).collect(Collectors.toSet());
            equal(true, listed.contains(id), "listed");
            List<ProducerState> active = admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers();
            equal(1, active.size(), "active producers");
            equal(open.producerId(), active.get(0).producerId(), "producer id");
            equal(0L, active.get(0).currentTransactionStartOffset().getAsLong(), "start of the transaction");
            producer.commitTransaction();
            until("complete", () -> admin.describeTransactions(List.of(id)).description(id).get().state()
                    == TransactionState.COMPLETE_COMMIT);
        }
    }

    private void consumerProtocol() throws Exception {
        try {
            groupRebalances("consumer");
        } catch (UnsupportedVersionException unsupported) {
            throw new NotServed("the broker does not serve the consumer protocol (KIP-848)");
        }
    }

    private void groupRebalances(String protocol) throws Exception {
        String topic = topic(4);
        String group = name("group");
        Map<String, Object> settings = new HashMap<>(Map.of("group.protocol", protocol));
        if (protocol.equals("classic")) settings.put("heartbeat.interval.ms", 200);
        try (KafkaConsumer<String, String> one = consumer(group, settings)) {
            one.subscribe(List.of(topic));
            until("one member owns all", () -> sizes(one).equals(List.of(4)));
            try (KafkaConsumer<String, String> two = consumer(group, settings)) {
                two.subscribe(List.of(topic));
                until("two members share", () -> sizes(one, two).equals(List.of(2, 2)));
                Set<TopicPartition> all = new HashSet<>(one.assignment());
                all.addAll(two.assignment());
                equal(4, all.size(), "partitions owned");
                equal(2, admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size(), "members");
            }
            until("one member owns all again", () -> sizes(one).equals(List.of(4)));
        }
        until("listed", () -> admin.listGroups().all().get().stream().anyMatch(listed -> listed.groupId().equals(group)));
    }

    @SafeVarargs
    private List<Integer> sizes(KafkaConsumer<String, String>... consumers) {
        List<Integer> sizes = new ArrayList<>();
        for (KafkaConsumer<String, String> consumer : consumers) consumer.poll(Duration.ofMillis(50));
        for (KafkaConsumer<String, String> consumer : consumers) sizes.add(consumer.assignment().size());
        return sizes;
    }

    private void topics() throws Exception {
        String topic = topic(3);
        equal(3, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size(), "partitions");
        equal(true, admin.listTopics().names().get().contains(topic), "listed");
        fails(TopicExistsException.class, () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get());
        admin.deleteTopics(List.of(topic)).all().get();
        until("deleted", () -> !admin.listTopics().names().get().contains(topic));
    }

    private void offsets() throws Exception {
        String topic = topic(1);
        TopicPartition place = new TopicPartition(topic, 0);
        long start = System.currentTimeMillis() - 60_000;
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, 0, start + 1000 * number, "key", "" + number)).get();
            }
        }
        try (KafkaConsumer<String, String> consumer = consumer(name("group"), Map.of())) {
            equal(5L, consumer.offsetsForTimes(Map.of(place, start + 4500)).get(place).offset(), "offset for time");
            equal(null, consumer.offsetsForTimes(Map.of(place, start + 60_000)).get(place), "after the last");
        }
        equal(9L, admin.listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).partitionResult(place).get().offset(), "max timestamp");
        admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(4))).all().get();
        equal(4L, admin.listOffsets(Map.of(place, OffsetSpec.earliest())).partitionResult(place).get().offset(), "earliest");
        equal(numbers(10).subList(4, 10), values(topic, "read_committed"), "values");
    }

    private void compression() throws Exception {
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            String topic = topic(1);
            try (KafkaProducer<String, String> producer = producer(Map.of("compression.type", codec, "linger.ms", 20))) {
                for (int number = 0; number < 200; number++) producer.send(record(topic, (number + " ").repeat(100)));
            }
            List<String> got = values(topic, "read_committed");
            equal(200, got.size(), codec);
            equal("199 ".repeat(100), got.get(199), codec);
        }
    }

    // What the checks are made of.

    private KafkaProducer<String, String> producer(Map<String, Object> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        settings.putAll(more);
        return new KafkaProducer<>(settings);
    }

    private KafkaProducer<String, String> transactional(String id) {
        KafkaProducer<String, String> producer = producer(Map.of("transactional.id", id));
        producer.initTransactions();
        return producer;
    }

    private KafkaConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("isolation.level", "read_committed");
        settings.put("fetch.max.wait.ms", 100);
        settings.putAll(more);
        return new KafkaConsumer<>(settings);
    }

    private String topic(int partitions) throws Exception {
        String topic = name("java");
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()))).all().get();
        return topic;
    }

    private void fill(String topic, int count) throws Exception {
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (String value : numbers(count)) producer.send(record(topic, value)).get();
        }
    }

    private List<String> values(String topic, String isolation) {
        TopicPartition place = new TopicPartition(topic, 0);
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(name("group"), Map.of("isolation.level", isolation))) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            long deadline = System.nanoTime() + WAIT.toNanos();
            while (consumer.position(place) < end) {
                if (System.nanoTime() > deadline) throw new AssertionError("stuck at " + consumer.position(place) + " of " + end);
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) values.add(one.value());
            }
        }
        return values;
    }

    private List<String> take(KafkaConsumer<String, String> consumer, int count) {
        List<String> values = new ArrayList<>();
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (values.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) values.add(one.value());
        }
        return values;
    }

    private static ProducerRecord<String, String> record(String topic, String value) {
        return new ProducerRecord<>(topic, 0, "key", value);
    }

    private static List<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(Integer::toString).toList();
    }

    private static String name(String prefix) {
        return prefix + "-" + UUID.randomUUID();
    }

    private static void equal(Object expected, Object found, String what) {
        boolean same = expected == null ? found == null : expected.equals(found);
        if (!same) throw new AssertionError(what + ": expected " + expected + ", found " + found);
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    private static void until(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) throw new AssertionError("not within " + WAIT + ": " + what);
            Thread.sleep(10);
        }
    }

    private static void fails(Class<? extends Throwable> expected, Check check) throws Exception {
        try {
            check.run();
        } catch (Exception caught) {
            for (Throwable one = caught; one != null; one = one.getCause()) if (expected.isInstance(one)) return;
            throw caught;
        }
        throw new AssertionError("expected " + expected.getSimpleName());
    }

    private static void failsFenced(Check check) throws Exception {
        try {
            check.run();
        } catch (Exception caught) {
            for (Throwable one = caught; one != null; one = one.getCause()) {
                if (one instanceof ProducerFencedException || one instanceof InvalidProducerEpochException) return;
            }
            throw caught;
        }
        throw new AssertionError("expected to be fenced");
    }
}
