#!/usr/bin/env bash
# kafka-storage 4.4.0 (Java 17).
# Expected: what a partition knows of a producer, its last five batches, is the same after a clean restart.
# Seen: the snapshot that a clean stop writes has the last batch only. Before, each of five batches sent again is known as a
# duplicate; after, only the fifth is.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
maven_jars org.apache.kafka:kafka-storage:4.4.0
run_java Snapshot > seen 2> log << 'JAVA' || { cat log; exit 1; }
import java.nio.file.Files;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

public class Snapshot {
    private static final long PRODUCER = 7, NOW = System.currentTimeMillis();

    private static void show(String when, ProducerStateManager state) {
        var known = state.lastEntry(PRODUCER).orElseThrow().batchMetadata().stream().map(BatchMetadata::firstSeq).toList();
        System.out.println(when + ": the batches with the sequences " + known);
    }

    public static void main(String[] arguments) throws Exception {
        var directory = Files.createDirectory(java.nio.file.Path.of("orders-0")).toFile();
        var config = new ProducerStateManagerConfig(86_400_000, false);
        var orders = new TopicPartition("orders", 0);
        var state = new ProducerStateManager(orders, directory, 900_000, config, Time.SYSTEM);
        for (int number = 0; number < 5; number++) {
            var info = state.prepareUpdate(PRODUCER, AppendOrigin.CLIENT);
            info.appendDataBatch((short) 0, number, number, NOW, new LogOffsetMetadata(number), number, false);
            state.update(info);
            state.updateMapEndOffset(number + 1);
        }
        show("before", state);
        state.takeSnapshot();
        var restarted = new ProducerStateManager(orders, directory, 900_000, config, Time.SYSTEM);
        restarted.truncateAndReload(0, 5, NOW);
        show("after", restarted);
    }
}
JAVA
same seen << 'EXPECTED'
before: the batches with the sequences [0, 1, 2, 3, 4]
after: the batches with the sequences [4]
EXPECTED
