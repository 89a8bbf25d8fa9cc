"""What a client of librdkafka is made to do under a fault, and what was seen of it."""

from __future__ import annotations

import threading
import time
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from fault_table import (
    IN_TRANSACTION,
    LED,
    WAIT_MS,
    Change,
    Row,
    Target,
    asks_again,
    cells,
    gets_an_error,
)

from minibroker import Minibroker
from minibroker.faults import Delay, Do

R = TypeVar("R")
SECONDS = 30.0
_KEPT = 10_000
_CELLS = 96
_CLOCK_SLACK_MS = 5
_BLOCKED_SECONDS = 0.06
_QUICK = {
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "transaction.timeout.ms": 60_000,
    "log_level": 0,
}
_CONSUMER = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 10,
    "coordinator.query.interval.ms": 100,
    "heartbeat.interval.ms": 50,
    "session.timeout.ms": 6000,
    "max.poll.interval.ms": 6000,
}


@dataclass
class Seen:
    """What a cell's client has seen.

    blocked: it went on neither before the rule was released nor before it was removed.
    errors: names of those that reached the application.
    ends: control records in the topic.
    count: how often the request was applied, where that can be counted.
    changed: whether what it asks for is done, where that can be looked up.
    """

    fired: int = 0
    blocked: bool = False
    errors: set[str] = field(default_factory=set)
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    ends: int = 0
    count: int | None = None
    changed: bool | None = None
    problem: str = ""


