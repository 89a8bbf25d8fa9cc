"""Writes the topics of `minibroker judge --readers` with a real Apache Kafka 4.4.0, and what each of them promises:

    python tests/support write_readers lab/minibroker_lab/judge/readers.tar.xz

Needs Maven and confluent-kafka; no test runs it. What is promised is what confluent-kafka reads of that broker with
read_committed; a reader of our own has to read the same, and every story's own values have to be there.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from real_kafka import RealKafka
from sink_readers import committed_records
from write_healthy import Producer, Wire, data, producer, topic, wait
from write_releases import SETTINGS, packed

from minibroker.client.topics import ReadingClient
from minibroker_protocol import messages as m
from minibroker_protocol.records import Record

LAST = "end"
"""The value of each topic's last record."""
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "300",
    "delete.retention.ms": "31536000000",
}
PADDING = 400


class Writer:
    """A transactional producer on the wire, whose requests are all to one topic."""

    def __init__(self, wire: Wire, name: str, topic: str) -> None:
        self._wire, self._name, self._topic = wire, name, topic
        self._held: Producer = wire.init(name, timeout_ms=900_000)
        self._sequence = 0

    def send(self, *values: str, keys: Sequence[bytes] = ()) -> None:
        """One batch."""
        now = time.time_ns() // 1_000_000
        records = [
            Record(n, now, keys[n] if keys else b"k", value.encode(), [("padding", b"." * PADDING)])
            for n, value in enumerate(values)
        ]
        self._wire.append(self._name, self._held, self._sequence, self._topic, 0, records)
        self._sequence += len(values)

    def end(self, *, commit: bool) -> None:
        held = self._wire.end(self._name, self._held, commit=commit)
        if held != self._held:
            self._held, self._sequence = held, 0

    def transact(self, *values: str, commit: bool) -> None:
        """A transaction of batches with one record each."""
        for value in values:
            self.send(value)
        self.end(commit=commit)

    def end_without_records(self, *, commit: bool) -> None:
        """As a client before KIP-890 that adds a partition to its transaction and sends nothing."""
        kind = m.AddPartitionsToTxnRequest
        request = kind(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._held[0],
            v3_and_below_producer_epoch=self._held[1],
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=self._topic, partitions=[0])],
        )
        while self._wire.call(request, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code:
            time.sleep(0.02)
        ending = m.EndTxnRequest(
            transactional_id=self._name, producer_id=self._held[0], producer_epoch=self._held[1], committed=commit
        )
        while (answer := self._wire.call(ending, 4)).error_code == 51:
            time.sleep(0.02)
        assert not answer.error_code, answer


def stories(kafka: RealKafka) -> None:
    wire = Wire(kafka.bootstrap)
    for name in ("lone-markers", "aborted-ranges", "aborted-twice", "aborted-order", "zero-keys", "cut", "later-epoch"):
        topic(kafka, name, 1)
    topic(kafka, "compacted", 1, **COMPACTED)
    topic(kafka, "compacted-gzip", 1, **COMPACTED)

    lone = Writer(wire, "lone", "lone-markers")
    lone.end_without_records(commit=False)
    lone.end_without_records(commit=True)
    lone.transact("a", "b", commit=True)
    lone.end_without_records(commit=False)
    lone.end_without_records(commit=True)
    lone.transact("x-0", commit=False)
    lone.end_without_records(commit=False)
    lone.transact("c", LAST, commit=True)

    long, other = Writer(wire, "long", "aborted-ranges"), Writer(wire, "other", "aborted-ranges")
    for number in range(8):
        long.send(f"x-{number}-0", f"x-{number}-1")
        other.transact(f"c-{number}", commit=number % 3 != 2)
    long.end(commit=False)
    long.transact("y", commit=True)
    other.transact(LAST, commit=True)

    again = Writer(wire, "again", "aborted-twice")
    for number in range(6):
        again.transact(f"t-{number}", commit=number % 3 == 2)
    again.transact(LAST, commit=True)

    writers = [Writer(wire, f"order-{number}", "aborted-order") for number in range(3)]
    for number, writer in enumerate(writers):
        writer.send("c" if number == 2 else f"x-{number}")
    writers[1].end(commit=False)
    writers[0].send("x-3")
    writers[2].end(commit=True)
    writers[0].end(commit=False)
    writers[2].transact(LAST, commit=True)

    zeros = Writer(wire, "zeros", "zero-keys")
    zeros.send("a", "b", "c", keys=[bytes(4), bytes(6), bytes(2)])
    zeros.end(commit=True)
    zeros.send("x", keys=[bytes(4)])
    zeros.end(commit=False)
    zeros.send("d", LAST, keys=[b"", bytes(4)])
    zeros.end(commit=True)

    cut = Writer(wire, "cut", "cut")
    cut.send("gone-0", "x-0", "x-1")
    cut.end(commit=False)
    cut.send("gone-1", "gone-2", "kept-0", "kept-1")
    cut.end(commit=True)
    cut.transact("x-2", commit=False)
    cut.transact(LAST, commit=True)
    place = confluent_kafka.TopicPartition("cut", 0, 6)  # within the second batch
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([place])[place].result(90)

    for name in ("compacted", "compacted-gzip"):
        compacted(kafka, name)

    late = [Writer(wire, f"late-{number}", "later-epoch") for number in range(2)]
    late[0].send("x-0")
    late[1].send("a")
    kafka.stop()
    kafka.start()  # the leader epochs rise
    kafka.wait()
    wire = Wire(kafka.bootstrap)
    for writer in late:
        writer._wire = wire
    late[0].end(commit=False)
    late[1].end(commit=True)
    late[0].send("x-1")
    kafka.stop()
    kafka.start()
    kafka.wait()
    for writer in late:
        writer._wire = Wire(kafka.bootstrap)
    late[0].end(commit=False)
    late[1].transact(LAST, commit=True)


def compacted(kafka: RealKafka, name: str) -> None:
    """Rounds of transactions over the same keys: gaps in batches, batches without records, markers of what is gone."""
    codec = {"compression.type": "gzip"} if name.endswith("gzip") else {}
    settings = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, **codec}
    makers = []
    for number in range(6):
        made = confluent_kafka.Producer({**settings, "transactional.id": f"{name}-{number % 4}-{number}"})
        made.init_transactions(60)
        made.begin_transaction()
        for key in range(6):
            if key != number:  # the key `number` keeps the value of an earlier round
                made.produce(name, f"r-{number}-{key}", key=f"{key}", partition=0)
        made.flush()
        (made.abort_transaction if number % 3 == 1 else made.commit_transaction)(60)
        makers.append(made)
        time.sleep(0.4)  # a segment of its own
    wait(lambda: cleaned(kafka, name), f"{name} was not compacted")
    last = producer(kafka.bootstrap, f"{name}-last")
    last.begin_transaction()
    last.produce(name, LAST, key=LAST, partition=0)
    last.commit_transaction(60)


