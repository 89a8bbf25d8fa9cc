"""Groups with very much to assign: decided on another thread, one heartbeat after another, and never from what was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from held_executor import HeldExecutor
from memory_cluster import MemoryCluster
from watched_loop import MOST_CALLS, WatchedLoop, watched

from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import DiskInline
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from minibroker_protocol.messages.groups import FindCoordinatorRequest

TopicPartitions = ConsumerGroupHeartbeatRequest.TopicPartitions


def beat(
    member_id: str,
    epoch: int,
    names: list[str] | None = None,
    owned: list[TopicPartitions] | None = None,
    *,
    group_id: str = "g",
) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=-1 if names is None else 60_000,
        subscribed_topic_names=names,
        topic_partitions=owned,
    )


def owned_of(answer: ConsumerGroupHeartbeatResponse) -> list[TopicPartitions]:
    assert answer.assignment is not None
    return [TopicPartitions(topic_id=t.topic_id, partitions=t.partitions) for t in answer.assignment.topic_partitions]


MOST = 9_999
"""Partitions of each of eight topics: as much as goes into one batch of the log, so that one member may have all."""


def story(loop: WatchedLoop, topics: dict[str, int]) -> Iterator[tuple[str, ConsumerGroupHeartbeatResponse]]:
    def serve(what: str, request: ConsumerGroupHeartbeatRequest) -> tuple[str, ConsumerGroupHeartbeatResponse]:
        answer = loop.cluster.decode(ConsumerGroupHeartbeatRequest, 1, loop.serve(request, 1))
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == 0, answer.error_message
        return what, answer

    names = [*topics]
    joined = serve("join", beat("a", 0, names, []))
    yield joined
    yield serve("alive", beat("a", 2))
    yield serve("second", beat("b", 0, names, []))
    less = serve("less", beat("a", 2, owned=owned_of(joined[1])))
    yield less
    yield serve("given up", beat("a", 2, owned=owned_of(less[1])))
    rest = serve("the rest", beat("b", 3))
    yield rest
    for half in (less, rest):
        assert sum(len(topic.partitions) for topic in owned_of(half[1])) == sum(topics.values()) // 2


@pytest.mark.parametrize(
    ("partitions", "most"), [(2_000, MOST_CALLS // 5), pytest.param(MOST, MOST_CALLS, marks=pytest.mark.matrix)]
)
def test_members_of_a_large_group_leave_others_their_turn(partitions: int, most: int) -> None:
    topics = {f"t{number}": partitions for number in range(8)}
    with watched(topics) as loop:
        loop.serve(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        loop.cluster.timers.advance(100)
        loop.serve(beat("w", 0, ["no"], [], group_id="w"), 1)  # imports, and compiles
        longest = {what: max(loop.turns) for what, _answer in story(loop, topics)}
    assert {what: calls for what, calls in longest.items() if calls > most} == {}


@dataclass
class Held:
    cluster: MemoryCluster
    computing: HeldExecutor

    def beat(self, *args: Any, **more: Any) -> Deferred[ConsumerGroupHeartbeatResponse]:
        return self.cluster.send(beat(*args, **more), 1)

    def compute(self) -> None:
        """All decisions, and the answers after them."""
        while self.computing.waiting:
            self.computing.run()
        self.cluster.timers.advance(0)


@pytest.fixture
def held() -> Iterator[Held]:
    computing = HeldExecutor()
    cluster = MemoryCluster(topics={"large": 2000, "small": 2}, executor=DiskInline(computing))
    cluster.send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    cluster.timers.advance(100)
    yield Held(cluster, computing)
    cluster.stop()


def count(answer: Deferred[ConsumerGroupHeartbeatResponse]) -> int:
    assignment = answer.result().assignment
    return 0 if assignment is None else sum(len(topic.partitions) for topic in assignment.topic_partitions)


def test_one_member_after_another(held: Held) -> None:
    """Those of other groups are served in between; so is a member that only says that it is alive."""
    first, second = held.beat("a", 0, ["large"], []), held.beat("b", 0, ["large"], [])
    other = held.beat("a", 0, ["small"], [], group_id="h")
    assert held.computing.waiting == 1
    assert not first.done
    assert not second.done
    assert count(other) == 2
    held.compute()
    assert (first.result().member_epoch, count(first)) == (2, 2000)
    assert (second.result().member_epoch, count(second)) == (3, 0)
    asked = held.beat("a", 2)
    held.compute()
    given_up = held.beat("a", 2, owned=owned_of(asked.result()))
    held.compute()
    assert (given_up.result().member_epoch, count(asked)) == (3, 1000)
    alive = held.beat("a", 3)
    assert alive.done
    assert held.computing.waiting == 0


def test_a_group_that_has_changed_is_looked_at_again(held: Held) -> None:
    """Member a is thrown out while it is decided what b gets: all of it."""
    held.beat("a", 0, ["large"], [])
    held.compute()
    second = held.beat("b", 0, ["large"], [])
    assert held.computing.waiting == 1
    held.computing.work()
    held.cluster.timers.advance(45_001)
    held.compute()
    assert (second.result().error_code, second.result().member_epoch) == (0, 4)
    assert count(second) == 2000


def test_the_answer_of_a_large_group_is_made_elsewhere_too(held: Held) -> None:
    first = held.beat("a", 0, ["large"], [])
    held.computing.run()
    held.cluster.timers.advance(0)
    assert (first.done, held.computing.waiting) == (False, 1)
    held.compute()
    assert count(first) == 2000


def test_a_coordinator_that_goes_in_the_meantime_says_so(held: Held) -> None:
    first = held.beat("a", 0, ["large"], [])
    groups = held.cluster.broker.coordinators.groups
    groups.resigned(groups.partition_for("g"))
    held.compute()
    assert first.result().error_code == ErrorCode.NOT_COORDINATOR
    refused = held.beat("a", 0, ["large"], [])
    assert refused.result().error_code == ErrorCode.NOT_COORDINATOR


def test_a_coordinator_that_was_away_decides_anew(held: Held) -> None:
    """Its timers are new: a decision from before would leave a member whose session never ends."""
    first = held.beat("a", 0, ["large"], [])
    held.computing.work()
    groups = held.cluster.broker.coordinators.groups
    partition = held.cluster.broker.partition(CONSUMER_OFFSETS_TOPIC, groups.partition_for("g"))
    groups.resigned(partition.index)
    groups.elected(partition, partition.leader_epoch)
    held.compute()
    assert (first.result().error_code, count(first)) == (0, 2000)
    held.cluster.timers.advance(45_001)
    assert held.beat("a", 2).result().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_refusal_leaves_the_next_its_turn(held: Held) -> None:
    held.beat("a", 0, ["large"], [])
    held.compute()
    unknown, joins = held.beat("x", 7, ["large"]), held.beat("b", 0, ["large"], [])
    held.compute()
    assert unknown.result().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert joins.result().error_code == 0


def test_many_topics_are_matched_elsewhere_and_again_when_the_group_has_changed() -> None:
    computing = HeldExecutor()
    held = Held(MemoryCluster(topics={f"t{i}": 1 for i in range(1001)}, executor=DiskInline(computing)), computing)
    held.cluster.send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    held.cluster.timers.advance(100)
    joins = beat("a", 0, None, [])
    joins.subscribed_topic_regex, joins.rebalance_timeout_ms = "t.*", 60_000
    first = held.cluster.send(joins, 1)
    while not first.done:
        computing.run()
        held.cluster.timers.advance(0)
    assert (first.result().member_epoch, count(first)) == (1, 0)
    assert computing.waiting == 1
    groups = held.cluster.broker.coordinators.groups.shard_for("g")[1].groups
    group = groups["g"]
    assert isinstance(group, ConsumerGroup)
    computing.work()
    held.cluster.timers.advance(45_001)  # the session of a ends, with what it asked for
    assert group.is_empty
    held.compute()
    assert (group.expressions, computing.waiting) == ({}, 0)
    again = held.cluster.send(joins, 1)
    held.compute()
    held.compute()
    assert again.result().error_code == 0
    assert len(group.expressions["t.*"].topics) >= 1001
    held.cluster.stop()
