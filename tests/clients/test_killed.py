"""Brokers that are killed, all at once, again and again under the load of clients that know nothing of it.

What was acknowledged is there when they come back, once, in order; transactions are whole or absent, and the offsets
committed in them go with them; a member of a group misses nothing. `MINIBROKER_KILLS` and `MINIBROKER_SEED` choose
another run.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker import BrokerProcess, start_minibroker
from durability import read_all
from free_ports import free_ports
from resources import Resources

from minibroker.rules.directory import check_directory
from minibroker_storage.check_finding import ERROR
from minibroker_storage.os_disk import OsDisk

confluent_kafka = pytest.importorskip("confluent_kafka")

SOME, MANY = int(os.environ.get("MINIBROKER_KILLS", "20")), 200
LOAD_SECONDS = float(os.environ.get("MINIBROKER_LOAD_SECONDS", "60"))
RECORDS = 4  # of each transaction in each of its two topics
PARTITIONS = 2
SECONDS = 60.0
HANGING_SECONDS = 12.0
OPEN_SEGMENTS = 3  # of one log that keeps a megabyte in segments of one


class ClientHangs(Exception):
    """A call of the client did not come back in spite of its timeout."""


def in_time(call: Callable[[], None]) -> None:
    """Run `call` on a thread that can be left behind. librdkafka may lose a coordinator request in a disconnect and
    then waits for ever (its issues 5456 and 5511); a user can only make a new producer."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(HANGING_SECONDS)
    if worker.is_alive():
        raise ClientHangs
    if failures:
        raise failures[0]


class Load(threading.Thread):
    """A client that works until `ending` is set; whatever it did not expect is in `failure`."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.ending = threading.Event()
        self.failure: BaseException | None = None
        self.sent: Counter[int] = Counter()
        self.committed: list[int] = []

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError


class Idempotent(Load):
    """Counts upwards in each partition."""

    def __init__(self, bootstrap: str, *, pause: float = 0.002) -> None:
        super().__init__(bootstrap)
        self.pause = pause

    def work(self) -> None:
        self.acknowledged: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        errors: list[Any] = []

        def told(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged[message.partition()].append(int(message.value()))
            else:
                errors.append(error)

        while not self.ending.is_set():
            for index in range(PARTITIONS):
                producer.produce("counted", str(self.sent[index]), partition=index, on_delivery=told)
                self.sent[index] += 1
            producer.poll(self.pause)
            while len(producer) > 500 and not self.ending.is_set():
                producer.poll(0.01)
        assert producer.flush(SECONDS) == 0
        assert not errors, errors[0]


class Member(Load):
    """A member of a group that reads what is counted, and goes on from what it committed when it has to."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        super().__init__(bootstrap)
        self.read: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)  # by partition: the next value
        self.gaps: list[tuple[int, int, int]] = []  # partition, the next value, and the one that came
        self.metadata: Any = None
        self.group = f"offsets-{protocol}"
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def work(self) -> None:
        self.consumer.subscribe(["counted"])
        told = 0.0
        while not self.ending.is_set():
            message = self.consumer.poll(0.1)
            if time.monotonic() > told + 0.2:
                # Another thread would wait for ever for the answer when this one polls.
                self.metadata = self.consumer.consumer_group_metadata()
                told = time.monotonic()
            if message is None or message.error():
                continue
            partition, value = message.partition(), int(message.value())
            if value > self.read[partition]:
                self.gaps.append((partition, self.read[partition], value))
            self.read[partition] = max(self.read[partition], value + 1)
        self.consumer.close()


