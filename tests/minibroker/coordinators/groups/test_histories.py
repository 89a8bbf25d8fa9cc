"""Random histories of groups and transactions: the log holds all that must survive, and the rules hold throughout."""

from __future__ import annotations

from typing import Any

from group_client import GroupClient
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sampling import search

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.kernel.deferred import Deferred
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

PARTITIONS = st.sampled_from([("t", 0), ("t", 1), ("u", 0)])
TRANSACTIONAL_IDS = st.sampled_from(["x", "y"])
MEMBERS = st.integers(0, 3)


def timers_of(client: GroupClient) -> set[tuple[str, str]]:
    """What a timer is for, and the member, of those that group g has."""
    return {(kind, member) for kind, group, member in client.shard().env.timers._armed if group == "g"}  # type: ignore[attr-defined]


class Histories(RuleBasedStateMachine):
    """One classic group with plain and transactional commits, checked against a model of the offsets."""

    @initialize()
    def start(self) -> None:
        self.client = GroupClient({"offsets.topic.num.partitions": "1"})
        self.joining: list[Deferred[Any]] = []
        self.members: list[str] = []
        self.producers: dict[str, tuple[int, int]] = {}
        self.committed: dict[tuple[str, int], tuple[int, int]] = {}  # partition -> (order, offset)
        self.pending: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
        self.order = 0

    def member(self, number: int) -> str:
        return self.members[number] if number < len(self.members) else "nobody"

    def collect(self) -> None:
        for answer in [a for a in self.joining if a.done]:
            self.joining.remove(answer)
            told = answer.result()
            if told.error_code == ErrorCode.NONE and told.member_id not in self.members:
                self.members.append(told.member_id)

    @rule(number=MEMBERS, metadata=st.sampled_from([b"m", b"n"]))
    def join(self, number: int, metadata: bytes) -> None:
        name = self.member(number)
        answer = self.client.join_later("" if name == "nobody" else name, protocols=[("range", metadata)])
        self.joining.append(answer)
        self.collect()

    @rule(number=MEMBERS)
    def sync(self, number: int) -> None:
        group = self.client.shard().groups.get("g")
        generation = group.generation_id if isinstance(group, ClassicGroup) else 0
        assignments = {name: name.encode() for name in self.members}
        self.joining.append(self.client.sync_later(self.member(number), generation, assignments))
        self.joining.pop()
        self.collect()

    @rule(number=MEMBERS)
    def leave(self, number: int) -> None:
        name = self.member(number)
        self.client.leave((name, None))
        if name in self.members:
            self.members.remove(name)
        self.collect()

    @rule(delta_ms=st.sampled_from([100, 4000, 11_000, 70_000]))
    def wait(self, delta_ms: int) -> None:
        self.client.timers.advance(delta_ms)
        self.collect()
        if delta_ms >= 70_000:  # every open transaction has timed out
            self.client.timers.advance(20_000)
            self.pending.clear()
            self.producers.clear()

    @rule(partition=PARTITIONS, offset=st.integers(0, 99), number=MEMBERS)
    def commit(self, partition: tuple[str, int], offset: int, number: int) -> None:
        name = self.member(number)
        group = self.client.shard().groups.get("g")
        generation = group.generation_id if isinstance(group, ClassicGroup) and name != "nobody" else -1
        [code] = self.client.commit({partition: offset}, "" if name == "nobody" else name, generation)
        if code == ErrorCode.NONE:
            self.order += 1
            self.committed[partition] = (self.order, offset)

    @rule(name=TRANSACTIONAL_IDS, partition=PARTITIONS, offset=st.integers(0, 99))
    def commit_in_transaction(self, name: str, partition: tuple[str, int], offset: int) -> None:
        if name not in self.producers:
            self.producers[name] = self.client.producer(name)
        if name not in self.pending:
            assert self.client.add_offsets(self.producers[name], transactional_id=name) == ErrorCode.NONE
        codes = self.client.commit_in_txn(self.producers[name], {partition: offset}, transactional_id=name)
        assert codes == [ErrorCode.NONE]
        self.order += 1
        self.pending.setdefault(name, {})[partition] = (self.order, offset)

    @rule(name=TRANSACTIONAL_IDS, commit=st.booleans())
    def end(self, name: str, commit: bool) -> None:
        if name not in self.pending:
            return
        assert self.client.end(self.producers[name], commit=commit, transactional_id=name) == ErrorCode.NONE
        for partition, told in self.pending.pop(name).items():
            if commit and told[0] > self.committed.get(partition, (0, 0))[0]:
                self.committed[partition] = told

    @rule()
    def delete_group(self) -> None:
        request = m.DeleteGroupsRequest(groups_names=["g"])
        [result] = self.client.call(request, m.DeleteGroupsResponse, 2).results
        if result.error_code == ErrorCode.NONE:
            self.committed.clear()
            for held in self.pending.values():
                held.clear()
            self.members.clear()

    @rule()
    def restart(self) -> None:
        before = self.client.shard().durable()
        self.client = self.client.restart({"offsets.topic.num.partitions": "1"})
        assert self.client.shard().durable() == before
        group = self.client.shard().groups.get("g")
        self.joining.clear()
        self.members = list(group.members) if isinstance(group, ClassicGroup) else []

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        if not hasattr(self, "client"):
            return
        assert self.client.fetch() == {partition: offset for partition, (_, offset) in self.committed.items()}
        held = {partition for pending in self.pending.values() for partition in pending}
        told = self.client.fetch(("t", 0), ("t", 1), ("u", 0), stable=True)
        unstable = {partition for partition, offset in told.items() if offset is ErrorCode.UNSTABLE_OFFSET_COMMIT}
        assert unstable == held

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.client.shard().groups.get("g") if hasattr(self, "client") else None
        if not isinstance(group, ClassicGroup):
            return
        assert group.awaiting_joins == sum(1 for x in group.members.values() if x.awaiting_join is not None)
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        assert group.pending_syncs <= group.members.keys()
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not group.members
        if group.state is GroupState.STABLE:
            assert group.persisted is not None
            assert group.persisted.generation == group.generation_id
            assert [x.member_id for x in group.persisted.members] == list(group.members)

    @invariant()
    def timers_run_for_what_is_there(self) -> None:
        """A session for each member that is in the group, or is to come back with its id; each phase has its end."""
        if not hasattr(self, "client"):
            return
        group = self.client.shard().groups.get("g")
        armed = timers_of(self.client)
        of_members = {name for kind, name in armed if kind == "session"}
        if not isinstance(group, ClassicGroup):
            assert not armed
            return
        waiting = {name for name, member in group.members.items() if member.awaiting_join or member.awaiting_sync}
        assert group.members.keys() - waiting <= of_members <= group.members.keys() | group.pending_joins
        assert (("join", "") in armed) == (group.state is GroupState.PREPARING_REBALANCE)
        assert group.pending_syncs or ("sync", "") not in armed


