"""A load on two real Apache Kafka brokers that leaves everything behind that is lawful, copied while they are stopped:

    python tests/support lawful_load [--points N] [--seed N] [--keep DIRECTORY]
    python tests/support lawful_load --judge DIRECTORY

Transactions (transaction.version 0, then 1, then 2), idempotent producers, group offsets, compaction, deletion by time
and size, DeleteRecords, policies that change, moves between log directories, elections, topics that are made and
deleted, kills and clean stops. At each point both brokers get SIGSTOP, their directories are copied, and `check` and
`audit` read the copy.

Kafka itself drops markers (docs/explanation/what-kafka-does.md), and a coordinator that is elected while a transaction
ends sends its markers again, whatever the producer has begun since (KAFKA-19999). So a finding is explained where it

- covers a record of which a read_committed consumer disagrees with the journal in the end,
- covers a record of a transaction whose marker for this partition was dropped, as the coordinator's own log says, so
  that the producer's next transaction decides about it, or is the missing marker of one,
- is about a marker that an older coordinator sent while the present one had not decided the transaction yet,
- is about a time index whose first entry is of a later leader epoch than the larger timestamp before it: a replica that
  is restarted and then cut forgets the largest timestamp where no entry stays (LogSegment.truncateTo).

The journal, what that consumer saw otherwise, and the dropped markers are in journal.json beside the copies, with the
brokers' logs; `--judge` reads copies that were kept again.

Needs Maven and confluent-kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from free_ports import free_ports
from jvm import FAST_START
from real_kafka import RealKafka
from write_healthy import Wire

from minibroker.cli import main as minibroker
from minibroker.rules.decisions import Decision, read_coordinators
from minibroker.rules.rows import TRANSACTION_STATE, Log, LogFacts, Marker, Run, TxnState
from minibroker.rules.scan import HEADERS, RECORDS, Row, scan_file
from minibroker_protocol import messages as m
from minibroker_protocol.records import iter_batches
from minibroker_storage.check_finding import TIME_INDEX
from minibroker_storage.os_disk import OsDisk

SETTINGS = """
offsets.topic.num.partitions=2
transaction.state.log.num.partitions=2
offsets.topic.replication.factor=2
transaction.state.log.replication.factor=2
offsets.topic.segment.bytes=1048576
transaction.state.log.segment.bytes=1048576
log.index.size.max.bytes=4096
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=20000000
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=1000
metadata.log.segment.bytes=8388608
metadata.log.max.snapshot.interval.ms=5000
metadata.max.retention.ms=10000
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
broker.session.timeout.ms=3000
min.insync.replicas=1
auto.create.topics.enable=false
"""
ROLLING = {"segment.ms": "700", "file.delete.delay.ms": "1000"}
CLEANED = {"min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "500", "delete.retention.ms": "1500"}
DELETED = {"retention.ms": "15000"}
TOPICS: dict[str, tuple[int, int, dict[str, str]]] = {
    "kept": (2, 2, {}),
    "deleted": (2, 2, {"cleanup.policy": "delete", **DELETED}),
    "compacted": (2, 2, {"cleanup.policy": "compact", **CLEANED}),
    "both": (2, 2, {"cleanup.policy": "compact,delete", **CLEANED, **DELETED}),
    "changing": (2, 2, {"cleanup.policy": "delete", **CLEANED}),
    "moving": (2, 1, {}),
}
"""name -> (partitions, replicas, configs)."""
WHOLE = ("kept", "moving")
"""Topics that nothing is ever taken from but by DeleteRecords."""
WRITTEN_BEFORE_MS = 10_000
"""A record may be so much older than its transaction is for the coordinator: the transaction's timeout."""
PATIENCE_SECONDS = 600
"""Only what will never come takes longer, however busy the machine."""
PROGRESS = 25
"""Transactions that end between two points, at least."""
COMMIT, ABORT, UNKNOWN = "commit", "abort", "unknown"
MARKERS = "kafka.coordinator.transaction.TransactionMarkerChannelManager"
SAY_DROPPED = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    f"-Dorg.slf4j.simpleLogger.log.{MARKERS}=info",
)
DROPPED = re.compile(
    rf"^(\S+) .*{re.escape(MARKERS)} - .*Couldn't find leader endpoint for partitions \w+\((.*?)\)"
    r" while trying to send transaction markers for (\S+), "
)
"""The line of a coordinator that drops markers: when, `TOPIC-PARTITION, ...`, and the transactional id."""
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Known:
    """A transaction as its client knows it: when it was under way (ms), the records that were acknowledged, and how it
    ended, which is UNKNOWN where the client was not told."""

    name: str
    began: int
    ended: int
    places: list[Place]
    outcome: str