def cleaned(kafka: RealKafka, name: str) -> bool:
    """Whether the cleaner has been through all but the last rounds."""
    text = (data(kafka) / "cleaner-offset-checkpoint").read_text()
    return any(line.startswith(f"{name} 0 ") and int(line.split()[2]) > 25 for line in text.splitlines())


def read(bootstrap: str, name: str, isolation: str = "read_committed") -> list[tuple[int, str]]:
    """Offset and value of what confluent-kafka reads."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "isolation.level": isolation}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(name, 0, confluent_kafka.OFFSET_BEGINNING)])
    rows: list[tuple[int, str]] = []
    while not rows or rows[-1][1] != LAST:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        rows.append((message.offset(), message.value().decode()))
    consumer.close()
    return rows


ABOUT = {
    "lone-markers": "markers of transactions that wrote nothing here, the first ones before any record",
    "aborted-ranges": "a long aborted transaction, with committed and aborted ones of another producer within it",
    "aborted-twice": "several aborted transactions of one producer, committed ones between them",
    "aborted-order": "aborted transactions that end in another order than they began",
    "zero-keys": "keys of zero bytes, which look like the key of a marker",
    "cut": "DeleteRecords moved the log start into a batch, behind an aborted transaction",
    "compacted": "gaps in batches, batches without records, markers whose records are gone",
    "compacted-gzip": "the same in compressed batches",
    "later-epoch": "markers of a later leader epoch than their records",
}


def main() -> None:
    target = Path(sys.argv[1])
    kafka = RealKafka(SETTINGS)
    try:
        kafka.start()
        kafka.wait()
        stories(kafka)
        promised: dict[str, Any] = {}
        for name, about in ABOUT.items():
            rows = read(kafka.bootstrap, name)
            with ReadingClient(kafka.bootstrap) as client:
                assert rows == list(committed_records(client, name, 0, {})), name
            assert not [value for _, value in rows if value.startswith(("x", "gone"))], name
            others = [row for row in read(kafka.bootstrap, name, "read_uncommitted") if row not in rows]
            promised[name] = {"about": about, "promised": rows, "others": others}
            print(name, rows, flush=True)
        kafka.stop()
        with tarfile.open(target, "w:xz") as archive:
            text = json.dumps(promised).encode()
            entry = tarfile.TarInfo("promised.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            packed(archive, "data", data(kafka))
        print(target.stat().st_size)
    except Exception:
        print((kafka.directory / "broker.log").read_text(errors="replace")[-2000:])
        raise
    finally:
        kafka.close()


if __name__ == "__main__":
    main()