class ConsumerHistories(RuleBasedStateMachine):
    """One KIP-848 group: never two owners of a partition, and a restart changes nothing."""

    @initialize()
    def start(self) -> None:
        self.client = GroupClient({"offsets.topic.num.partitions": "1"})
        # What each client believes: epoch, and the partitions in its hands.
        self.epochs: dict[str, int] = {}
        self.hands: dict[str, set[tuple[bytes, int]]] = {}

    def beat(self, name: str, epoch: int, **more: Any) -> m.ConsumerGroupHeartbeatResponse:
        request = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=name, member_epoch=epoch, **more)
        return self.client.call(request, m.ConsumerGroupHeartbeatResponse, 1)

    def owned(self, name: str) -> list[m.ConsumerGroupHeartbeatRequest.TopicPartitions]:
        topics: dict[bytes, list[int]] = {}
        for topic_id, partition in sorted(self.hands[name]):
            topics.setdefault(topic_id, []).append(partition)
        kind = m.ConsumerGroupHeartbeatRequest.TopicPartitions
        return [kind(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]

    def follow(self, name: str, response: m.ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            self.epochs.pop(name, None)
            self.hands.pop(name, None)
            return
        self.epochs[name] = response.member_epoch
        if response.assignment is not None:
            self.hands[name] = {
                (topic.topic_id, p) for topic in response.assignment.topic_partitions for p in topic.partitions
            }

    @rule(name=st.sampled_from("abcd"), topics=st.sampled_from([["t"], ["t", "u"], ["u"]]))
    def enter(self, name: str, topics: list[str]) -> None:
        self.hands[name] = set()
        response = self.beat(name, 0, rebalance_timeout_ms=30_000, subscribed_topic_names=topics, topic_partitions=[])
        assert response.error_code == ErrorCode.NONE
        self.follow(name, response)

    @rule(name=st.sampled_from("abcd"), tells=st.booleans())
    def heartbeat(self, name: str, tells: bool) -> None:
        if name in self.epochs:
            owned = self.owned(name) if tells else None
            self.follow(name, self.beat(name, self.epochs[name], topic_partitions=owned))

    @rule(name=st.sampled_from("abcd"))
    def leave(self, name: str) -> None:
        if name in self.epochs:
            self.beat(name, -1)
            del self.epochs[name], self.hands[name]

    @rule(delta_ms=st.sampled_from([1000, 31_000, 46_000]))
    def wait(self, delta_ms: int) -> None:
        self.client.timers.advance(delta_ms)
        group = self.client.shard().groups.get("g")
        for name in list(self.epochs):
            if not isinstance(group, ConsumerGroup) or name not in group.members:
                del self.epochs[name], self.hands[name]  # a client notices by its own clock

    @rule()
    def restart(self) -> None:
        before = self.client.shard().durable()
        self.client = self.client.restart({"offsets.topic.num.partitions": "1"})
        assert self.client.shard().durable() == before

    @rule()
    def settle(self) -> None:
        """Heartbeats that say what they own bring every group to its target, everything assigned."""
        for _ in range(6):
            for name in list(self.epochs):
                self.follow(name, self.beat(name, self.epochs[name], topic_partitions=self.owned(name)))
        group = self.client.shard().groups.get("g")
        if isinstance(group, ConsumerGroup) and self.epochs:
            assert group.state_name == "Stable"
            image = self.client.broker.image
            topics = group.subscribed_topics(group.members.values(), group.expressions)
            wanted = {(image.topics[t].topic_id, p.index) for t in topics for p in image.topics[t].partitions}
            assert set(group.owners) == wanted

    @invariant()
    def timers_run_for_members(self) -> None:
        if not hasattr(self, "client"):
            return
        group = self.client.shard().groups.get("g")
        members = group.members.keys() if isinstance(group, ConsumerGroup) else set()
        armed = timers_of(self.client)
        assert {name for kind, name in armed if kind == "session"} == members
        assert {name for kind, name in armed if kind == "rebalance"} <= members

    @invariant()
    def no_partition_is_in_two_hands(self) -> None:
        if hasattr(self, "hands"):
            hands = [partition for owned in self.hands.values() for partition in owned]
            assert len(hands) == len(set(hands))


TestHistories = Histories.TestCase
TestHistories.settings = search(60, steps=40)
TestConsumerHistories = ConsumerHistories.TestCase
TestConsumerHistories.settings = search(60, steps=40)