@dataclass
class Dropped:
    """A marker that the coordinator did not send (at, ms), as the partition had no leader."""

    name: str
    topic: str
    partition: int
    at: int


@dataclass
class Journal:
    """transactions: all that ended."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    transactions: list[Known] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return len(self.transactions)

    def end(self, transaction: Known) -> None:
        with self.lock:
            self.transactions.append(transaction)


class Client(threading.Thread):
    """Works until it is told to end; after a failure it begins anew."""

    def __init__(self, load: Load, name: str, work: Callable[[Client], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.load, self.random, self._work = load, Random(f"{load.seed} {name}"), work

    def run(self) -> None:
        while not self.load.over.is_set():
            with suppress(KafkaException, BufferError):
                self._work(self)
            self.load.over.wait(0.2)


class Load:
    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.over = threading.Event()
        self.journal = Journal()
        (port,) = free_ports(1)
        options = (*FAST_START, *SAY_DROPPED)
        first = RealKafka(
            f"{SETTINGS}log.dirs={{data}}-a,{{data}}-b\n", jvm_options=options, features=("transaction.version=0",)
        )
        second = RealKafka(
            f"{SETTINGS}process.roles=broker\nnode.id=2\nlog.dirs={{data}}\n"
            f"controller.quorum.voters=1@127.0.0.1:{first.controller_port}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n",
            port,
            options,
        )
        self.brokers = (first, second)
        self.bootstrap = f"{first.bootstrap},{second.bootstrap}"
        self.folders = {
            "1a": Path(f"{first.directory}/data-a"),
            "1b": Path(f"{first.directory}/data-b"),
            "2": Path(f"{second.directory}/data"),
        }

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            broker.wait()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        patiently(lambda: len(self.admin.list_topics(timeout=10).brokers) == 2, "the second broker is not there")
        for name, (partitions, replicas, configs) in TOPICS.items():
            self.create(name, partitions, replicas, {**ROLLING, **configs})
        self.create("remade", 2, 2, ROLLING)
        for work, count in ((transactions, 4), (copies, 1), (plain, 2)):
            for number in range(count):
                Client(self, f"{work.__name__}-{number}", work).start()

    def create(self, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
        topic = NewTopic(name, partitions, replicas, config=configs)
        if replicas == 1:
            topic = NewTopic(name, partitions, replica_assignment=[[1]] * partitions, config=configs)
        for made in self.admin.create_topics([topic]).values():
            made.result()

    def close(self) -> None:
        self.over.set()
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() is None:
                broker.process.send_signal(signal.SIGCONT)
            broker.close()
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)

    # -- what happens between two points ---------------------------------------------------------------------------

    def restart(self) -> None:
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() is not None:
                broker.start()
                broker.wait()

    def logs(self) -> Iterator[tuple[int, Path]]:
        """The number and the log of each broker that was started."""
        for number, broker in enumerate(self.brokers, 1):
            log = broker.directory / "broker.log"
            if log.exists():
                yield number, log

    def dropped(self) -> list[Dropped]:
        return [
            drop
            for _, log in self.logs()
            for line in log.read_text(errors="replace").splitlines()
            for drop in dropped_by(line)
        ]

    def delete_records(self) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "-", "log_level": 0})
        wanted = []
        for topic in ("kept", "deleted", "moving"):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
            wanted.append(TopicPartition(topic, 0, self.random.randint(low, high)))
        consumer.close()
        # A new client: librdkafka 2.16 sends DeleteRecords to a leader of long ago, and never asks who it is now.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for done in admin.delete_records(wanted).values():
            done.result()

    def change_policy(self) -> None:
        policy = self.random.choice(("compact", "delete", "compact,delete"))
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "changing", incremental_configs=[entry])
        for done in self.admin.incremental_alter_configs([resource]).values():
            done.result()

    def move(self) -> None:
        """Replicas of broker 1 go to its other log directory."""
        kind = m.AlterReplicaLogDirsRequest
        topics = [kind.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in ("moving", "kept", "compacted")]
        path = self.folders[self.random.choice(("1a", "1b"))]
        Wire(self.brokers[0].bootstrap).call(kind(dirs=[kind.AlterReplicaLogDir(path=str(path), topics=topics)]), 2)

    def elect(self) -> None:
        with suppress(KafkaException):
            self.admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, None).result()

    def remake(self) -> None:
        """A topic that comes and goes."""
        with suppress(KafkaException):
            for done in self.admin.delete_topics(["remade"]).values():
                done.result()
        patiently(lambda: "remade" not in self.admin.list_topics(timeout=10).topics, "a topic stays")
        self.create("remade", 2, 2, ROLLING)

    def upgrade(self, level: int) -> None:
        kind = m.UpdateFeaturesRequest
        update = kind.FeatureUpdateKey(feature="transaction.version", max_version_level=level)
        Wire(self.brokers[0].bootstrap).call(kind(feature_updates=[update]), 1)

    def between(self, number: int, points: int) -> str:
        """Something new, and transactions that end; the name of what was done."""
        level = 1 + number * 3 // points
        if number and level != 1 + (number - 1) * 3 // points:
            self.upgrade(level - 1)
        events: dict[str, Callable[[], None]] = {
            "delete records": self.delete_records,
            "change the policy": self.change_policy,
            "kill 2": self.brokers[1].kill,
            "move": self.move,
            "stop 2": self.brokers[1].stop,
            "elect": self.elect,
            "kill 1": self.brokers[0].kill,
            "make a topic again": self.remake,
            "stop 1": self.brokers[0].stop,
            "nothing": lambda: None,
        }
        name = [*events][number % len(events)]
        before = self.journal.ended
        patiently(lambda: self.journal.ended >= before + PROGRESS, "no transaction ends")
        refusals: list[KafkaException] = []
        patiently(lambda: succeeds(events[name], refusals), lambda: f"cannot {name}: {refusals[-1]}")
        return f"transaction.version {level - 1}, {name}"

    # -- copies ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        running = [
            broker.process for broker in self.brokers if broker.process is not None and broker.process.poll() is None
        ]
        for process in running:
            process.send_signal(signal.SIGSTOP)
        for process in running:
            # The signal is only on its way: on a busy machine the broker writes on for a while.
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            for process in running:
                process.send_signal(signal.SIGCONT)

    def copy(self, target: Path) -> None:
        """Everything but the locks; the metadata log's indexes, 10 MB of zeros each, are left out."""
        with self.frozen():
            for name, folder in self.folders.items():
                shutil.copytree(folder, target / name, ignore=shutil.ignore_patterns(".lock"))
        for path in target.glob("*/__cluster_metadata-0/*index"):
            path.unlink()

    def disagreements(self) -> dict[Place, str]:
        """Records of which a read_committed consumer sees something else than the journal says. What is above an open
        transaction it cannot see; that is no loss."""
        self.over.set()
        for thread in threading.enumerate():
            if isinstance(thread, Client):
                thread.join(60)
        self.restart()
        seen: set[Place] = set()
        starts: dict[tuple[str, int], int] = {}
        ends: dict[tuple[str, int], int] = {}
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "-", "isolation.level": "read_committed",
             "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
        )  # fmt: skip
        places = [TopicPartition(name, index, 0) for name in TOPICS for index in range(TOPICS[name][0])]
        for place in places:
            starts[place.topic, place.partition], _ = reader.get_watermark_offsets(place, timeout=30)
            place.offset = starts[place.topic, place.partition]
        reader.assign(places)

        def read_on() -> bool:
            for message in reader.consume(10_000, 1):
                if message.error() is None:
                    seen.add((message.topic(), message.partition(), message.offset()))
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends.setdefault((message.topic(), message.partition()), message.offset())
            return len(ends) == len(places)

        patiently(read_on, "a partition cannot be read to its end")
        reader.close()
        disagreements: dict[Place, str] = {}
        for known in self.journal.transactions:
            for record in known.places:
                topic, partition, offset = record
                if topic not in TOPICS or not starts[topic, partition] <= offset < ends[topic, partition]:
                    continue
                lost = known.outcome == COMMIT and topic in WHOLE and record not in seen
                if lost or (known.outcome == ABORT and record in seen):
                    disagreements[record] = f"{known.name}, {known.outcome}"
        return disagreements


