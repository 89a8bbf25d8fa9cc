"""KIP-848: join, follow the target, give up, take over, leave."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from member_client import Members, assigned_partitions

from minibroker.coordinators.groups.consumer import members
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.member import MemberState
from minibroker.releases.chain import RELEASES
from minibroker_protocol import messages as m
from minibroker_protocol.coordinator_records import ConsumerGroupCurrentMemberAssignmentValue
from minibroker_protocol.errors import ErrorCode

NONE = ErrorCode.NONE
Request = m.ConsumerGroupHeartbeatRequest


@pytest.fixture(params=["here", "on another thread"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Members:
    """Of a broker that decides heartbeats as those of small groups, or of large ones: the answers are the same."""
    if request.param != "here":
        monkeypatch.setattr(members, "LARGE", -1)
    return Members()


def pair(client: Members) -> tuple[list[int], list[int]]:
    """Members a and b, both in epoch 3, and what each owns."""
    client.enter("a")
    client.enter("b")
    keeps = assigned_partitions(client.beat("a", 2, [0, 1, 2, 3]))
    assert keeps is not None
    assert client.beat("a", 2, keeps).member_epoch == 3
    gets = assigned_partitions(client.beat("b", 3))
    assert gets is not None
    return keeps, gets


def test_the_first_member_gets_everything(client: Members) -> None:
    joined = client.enter("a")
    assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (NONE, 2, 5000)
    assert assigned_partitions(joined) == [0, 1, 2, 3]
    beat = client.beat("a", 2)
    assert (beat.error_code, beat.member_epoch, assigned_partitions(beat)) == (NONE, 2, None)
    assert client.group().state_name == "Stable"


def test_the_second_waits_until_the_first_gave_up(client: Members) -> None:
    client.enter("a")
    second = client.enter("b")
    assert (second.member_epoch, assigned_partitions(second)) == (3, [])
    asked = client.beat("a", 2, [0, 1, 2, 3])
    assert (asked.member_epoch, assigned_partitions(asked)) == (2, [0, 1])
    assert client.group().state_name == "Reconciling"
    assert assigned_partitions(client.beat("b", 3)) is None  # not free yet
    assert assigned_partitions(client.beat("a", 2, [0, 1, 2])) is None  # one of them is still in its hands
    done = client.beat("a", 2, [0, 1])
    assert (done.member_epoch, assigned_partitions(done)) == (3, None)
    assert assigned_partitions(client.beat("b", 3)) == [2, 3]
    assert client.group().state_name == "Stable"


def test_a_member_that_does_not_give_up_is_removed(client: Members) -> None:
    client.enter("a")
    client.enter("b")
    client.beat("a", 2, [0, 1, 2, 3])
    client.advance(5001)
    assert client.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert assigned_partitions(client.beat("b", 3)) == [0, 1, 2, 3]


def test_leaving_gives_everything_back(client: Members) -> None:
    pair(client)
    left = client.beat("a", -1)
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (NONE, -1, 0)
    took = client.beat("b", 3)
    assert (took.member_epoch, assigned_partitions(took)) == (4, [0, 1, 2, 3])
    client.beat("b", -1)
    assert client.group().state_name == "Empty"
    assert client.group().targets == {}
    assert client.group().owners == {}


def test_a_session_ends(client: Members) -> None:
    pair(client)
    for _ in range(5):
        client.advance(10_000)
        client.beat("b", client.group().members["b"].member_epoch)
    assert list(client.group().members) == ["b"]
    assert client.group().members["b"].assigned.keys() == client.group().targets["b"].keys()


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        (3, None, NONE),
        (4, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, [0, 1], NONE),  # the answer with epoch 3 was lost
        (2, [0], NONE),
        (2, [0, 2], ErrorCode.FENCED_MEMBER_EPOCH),
        (1, [0, 1], ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_epochs(client: Members, epoch: int, owned: list[int] | None, code: ErrorCode) -> None:
    assert pair(client) == ([0, 1], [2, 3])
    answer = client.beat("a", epoch, owned)
    assert answer.error_code == code
    assert answer.member_epoch == (3 if code == NONE else 0)
    assert (answer.error_message is None) == (code == NONE)


def test_a_first_heartbeat_whose_answer_was_lost(client: Members) -> None:
    client.enter("a")
    again = client.enter("a")
    assert (again.member_epoch, assigned_partitions(again)) == (2, [0, 1, 2, 3])
    assert client.group().group_epoch == 2


BAD: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no group": ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
    "empty instance": ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
    "empty rack": ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
    "no rebalance timeout": ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
    "no partitions": ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
    "no subscription": ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
    "assignor": ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    "expression": (
        {"subscribed_topic_names": None, "subscribed_topic_regex": "("},
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_joins(client: Members, name: str) -> None:
    change, code = BAD[name]
    answer = client.enter("a", **change)
    assert (answer.error_code, answer.member_epoch) == (code, 0)
    assert answer.error_message
    assert "g" not in client.shard().groups


def test_bad_epochs(client: Members) -> None:
    assert client.beat("", 1).error_code == ErrorCode.INVALID_REQUEST
    assert client.beat("a", -3).error_code == ErrorCode.INVALID_REQUEST
    assert client.beat("a", -2).error_code == ErrorCode.INVALID_REQUEST  # only static members go for a while
    for epoch in (1, -1):
        assert client.beat("a", epoch).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    client.enter("a")
    for epoch in (1, -1):
        assert client.beat("ghost", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.beat("a", -2, instance_id="i").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_ids(client: Members) -> None:
    assert client.enter("").error_code == ErrorCode.INVALID_REQUEST  # from version 1 on the client makes it
    given = client.enter("", version=0).member_id
    assert given is not None
    assert len(given) == 22


def test_a_member_that_reads_nothing(client: Members) -> None:
    joined = client.enter("a", subscribed_topic_names=[])
    assert (joined.error_code, joined.member_epoch, assigned_partitions(joined)) == (NONE, 1, [])
    assert client.enter("b").member_epoch == 2
    before = client.group().durable()
    assert client.restart().group().durable() == before


def test_a_full_group() -> None:
    client = Members({"group.consumer.max.size": "1"})
    assert client.enter("a").error_code == NONE
    assert client.enter("b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert client.enter("a").error_code == NONE


def test_the_protocol_can_be_off() -> None:
    client = Members({"group.coordinator.rebalance.protocols": "classic"})
    assert client.enter("a").error_code == ErrorCode.UNSUPPORTED_VERSION
    described = client.call(
        m.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False),
        m.ConsumerGroupDescribeResponse,
        1,
    )
    assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION


# -- static members ----------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had(client: Members) -> None:
    client.enter("a", instance_id="i")
    assert client.enter("b", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    away = client.beat("a", -2, instance_id="i")
    assert (away.error_code, away.member_epoch) == (NONE, -2)
    back = client.enter("b", instance_id="i")
    assert (back.member_epoch, assigned_partitions(back)) == (2, [0, 1, 2, 3])
    assert client.group().group_epoch == 2
    assert list(client.group().members) == ["b"]
    assert client.beat("a", 2, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.beat("a", -1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.beat("b", 2, instance_id="j").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_removed(client: Members) -> None:
    client.enter("a", instance_id="i")
    client.enter("b")
    client.beat("a", -2, instance_id="i")
    for _ in range(5):
        client.advance(10_000)
        client.beat("b", client.group().members["b"].member_epoch)
    assert assigned_partitions(client.beat("b", client.group().members["b"].member_epoch, [])) is None
    assert list(client.group().members) == ["b"]
    assert client.group().static_members == {}


def test_a_static_member_that_takes_its_leave_for_good(client: Members) -> None:
    client.enter("a", instance_id="i")
    assert client.beat("a", -1, instance_id="i").error_code == NONE
    assert client.group().is_empty


# -- subscriptions -----------------------------------------------------------------------------------------------------


def topics_of(client: Members, member_id: str) -> set[str]:
    image = client.broker.image
    return {image.topic_names[topic_id] for topic_id in client.group().members[member_id].assigned}


def test_a_changed_subscription(client: Members) -> None:
    client.enter("a")
    changed = client.beat("a", 2, [0, 1, 2, 3], subscribed_topic_names=["u"])
    assert (changed.member_epoch, assigned_partitions(changed)) == (2, [])
    assert client.beat("a", 2, []).member_epoch == 3
    assert topics_of(client, "a") == {"u"}


def test_a_subscription_that_changes_while_partitions_are_given_up(client: Members) -> None:
    """The topic that it no longer wants is taken at once, though no new step begins (CurrentAssignmentBuilder)."""
    client.enter("a")
    client.enter("b")
    assert assigned_partitions(client.beat("a", 2, [0, 1, 2, 3])) == [0, 1]
    changed = client.beat("a", 2, [0, 1, 2, 3], subscribed_topic_names=["u"])
    assert (changed.member_epoch, assigned_partitions(changed)) == (2, [])


def test_more_partitions(client: Members) -> None:
    client.enter("a")
    topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=6, assignments=None)
    request = m.CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    assert client.call(request, m.CreatePartitionsResponse, 3).results[0].error_code == NONE
    grown = client.beat("a", 2)
    assert (grown.member_epoch, assigned_partitions(grown)) == (3, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(("release", "epochs", "emptied"), [("4.4", (2, 2, 3, 3, 4), 5), ("4.3", (2, 2, 2, 2, 2), 2)])
def test_another_assignor_and_an_empty_group(release: str, epochs: tuple[int, ...], emptied: int) -> None:
    """Recorded from Apache Kafka 4.3.1 and 4.4.0."""
    client = Members(semantics=RELEASES[release].semantics)
    seen = [client.enter("a", server_assignor="uniform").member_epoch]
    changes: list[dict[str, Any]] = [{"rack_id": "r"}, {"server_assignor": "range"}, {"rebalance_timeout_ms": 9}]
    for change in (*changes, {"server_assignor": "uniform"}):
        client.beat("a", client.group().members["a"].member_epoch, **change)
        seen.append(client.group().group_epoch)
    assert tuple(seen) == epochs
    client.beat("a", -1)
    assert client.group().target_epoch == emptied


def test_the_assignor_most_members_want(client: Members) -> None:
    client.enter("a", server_assignor="range", subscribed_topic_names=["t", "u"])
    client.enter("b", server_assignor="range", subscribed_topic_names=["t", "u"])
    described = describe(client)
    assert described.assignor_name == "range"
    targets = {member.member_id: member.target_assignment.topic_partitions for member in described.members}
    assert {t.topic_name: t.partitions for t in targets["a"]} == {"t": [0, 1], "u": [0]}


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_offsets_by_member_epoch(client: Members) -> None:
    pair(client)
    t0 = {("t", 0): 5}
    assert client.commit(t0, "a", 3) == [NONE]
    assert client.commit(t0, "a", 4) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert client.commit(t0, "a", 3, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert client.commit(t0, "ghost", 3) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert client.commit(t0) == [ErrorCode.UNKNOWN_MEMBER_ID]  # an admin, while members are there


STALE, ILLEGAL = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION
# Recorded: a has had partitions 0 and 1 since epoch 2 and is in epoch 3; 2 and 3 are b's (KIP-1251).
OLDER: dict[tuple[tuple[int, ...], int], bool] = {
    ((0,), 1): False,
    ((0,), 2): True,
    ((0,), 4): False,
    ((0, 1), 2): True,
    ((2,), 2): False,
    ((2,), 3): True,
    ((0, 2), 2): False,  # one of them spoils it for both
    ((2, 0), 2): False,
    ((0, 2), 3): True,
}


@pytest.mark.parametrize(("partitions", "epoch"), OLDER)
def test_older_epochs(client: Members, partitions: tuple[int, ...], epoch: int) -> None:
    pair(client)
    offsets = {("t", partition): 5 for partition in partitions}
    good = OLDER[partitions, epoch]
    assert client.commit(offsets, "a", epoch) == [NONE if good else STALE] * len(partitions)
    assert client.fetch() == (offsets if good else {})
    producer = client.producer()
    client.add_offsets(producer)
    codes = client.commit_in_txn(producer, offsets, "a", epoch)
    assert codes == [NONE if good else ILLEGAL] * len(partitions)


def test_older_epochs_while_giving_up(client: Members) -> None:
    client.enter("a")
    client.enter("b")
    client.beat("a", 2, [0, 1, 2, 3])  # 2 and 3 are to be given up
    assert client.commit({("t", 3): 5}, "a", 2) == [NONE]
    client.beat("a", 2, [0, 1])
    assert client.commit({("t", 0): 6}, "a", 2) == [NONE]
    assert client.commit({("t", 3): 6}, "a", 2) == [STALE]
    too_large = client.commit({("t", 0): 6, ("t", 3): 6}, "a", 2, metadata="m" * 5000)
    assert too_large == [ErrorCode.OFFSET_METADATA_TOO_LARGE] * 2  # looked at first


def test_an_older_epoch_of_a_partition_that_is_being_given_up(client: Members) -> None:
    """It counts as long as it is a's."""
    assert pair(client) == ([0, 1], [2, 3])
    client.enter("c")
    client.enter("d")
    keeps = assigned_partitions(client.beat("a", 3, [0, 1]))
    (gives_up,) = {0, 1} - set(keeps or ())
    offset = {("t", gives_up): 5}
    assert [client.commit(offset, "a", epoch) for epoch in (1, 2)] == [[STALE], [NONE]]


