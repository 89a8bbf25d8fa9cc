"""Topics of very many partitions: made, grown, configured and deleted in turns, and seen whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from long_batches import NOW
from manual_time import ManualTimer, ManualTimers
from many_brokers import ManyBrokers
from memory_cluster import MemoryCluster
from watched_loop import MOST_AT_ONCE, MOST_CALLS, WatchedLoop, watched

from minibroker.broker.broker import Broker
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.configs import IncrementalAlterConfigsRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.memory_disk import MemoryDisk

MANY = 9_999
RECORD = bytes(build_batch([Record(0, NOW, None, b"v")]))


def create(*counts: int, name: str = "n", manual: bool = False) -> CreateTopicsRequest:
    """Topics n0, n1, … of so many partitions."""
    one = CreateTopicsRequest.CreatableReplicaAssignment
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"{name}{number}",
            num_partitions=-1 if manual else count,
            replication_factor=-1,
            assignments=[one(partition_index=i, broker_ids=[1]) for i in range(count)] if manual else [],
            configs=[],
        )
        for number, count in enumerate(counts)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=False)


def grow(name: str, count: int) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)


def alter(kind: int, resource: str, config: str, value: str) -> IncrementalAlterConfigsRequest:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=config, config_operation=0, value=value)
    changed = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=resource, configs=[change]
    )
    return IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)


def delete(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=1000)


def write(topic: str, count: int) -> ProduceRequest:
    """A record to each partition, which opens its log."""
    partitions = [ProduceRequest.PartitionProduceData(index=i, records=RECORD) for i in range(count)]
    data = [ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)]
    return ProduceRequest(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=data)


STORY: list[tuple[str, Callable[[int], Request], int]] = [
    ("create", lambda many: create(many), 7),
    ("create several", lambda many: create(*[many // 10] * 10, name="s"), 7),
    ("create as assigned", lambda many: create(many, name="m", manual=True), 7),
    ("grow", lambda many: grow("g0", 1 + many), 3),
    ("configure a topic", lambda _: alter(2, "n0", "retention.ms", "100000"), 1),
    ("configure the broker", lambda _: alter(4, "1", "log.retention.ms", "100000"), 1),
    ("delete", lambda _: delete("n0"), 6),
]


RARELY = {"replica.high.watermark.checkpoint.interval.ms": "200000", "log.cleaner.backoff.ms": "200000"}
"""What is done every few seconds shows in three turns what it shows in a hundred."""


def story(many: int) -> Iterator[tuple[str, WatchedLoop]]:
    """Each request of `STORY`, after it was served."""
    with watched({"w": 1}, **RARELY) as loop:
        for request, version in ((create(1, name="g"), 7), (grow("w", 2), 3), (delete("w"), 6)):
            loop.serve(request, version)  # imports, and compiles
        for name, make, version in STORY:
            answer = loop.serve(make(many), version)
            assert answer is not None
            yield name, loop
            if name == "create":
                loop.serve(write("n0", many // 3), 9)
                yield "write", loop
                loop.pass_time(10 * 60_000)
                yield "sweeps", loop  # retention, producers, checkpoints


@pytest.mark.parametrize("many", [1500, pytest.param(MANY, marks=pytest.mark.slow)])
def test_what_changes_many_partitions_leaves_others_their_turn(many: int) -> None:
    longest: dict[str, int] = {}
    for name, loop in story(many):
        longest[name] = max(loop.turns)
        assert len(loop.turns) > many // MOST_AT_ONCE, name
    most = min(MOST_CALLS, 40_000 + 20 * many)
    assert {name: calls for name, calls in longest.items() if calls > most} == {}


def after_each_turn(timers: ManualTimers, look: Callable[[], None]) -> None:
    arm = timers.call_later

    def call_later(delay_ms: float, callback: Callable[[], None]) -> ManualTimer:
        def turn() -> None:
            callback()
            look()

        return arm(delay_ms, turn)

    timers.call_later = call_later  # type: ignore[method-assign]


def seen(broker: Broker, topic: str) -> int:
    """Partitions of the topic as Metadata shows it. Each of them is there, and no other."""
    image = broker.image.topics.get(topic)
    count = 0 if image is None else len(image.partitions)
    assert sorted(p.index for p in broker.partitions() if p.topic == topic) == list(range(count))
    return count


@pytest.mark.parametrize(
    ("request_", "version", "counts"),
    [(create(MANY, name="t"), 7, {0, MANY}), (grow("g", MANY), 3, {300, MANY}), (delete("g"), 6, {0})],
    ids=["create", "grow", "delete"],
)
def test_a_topic_is_seen_whole_and_answered_after_that(request_: Request, version: int, counts: set[int]) -> None:
    cluster = MemoryCluster(topics={"g": 300})
    topic = "t0" if isinstance(request_, CreateTopicsRequest) else "g"
    told: list[int] = []
    after_each_turn(cluster.timers, lambda: told.append(seen(cluster.broker, topic)))
    answer = cluster.send(request_, version)
    told.append(seen(cluster.broker, topic))
    assert not answer.done
    answer.then(lambda _: told.append(seen(cluster.broker, topic)))
    cluster.timers.advance(0)
    assert answer.done
    assert set(told) == counts
    assert seen(cluster.broker, topic) == told[-1] == told[-2]
    cluster.stop()


def test_images_are_followed_in_their_order() -> None:
    """A topic that is deleted and made again while its partitions are being taken ends as the last request says."""
    cluster = MemoryCluster()
    sent = [
        cluster.send(request, version)
        for request, version in (
            (create(MANY), 7),
            (delete("n0"), 6),
            (create(600), 7),
            (alter(2, "n0", "retention.ms", "5"), 1),
        )
    ]
    cluster.timers.advance(0)
    assert all(answer.done for answer in sent)
    assert seen(cluster.broker, "n0") == 600
    assert cluster.broker.image.topics["n0"].configs == {"retention.ms": "5"}
    cluster.stop()


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_stop_amid_a_deletion_leaves_no_log(turns: int) -> None:
    disk = MemoryDisk(64 << 20)
    cluster = MemoryCluster(topics={"g": 1000}, disk=disk)
    cluster.send(write("g", 1000), 9)
    cluster.timers.advance(0)
    left, held = [turns], list(cluster.broker.partitions())

    def look() -> None:
        left[0] -= 1
        if left[0] == 0:
            cluster.stop()

    after_each_turn(cluster.timers, look)
    cluster.send(delete("g"), 6)
    cluster.timers.advance(0)
    assert left[0] <= 0
    assert [partition for partition in held if partition.is_open] == []
    again = MemoryCluster(disk=disk, seed=8)
    assert seen(again.broker, "g") == 0
    assert [name for name in disk.list() if name.startswith("g-")] == []
    again.stop()


@pytest.mark.matrix
def test_a_broker_that_goes_while_partitions_are_made_leads_none_of_them() -> None:
    cluster = ManyBrokers(3)
    turns = []

    def look() -> None:
        turns.append(0)
        if len(turns) == 3:
            cluster.cluster.controller.replication.fence(3)

    request = create(2000)
    request.topics[0].replication_factor = 3
    after_each_turn(cluster.timers, look)
    answer = cluster.send(1, request, 7)
    cluster.settle(100)
    assert [topic.error_code for topic in answer.result().topics] == [0]
    made = cluster.cluster.image.topics["n0"].partitions
    assert {partition.isr for partition in made} == {(1, 2), (2, 1)}
    assert {partition.leader for partition in made} == {1, 2}
    assert {partition.partition_epoch for partition in made} == {0}, "none of them had to be mended"
    cluster.stop()


PARTITIONS, RECORDS = (
    "Excessively large number of partitions per request.",
    "Unable to perform excessively large batch operation.",
)


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (create(6000, 6000), PARTITIONS),
        (create(10_001), PARTITIONS),
        (create(10_001, manual=True), PARTITIONS),
        (create(-1, 10_000), PARTITIONS),
        (create(10_000), RECORDS),
        (create(0, 10_000), RECORDS),
        (create(*[1] * 5001), RECORDS),
        (create(9_999), None),
    ],
)
def test_one_request_makes_as_much_as_in_kafka(request_: CreateTopicsRequest, refused: str | None) -> None:
    """Kafka 4.4.0 was asked each of them."""
    cluster = MemoryCluster()
    request_.validate_only = True
    sent = cluster.send(request_, 7)
    cluster.timers.advance(0)
    topics = sent.result().topics
    code = ErrorCode.NONE if refused is None else ErrorCode.POLICY_VIOLATION
    assert {(topic.error_code, topic.error_message) for topic in topics} == {(code, refused)}
    assert len(topics) == len(request_.topics)
    cluster.stop()


@pytest.mark.parametrize(("count", "code"), [(10_003, ErrorCode.POLICY_VIOLATION), (10_002, ErrorCode.NONE)])
def test_one_request_adds_as_much_as_in_kafka(count: int, code: ErrorCode) -> None:
    cluster = MemoryCluster(topics={"t": 2})
    request = grow("t", count)
    request.validate_only = True
    sent = cluster.send(request, 3)
    cluster.timers.advance(0)
    assert [topic.error_code for topic in sent.result().results] == [code]
    cluster.stop()