# -- clients ---------------------------------------------------------------------------------------------------------


def transactions(client: Client, *, offsets: bool = False) -> None:
    load, random = client.load, client.random
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": load.bootstrap, "transactional.id": client.name, "transaction.timeout.ms": 10_000,
         "log_level": 0, "linger.ms": random.choice((0, 5))}
    )  # fmt: skip
    producer.init_transactions(60)
    while not load.over.is_set():
        places: list[Place] = []
        began, outcome = now_ms(), UNKNOWN
        try:
            outcome = one_transaction(client, producer, places, offsets=offsets)
        finally:
            load.journal.end(Known(client.name, began, now_ms(), places, outcome))


def one_transaction(client: Client, producer: confluent_kafka.Producer, places: list[Place], *, offsets: bool) -> str:
    """Its outcome; `places` gets the records that were acknowledged. Raises KafkaException where it is not known."""
    load, random = client.load, client.random

    def written(error: Any, message: Any) -> None:
        if error is None:
            places.append((message.topic(), message.partition(), message.offset()))

    producer.begin_transaction()
    topics = random.sample([*TOPICS, "remade"] if random.random() < 0.1 else [*TOPICS], 2)
    for number in range(random.randint(1, 12)):
        producer.produce(
            random.choice(topics),
            f"{client.name} {number}",
            f"k{random.randrange(30)}",
            partition=random.randrange(2),
            on_delivery=written,
        )
        if random.random() < 0.2:
            producer.flush(20)
    if offsets:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": load.bootstrap, "group.id": "copies", "log_level": 0})
        at = [TopicPartition("kept", 0, consumer.get_watermark_offsets(TopicPartition("kept", 0), 20)[0])]
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), 30)
        consumer.close()
    if random.random() < 0.3:
        producer.flush(20)
        producer.abort_transaction(60)
        return ABORT
    try:
        producer.commit_transaction(60)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(60)
        return ABORT
    return COMMIT


