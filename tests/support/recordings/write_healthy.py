"""Writes data directories of a real Apache Kafka 4.3.1 in which no promise is broken, each of another kind:

    python tests/support write_healthy tests/golden/kafka-4.3.1/healthy [NAME...]

Needs the jars of tests/jvm and confluent-kafka; nobody runs it in tests. What is left out: the controller's log,
`.index` and `.timeindex` files.
"""

from __future__ import annotations

import io
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from free_ports import free_ports
from real_kafka import RealKafka

from minibroker.client.connection import Connection
from minibroker.kernel.addresses import parse_address
from minibroker_protocol import messages as m
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import registry

SETTINGS = """
num.partitions=2
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
offsets.topic.segment.bytes=1048576
transaction.state.log.segment.bytes=104857600
log.retention.check.interval.ms=300
log.segment.delete.delay.ms=0
log.cleaner.backoff.ms=300
log.initial.task.delay.ms=100
min.insync.replicas=1
log.cleaner.dedupe.buffer.size=8388608
producer.id.expiration.ms=864000000
"""
KEPT = (".log", ".snapshot", ".txnindex")
ROOT_FILES = (".kafka_cleanshutdown", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")
SMALL_SEGMENTS = {"internal.segment.bytes": "3000"}
LAST_EPOCH = 32_766
Producer = tuple[int, int]


class Wire:
    """Requests one after the other, to one broker."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = Connection(parse_address(bootstrap), 30)
        self._count = 0

    def call(self, request: Any, version: int) -> Any:
        key = request.__api_key__
        self._count += 1
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=self._count, client_id="healthy"
        )
        flexible = version >= first_flexible_version(key)
        self._connection.send_frame(header.encode(2 if flexible else 1) + request.encode(version))
        return registry()[key][1].decode(self._connection.receive(30), version, 5 if flexible else 4)

    def init(self, name: str, held: Producer = (-1, -1), timeout_ms: int = 60_000) -> Producer:
        request = m.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=held[0], producer_epoch=held[1]
        )
        while (answer := self.call(request, 4)).error_code in (14, 15, 16, 51):
            self.call(m.FindCoordinatorRequest(key=name, key_type=1), 2)  # makes the topic
            time.sleep(0.05)
        assert not answer.error_code, answer
        return answer.producer_id, answer.producer_epoch

    def send(self, name: str, producer: Producer, sequence: int, topic: str, partition: int, count: int = 3) -> None:
        """Transactional records; the partition joins the transaction by it (KIP-890)."""
        records = [Record(n, time.time_ns() // 1_000_000, b"k%d" % n, b"v") for n in range(count)]
        self.append(name, producer, sequence, topic, partition, records)

    def append(
        self, name: str, producer: Producer, sequence: int, topic: str, partition: int, records: Sequence[Record]
    ) -> None:
        """One transactional batch."""
        batch = build_batch(
            records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=True
        )
        data = m.ProduceRequest.PartitionProduceData(index=partition, records=bytes(batch))
        request = m.ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        while code := self.call(request, 12).responses[0].partition_responses[0].error_code:
            assert code == 51, code
            time.sleep(0.02)

    def end(self, name: str, producer: Producer, *, commit: bool) -> Producer:
        request = m.EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        while (answer := self.call(request, 5)).error_code in (14, 15, 16, 51):
            time.sleep(0.02)
        assert not answer.error_code, answer
        return answer.producer_id, answer.producer_epoch


def topic(kafka: RealKafka, name: str, partitions: int = 2, replicas: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    made = NewTopic(name, partitions, replicas, config={k.replace("__", "."): v for k, v in config.items()})
    admin.create_topics([made])[name].result(30)
    time.sleep(0.5)


def producer(bootstrap: str, transactional_id: str) -> Any:
    made = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    made.init_transactions(60)
    return made


def work(bootstrap: str, name: str = "t", rounds: int = 6, offsets: bool = True) -> None:
    """Commits, aborts, offsets in transactions, a fenced producer, an idempotent producer."""
    first = producer(bootstrap, "first")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    for number in range(rounds):
        first.begin_transaction()
        for key in range(20):
            first.produce(name, key=f"{key}", value=f"{number}", partition=key % 2)
        if offsets:
            moved = [confluent_kafka.TopicPartition(name, 0, number + 1)]
            first.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), 60)
        first.flush()
        (first.abort_transaction if number % 3 == 1 else first.commit_transaction)(60)
    first.begin_transaction()
    first.produce(name, key=b"fenced", value=b"fenced", partition=0)
    first.flush()
    second = producer(bootstrap, "first")
    second.begin_transaction()
    second.produce(name, key=b"last", value=b"last", partition=1)
    second.commit_transaction(60)
    idempotent = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for key in range(50):
        idempotent.produce(name, key=f"{key}", value=b"v", partition=key % 2)
    idempotent.flush()
    consumer.close()


def plain_version(kafka: RealKafka) -> None:
    topic(kafka, "t")
    work(kafka.bootstrap)
    work(kafka.bootstrap)


def version_2(kafka: RealKafka) -> None:
    """Clients of before and of after KIP-890."""
    plain_version(kafka)
    wire = Wire(kafka.bootstrap)
    held = wire.init("modern")
    for number in range(6):
        for partition in (0, 1):
            wire.send("modern", held, 0, "t", partition)
            wire.send("modern", held, 3, "t", partition)
        held = wire.end("modern", held, commit=number % 2 == 0)


def retention(kafka: RealKafka) -> None:
    """The oldest segments are gone, and of another topic what came before an offset within a transaction."""
    topic(kafka, "t", retention__bytes="9000", **SMALL_SEGMENTS)
    topic(kafka, "cut", **SMALL_SEGMENTS)
    for _ in range(8):
        work(kafka.bootstrap)
    work(kafka.bootstrap, "cut")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([confluent_kafka.TopicPartition("cut", 0, 17)])[
        confluent_kafka.TopicPartition("cut", 0)
    ].result(30)
    work(kafka.bootstrap, "cut")
    wait(lambda: first_offset(kafka, "t-0") > 100, "retention has done nothing")


def compacted(kafka: RealKafka) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **SMALL_SEGMENTS}
    topic(kafka, "t", **settings)
    for _ in range(6):
        work(kafka.bootstrap)
    checkpoint = data(kafka) / "cleaner-offset-checkpoint"
    wait(lambda: "t 0" in checkpoint.read_text() and "t 1" in checkpoint.read_text(), "nothing was compacted")
    time.sleep(3)
    work(kafka.bootstrap)


def left_open(kafka: RealKafka) -> None:
    """Transactions that had time left when the broker stopped, one of them over committed ones."""
    topic(kafka, "t")
    wire = Wire(kafka.bootstrap)
    held = wire.init("open")
    wire.send("open", held, 0, "t", 0)
    work(kafka.bootstrap)
    wire.send("open", held, 3, "t", 0)
    other = wire.init("other")
    wire.send("other", other, 0, "t", 0)
    wire.send("other", other, 0, "t", 1)


def rotated(kafka: RealKafka) -> None:
    """Two transactional ids get a new producer id when their epochs are used up: at InitProducerId and at EndTxn."""
    topic(kafka, "t")
    wire = Wire(kafka.bootstrap)
    for name in ("by-init", "by-end"):
        first = held = wire.init(name)
        wire.send(name, held, 0, "t", 0)
        held = wire.end(name, held, commit=True)
        while held[1] < LAST_EPOCH - 3:
            held = wire.init(name)
        sequence = 0
        for number in range(8):
            if name == "by-init":
                held = wire.init(name)
            wire.send(name, held, sequence, "t", 0)
            wire.send(name, held, sequence, "t", 1)
            held = wire.end(name, held, commit=number % 3 != 1)
        assert held[0] != first[0], f"{name}: producer id {first[0]} was not given up"


def reassigned(kafka: RealKafka) -> None:
    """From broker 1 to broker 2, with and without what was deleted meanwhile."""
    topic(kafka, "t")
    topic(kafka, "cut", **SMALL_SEGMENTS)
    work(kafka.bootstrap)
    work(kafka.bootstrap, "cut")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([confluent_kafka.TopicPartition("cut", 0, 17)])[
        confluent_kafka.TopicPartition("cut", 0)
    ].result(30)
    other = second_broker(kafka)
    try:
        wire = Wire(kafka.bootstrap)
        kind = m.AlterPartitionReassignmentsRequest
        topics = [
            kind.ReassignableTopic(
                name=name,
                partitions=[
                    kind.ReassignablePartition(partition_index=0, replicas=[2]),
                    kind.ReassignablePartition(partition_index=1, replicas=[2, 1]),
                ],
            )
            for name in ("t", "cut")
        ]
        answer = wire.call(kind(timeout_ms=30_000, topics=topics), 0)
        assert not answer.error_code, answer
        listing = m.ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None)
        wait(lambda: not wire.call(listing, 0).topics, "the reassignment does not end")
        work(kafka.bootstrap)
        work(kafka.bootstrap, "cut")
        time.sleep(1)
    finally:
        other.stop()


def loop(kafka: RealKafka) -> None:
    """An application consumes `in` and produces to `out` in transactions, one of which it aborts and does again."""
    topic(kafka, "in")
    topic(kafka, "out")
    source = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(40):
        source.produce("in", key=f"k{number}", value=f"v{number}", partition=number % 2)
    source.flush()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "app",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["in"])
    out = producer(kafka.bootstrap, "app")
    done = attempts = 0
    while done < 40:
        records = consumer.consume(5, 5)
        if not records:
            continue
        attempts += 1
        out.begin_transaction()
        for record in records:
            out.produce("out", key=record.key(), value=record.value().upper(), partition=record.partition())
        offsets = {(r.topic(), r.partition()): r.offset() + 1 for r in records}
        moved = [confluent_kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        out.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), 60)
        if attempts == 3:
            out.abort_transaction(60)
            firsts: dict[tuple[str, int], int] = {}
            for r in records:
                firsts.setdefault((r.topic(), r.partition()), r.offset())
            for place, offset in firsts.items():
                consumer.seek(confluent_kafka.TopicPartition(*place, offset))
        else:
            out.commit_transaction(60)
            done += len(records)
    consumer.close()


def second_broker(kafka: RealKafka) -> RealKafka:
    """A broker that joins the cluster of the first one."""
    first = (kafka.directory / "server.properties").read_text()
    voters = next(line for line in first.splitlines() if line.startswith("controller.quorum.voters"))
    joined = RealKafka.__new__(RealKafka)
    joined.directory = kafka.directory / "second"
    joined.directory.mkdir()
    joined.process = None
    joined.port = free_ports(1)[0]
    joined._jvm_options = kafka._jvm_options
    joined._properties = joined.directory / "server.properties"
    lines = [
        "process.roles=broker",
        "node.id=2",
        voters,
        f"listeners=PLAINTEXT://127.0.0.1:{joined.port}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{joined.port}",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        f"log.dirs={joined.directory / 'data'}",
        SETTINGS,
    ]
    joined._properties.write_text("\n".join(lines))
    joined._format(())
    joined.start()
    joined.wait()
    time.sleep(3)
    return joined


def data(kafka: RealKafka) -> Path:
    return kafka.directory / "data"


def first_offset(kafka: RealKafka, partition: str) -> int:
    with suppress(ValueError):
        return min(int(path.stem) for path in (data(kafka) / partition).glob("*.log"))
    return 0


def wait(reached: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 90
    while not reached():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.3)


SETS: dict[str, tuple[Callable[[RealKafka], None], tuple[str, ...]]] = {
    "transaction-version-0": (plain_version, ("transaction.version=0",)),
    "transaction-version-1": (plain_version, ("transaction.version=1",)),
    "transaction-version-2": (version_2, ()),
    "retention": (retention, ()),
    "compacted": (compacted, ()),
    "open-transactions": (left_open, ()),
    "id-rotation": (rotated, ()),
    "reassigned": (reassigned, ()),
    "loop": (loop, ()),
}


def pack(directories: dict[str, Path], target: Path) -> None:
    with tarfile.open(target, "w:xz") as archive:
        for prefix, root in directories.items():
            names = [path for path in sorted(root.iterdir()) if path.name in ROOT_FILES]
            names += [path for path in sorted(root.glob("*-*/*")) if path.suffix in KEPT]
            for path in names:
                relative = path.relative_to(root)
                if relative.parts[0].startswith("__cluster_metadata"):
                    continue
                content = path.read_bytes()
                entry = tarfile.TarInfo(f"{prefix}{relative}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or SETS:
        write, features = SETS[name]
        kafka = RealKafka(SETTINGS, features=features, release="4.3.1")
        try:
            kafka.start()
            kafka.wait()
            write(kafka)
            kafka.stop()
            second = kafka.directory / "second" / "data"
            directories = {"broker-1/": data(kafka), "broker-2/": second} if second.exists() else {"": data(kafka)}
            pack(directories, target / f"{name}.tar.xz")
            print(name, (target / f"{name}.tar.xz").stat().st_size, flush=True)
        finally:
            kafka.close()


if __name__ == "__main__":
    main()