class Story:
    """What a client does, with names of its own on a broker that serves many at once. replicas: of its topic."""

    replicas = 1
    idempotent = False
    socket_timeout_ms = 30_000

    def __init__(self, broker: Minibroker, target: Target) -> None:
        self.broker = broker
        self.target = target
        unique = uuid.uuid4().hex[:8]
        self.topic, self.group, self.name, self.client = (f"{kind}-{unique}" for kind in ("t", "g", "x", "c"))
        self.seen = Seen()
        self._create_topic()

    def _create_topic(self) -> None:
        self.broker.state.create_topic(topic=self.topic, replication_factor=self.replicas)

    def run(self) -> Self:
        try:
            self._run()
        except Exception as error:  # told by the test of this cell, so that the others are told about, too
            self.seen.problem = f"{type(error).__name__}: {error}"
        return self

    def arm(self) -> None:
        """The group is complete and reads: heartbeats are all there is left to ask."""

    @abstractmethod
    def _run(self) -> None: ...

    @staticmethod
    def _not_done(done: Future[None]) -> bool:
        try:
            done.result(_BLOCKED_SECONDS)
        except TimeoutError:
            return True
        return False

    def _run_story(self, story: Callable[[], None]) -> None:
        try:
            story()
        except KafkaException as error:
            self.seen.errors.add(error.args[0].name())

    # -- clients -----------------------------------------------------------------------------------------------------

    def _client(self, kind: Any, **config: Any) -> Any:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        servers = {"bootstrap.servers": self.broker.bootstrap_servers, "client.id": self.client}
        return kind(
            {**_QUICK, **servers, "socket.timeout.ms": self.socket_timeout_ms, "error_cb": lambda _: None, **settings}
        )

    def _consumer(self, **config: Any) -> Any:
        return self._client(Consumer, **{"group.id": self.group, **_CONSUMER, **config})

    def _fill(self) -> None:
        sender = self._client(Producer, client_id="setup", linger_ms=0)
        for value in (b"1", b"2"):
            sender.produce(self.topic, value)
        assert sender.flush(SECONDS) == 0
        if self.target.story == "committed":
            self._commit(1, client_id="setup")

    def _commit(self, offset: int, **config: Any) -> None:
        reader = self._consumer(**config)
        wanted = [TopicPartition(self.topic, 0, offset)]
        try:
            self._insist(lambda: reader.commit(offsets=wanted, asynchronous=False))
        finally:
            reader.close()

    def _insist(self, ask: Callable[[], R]) -> R:
        """librdkafka looks for the new coordinator, but leaves it to the application to ask again."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return ask()
            except KafkaException as error:
                name = error.args[0].name()
                if name != "NOT_COORDINATOR" or time.monotonic() > deadline:
                    raise
                self.seen.errors.add(name)
                time.sleep(0.02)

    def _poll(self, reader: Any, count: int) -> list[bytes]:
        values: list[bytes] = []
        deadline = time.monotonic() + SECONDS
        while len(values) < count and time.monotonic() < deadline:
            message = reader.poll(0.1)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value())
            else:
                self.seen.errors.add(message.error().name())
                if message.error().name() == "NOT_COORDINATOR":
                    break
        return values

    # -- stories -----------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        sender = self._client(Producer, enable_idempotence=self.idempotent, acks="all", linger_ms=0)
        for value in (b"1", b"2"):
            sender.produce(
                self.topic, value, on_delivery=lambda error, _: self.seen.errors.add(error.name()) if error else None
            )
            assert sender.flush(SECONDS) == 0
            if self.seen.errors:
                return

    def read(self) -> None:
        reader = self._consumer()
        reader.assign([TopicPartition(self.topic, 0, -2)])
        assert self._poll(reader, 2) == [b"1", b"2"]
        reader.close()

    def committed(self) -> None:
        reader = self._consumer()
        try:
            committed = self._insist(lambda: reader.committed([TopicPartition(self.topic, 0)], SECONDS))
            if committed[0].error is not None:
                self.seen.errors.add(committed[0].error.name())
            else:
                assert committed[0].offset == 1
        finally:
            reader.close()

    def commit(self) -> None:
        self._commit(2)

    def transaction(self) -> None:
        sender = self._client(Producer, transactional_id=self.name)
        reader = self._client(Consumer, client_id="other", group_id=self.group)
        sender.init_transactions(SECONDS)
        sender.begin_transaction()
        sender.produce(self.topic, b"3")
        offsets = [TopicPartition(self.topic, 0, 2)]
        sender.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), SECONDS)
        sender.commit_transaction(SECONDS)

    def membership(self) -> None:
        member = self._consumer()
        member.subscribe([self.topic])
        values = self._poll(member, 2)
        if len(values) < 2:  # librdkafka reads no partition whose offset it was not told, whatever comes later
            member.close()
            member = self._consumer()
            member.subscribe([self.topic])
            values = self._poll(member, 2)
        assert set(values) == {b"1", b"2"}
        self.arm()
        if self.target.api == "Heartbeat":
            self._until(member, self.fault)
            # The rule has acted: one more of its heartbeats must arrive.
            later = self.broker.faults.inject("Heartbeat", Delay(0), client_id=self.client)
            self._until(member, later)
            later.remove()
        member.close()

    def _until(self, member: Any, fault: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while fault.fired == 0 and time.monotonic() < deadline:
            message = member.poll(0.02)
            if message is not None and message.error() is not None:
                self.seen.errors.add(message.error().name())

    def leave(self) -> None:
        member = self._consumer()
        member.subscribe([self.topic])
        assert self._poll(member, 1) == [b"1"]
        member.close()

    # -- what became of it -------------------------------------------------------------------------------------------

    def _values(self, isolation: str) -> list[bytes]:
        reader = self._consumer(
            client_id="judge",
            group_id="judge",
            isolation_level=isolation,
            enable_partition_eof=True,
            fetch_wait_max_ms=5,
        )
        reader.assign([TopicPartition(self.topic, 0, 0)])
        values = []
        try:
            while (message := reader.poll(SECONDS)) is not None and message.error() is None:
                values.append(message.value())
        finally:
            reader.close()
        return values

    def _log_end(self) -> int:
        def end(cluster: Any) -> int:
            leader = cluster.brokers[cluster.image.leader_of(self.topic, 0)]
            return int(leader.partition(self.topic, 0).log.log_end_offset)

        return int(self.broker.cluster.run(end))


class Cell(Story):
    """One action on one kind of request, on a single broker."""

    def __init__(self, broker: Minibroker, target: Target, row: Row) -> None:
        super().__init__(broker, target)
        self.row = row
        if row.name == "corrupt":  # the answer that was asked for never comes
            self.socket_timeout_ms = 2000

    def _run(self) -> None:
        target, row, seen = self.target, self.row, self.seen
        if target.story != "produce":
            self._fill()
        # librdkafka asks for a coordinator whenever it likes; a request that is kept must not be overtaken by a second.
        # And it loses an answer in one of some 200 starts: 2.16.0 ends its first connection once it knows the brokers,
        # and asks again half a second later. A final error must be there still.
        times = None if (row.blocked or row.final) and target.api == "FindCoordinator" else 1
        self.fault = self.broker.faults.inject(target.api, row.make(target), client_id=self.client, times=times)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(self._run_story, getattr(self, target.story))
            self.fault.wait(1, SECONDS)
            if row.blocked:
                seen.blocked = self._not_done(done)
                if row.blocked == "release":
                    self.fault.release()
                self.fault.remove()
            done.result(2 * SECONDS)
        seen.fired = self.fault.fired
        self.fault.remove()
        if target.changes and row.final:
            seen.changed = self._changed()
        if target.counted:
            seen.count = self._count()
        seen.values = self._values("read_committed")
        seen.ends = self._log_end() - len(self._values("read_uncommitted"))

    def _look(self, at: Callable[[Any], Any]) -> Any:
        return self.broker.cluster.run(lambda cluster: at(cluster.brokers[1]))

    def _transaction(self) -> Any:
        def find(broker: Any) -> Any:
            _, shard = broker.coordinators.transactions.host.shard_for(self.name)
            return shard.entry(self.name).metadata

        return self._look(find)

    def _count(self) -> int | None:
        if self.target.api == "Produce":
            return self._values("read_uncommitted").count(b"1")
        return int(self._transaction().producer_epoch) + 1 if self.row.applied else None

    def _changed(self) -> bool:
        api = self.target.api
        if api == "Produce":
            return b"1" in self._values("read_uncommitted")
        if api in ("OffsetCommit", "TxnOffsetCommit"):

            def known(broker: Any) -> bool:
                offsets = broker.coordinators.groups.host.shard(
                    broker.coordinators.groups.host.partition_for(self.group)
                ).offsets
                held = offsets.get(self.group, self.topic, 0) is not None
                return held or bool(offsets.is_pending(self.group, self.topic, 0))

            return bool(self._look(known))
        from minibroker_protocol.errors import ApiError

        try:
            metadata = self._transaction()
        except ApiError:
            return False
        if api == "InitProducerId":
            return True
        if api == "EndTxn":
            return metadata.state.name in ("PREPARE_COMMIT", "COMPLETE_COMMIT")
        wanted = self.topic if api == "AddPartitionsToTxn" else "__consumer_offsets"
        return any(partition[0] == wanted for partition in metadata.partitions)


Watched = dict[tuple[Target, Row], Seen]


def watched(broker: Minibroker, make: Callable[[Target, Row], Cell], at_once: int) -> Watched:
    """What each cell's client saw, so many cells at a time."""
    # Those that wait longest first; and no more at a time than the broker keeps exchanges of.
    order = sorted(cells(), key=lambda cell: cell[1].name != "corrupt")
    ended: list[Cell] = []
    by_client: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with ThreadPoolExecutor(at_once) as pool:
        for first in range(0, len(order), _CELLS):
            broker.control.record(_KEPT)
            ended += pool.map(lambda cell: make(*cell).run(), order[first : first + _CELLS])
            exchanges = broker.control.exchanges(_KEPT)
            assert len(exchanges) < _KEPT
            for exchange in exchanges:
                by_client[exchange["client_id"]].append(exchange)
    for story in ended:
        story.seen.others = by_client[story.client]
        story.seen.exchanges = [e for e in story.seen.others if e["api"] == story.target.api]
    return {(story.target, story.row): story.seen for story in ended}


