"""How classic groups come together: members, generations, static members, timers."""

from __future__ import annotations

import pytest
from group_client import GroupClient
from memory_cluster import refused_appends

from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

NONE = ErrorCode.NONE


@pytest.fixture
def client() -> GroupClient:
    return GroupClient()


def pair(client: GroupClient) -> tuple[str, str]:
    """A stable group of two dynamic members in generation 2; the first leads."""
    first = client.stable()
    second_join = client.join_later()
    assert client.join(first).generation_id == 2
    second = second_join.result().member_id
    waiting = client.sync_later(second, 2)
    assert client.sync(first, 2, {first: b"one", second: b"two"}).assignment == b"one"
    assert waiting.result().assignment == b"two"
    return first, second


@pytest.mark.parametrize("version", range(4, 10))
def test_a_dynamic_member_is_given_an_id_first(client: GroupClient, version: int) -> None:
    told = client.join(version=version)
    assert (told.error_code, told.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
    assert told.member_id.startswith("test-")
    assert len(told.member_id) == len("test-") + 36
    joined = client.join(told.member_id, version=version)
    assert (joined.error_code, joined.generation_id, joined.leader) == (NONE, 1, told.member_id)


@pytest.mark.parametrize("version", range(4))
def test_old_versions_join_at_once(client: GroupClient, version: int) -> None:
    joined = client.join(version=version)
    assert (joined.error_code, joined.generation_id, len(joined.members)) == (NONE, 1, 1)


def test_a_static_member_cannot_join_with_the_id_that_a_dynamic_one_was_given(client: GroupClient) -> None:
    """Kafka fails on it (classicGroupJoinExistingMember)."""
    given = client.join(version=9).member_id
    refused = client.join(given, version=9, instance="i")
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, "")
    assert client.join(given, version=9).error_code == NONE


def test_an_id_that_nobody_joins_with_is_forgotten(client: GroupClient) -> None:
    told = client.join(version=9)
    client.advance(10_001)
    assert not client.classic().pending_joins
    assert client.join(told.member_id, version=9).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_member_holds_the_generation_up_until_it_leaves(client: GroupClient) -> None:
    first = client.stable()
    pending = client.join(version=4).member_id
    waiting = client.join_later()
    client_rejoins = client.join_later(first)
    assert not client_rejoins.done
    assert client.leave((pending, None)) == (NONE, [NONE])
    assert client_rejoins.result().generation_id == waiting.result().generation_id == 2


def test_only_the_leader_is_told_who_is_there(client: GroupClient) -> None:
    first = client.stable()
    second = client.join_later()
    leader = client.join(first)
    assert [member.member_id for member in leader.members] == [first, second.result().member_id]
    assert second.result().members == []
    assert second.result().leader == first


def test_the_most_wanted_common_protocol_wins(client: GroupClient) -> None:
    first = client.join(protocols=[("a", b"1"), ("b", b"2"), ("c", b"3")]).member_id
    others = [client.join_later(protocols=[("b", b"2"), ("a", b"1")]) for _ in range(2)]
    assert client.join(first, protocols=[("a", b"1"), ("b", b"2"), ("c", b"3")]).protocol_name == "b"
    assert {answer.result().protocol_name for answer in others} == {"b"}


def test_members_that_do_not_rejoin_are_left_behind(client: GroupClient) -> None:
    first, second = pair(client)
    waiting = client.join_later(first, rebalance_timeout_ms=3000)
    assert client.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(12):  # the longest rebalance timeout of any member
        assert not waiting.done
        client.advance(5000)
        client.heartbeat(second, 2)
    assert waiting.result().generation_id == 3
    assert list(client.classic().members) == [first]


def test_an_error_of_a_later_part_of_those_that_leave_is_told(client: GroupClient) -> None:
    """Of more members than leave in one turn of the loop."""
    first, second = pair(client)
    names = [first, *(f"unknown {number}" for number in range(1000)), second]
    members = [m.LeaveGroupRequest.MemberIdentity(member_id=member) for member in names]
    answer = client.send(m.LeaveGroupRequest(group_id="g", members=members), 5)
    assert not answer.done
    client.broker.coordinators.groups.resigned(client.broker.coordinators.groups.partition_for("g"))
    client.advance(0)
    assert answer.result().error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("syncs", [False, True])
