"""Writes what an Apache Kafka 4.4.0 leaves behind when it is stopped between two writes of its files:

    python tests/support write_stopped tests/golden/kafka-4.4.0/stopped.tar.xz

Needs Maven and confluent-kafka; nobody runs it in tests. Every file is kept but the lock and the metadata log's
indexes.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from free_ports import free_ports
from real_kafka import RealKafka
from write_healthy import wait
from write_releases import packed

from minibroker.client.transactional import BUMPS_EPOCH, TransactionalClient
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.checkpoints import decode_offsets

SETTINGS = """
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
log.index.size.max.bytes=4096
metadata.log.segment.bytes=8388608
log.cleaner.backoff.ms=300
log.cleaner.dedupe.buffer.size=20000000
log.initial.task.delay.ms=500
"""
CLEANED_OFTEN = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "500"}
Kept = Callable[[str, Path], None]


@contextmanager
def kafka(extra: str = "") -> Iterator[RealKafka]:
    broker = RealKafka(SETTINGS + extra)
    try:
        broker.start()
        broker.wait()
        time.sleep(3)
        yield broker
    finally:
        broker.close()


def create(broker: RealKafka, topic: NewTopic) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([topic]).values():
        made.result()
    return admin


def configure(admin: AdminClient, topic: str, **configs: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    for done in admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=entries)]).values():
        done.result()


def metadata_snapshots_cleaned(kept: Kept) -> None:
    with kafka("metadata.log.max.snapshot.interval.ms=2000\nmetadata.max.retention.ms=4000\n") as broker:
        epochs = broker.directory / "data" / "__cluster_metadata-0" / "leader-epoch-checkpoint"
        wait(lambda: int(epochs.read_text().split()[3]) > 5, "no snapshot was cleaned")
        broker.stop()
        kept("metadata-snapshots-cleaned", broker.directory / "data")


def records_deleted(kept: Kept) -> None:
    with kafka() as broker:
        admin = create(broker, NewTopic("t", 1))
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0})
        for number in range(20):
            producer.produce("t", str(number), partition=0)
            producer.flush()
        for done in admin.delete_records([TopicPartition("t", 0, 11)]).values():
            done.result()
        broker.kill()
        kept("records-deleted-then-killed", broker.directory / "data")
        broker.start()
        broker.wait()
        time.sleep(3)
        broker.stop()
        kept("records-deleted-then-killed-then-stopped", broker.directory / "data")


def within_a_pass(kept: Kept, name: str, end: Callable[[RealKafka], None]) -> None:
    with kafka("log.cleaner.io.max.bytes.per.second=400000\n") as broker:
        policy = {"cleanup.policy": "delete", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
        admin = create(broker, NewTopic("c", 1, config=policy))
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0, "batch.size": 20_000}
        )
        for number in range(9000):
            key = f"k{number % 2000 if number % 3 else number}"
            producer.produce("c", f"{number:04} ".encode() * 200, key, partition=0)
            if number % 500 == 0:
                producer.flush()
        producer.flush()
        configure(admin, "c", cleanup_policy="compact")  # only now, so that one pass meets all segments
        wait(lambda: any((broker.directory / "data" / "c-0").glob("*.log.deleted")), "no segment was replaced")
        end(broker)
        checkpoint = broker.directory / "data" / "cleaner-offset-checkpoint"
        assert decode_offsets(checkpoint.read_bytes(), "").get(("c", 0), 0) == 0, "the pass had ended"
        kept(name, broker.directory / "data")


def replica_of_a_compacted_log(kept: Kept) -> None:
    (port,) = free_ports(1)
    with kafka() as first:
        second = RealKafka(
            SETTINGS
            + "process.roles=broker\nnode.id=2\n"
            + f"controller.quorum.voters=1@127.0.0.1:{first.controller_port}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n",
            port,
        )
        try:
            second.start()
            second.wait()
            time.sleep(3)
            admin = create(
                first,
                NewTopic("c", 1, replica_assignment=[[1, 2]], config={"cleanup.policy": "compact", **CLEANED_OFTEN}),
            )
            second.stop()
            for version in range(5):
                producer = Producer(
                    {"bootstrap.servers": first.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 0}
                )
                for key in range(6):
                    producer.produce("c", f"v{version}", f"k{key % 3}", partition=0)
                    producer.flush()
                time.sleep(1.2)
            time.sleep(4)
            configure(admin, "c", segment_ms="604800000", max_compaction_lag_ms=str((1 << 63) - 1))
            second.start()
            second.wait()
            time.sleep(6)
            configure(admin, "c", cleanup_policy="delete")  # from now on it was compacted earlier
            time.sleep(1)
            second.stop()
            kept("replica-of-a-compacted-log", second.directory / "data")
        finally:
            second.close()


def topic_made_again(kept: Kept) -> None:
    """Deleted and made again between the records of two transactions and their ends, whose markers the new one has."""
    with kafka("file.delete.delay.ms=100\n") as broker:
        admin = create(broker, NewTopic("t", 2))
        client = TransactionalClient(broker.bootstrap)
        producers = {}
        for version in (1, 2):
            for commit in (True, None):
                producer = producers.get(version)
                if producer is None or version == BUMPS_EPOCH:
                    producer = client.init_producer_id(f"version-{version}", 60_000, transaction_version=version)
                    producers[version] = producer
                sequence = 0 if commit or version == BUMPS_EPOCH else 1
                if version < BUMPS_EPOCH:
                    client.add_partitions(producer, "t", [0, 1])
                who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
                batch = build_batch(
                    [Record(0, time.time_ns() // 1_000_000, b"k", b"v")],
                    transactional=True,
                    base_sequence=sequence,
                    **who,
                )
                for partition in (0, 1):
                    client.produce(producer, "t", partition, bytes(batch))
                if commit:
                    client.end(producer, commit=True)
                    time.sleep(1)
        for deleted in admin.delete_topics(["t"]).values():
            deleted.result()
        time.sleep(2)
        create(broker, NewTopic("t", 2))
        for producer in producers.values():
            client.end(producer, commit=True)
        time.sleep(2)
        client.close()
        broker.stop()
        kept("topic-made-again", broker.directory / "data")


def main() -> None:
    target = Path(sys.argv[1])
    with tarfile.open(target, "w:xz") as archive:

        def kept(name: str, data: Path) -> None:
            copy = data.parent / "kept"
            shutil.copytree(data, copy)
            for path in (copy / "__cluster_metadata-0").glob("*index"):
                path.unlink()  # 10 MB of zeros each
            packed(archive, name, copy)
            shutil.rmtree(copy)
            print(name, flush=True)

        metadata_snapshots_cleaned(kept)
        records_deleted(kept)
        within_a_pass(kept, "killed-while-cleaning", RealKafka.kill)
        within_a_pass(kept, "stopped-while-cleaning", RealKafka.stop)
        replica_of_a_compacted_log(kept)
        topic_made_again(kept)
    print(target.stat().st_size)


if __name__ == "__main__":
    main()