def check(target: Target, row: Row, seen: Seen) -> None:
    """Assert that a client saw the effect that the page says."""
    assert seen.problem == ""
    assert seen.fired >= 1
    first = next(exchange for exchange in seen.exchanges if exchange["fault"])
    after = [e for e in seen.exchanges if e["number"] != first["number"] and e["time_ms"] >= first["time_ms"]]

    assert seen.blocked == bool(row.blocked)
    wanted = gets_an_error(target, row)
    assert seen.errors == ({wanted} if wanted else set())
    if asks_again(target, row):
        assert any(e["outcome"] == "answered" for e in after), after
    elif not target.again:
        assert after == []
    if "error" in row.name:
        code = target.final if row.final else target.passing
        assert first["errors"]
        assert all(error.startswith(code) for error in first["errors"])
    if row.late:
        assert first["took_ms"] >= WAIT_MS - _CLOCK_SLACK_MS
    following = [e for e in seen.others if e["client"] == first["client"] and e["number"] > first["number"]]
    if row.name == "throttle":
        assert first["response"]["throttle_time_ms"] == WAIT_MS
        assert all(e["time_ms"] - first["time_ms"] >= WAIT_MS - _CLOCK_SLACK_MS for e in following)
    if row.name in ("drop reply, close", "truncate", "close", "reset"):
        assert following == []
    _nothing_lost_or_doubled(target, row, seen)