def test_transactional_offsets_by_member_epoch(client: Members) -> None:
    pair(client)
    producer = client.producer()
    client.add_offsets(producer)
    assert client.commit_in_txn(producer, {("t", 0): 5}, "a", 3) == [NONE]
    assert client.commit_in_txn(producer, {("t", 0): 6}, "a", 4) == [ErrorCode.ILLEGAL_GENERATION]
    assert client.commit_in_txn(producer, {("t", 0): 6}, "ghost", 3) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert client.commit_in_txn(producer, {("t", 0): 6}, "", 3) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert client.commit_in_txn(producer, {("t", 1): 6}) == [NONE]  # of nobody, as older versions say it
    client.end(producer, commit=True)
    assert client.fetch(("t", 0), ("t", 1), stable=True) == {("t", 0): 5, ("t", 1): 6}


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("a", 3, NONE),
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("ghost", 3, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, -1, NONE),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", -1, ErrorCode.STALE_MEMBER_EPOCH),
    ],
)
def test_fetch_by_member_epoch(client: Members, member_id: str | None, epoch: int, code: ErrorCode) -> None:
    pair(client)
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", member_id=member_id, member_epoch=epoch, topics=topics
    )
    [answer] = client.call(m.OffsetFetchRequest(groups=[group]), m.OffsetFetchResponse, 9).groups
    assert (answer.error_code, len(answer.topics)) == (code, 1 if code == NONE else 0)