class Transactional(Load):
    """Transactions over two topics and the offsets of a group, in the name of its member; every fifth is aborted."""

    def __init__(self, bootstrap: str, member: Member) -> None:
        super().__init__(bootstrap)
        self.member = member
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self.errors: Counter[str] = Counter()
        self.fatal: list[str] = []
        self.left_behind: list[Any] = []  # kept, as the end of a producer waits for its calls
        self.number = 0

    def work(self) -> None:
        wait_until(lambda: self.member.metadata is not None, self.member)
        producer = self._producer()
        while not self.ending.is_set():
            self.number += 1
            try:
                self._transaction(producer, self.number)
            except confluent_kafka.KafkaException as error:
                producer = self._recover(producer, error)
            except ClientHangs:
                self.left_behind.append(producer)
                self.unknown.append(self.number)
                producer = self._producer()

    def _producer(self) -> Any:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": "killed",
                "transaction.timeout.ms": 20_000,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._until_done(lambda: producer.init_transactions(5))
        return producer

    def _until_done(self, call: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                call()
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _transaction(self, producer: Any, number: int) -> None:
        producer.begin_transaction()
        for record in range(RECORDS):
            for topic in ("left", "right"):
                producer.produce(topic, f"{number}-{record}", partition=record % PARTITIONS)
        place = confluent_kafka.TopicPartition("in", 0, number)
        group = self.member.metadata
        in_time(lambda: self._until_done(lambda: producer.send_offsets_to_transaction([place], group, 5)))
        if number % 5 == 0:
            self._until_done(lambda: producer.abort_transaction(5))
            self.aborted.append(number)
            return
        try:
            self._until_done(lambda: producer.commit_transaction(5))
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                self.unknown.append(number)
            raise
        self.committed.append(number)

    def _recover(self, producer: Any, error: Any) -> Any:
        number = self.number
        self.errors[error.args[0].name()] += 1
        if error.args[0].fatal():
            self.fatal.append(str(error))
        if error.args[0].txn_requires_abort():
            try:
                self._until_done(lambda: producer.abort_transaction(5))
            except confluent_kafka.KafkaException:
                self.unknown.append(number)
                return self._producer()
            self.aborted.append(number)
            return producer
        if number not in self.unknown:
            self.unknown.append(number)
        return self._producer()


def kill(broker: BrokerProcess) -> None:
    broker.process.kill()
    broker.process.wait()
    assert broker.process.stdout
    broker.process.stdout.close()


@pytest.mark.parametrize(
    ("kills", "brokers", "protocol"),
    [
        pytest.param(SOME, 1, "classic", marks=pytest.mark.clients),
        pytest.param(MANY, 1, "classic", marks=pytest.mark.slow),
        pytest.param(MANY // 4, 3, "classic", marks=pytest.mark.slow),
        pytest.param(MANY // 4, 3, "consumer", marks=pytest.mark.slow),
    ],
)
def test_nothing_acknowledged_is_lost_and_nothing_is_half_done(
    kills: int, brokers: int, protocol: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MINIBROKER_SEED", "0")) or random.randrange(1 << 30)
    print(f"MINIBROKER_SEED={seed}")
    choices = random.Random(seed)
    ports = ",".join(map(str, free_ports(brokers)))
    directory = tmp_path / "data"
    arguments = ["--port", ports, "--brokers", str(brokers), "--data-dir", str(directory)]
    arguments += ["-c", "log.segment.bytes=1048576", "-c", f"default.replication.factor={brokers}"]
    topics = [f"--topic={name}:{PARTITIONS}" for name in ("counted", "left", "right", "in")]
    broker = start_minibroker(tmp_path / "broker-0.log", *arguments, *topics)
    member = Member(broker.bootstrap, protocol)
    loads = Idempotent(broker.bootstrap), Transactional(broker.bootstrap, member), member
    try:
        for load in loads:
            load.start()
        for number in range(1, kills + 1):
            time.sleep(choices.uniform(0.05, 1.0))
            kill(broker)
            log = tmp_path / f"broker-{number % 5}.log"
            broker = start_minibroker(log, *arguments)
        wait_for_work(loads, kills)
        for load in loads[:2]:
            ended(load)
        wait_until(lambda: sum(member.read.values()) == sum(loads[0].sent.values()), member)
        ended(member)
        print(
            f"{kills} kills of {brokers} brokers, {protocol}: {sum(loads[0].sent.values())} records counted,", end=" "
        )
        print(f"{len(loads[1].committed)} transactions committed, {len(loads[1].aborted)} aborted,", end=" ")
        print(f"{len(loads[1].unknown)} unknown; errors: {dict(loads[1].errors)}, fatal: {loads[1].fatal}")
        assert member.gaps == []
        assert [text for text in loads[1].fatal if "INVALID_TXN_STATE" in text] == []
        check_counted(broker.bootstrap, loads[0], kills)
        check_transactions(broker.bootstrap, loads[1], kills)
        assert broker.stop() == 0
    finally:
        if broker.process.poll() is None:
            broker.process.send_signal(getattr(subprocess, "CTRL_BREAK_EVENT", 9))
            broker.process.wait()
    for folder in sorted(directory.glob("broker*")) or [directory]:
        disk = OsDisk(str(folder), read_only=True)
        assert [str(finding) for finding in check_directory(disk) if finding.severity == ERROR] == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what a process holds is in /proc")
def test_a_long_load_leaves_nothing_behind(tmp_path: Path) -> None:
    """Three brokers forget what is old, so that what they hold after a tenth of the time is what they hold at the
    end. `MINIBROKER_LOAD_SECONDS` chooses another time."""
    config = ["log.segment.bytes=1048576", "log.retention.bytes=1048576", "default.replication.factor=3"]
    config += [
        "log.retention.check.interval.ms=5000",
        "log.segment.delete.delay.ms=1000",
        "log.cleaner.backoff.ms=5000",
    ]
    arguments = ["--brokers", "3", "--data-dir", str(tmp_path / "data"), *(f"-c{one}" for one in config)]
    topics = [f"--topic={name}:{PARTITIONS}" for name in ("counted", "left", "right", "in")]
    broker = start_minibroker(tmp_path / "broker.log", *arguments, *topics)
    member = Member(broker.bootstrap, "consumer")
    loads = Idempotent(broker.bootstrap, pause=0.05), Transactional(broker.bootstrap, member), member
    held = [Resources.of(broker.process.pid)]
    try:
        for load in loads:
            load.start()
        for seconds in (LOAD_SECONDS / 10, LOAD_SECONDS * 0.9):
            time.sleep(seconds)
            held.append(Resources.of(broker.process.pid))
        for load in loads:
            ended(load)
        time.sleep(8)  # longer than a check of retention is away, and deleted files are kept
        held.append(Resources.of(broker.process.pid))
        print(
            f"{sum(loads[0].sent.values())} records counted, {len(loads[1].committed)} transactions committed,", end=" "
        )
        print(f"errors: {dict(loads[1].errors)}, fatal: {loads[1].fatal}")
        print(*held, sep="\n")
        assert not loads[1].errors
        assert not loads[1].unknown
        _, warm, late, after = held
        assert late.memory_mb < 1.2 * warm.memory_mb + 20
        assert after.threads <= warm.threads + 10  # pools that grow when they are needed
        # Not "as many as after a tenth of the time": topics that grow slowly have one segment then, and two at the end.
        assert after.leaks(OPEN_SEGMENTS) == []
        assert broker.stop() == 0
    finally:
        if broker.process.poll() is None:
            kill(broker)


def ended(load: Load) -> None:
    load.ending.set()
    load.join(3 * SECONDS)
    assert not load.is_alive()
    if load.failure is not None:
        raise load.failure


def wait_until(done: Callable[[], bool], load: Load) -> None:
    deadline = time.monotonic() + SECONDS
    while load.failure is None and not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_work(loads: tuple[Idempotent, Transactional, Member], kills: int) -> None:
    """Until enough was sent and committed for the checks to mean something: a busy machine gets little done between
    the kills."""
    deadline = time.monotonic() + 2 * SECONDS
    while sum(loads[0].sent.values()) <= 5 * kills or len(loads[1].committed) <= kills:
        if any(load.failure is not None for load in loads):
            return  # told by the caller
        assert time.monotonic() < deadline, (
            f"{loads[1].errors} {loads[1].number} {loads[1].unknown} {loads[1].fatal} {loads[1].left_behind}"
        )
        time.sleep(0.05)


def check_counted(bootstrap: str, load: Idempotent, kills: int) -> None:
    values = [int(value) for value in read_all(bootstrap, "counted", PARTITIONS)]
    assert sum(load.sent.values()) > 5 * kills
    expected = [number for index in range(PARTITIONS) for number in range(load.sent[index])]
    assert values == expected  # all were acknowledged in the end: each is there once and in order
    for index in range(PARTITIONS):
        assert load.acknowledged[index] == list(range(load.sent[index]))


def check_transactions(bootstrap: str, load: Transactional, kills: int) -> None:
    assert len(load.committed) > kills
    left, right = (read_all(bootstrap, topic, PARTITIONS) for topic in ("left", "right"))
    found: dict[int, Counter[tuple[str, int]]] = {}
    for topic, values in (("left", left), ("right", right)):
        for value in values:
            number, record = map(int, value.decode().split("-"))
            found.setdefault(number, Counter())[topic, record] += 1
    whole = Counter({(topic, record): 1 for topic in ("left", "right") for record in range(RECORDS)})
    halves = {number: counted for number, counted in found.items() if counted != whole}
    assert halves == {}, "transactions that are half there or there twice"
    assert set(load.committed) - found.keys() == set()
    assert set(load.aborted) & found.keys() == set()
    assert found.keys() <= set(load.committed) | set(load.unknown)
    group = load.member.group
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (place,) = consumer.committed([confluent_kafka.TopicPartition("in", 0)], SECONDS)
    consumer.close()
    assert place.offset == max(found)  # the offsets of the last transaction that is there
