"""Work that is left when a broker or a topic ends: nothing is opened again, made again or written.

Everything that a broker does later is under way at once: syncs on their threads, timers of flushes, retention,
compaction, checkpoints, file removal, a rebalance and a transaction, fetches of followers and clients, a new topic, a
delayed request. Then a broker or its topics end, and the rest arrives.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from held_executor import HeldExecutor
from logs import batches
from many_brokers import ManyBrokers

from minibroker.control.commands import Commands
from minibroker.faults.rules import rule_from
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import InlineExecutor
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.directory import CLEAN_FILE

R = TypeVar("R")
NODE = 1
TOPICS = ("synced", "alone", "compacted", "retained", "followed")
CONFIG = {
    "group.initial.rebalance.delay.ms": "3000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.flush.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
}


class SometimesHeld(HeldExecutor):
    """Works at once until `holding`."""

    holding = False

    def submit(self, work: Callable[[], R]) -> Deferred[R]:
        return super().submit(work) if self.holding else InlineExecutor.submit(self, work)


class Story:
    """Broker 1 leads everything but ``followed``, and has all kinds of work that is not done."""

    def __init__(self) -> None:
        self.executor = SometimesHeld()
        self.disks = {node: FaultyDisk() for node in (1, 2, 3)}
        self.brokers = ManyBrokers(3, CONFIG, disks=self.disks, executor=self.executor)
        for name, replicas, config in (
            ("synced", [1, 2, 3], {"flush.messages": "1"}),
            ("alone", [1], {"flush.messages": "1"}),
            ("compacted", [1, 2, 3], {"cleanup.policy": "compact"}),
            ("retained", [1, 2, 3], {"retention.ms": "1"}),
            ("followed", [2, 1, 3], {}),
        ):
            self.brokers.create(name, [replicas], config)
        self.brokers.coordinator("g", 0)
        self.brokers.coordinator("x", 1)
        for topic in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
            if self.brokers.leader(topic) != NODE:
                self.brokers.cluster.move_leader(topic, 0, NODE)
        self.brokers.settle(100)
        self.commands = Commands(self.brokers.cluster, self.brokers.timers)
        #: Answers of broker 1 to requests that wait for something.
        self.answers: list[Deferred[Any]] = []
        self.fill()
        self.executor.holding = True
        self.begin()

    def fill(self) -> None:
        for topic in TOPICS:
            for _ in range(3):
                leader, now_ms = self.brokers.leader(topic), self.brokers.clock.now_ms()
                batch = build_batch([Record(0, now_ms, b"k", b"v")])
                answer = self.brokers.send(leader, self.brokers.produce_request(topic, batch), 9)
                self.brokers.settle(20)
                assert answer.result().responses[0].partition_responses[0].error_code == 0
                self.brokers.partition(leader, topic).log.roll(now_ms)
        self.producer = self.call(m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1500), 4)

    def call(self, request: Request, version: int) -> Any:
        answer = self.brokers.send(NODE, request, version)
        self.brokers.settle(20)
        return answer.result()

    def ask(self, node_id: int, request: Request, version: int) -> None:
        answer = self.brokers.send(node_id, request, version)
        if node_id == NODE:
            self.answers.append(answer)

    def begin(self) -> None:
        """Leave work of each kind undone."""
        kind = m.AddPartitionsToTxnRequest
        added = kind(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.producer_epoch,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="synced", partitions=[0])],
        )
        self.ask(NODE, added, 3)
        now_ms = self.brokers.clock.now_ms()
        for topic in TOPICS:
            node = 2 if topic == "followed" else NODE
            batch = build_batch([Record(0, now_ms, b"k", b"later")])
            self.ask(node, self.brokers.produce_request(topic, batch), 9)
        join = m.JoinGroupRequest
        protocol = join.JoinGroupRequestProtocol(name="range", metadata=b"")
        joined = join(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        self.ask(NODE, joined, 3)
        fetch = m.FetchRequest
        wanted = fetch.FetchPartition(partition=0, fetch_offset=4, partition_max_bytes=100)
        waiting = fetch(
            max_wait_ms=5000, min_bytes=1000, topics=[fetch.FetchTopic(topic="retained", partitions=[wanted])]
        )
        self.ask(NODE, waiting, 12)
        self.commands.engine.add(rule_from({"api": "Produce", "action": {"name": "delay", "ms": 2000}}))
        self.ask(NODE, self.brokers.produce_request("retained", batch), 9)
        topic = m.CreateTopicsRequest.CreatableTopic(name="new", num_partitions=1, replication_factor=3)
        self.ask(NODE, m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        self.brokers.settle(600)
        assert self.executor.waiting > 3

    def arrive(self) -> None:
        """All that was held, and two minutes."""
        self.executor.holding = False
        self.executor.run_all()
        self.brokers.settle(120_000)


def test_a_killed_broker_writes_nothing() -> None:
    story = Story()
    disk = story.disks[NODE]
    story.brokers.cluster.kill_broker(NODE)
    before = disk.calls
    story.arrive()
    assert "\n".join(disk.history[before:]) == ""
    story.brokers.stop()


def test_a_stopped_broker_writes_nothing_after_its_clean_shutdown_file() -> None:
    story = Story()
    disk = story.disks[NODE]
    stopped = story.brokers.cluster.stop_broker(NODE)
    while not stopped.done and story.executor.waiting:
        story.executor.run()
    stopped.result()
    before = disk.calls
    story.arrive()
    assert "\n".join(disk.history[before:]) == ""
    assert disk.exists(CLEAN_FILE)
    story.brokers.stop()


def test_a_killed_brokers_work_is_not_done_in_its_next_start() -> None:
    story = Story()
    brokers, disk = story.brokers, story.disks[NODE]
    brokers.cluster.kill_broker(NODE)
    before = disk.calls
    story.executor.run_all()
    assert "\n".join(disk.history[before:]) == ""
    brokers.cluster.start_broker(NODE)
    story.arrive()
    for topic in ("synced", "followed"):
        again, other = ([*batches(brokers.partition(node, topic).log)] for node in (NODE, 2))
        assert again == other != [], topic
    brokers.stop()


def test_a_deleted_topic_is_not_made_again() -> None:
    story = Story()
    for topic in TOPICS:
        story.brokers.send(NODE, m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 4)
    story.brokers.settle(100)
    story.arrive()
    for disk in story.disks.values():
        assert [name for name in disk.list() if name.startswith(TOPICS)] == []
    story.brokers.stop()


def test_a_paused_broker_writes_and_answers_nothing_until_it_goes_on() -> None:
    """What its threads had begun is finished, as the kernel finishes writes, and it takes note of it later."""
    story = Story()
    brokers, disk = story.brokers, story.disks[NODE]
    brokers.cluster.pause_broker(NODE)
    waiting = [answer for answer in story.answers if not answer.done]
    assert len(waiting) > 4
    story.executor.run_all()
    before = disk.calls
    story.arrive()
    assert "\n".join(disk.history[before:]) == ""
    assert [answer for answer in waiting if answer.done] == []
    brokers.cluster.resume_broker(NODE)
    brokers.settle(60_000)
    assert [answer for answer in waiting if not answer.done] == []
    assert disk.calls > before
    brokers.stop()


@pytest.mark.parametrize("end", ["kill_broker", "stop_broker"])
def test_a_broker_that_has_ended_is_held_by_nothing(end: str) -> None:
    """A timer that was not cancelled would hold it, for ever if it arms itself again."""
    story = Story()
    brokers = story.brokers
    ended = weakref.ref(brokers.cluster.brokers[NODE])
    getattr(brokers.cluster, end)(NODE)
    story.arrive()
    story.answers.clear()
    gc.collect()
    assert ended() is None
    brokers.stop()