def copies(client: Client) -> None:
    transactions(client, offsets=True)


def plain(client: Client) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": client.load.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(400):
        if client.load.over.wait(0.01):
            break
        producer.produce(client.random.choice([*TOPICS]), f"p {number}", f"k{client.random.randrange(30)}")
        producer.poll(0)
    producer.flush(30)


# -- judging ---------------------------------------------------------------------------------------------------------


def succeeds(action: Callable[[], None], refusals: list[KafkaException]) -> bool:
    """Whether Kafka did it; while leaders are elected it may not."""
    try:
        action()
    except KafkaException as refusal:
        refusals.append(refusal)
        return False
    return True


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def patiently(done: Callable[[], bool], otherwise: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(0.05)


def errors_of(folder: Path) -> list[dict[str, Any]]:
    """What `check` and `audit` call an error in a copy, `tool` beside."""
    errors = []
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        minibroker(["check", str(folder), "--quiet", "--json"])
    errors += [{"tool": "check", **json.loads(line)} for line in out.getvalue().splitlines()]
    summary = folder / "summary.json"
    with contextlib.redirect_stdout(io.StringIO()):
        minibroker(["audit", str(folder), "--quiet", "--json", str(summary)])
    shown = json.loads(summary.read_text())["shown"]
    errors += [{"tool": "audit", **finding} for finding in shown if finding["severity"] == "error"]
    return errors


def dropped_by(line: str) -> Iterator[Dropped]:
    """The markers that a line of a broker's log says were dropped."""
    if match := DROPPED.match(line):
        at = int(datetime.fromisoformat(match[1]).timestamp() * 1000)
        for log in match[2].split(", "):
            topic, _, partition = log.rpartition("-")
            yield Dropped(match[3], topic, int(partition), at)


class Evidence:
    """What the load knows of Kafka's own losses, see the top of this module."""

    def __init__(self, dropped: Iterable[Dropped], disagreements: Mapping[Place, str], kept: Path) -> None:
        """`kept`: the file of what was learned from copies that were removed since."""
        self._disagreements = disagreements
        self._dropped = [*dropped]
        self._kept = kept
        self._decisions: set[Decision] = set()
        for line in kept.read_text().splitlines() if kept.exists() else ():
            decision = Decision(*json.loads(line))
            partitions = tuple((topic, partition) for topic, partition in decision.partitions)
            self._decisions.add(decision._replace(partitions=partitions, place=(decision.place[0], decision.place[1])))

    def learn(self, folder: Path) -> None:
        """Take what the coordinators decided by a copy; a later one may have lost it to the cleaner."""
        states = [
            row
            for partition in range(2)
            for row in rows_of(folder, TRANSACTION_STATE, partition, RECORDS)
            if isinstance(row, TxnState)
        ]
        self._decisions |= set(read_coordinators(states, whole=False).decisions)
        self._kept.write_text("".join(f"{json.dumps(decision)}\n" for decision in sorted(self._decisions)))

    def _is_dropped(self, decision: Decision, topic: str, partition: int) -> bool:
        """Whether the coordinator dropped the decision's marker for the partition before it called it complete."""
        return any(
            (drop.name, drop.topic, drop.partition) == (decision.transactional_id, topic, partition)
            and decision.timestamp <= drop.at
            and (drop.at <= decision.completed or decision.completed < 0)
            for drop in self._dropped
        )

    def explains(self, folder: Path, error: dict[str, Any]) -> bool:
        log = error["path"].split("/")[1] if "path" in error else f"{error['topic']}-{error['partition']}"
        topic, _, number = log.rpartition("-")
        partition = int(number or 0)
        decisions = [decision for decision in self._decisions if (topic, partition) in decision.partitions]
        dropped = [decision for decision in decisions if self._is_dropped(decision, topic, partition)]
        if error["rule"] == TIME_INDEX:
            return _was_cut(folder / (error.get("path") or error["file"]), error["position"])
        first, last = error.get("first_offset", -1), error.get("last_offset", -1)
        if first < 0 and "no marker" in error["message"]:
            return any(decision.transactional_id == error["transactional_id"] for decision in dropped)
        offsets = {*range(first, last + 1), *map(int, re.findall(r"offset (\d+)", error["message"]))}
        if any((topic, partition, offset) in self._disagreements for offset in offsets):
            return True
        rows = list(rows_of(folder, topic, partition, HEADERS))
        covered = [
            row for row in rows if isinstance(row, Run) and offsets & {*range(row.first_offset, row.last_offset + 1)}
        ]
        markers = [row for row in rows if isinstance(row, Marker) and row.offset in offsets]
        return any(_may_be_in(run, decision) for run in covered for decision in dropped) or any(
            _is_stale(marker, decision) for marker in markers for decision in decisions
        )


def rows_of(folder: Path, topic: str, partition: int, depth: str) -> Iterator[Row]:
    """The rows of every replica of a partition in a copy."""
    for root in folder.iterdir():
        disk, name = OsDisk(str(root)), f"{topic}-{partition}"
        facts = LogFacts(Log(root.name, topic, partition))
        for file in disk.list(name) if (root / name).is_dir() else ():
            if file.endswith(".log"):
                yield from scan_file(disk, facts, f"{name}/{file}", depth=depth)


def _may_be_in(run: Run, decision: Decision) -> bool:
    """Whether the batch may be of the transaction. Its time is the client's, who writes before the coordinator knows
    of the partition and after it for as long as the transaction is open."""
    since = decision.start_timestamp - WRITTEN_BEFORE_MS
    return (
        run.producer_id == decision.producer_id
        and decision.data_epoch in (run.producer_epoch, -1)
        and since <= run.last_timestamp <= decision.timestamp
    )


def _was_cut(index: Path, position: int) -> bool:
    """Whether the time index forgot a timestamp when its replica was cut: its first entry is of a later leader epoch
    than every batch before with a larger timestamp."""
    stamp, relative = struct.unpack_from(">qi", index.read_bytes(), position)
    batches = [header for _, header in iter_batches(index.with_suffix(".log").read_bytes())]
    offset = int(index.stem) + relative
    before = [batch for batch in batches if batch.last_offset < offset and batch.max_timestamp > stamp]
    epochs = {batch.partition_leader_epoch for batch in batches if batch.last_offset == offset}
    return position == 0 and bool(before) and all(max(epochs) > batch.partition_leader_epoch for batch in before)


def _is_stale(marker: Marker, decision: Decision) -> bool:
    """Whether the marker was written within a transaction that was not decided yet, by an older coordinator."""
    return (
        marker.producer_id == decision.producer_id
        and decision.start_timestamp <= marker.timestamp < decision.timestamp
        and marker.coordinator_epoch < decision.leader_epoch
    )


@dataclass
class Result:
    """unexplained: errors that the load knows no cause of."""

    errors: int
    unexplained: list[str]
    disagreements: dict[Place, str]


def run(points: int, seed: int, keep: Path, say: Callable[[str], None] = print) -> Result:
    record(points, seed, keep, say)
    return judge(keep, say)


def record(points: int, seed: int, keep: Path, say: Callable[[str], None]) -> None:
    """`keep` gets a copy for each point, NUMBER/LOG DIRECTORY/..., journal.json and the brokers' logs."""
    load = Load(seed)
    copies: dict[str, str] = {}
    disagreements: dict[Place, str] = {}
    try:
        load.start()
        for number in range(points):
            what = load.between(number, points)
            name = f"{number:02}"
            load.copy(keep / name)
            copies[name] = what
            say(f"{name}: {what}, {load.journal.ended} transactions")
            load.restart()
        disagreements = load.disagreements()
    finally:
        try:
            journal = {
                "copies": copies,
                "transactions": [asdict(transaction) for transaction in load.journal.transactions],
                "disagreements": [[*place, known] for place, known in disagreements.items()],
                "dropped": [asdict(drop) for drop in load.dropped()],
            }
            (keep / "journal.json").write_text(json.dumps(journal))
            for number, log in load.logs():
                shutil.copy(log, keep / f"broker-{number}.log")
        finally:
            load.close()


def judge(keep: Path, say: Callable[[str], None]) -> Result:
    """Judge the copies of `record`; those without an unexplained error are removed."""
    journal = json.loads((keep / "journal.json").read_text())
    disagreements = {(topic, partition, offset): known for topic, partition, offset, known in journal["disagreements"]}
    evidence = Evidence([Dropped(**drop) for drop in journal["dropped"]], disagreements, keep / "decisions.jsonl")
    folders = {name: keep / name for name in journal["copies"] if (keep / name).is_dir()}
    for folder in folders.values():  # what a copy was too early for is in a later one
        evidence.learn(folder)
    errors, unexplained = 0, []
    for name, folder in folders.items():
        what = journal["copies"][name]
        found_errors = errors_of(folder)
        errors += len(found_errors)
        new = [error for error in found_errors if not evidence.explains(folder, error)]
        unexplained += [f"{name} ({what}): {json.dumps(error)}" for error in new]
        say(f"{name}: {what}: {len(found_errors)} errors, {len(new)} unexplained")
        if not new:
            shutil.rmtree(folder)
    return Result(errors, unexplained, disagreements)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="directory for the copies that have errors")
    parser.add_argument("--judge", type=Path, help="such a directory, to judge what is in it again")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    if arguments.judge:
        keep = arguments.judge
        result = judge(keep, say)
    else:
        keep = arguments.keep or Path(tempfile.mkdtemp(prefix="lawful-"))
        keep.mkdir(parents=True, exist_ok=True)
        result = run(arguments.points, arguments.seed, keep, say)
    for (topic, partition, offset), known in result.disagreements.items():
        print(f"journal and consumer disagree: {topic}-{partition}@{offset}: {known}")
    for line in result.unexplained[:50]:
        print(line)
    print(f"{result.errors} errors, {len(result.unexplained)} unexplained; copies with errors: {keep}")
    return 1 if result.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