def test_members_that_do_not_sync_are_left_behind(client: GroupClient, syncs: bool) -> None:
    first = client.stable(rebalance_timeout_ms=4000)
    second = client.join_later(rebalance_timeout_ms=4000)
    client.join(first, rebalance_timeout_ms=4000)
    late = second.result().member_id
    client.sync(first, 2, {first: b"x"})
    if syncs:
        client.sync(late, 2)
    client.advance(4001)
    assert client.heartbeat(first, 2) == (NONE if syncs else ErrorCode.REBALANCE_IN_PROGRESS)
    assert (late in client.classic().members) == syncs


def test_a_session_ends_without_heartbeats(client: GroupClient) -> None:
    first, second = pair(client)
    for _ in range(4):
        client.advance(3000)
        assert client.heartbeat(first, 2) in (NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    assert second not in client.classic().members
    assert client.classic().state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("sign", ["heartbeat", "commit", "sync"])
def test_every_sign_of_life_counts(client: GroupClient, sign: str) -> None:
    member_id = client.stable()
    client.advance(7000)
    if sign == "heartbeat":
        client.heartbeat(member_id, 1)
    elif sign == "commit":
        client.commit({("t", 0): 1}, member_id, 1)
    client.advance(7000)
    assert (member_id in client.classic().members) == (sign != "sync")  # a late sync re-arms nothing


def test_a_parked_member_needs_no_heartbeats(client: GroupClient) -> None:
    first, second = pair(client)
    waiting = client.join_later(first)
    for _ in range(5):
        client.advance(9000)
        assert client.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not waiting.done
    assert client.join(second).generation_id == 3
    assert waiting.result().error_code == NONE


def test_the_last_member_leaves_an_empty_group(client: GroupClient) -> None:
    member_id = client.stable()
    client.leave((member_id, None))
    group = client.classic()
    assert (group.state, group.generation_id, group.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    assert group.persisted is not None
    assert (group.persisted.generation, group.persisted.members, group.persisted.protocol) == (2, [], None)


def test_leaving_while_others_wait(client: GroupClient) -> None:
    first, second = pair(client)
    waiting = client.join_later(first)
    assert client.leave((second, None)) == (NONE, [NONE])
    assert waiting.result().generation_id == 3


def test_leave_names_each_member(client: GroupClient) -> None:
    first, _ = pair(client)
    top, codes = client.leave((first, None), ("nobody", None), ("", "no-instance"))
    assert (top, codes) == (NONE, [NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID])
    one = m.LeaveGroupRequest(group_id="g", member_id="nobody")
    assert client.call(one, m.LeaveGroupResponse, 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_assignment_is_lost_when_a_member_joins_before_it_came(client: GroupClient) -> None:
    first = client.stable()
    second = client.join_later()
    client.join(first)
    waiting = client.sync_later(second.result().member_id, 2)
    newcomer = client.join_later()
    assert waiting.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not newcomer.done
    assert client.sync(first, 2, {}).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_the_leader_forgot_gets_nothing(client: GroupClient) -> None:
    first = client.stable()
    second = client.join_later()
    client.join(first)
    client.sync(first, 2, {first: b"all"})
    told = client.sync(second.result().member_id, 2)
    assert (told.error_code, told.assignment) == (NONE, b"")


@pytest.mark.parametrize(
    ("kind", "name"), [("connect", "range"), ("consumer", "sticky"), (None, "range"), ("consumer", None), (None, None)]
)
def test_sync_names_the_protocol(client: GroupClient, kind: str | None, name: str | None) -> None:
    member_id = client.join().member_id
    wrong = client.sync(member_id, 1, {member_id: b"x"}, protocol_type=kind, protocol_name=name, version=5)
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    right = client.sync(member_id, 1, {member_id: b"x"}, version=5, **named)
    assert (right.error_code, right.protocol_type, right.protocol_name) == (NONE, "consumer", "range")


@pytest.mark.parametrize(("timeout_ms", "ok"), [(5999, False), (6000, True), (1_800_000, True), (1_800_001, False)])
def test_session_timeout_bounds(client: GroupClient, timeout_ms: int, ok: bool) -> None:
    code = client.join(session_timeout_ms=timeout_ms).error_code
    assert code == (NONE if ok else ErrorCode.INVALID_SESSION_TIMEOUT)


@pytest.mark.parametrize("group_id", [""])
def test_a_group_needs_an_id(client: GroupClient, group_id: str) -> None:
    invalid = ErrorCode.INVALID_GROUP_ID
    assert client.join(group_id=group_id).error_code == invalid
    assert client.sync("m", 1, group_id=group_id).error_code == invalid
    assert client.heartbeat("m", 1, group_id=group_id) == invalid
    assert client.leave(("m", None), group_id=group_id) == (invalid, [])


def test_a_full_group_takes_nobody() -> None:
    client = GroupClient({"group.max.size": "1"})
    member_id = client.stable()
    assert client.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert client.join(member_id).generation_id == 2


def test_the_first_rebalance_waits_for_more() -> None:
    client = GroupClient({"group.initial.rebalance.delay.ms": "3000"})
    first = client.join_later()
    client.advance(2000)
    second = client.join_later()
    client.advance(2000)
    assert not first.done  # somebody came meanwhile, so it waits once more
    client.advance(2000)
    assert first.result().generation_id == second.result().generation_id == 1
    assert len(first.result().members) == 2


# -- static members ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_member_comes_back_without_a_rebalance(client: GroupClient, version: int) -> None:
    old = client.stable(version=version, instance="i")
    assert old.startswith("i-")
    back = client.join(version=version, instance="i")
    assert (back.error_code, back.generation_id) == (NONE, 1)
    assert back.member_id != old
    if version >= 9:
        assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 1)
    else:
        assert (back.leader, back.members) == (old, [])  # it must not take itself for the leader
    assert client.sync(back.member_id, 1, instance="i").assignment == b"a"
    assert client.heartbeat(old, 1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert client.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.heartbeat(back.member_id, 1, instance="i") == NONE
    assert client.commit({("t", 0): 1}, old, 1, instance="i") == [ErrorCode.FENCED_INSTANCE_ID]
    assert client.sync(old, 1, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.leave((old, "i")) == (NONE, [ErrorCode.FENCED_INSTANCE_ID])
    assert client.join(old, version=version, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_changes_its_mind_starts_a_rebalance(client: GroupClient) -> None:
    client.stable(version=9, instance="i", protocols=[("range", b"m")])
    back = client.join(version=9, instance="i", protocols=[("sticky", b"m"), ("range", b"m")])
    assert back.error_code == ErrorCode.NONE
    assert (back.generation_id, back.protocol_name, back.skip_assignment) == (2, "sticky", False)


def test_requests_of_the_former_self_are_fenced(client: GroupClient) -> None:
    first = client.stable()
    static = client.join_later(version=9, instance="i")
    client.join(first)
    old = static.result().member_id
    parked = client.sync_later(old, 2, instance="i")
    back = client.join_later(version=9, instance="i")  # while assignments are awaited: a rebalance
    assert parked.result().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert not back.done
    again = client.join_later(version=9, instance="i")
    assert back.result().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.join(first).generation_id == again.result().generation_id == 3


def test_a_second_join_answers_the_first(client: GroupClient) -> None:
    first, second = pair(client)
    given_up, waiting = client.join_later(first), client.join_later(first)
    assert given_up.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert client.join(second).generation_id == waiting.result().generation_id == 3


def test_an_admin_removes_a_static_member_by_its_instance(client: GroupClient) -> None:
    client.stable(version=9, instance="i")
    assert client.leave(("", "i")) == (NONE, [NONE])
    assert client.classic().state is GroupState.EMPTY


def test_static_members_are_not_dropped_at_the_end_of_the_join_phase(client: GroupClient) -> None:
    first = client.stable(version=9, instance="i", session_timeout_ms=600_000, rebalance_timeout_ms=4000)
    second = client.join_later(rebalance_timeout_ms=4000)
    client.advance(4001)
    assert second.result().generation_id == 2
    assert first in client.classic().members


# -- durability --------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_members_and_assignments(client: GroupClient) -> None:
    first, second = pair(client)
    again = client.restart()
    assert again.heartbeat(first, 2) == NONE
    assert again.sync(second, 2).assignment == b"two"
    assert again.join(second).generation_id == 2  # an unchanged follower
    again.advance(10_001)  # sessions began anew with the load
    assert again.classic().state is GroupState.EMPTY


def test_a_group_in_the_middle_of_a_rebalance_falls_back_to_its_last_generation(client: GroupClient) -> None:
    first = client.stable()
    client.join_later()
    client.join(first)
    again = client.restart()
    assert again.classic().state is GroupState.STABLE
    assert again.heartbeat(first, 1) == NONE


def test_a_stop_answers_who_waits(client: GroupClient) -> None:
    client.stable()
    waiting = client.join_later()
    client.stop()
    assert waiting.result().error_code == ErrorCode.NOT_COORDINATOR


def test_a_static_member_that_rejoins_alone_waits_one_more_rebalance_timeout(client: GroupClient) -> None:
    """After the first one nobody had joined, and only static members were left, whose sessions are longer."""
    times = {"session_timeout_ms": 300_000, "rebalance_timeout_ms": 60_000}
    first = client.join(version=9, instance="i", **times).member_id
    second = client.join_later(version=9, instance="j", **times)
    client.join_later(first, version=9, instance="i", **times)
    members = [first, second.result().member_id]
    client.join_later(**times)
    (passing,) = client.classic().members.keys() - set(members)
    client.leave((passing, None))
    client.advance(60_000)
    assert client.classic().state is GroupState.PREPARING_REBALANCE
    back = client.join_later(first, version=9, instance="i", **times)
    client.advance(59_000)
    assert not back.done
    client.advance(2000)
    assert back.result().error_code == NONE
    assert list(client.classic().members) == members


@pytest.mark.parametrize("syncs", [True, False])
def test_the_successor_of_a_static_member_is_awaited_in_its_place(client: GroupClient, syncs: bool) -> None:
    """The one before had not sent its SyncGroup of this generation: the new one has the rest of that time."""
    times = {"session_timeout_ms": 300_000, "rebalance_timeout_ms": 60_000}
    leader = client.join(version=9, instance="l", **times).member_id
    joining = client.join_later(version=9, instance="i", **times)
    client.join(leader, version=9, instance="l", **times)
    assert client.sync(leader, 2, {joining.result().member_id: b"x"}, instance="l").error_code == NONE
    back = client.join(version=9, instance="i", **times)
    assert (back.error_code, back.generation_id) == (NONE, 2)
    if syncs:
        assert client.sync(back.member_id, 2, instance="i").assignment == b"x"
    client.advance(60_001)
    state = GroupState.STABLE if syncs else GroupState.PREPARING_REBALANCE
    assert (client.classic().state, back.member_id in client.classic().members) == (state, syncs)


@pytest.mark.parametrize("beats", [True, False])
def test_a_refused_replacement_leaves_the_static_member_as_it_was(client: GroupClient, beats: bool) -> None:
    old = client.stable(version=9, instance="i")
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        told = client.join(version=9, instance="i")
    assert (told.error_code, told.member_id, told.leader) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "", old)
    assert list(client.classic().members) == [old]
    if beats:
        assert client.heartbeat(old, 1, instance="i") == NONE
    client.advance(10_001)
    assert client.classic().state is GroupState.EMPTY


def test_a_refused_first_record_of_a_group_is_told(client: GroupClient) -> None:
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        assert client.commit({("t", 0): 1}) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert client.fetch() == {}
    assert "g" not in client.shard().groups


@pytest.mark.parametrize("version", [1, 9])
def test_a_group_whose_first_record_is_refused_refuses_who_joins(version: int) -> None:
    client = GroupClient({"group.initial.rebalance.delay.ms": "3000"})
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        answer = client.join(version=version, instance="i" if version == 9 else None)
    assert (answer.error_code, answer.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")


def test_a_refused_assignment_is_told_and_starts_over(client: GroupClient) -> None:
    first = client.stable()
    second = client.join_later()
    client.join(first)
    waiting = client.sync_later(second.result().member_id, 2)
    with refused_appends(CONSUMER_OFFSETS_TOPIC):
        assert client.sync(first, 2, {first: b"x"}).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert waiting.result().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.classic().state is GroupState.PREPARING_REBALANCE
    persisted = client.classic().persisted
    assert persisted is not None
    assert persisted.generation == 1