def _nothing_lost_or_doubled(target: Target, row: Row, seen: Seen) -> None:
    if target.counted and not gets_an_error(target, row):
        assert seen.count == row.applied
    if target.changes and row.final:
        assert seen.changed == bool(row.applied)
    if target.story == "produce":
        assert seen.values == [b"1"] * row.applied + [b"2"] * (not row.final)
    elif target.story != "transaction":
        assert (seen.values, seen.ends) == ([b"1", b"2"], 0)
    elif not gets_an_error(target, row):
        assert (seen.values, seen.ends) == ([b"1", b"2", b"3"], 1)
    else:
        committed = target.api == "EndTxn" and row.applied > 0
        assert (seen.values, seen.ends) == ([b"1", b"2", *[b"3"] * committed], int(committed))


def wait_for_all(broker: Minibroker) -> None:
    """Return once all three brokers serve: who has just been restarted may still be reading its logs."""
    began = time.monotonic()
    while True:
        live = broker.cluster.run(lambda cluster: [b for b in cluster.image.brokers.values() if not b.fenced])
        if len(live) == 3:
            return
        if time.monotonic() - began > SECONDS / 3:
            for node in {1, 2, 3} - set(broker.control.describe()["brokers"]):
                with suppress(Exception):  # another thread's start is on its way
                    broker.state.start_broker(broker=node)
        if time.monotonic() - began > SECONDS:
            raise TimeoutError(f"of three brokers only {[b.node_id for b in live]} serve after {SECONDS:g} s")
        time.sleep(0.02)


class Changed(Story):
    """One operation on the broker that is asked, on a cluster of three that nobody else uses meanwhile."""

    replicas = 3
    idempotent = True

    def __init__(self, broker: Minibroker, target: Target, change: Change) -> None:
        wait_for_all(broker)
        super().__init__(broker, target)
        self.change = change
        self.moved = False
        self.serving_node = 0
        self._armed = threading.Event()

    def warm_up(self) -> None:
        """The topics of the coordinators exist."""
        self._fill()
        self._commit(1)
        self.transaction()

    def _run(self) -> None:
        seen, change, broker = self.seen, self.change, self.broker
        if self.target.story != "produce":
            self._fill()
        self.serving_node = node_id = self._find_serving_node()
        broker.control.record(_KEPT)
        if self.target.api != "Heartbeat":
            self._inject()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(self._run_story, getattr(self, self.target.story))
            try:
                assert self._armed.wait(SECONDS)
                self.fault.wait(1, SECONDS)
                if change.undo:
                    seen.blocked = self._not_done(done)
                    self._undo(node_id)
                done.result(2 * SECONDS)
            finally:
                self.moved = self._find_serving_node() != node_id
                self._undo(node_id)
        seen.fired = self.fault.fired
        self.fault.remove()
        seen.others = [e for e in broker.control.exchanges(_KEPT) if e["client_id"] == self.client]
        seen.exchanges = [e for e in seen.others if e["api"] == self.target.api]
        seen.values = self._values("read_committed")
        seen.ends = self._log_end() - len(self._values("read_uncommitted"))

    def arm(self) -> None:
        if self.target.api == "Heartbeat":
            self._inject()

    def _inject(self) -> None:
        node_id = self._find_serving_node()
        operation, arguments = self._operation(node_id)
        action = Do(operation, arguments, when=self.change.when)
        self.fault = self.broker.faults.inject(self.target.api, action, client_id=self.client, broker=node_id)
        self._armed.set()

    def _undo(self, node_id: int) -> None:
        undo = self.change.undo
        known = self.broker.control.describe()
        if undo == "start_broker":
            if node_id not in known["brokers"]:
                self.broker.state.start_broker(broker=node_id)
        elif undo == "resume_broker":
            self.broker.state.resume_broker(broker=node_id)
        elif undo == "heal_disk":
            self.broker.state.heal_disk(broker=node_id)

    def _operation(self, node_id: int) -> tuple[str, dict[str, Any]]:
        if self.change.operation != "move":
            return self.change.operation, {"broker": node_id}
        to = node_id % 3 + 1
        if self.target.api in LED:
            return "move_leader", {"topic": self.topic, "partition": 0, "to": to}
        key = {"transactional_id": self.name} if self.target.api in IN_TRANSACTION else {"group": self.group}
        return "move_coordinator", {**key, "to": to}

    def _find_serving_node(self) -> int:
        """Node id of the broker that serves these requests."""

        def find(cluster: Any) -> int | None:
            node_id: int | None
            if self.target.api in LED:
                node_id = cluster.image.leader_of(self.topic, 0)
            elif self.target.api in IN_TRANSACTION:
                node_id = cluster.coordinator("transaction", self.name)
            else:
                node_id = cluster.coordinator("group", self.group)
            return node_id

        node = self.broker.cluster.run(find)
        assert node is not None
        return int(node)