# -- beside the classic protocol ---------------------------------------------------------------------------------------


def test_classic_requests_of_a_native_member(client: Members) -> None:
    client.enter("a")
    assert client.heartbeat("a", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.sync("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    [described] = client.call(m.DescribeGroupsRequest(groups=["g"]), m.DescribeGroupsResponse, 5).groups
    assert described.group_state == "Dead"
    assert client.leave(("a", None)) == (NONE, [NONE])  # an admin's way to remove it
    assert client.group().is_empty


def test_an_empty_group_changes_its_protocol(client: Members) -> None:
    client.commit({("t", 0): 5})
    assert client.enter("a").error_code == NONE  # a simple group gives way
    assert client.fetch() == {("t", 0): 5}
    client.beat("a", -1)
    member = client.stable()
    assert client.classic().generation_id == 1
    client.leave((member, None))
    assert client.enter("a").error_code == NONE
    assert client.fetch() == {("t", 0): 5}
    before = client.group().durable()
    assert client.restart().group().durable() == before


@pytest.mark.parametrize("owns", [[0], None])
def test_a_member_whose_state_is_unknown_must_rejoin(client: Members, owns: list[int] | None) -> None:
    """CurrentAssignmentBuilder: as after a downgrade from a version that has more states."""
    client.enter("a")
    members = client.group().members
    members["a"] = replace(members["a"], state=MemberState.UNKNOWN)
    assert client.beat("a", 2, owns).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_deleting(client: Members) -> None:
    client.enter("a")
    client.commit({("t", 0): 5}, "a", 2)
    delete = m.DeleteGroupsRequest(groups_names=["g"])
    assert client.call(delete, m.DeleteGroupsResponse, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    client.beat("a", -1)
    assert client.call(delete, m.DeleteGroupsResponse, 2).results[0].error_code == NONE
    assert "g" not in client.shard().groups
    assert "g" not in client.restart().shard().groups


# -- telling and restarting --------------------------------------------------------------------------------------------


def describe(client: Members) -> Any:
    request = m.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True)
    return client.call(request, m.ConsumerGroupDescribeResponse, 1).groups[0]


def test_describe(client: Members) -> None:
    assert describe(client).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    pair(client)
    told_ = describe(client)
    assert (told_.error_code, told_.group_state, told_.group_epoch, told_.assignment_epoch) == (NONE, "Stable", 3, 3)
    assert (told_.assignor_name, told_.authorized_operations) == ("uniform", 3400)
    owned = {x.member_id: [(t.topic_name, t.partitions) for t in x.assignment.topic_partitions] for x in told_.members}
    assert owned == {"a": [("t", [0, 1])], "b": [("t", [2, 3])]}
    assert {x.member_type for x in told_.members} == {1}
    listed = client.call(m.ListGroupsRequest(types_filter=["Consumer"]), m.ListGroupsResponse, 5).groups
    assert [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in listed] == [
        ("g", "consumer", "Stable", "consumer")
    ]
    client.join(group_id="classic")
    request = m.ConsumerGroupDescribeRequest(group_ids=["classic", ""], include_authorized_operations=True)
    codes = [g.error_code for g in client.call(request, m.ConsumerGroupDescribeResponse, 0).groups]
    assert codes == [ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND]


def test_a_restart_in_the_middle(client: Members) -> None:
    client.enter("a")
    client.enter("b")
    client.beat("a", 2, [0, 1, 2, 3])
    before = client.group().durable()
    again = client.restart()
    assert again.group().durable() == before
    assert again.beat("a", 2, [0, 1]).member_epoch == 3
    assert assigned_partitions(again.beat("b", 3)) == [2, 3]


def test_the_wait_for_partitions_goes_on_after_a_restart(client: Members) -> None:
    client.enter("a")
    client.enter("b")
    client.beat("a", 2, [0, 1, 2, 3])
    again = client.restart()
    again.advance(5001)
    assert list(again.group().members) == ["b"]


def test_a_compacted_log_may_tell_the_new_owner_first() -> None:
    """Compaction keeps the last record of each member, so that of the one who gave up can come later."""
    topic_id = bytes(15) + b"\1"
    value = ConsumerGroupCurrentMemberAssignmentValue
    mine = [value.TopicPartitions(topic_id=topic_id, partitions=[0])]

    def owns(epoch: int, partitions: list[Any]) -> ConsumerGroupCurrentMemberAssignmentValue:
        return value(
            member_epoch=epoch,
            previous_member_epoch=epoch,
            state=0,
            assigned_partitions=partitions,
            partitions_pending_revocation=[],
        )

    group = ConsumerGroup("g")
    group.set_assignment("a", owns(2, mine))
    group.set_assignment("b", owns(3, mine))
    group.set_assignment("a", owns(3, []))
    assert group.owners == {(topic_id, 0): "b"}
    group.remove_member("b")
    assert group.owners == {}


def test_a_new_target_waits_for_the_interval_of_assignments() -> None:
    """The epochs and assignments are those of a live Kafka 4.3.1 at its default of 1000 ms."""
    client = Members({"group.consumer.assignment.interval.ms": "1000"})
    first = client.enter("A")
    assert (first.member_epoch, assigned_partitions(first)) == (2, [0, 1, 2, 3])
    second = client.enter("B")
    assert (second.member_epoch, assigned_partitions(second)) == (2, [])
    assert client.group().state_name == "Assigning"
    assert client.beat("B", 2).member_epoch == 2
    client.timers.advance(999)
    assert (client.beat("A", 2).member_epoch, client.group().target_epoch) == (2, 2)
    client.timers.advance(1)
    assert client.group().target_epoch == 2  # nothing happens without a heartbeat
    assert client.beat("B", 2).member_epoch == 3
    assert (assigned_partitions(client.beat("A", 2)), client.group().state_name) == ([0, 1], "Reconciling")
    assert client.beat("A", 2, [0, 1]).member_epoch == 3
    assert assigned_partitions(client.beat("B", 3)) == [2, 3]
    client.timers.advance(1000)
    assert client.enter("C").member_epoch == 4  # after a quiet time at once


def test_a_groups_own_interval_and_timeouts_act() -> None:
    client = Members({"group.consumer.assignment.interval.ms": "1000"})
    changes = {
        "consumer.assignment.interval.ms": "0",
        "consumer.heartbeat.interval.ms": "7000",
        "consumer.session.timeout.ms": "50000",
    }
    kind = m.IncrementalAlterConfigsRequest
    configs = [kind.AlterableConfig(name=name, config_operation=0, value=value) for name, value in changes.items()]
    resource = kind.AlterConfigsResource(resource_type=32, resource_name="g", configs=configs)
    answer = client.call(
        kind(resources=[resource], validate_only=False), m.IncrementalAlterConfigsResponse, 1
    ).responses[0]
    assert answer.error_code == ErrorCode.NONE
    client.enter("A")
    assert client.enter("B").member_epoch == 3
    assert client.beat("B", 3).heartbeat_interval_ms == 7000
    client.timers.advance(49_000)
    assert len(client.group().members) == 2
    client.timers.advance(2_000)
    assert not client.group().members


def test_a_static_member_that_is_removed_by_its_instance_is_not_named(client: Members) -> None:
    client.enter("A", instance_id="i")
    who = m.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="i")
    answer = client.call(m.LeaveGroupRequest(group_id="g", members=[who]), m.LeaveGroupResponse, 5)
    assert [(x.member_id, x.group_instance_id, x.error_code) for x in answer.members] == [("", "i", 0)]


@pytest.mark.parametrize(
    ("owned", "claimed", "topics", "large"),
    [
        (500, 500, 0, False),
        (501, 500, 0, True),
        (500, 501, 0, True),
        (500, 500, 1, True),
        (0, 0, 1000, False),
        (0, 0, 1001, True),
    ],
)
def test_what_is_large_is_decided_on_another_thread(owned: int, claimed: int, topics: int, large: bool) -> None:
    """Partitions that members have, those that a heartbeat names, and the topics subscribed to, together."""
    member: Any = SimpleNamespace(subscribed_topic_names=[f"t{n}" for n in range(topics)], subscribed_topic_regex="")
    group: Any = SimpleNamespace(owners=range(owned), members={"m": member})
    named = m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=bytes(16), partitions=list(range(claimed)))
    request = m.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=1, topic_partitions=[named] if claimed else None
    )
    image: Any = SimpleNamespace(topics={})
    assert members._is_large(request, group, image) is large
