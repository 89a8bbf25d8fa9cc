"""Classic and native members in one group, and groups that change their protocol while they live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from group_client import GroupClient
from memory_cluster import refused_appends

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.member import ConsumerMember
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol import messages as m
from minibroker_protocol.coordinator_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.disk import StorageError

NONE = ErrorCode.NONE
Request = m.ConsumerGroupHeartbeatRequest
Named = ConsumerProtocolSubscription.TopicPartition
Given = ConsumerProtocolAssignment.TopicPartition


def says(*topics: str, owned: Mapping[str, Iterable[int]] | None = None, version: int = 3) -> list[tuple[str, bytes]]:
    """A consumer's protocols: what it subscribes to and owns."""
    told = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[Named(topic=name, partitions=list(numbers)) for name, numbers in (owned or {}).items()],
    )
    return [("range", version.to_bytes(2, "big") + told.encode(version))]


def gives(partitions: Mapping[str, Iterable[int]], version: int = 3) -> bytes:
    topics = [Given(topic=name, partitions=list(numbers)) for name, numbers in partitions.items()]
    message = ConsumerProtocolAssignment(assigned_partitions=topics)
    return version.to_bytes(2, "big") + message.encode(version)


class Mixed(GroupClient):
    def beat(
        self, member_id: str, epoch: int, owned: Iterable[int] | None = None, **more: Any
    ) -> m.ConsumerGroupHeartbeatResponse:
        if owned is not None:
            topic_id = self.broker.image.topics["t"].topic_id
            more["topic_partitions"] = [Request.TopicPartitions(topic_id=topic_id, partitions=list(owned))]
        request = Request(group_id="g", member_id=member_id, member_epoch=epoch, **more)
        return self.call(request, m.ConsumerGroupHeartbeatResponse, 1)

    def enter(self, member_id: str) -> m.ConsumerGroupHeartbeatResponse:
        return self.beat(member_id, 0, rebalance_timeout_ms=5000, subscribed_topic_names=["t"], topic_partitions=[])

    def classic_member(self, version: int = 3) -> str:
        """A stable classic group whose only member owns all of "t"."""
        member_id = self.join(protocols=says("t", version=version)).member_id
        assignment = gives({"t": range(4)}, version)
        assert self.sync(member_id, 1, {member_id: assignment}).assignment == assignment
        return member_id

    @property
    def found(self) -> ClassicGroup | ConsumerGroup:
        return self.shard().groups["g"]

    @property
    def consumer(self) -> ConsumerGroup:
        assert isinstance(self.found, ConsumerGroup)
        return self.found


@pytest.fixture
def client() -> Mixed:
    return Mixed()


def mixed(client: Mixed) -> str:
    """Native member n and a classic one, each with two partitions, both in epoch 2; the classic one's id."""
    classic = client.classic_member()
    assert client.enter("n").error_code == NONE
    assert client.heartbeat(classic, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    first = client.join(classic, protocols=says("t", owned={"t": range(4)}))
    assert (first.error_code, first.generation_id) == (NONE, 1)
    kept = client.sync(classic, 1)
    assert kept.assignment == gives({"t": [0, 1]})
    assert client.heartbeat(classic, 1) == ErrorCode.REBALANCE_IN_PROGRESS  # two are to be given up
    second = client.join(classic, protocols=says("t", owned={"t": [0, 1]}))
    assert second.generation_id == 2
    assert client.sync(classic, 2).assignment == gives({"t": [0, 1]})
    assert client.heartbeat(classic, 2) == NONE
    answer = client.beat("n", 2)
    assert answer.assignment is not None
    assert [p for t in answer.assignment.topic_partitions for p in t.partitions] == [2, 3]
    return classic


def test_a_native_member_turns_a_classic_group_over(client: Mixed) -> None:
    classic = mixed(client)
    assert client.consumer.state_name == "Stable"
    assert client.consumer.members[classic].uses_classic_protocol
    described = client.call(
        m.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False),
        m.ConsumerGroupDescribeResponse,
        1,
    ).groups[0]
    assert {member.member_id: member.member_type for member in described.members} == {"n": 1, classic: 0}


def test_offsets_of_classic_members_go_by_generation(client: Mixed) -> None:
    classic = mixed(client)
    assert client.commit({("t", 0): 1}, classic, 2, version=8) == [NONE]
    assert client.commit({("t", 0): 1}, classic, 1, version=8) == [NONE]  # its own since generation 1
    assert client.commit({("t", 2): 1}, classic, 1, version=8) == [ErrorCode.ILLEGAL_GENERATION]
    assert client.commit({("t", 0): 1}, classic, 3, version=8) == [ErrorCode.ILLEGAL_GENERATION]


@pytest.mark.parametrize("how", ["leave", "session"])
def test_without_native_members_it_is_classic_again(client: Mixed, how: str) -> None:
    classic = mixed(client)
    if how == "leave":
        client.beat("n", -1)
    else:
        for _ in range(6):
            client.advance(8000)
            client.heartbeat(classic, 2)
    group = client.classic()
    assert (group.state, list(group.members), group.generation_id) == (GroupState.PREPARING_REBALANCE, [classic], 2)
    assert group.members[classic].assignment == gives({"t": [0, 1]})
    assert client.heartbeat(classic, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = client.join(classic, protocols=says("t"))
    assert (joined.generation_id, joined.leader) == (3, classic)
    assert client.sync(classic, 3, {classic: gives({"t": range(4)})}).error_code == NONE


def test_a_group_is_classic_again_though_its_record_could_not_be_synced() -> None:
    """The member that leaves gets the error; the others rebalance, as the log has the record."""
    disk = FaultyDisk()
    client = Mixed({"minibroker.acknowledge.after.sync": "true"}, disk=disk)
    classic = mixed(client)
    disk.refuses = lambda what, path: StorageError(5, "input/output error", path) if what == "sync" else None
    assert client.beat("n", -1).error_code == ErrorCode.NOT_COORDINATOR
    assert (client.classic().state, list(client.classic().members)) == (GroupState.PREPARING_REBALANCE, [classic])


def test_a_group_whose_classic_member_cannot_be_understood_stays_a_consumer_group(client: Mixed) -> None:
    classic_id = mixed(client)
    member = client.consumer.members[classic_id].classic
    assert member is not None
    for protocol in member.supported_protocols:
        protocol.metadata = b"\0"
    assert client.beat("n", -1).error_code == NONE
    assert list(client.consumer.members) == [classic_id]


def test_a_change_of_protocol_that_is_refused_leaves_nothing(client: Mixed) -> None:
    mixed(client)
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        assert client.beat("n", -1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(client.consumer.members) == 2
    assert not client.shard().consumers.forming


def test_a_classic_member_whose_record_is_refused_is_told(client: Mixed) -> None:
    mixed(client)
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        answer = client.join(protocols=says("t"), version=3)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(client.consumer.members) == 2


def test_a_heartbeat_that_is_refused_has_seen_no_metadata(client: Mixed) -> None:
    """The next heartbeat looks again for topics that are new."""
    client.beat("n", client.enter("n").member_epoch)
    assert client.consumer.seen_image is not None
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        assert client.enter("other").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.consumer.seen_image is None


def test_a_classic_member_that_was_taken_over_has_a_session_from_then_on(client: Mixed) -> None:
    classic = client.classic_member()
    client.enter("n")
    for _ in range(3):
        client.advance(4000)
        client.beat("n", client.consumer.members["n"].member_epoch)
    assert classic not in client.consumer.members


def test_a_classic_member_that_is_left_has_its_session(client: Mixed) -> None:
    classic = mixed(client)
    client.beat("n", -1)
    client.advance(9_999)
    assert list(client.found.members) == [classic]
    client.advance(1)
    assert not client.found.members


@pytest.mark.parametrize("when", ["classic", "mixed", "classic again"])
def test_restarts(client: Mixed, when: str) -> None:
    if when == "classic":
        member = client.classic_member()
    else:
        member = mixed(client)
        if when == "classic again":
            client.beat("n", -1)
    before = client.shard().durable()
    again = client.restart()
    assert again.shard().durable() == before
    assert again.heartbeat(member, 1 if when == "classic" else 2) == NONE


def test_classic_members_that_do_not_rejoin_in_time_are_removed(client: Mixed) -> None:
    classic = client.classic_member()
    client.enter("n")
    for _ in range(8):
        code = client.heartbeat(classic, 1)
        client.advance(8000)
        client.beat("n", client.consumer.members["n"].member_epoch)
    assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID)
    assert list(client.consumer.members) == ["n"]
    assert set(client.consumer.owners.values()) == {"n"}


def test_a_wait_that_ended_while_the_group_was_classic_begins_anew(client: Mixed) -> None:
    """GroupMetadataManager.scheduleConsumerGroupJoinTimeoutIfAbsent: a timer that found no such group is over."""

    def join(member_id: str = "") -> m.JoinGroupResponse:
        return client.join(member_id, protocols=says("t"), session_timeout_ms=60_000, rebalance_timeout_ms=20_000)

    classic = join().member_id
    client.sync(classic, 1, {classic: gives({"t": range(4)})})
    client.enter("n")
    assert client.heartbeat(classic, 1) == ErrorCode.REBALANCE_IN_PROGRESS  # 20 s from now on
    client.beat("n", -1)
    assert join(classic).generation_id == 3
    client.sync(classic, 3, {classic: gives({"t": range(4)})})
    client.advance(20_000)
    assert client.enter("n").error_code == NONE
    assert client.heartbeat(classic, 3) == ErrorCode.REBALANCE_IN_PROGRESS

    def lives_on(ms: int) -> bool:
        client.advance(ms)
        client.beat("n", client.consumer.members["n"].member_epoch)
        return client.heartbeat(classic, 3) == ErrorCode.REBALANCE_IN_PROGRESS

    assert [lives_on(9_000), lives_on(9_000), lives_on(1_999), lives_on(1)] == [True, True, True, False]
    assert list(client.consumer.members) == ["n"]


def test_a_classic_member_joins_a_consumer_group(client: Mixed) -> None:
    client.enter("n")
    told = client.join(version=5, protocols=says("t"))
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = client.join(told.member_id, version=5, protocols=says("t"))
    assert (joined.error_code, joined.generation_id, joined.leader) == (NONE, 3, "")
    assert client.sync(joined.member_id, 3).assignment == gives({})
    client.beat("n", 2, range(4))
    client.beat("n", 2, [0, 1])
    assert client.heartbeat(joined.member_id, 3) == ErrorCode.REBALANCE_IN_PROGRESS  # its partitions are free now
    assert client.join(joined.member_id, version=5, protocols=says("t")).generation_id == 3
    assert client.sync(joined.member_id, 3).assignment == gives({"t": [2, 3]})


@pytest.mark.parametrize(("late_ms", "there"), [(19_999, True), (20_001, False)])
def test_a_member_that_joins_again_has_its_whole_time_for_the_sync(client: Mixed, late_ms: int, there: bool) -> None:
    client.enter("n")
    member = client.join(protocols=says("t"), rebalance_timeout_ms=20_000, session_timeout_ms=60_000).member_id
    client.beat("n", 2, range(4))

    def wait(*milliseconds: int) -> None:
        for ms in milliseconds:
            client.advance(ms)
            client.beat("n", client.consumer.members["n"].member_epoch, [0, 1])

    wait(4000, 5000, 5000)
    joined = client.join(member, protocols=says("t"), rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    assert joined.error_code == NONE
    wait(5000, 5000, 5000)
    client.advance(late_ms - 15_000)
    assert (member in client.consumer.members) == there


def test_what_a_member_says_it_owns() -> None:
    """Saying nothing is no confirmation that something was given up."""
    member, topic = ConsumerMember("a"), b"t" * 16
    given_up = {topic: {0: 1, 1: 1}}
    for owned, nothing in ((None, False), ([], True), ([(topic, [2])], True), ([(topic, [2, 1])], False)):
        assert member.owns_nothing_of(owned, given_up) is nothing


REFUSED: dict[str, ErrorCode] = {
    "other type": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    "other protocol": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    "own other protocol": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    "unreadable": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    "no protocols": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_joins(client: Mixed, what: str) -> None:
    classic = mixed(client)
    [(_, blob)] = says("t")
    more: dict[str, dict[str, Any]] = {
        "other type": {"protocol_type": "connect"},
        "other protocol": {"protocols": [("sticky", blob)]},
        "own other protocol": {"member_id": classic, "protocols": [("sticky", blob)]},
        "unreadable": {"protocols": [("range", b"\0")]},
        "no protocols": {"protocols": []},
    }
    before = client.shard().durable()
    assert client.join(**more[what]).error_code == REFUSED[what]
    assert client.shard().durable() == before


def test_requests_of_classic_members_are_checked(client: Mixed) -> None:
    classic = mixed(client)
    illegal, unknown = ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
    for generation, member_id, code in ((1, classic, illegal), (2, "ghost", unknown), (2, "n", unknown)):
        assert client.heartbeat(member_id, generation) == code
        assert client.sync(member_id, generation).error_code == code
    assert client.heartbeat(classic, 2, instance="i") == unknown
    wrong = client.sync(classic, 2, protocol_type="consumer", protocol_name="sticky", version=5)
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.leave(("ghost", None), (classic, None)) == (NONE, [unknown, NONE])
    assert list(client.consumer.members) == ["n"]


def test_a_static_classic_member_comes_back(client: Mixed) -> None:
    client.enter("n")
    first = client.join(version=9, instance="i", protocols=says("t")).member_id
    second = client.join(version=9, instance="i", protocols=says("t")).member_id
    assert first != second
    assert client.heartbeat(first, 3, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert client.sync(second, 3, instance="i").error_code == NONE
    assert client.join(first, version=9, instance="i", protocols=says("t")).error_code == ErrorCode.FENCED_INSTANCE_ID
    fenced, unknown = ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID
    assert client.leave((first, "i"), ("", "j"), ("", "i")) == (NONE, [fenced, unknown, NONE])
    assert list(client.consumer.members) == ["n"]


@pytest.mark.parametrize(
    ("before", "code"),
    [("classic", NONE), ("away", NONE), ("native", ErrorCode.UNRELEASED_INSTANCE_ID)],
)
def test_who_may_take_a_static_members_place(client: Mixed, before: str, code: ErrorCode) -> None:
    """A classic member's successor does not wait for it to leave (GroupMetadataManager, KIP-848)."""
    client.enter("n")
    static = {"instance_id": "i", "rebalance_timeout_ms": 5000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    if before == "classic":
        client.join(version=9, instance="i", protocols=says("t"))
    else:
        client.beat("old", 0, **static)
    if before == "away":
        client.beat("old", -2, instance_id="i")
    assert client.beat("new", 0, **static).error_code == code
    assert ("new" in client.consumer.members) is (code == NONE)


@pytest.mark.parametrize("why", ["policy", "other protocol type", "unreadable"])
def test_groups_that_do_not_change_over(why: str) -> None:
    client = Mixed({"group.consumer.migration.policy": "downgrade" if why == "policy" else "bidirectional"})
    if why == "other protocol type":
        client.stable(protocol_type="connect")
    elif why == "unreadable":
        client.stable()
    else:
        client.classic_member()
    assert client.enter("n").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.classic().state is GroupState.STABLE


@pytest.mark.parametrize(("data", "refused"), [(None, False), (b"", False), (b"u", True)])
def test_an_assignment_with_data_of_a_custom_assignor_is_not_lost(data: bytes | None, refused: bool) -> None:
    """As a live Kafka 4.3.1: GROUP_ID_NOT_FOUND with the advice to take another assignor."""
    client = Mixed()
    classic = client.classic_member()
    partition = ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0])
    told = ConsumerProtocolAssignment(assigned_partitions=[partition], user_data=data)
    client.classic().members[classic].assignment = b"\0\1" + told.encode(1)
    answer = client.enter("n")
    assert answer.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if refused else NONE)
    reason = (
        "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor"
    )
    message = f"Cannot upgrade classic group g to consumer group because {reason} before re-attempting the upgrade."
    assert answer.error_message == (message if refused else None)


def test_without_the_policy_it_stays_a_consumer_group() -> None:
    """As a live Kafka 4.4.0: no request computes the next target, so the one that is left is not sent back to join."""
    client = Mixed({"group.consumer.migration.policy": "upgrade"})
    classic = mixed(client)
    client.beat("n", -1)
    assert list(client.consumer.members) == [classic]
    assert client.heartbeat(classic, 2) == NONE
    again = client.join(classic, protocols=says("t", owned={"t": [0, 1]}))
    assert again.generation_id == 3
    assert client.sync(classic, 3).assignment == gives({"t": range(4)})


def test_who_joins_within_the_interval_of_assignments_has_nothing_until_it_is_over() -> None:
    """As a live Kafka 4.4.0, whose interval is 1,000 ms by default."""
    client = Mixed({"group.consumer.assignment.interval.ms": "1000"})
    assert client.enter("n").member_epoch == 2
    joined = client.join(protocols=says("t"))
    classic = joined.member_id
    assert (joined.error_code, joined.generation_id) == (NONE, 2)
    empty = client.sync(classic, 2)
    assert (empty.error_code, empty.assignment) == (NONE, gives({}))
    assert client.heartbeat(classic, 2) == NONE
    client.timers.advance(1000)
    assert client.heartbeat(classic, 2) == NONE  # until a native member asks
    client.beat("n", 2)
    assert client.heartbeat(classic, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    client.beat("n", 2, owned=[0, 1])
    assert client.join(classic, protocols=says("t")).generation_id == 3
    assert client.sync(classic, 3).assignment == gives({"t": [2, 3]})


def test_who_waits_in_a_rebalance_is_sent_back(client: Mixed) -> None:
    client.classic_member()
    waiting = client.join_later(protocols=says("t"))
    client.enter("n")
    assert waiting.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(client.consumer.members) == 3
