"""Which timer of a classic group runs when, and what an old one must not do."""

from __future__ import annotations

from typing import Any

import pytest
from group_client import GroupClient

from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol.errors import ErrorCode

NONE = ErrorCode.NONE
SESSION, REBALANCE = 10_000, 60_000


@pytest.fixture
def client() -> GroupClient:
    return GroupClient()


def completing(client: GroupClient) -> tuple[str, str]:
    """Generation 2 of two members, told to both; the first leads and has not brought assignments."""
    first = client.stable()
    joining = client.join_later()
    assert client.join(first).generation_id == 2
    return first, joining.result().member_id


def members(client: GroupClient) -> set[str]:
    return set(client.classic().members)


def test_a_member_that_is_removed_while_it_waits_for_its_assignment_is_told(client: GroupClient) -> None:
    first, second = completing(client)
    waiting = client.sync_later(second, 2)
    assert client.leave((second, None)) == (NONE, [NONE])
    assert waiting.result().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert members(client) == {first}


def test_a_second_sync_answers_the_first(client: GroupClient) -> None:
    first, second = completing(client)
    given_up, waiting = client.sync_later(second, 2), client.sync_later(second, 2)
    assert given_up.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    client.sync(first, 2, {second: b"two"})
    assert waiting.result().assignment == b"two"


def test_the_session_of_who_waited_for_the_assignment_begins_with_it(client: GroupClient) -> None:
    first, second = completing(client)
    waiting = client.sync_later(second, 2)
    client.advance(SESSION + 2000)  # ends both sessions: the leader's is over, who waits is forgiven
    assert not waiting.done or waiting.result().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second in members(client)
    assert first not in members(client)


@pytest.mark.parametrize("leads_anew", [False, True])
def test_a_coordinator_that_lost_its_partition_ends_no_session(client: GroupClient, leads_anew: bool) -> None:
    """Its timers would otherwise write of members that another coordinator, or this one anew, keeps."""
    member = client.stable()
    service = client.broker.coordinators.groups
    before = client.timers.armed
    group, index = client.classic(), service.partition_for("g")
    if leads_anew:  # without a resignation in between
        partition = client.broker.partition(CONSUMER_OFFSETS_TOPIC, index)
        service.elected(partition, partition.leader_epoch)
        assert [*members(client)] == [member]
        assert client.timers.armed == before
    else:
        service.resigned(index)
        assert client.timers.armed < before
    client.advance(2 * SESSION)
    assert list(group.members) == [member]


def test_a_coordinator_that_lost_its_partition_answers_who_waits(client: GroupClient) -> None:
    """Whoever is not answered waits for its request's timeout before it looks for the new coordinator."""
    _, second = completing(client)
    member = client.join(group_id="h").member_id
    client.sync(member, 1, {member: b"a"}, group_id="h")
    waiting: list[Deferred[Any]] = [client.sync_later(second, 2), client.join_later(group_id="h")]
    assert not any(one.done for one in waiting)
    service = client.broker.coordinators.groups
    for group_id in ("g", "h"):
        service.resigned(service.partition_for(group_id))
    assert [one.result().error_code for one in waiting] == [ErrorCode.NOT_COORDINATOR] * 2


@pytest.mark.parametrize("silent_ms", [SESSION - 1, SESSION + 1])
def test_a_session_is_armed_again_by_the_answer_to_sync(client: GroupClient, silent_ms: int) -> None:
    first, second = completing(client)
    waiting = client.sync_later(second, 2)
    for _ in range(3):  # the leader lives and takes its time, longer than the other's session
        client.advance(5000)
        assert client.heartbeat(first, 2) == NONE
    assert client.sync(first, 2, {first: b"1", second: b"2"}).error_code == NONE
    assert waiting.result().assignment == b"2"
    half = silent_ms // 2
    client.advance(half)
    client.heartbeat(first, 2)
    client.advance(silent_ms - half)
    client.heartbeat(first, 2)
    assert (second in members(client)) == (silent_ms < SESSION)


def test_the_wait_for_syncs_is_that_of_the_latest_generation(client: GroupClient) -> None:
    """Generation 2 waits for both members until 60 s; generation 3, begun at 40 s, until 100 s."""
    first, second = completing(client)
    client.sync(first, 2, {second: b"2"})
    for _ in range(5):
        client.advance(8000)
        client.heartbeat(first, 2)
        client.heartbeat(second, 2)
    again = client.join_later(first)
    client.join(second)
    assert again.result().generation_id == 3
    client.sync_later(first, 3)
    for _ in range(7):
        client.advance(8000)
        assert (client.heartbeat(first, 3), client.heartbeat(second, 3)) == (NONE, NONE)
    assert members(client) == {first, second}
    client.advance(4001)
    assert members(client) == {first}
    assert client.classic().state is GroupState.PREPARING_REBALANCE


def test_the_wait_for_joins_ends_with_the_join_phase(client: GroupClient) -> None:
    """The rebalance that began at 0 could take until 60 s; it took 8 s, and nothing happens at 60 s."""
    first, second = completing(client)
    client.sync_later(second, 2)
    client.sync(first, 2, {second: b"x"})
    joining = client.join_later(first)
    client.advance(8000)
    client.join(second)
    assert joining.result().generation_id == 3
    client.sync_later(second, 3)
    client.sync(first, 3, {})
    for _ in range(8):
        client.advance(8000)
        assert (client.heartbeat(first, 3), client.heartbeat(second, 3)) == (NONE, NONE)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_group_max_size_members_and_not_one_more(size: int) -> None:
    client = GroupClient({"group.max.size": str(size), "group.initial.rebalance.delay.ms": "1000"})
    joining = [client.join_later() for _ in range(size)]
    refused = client.join()
    assert (refused.error_code, refused.generation_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, -1)
    client.advance(1000)  # in which they came
    client.advance(1000)
    assert [answer.result().error_code for answer in joining] == [NONE] * size
    assert len(members(client)) == size


@pytest.mark.parametrize(
    ("full", "joins", "code"),
    [
        (True, "waits", NONE),
        (True, "known", ErrorCode.GROUP_MAX_SIZE_REACHED),  # the other two have joined, and that is what counts
        (True, "new", ErrorCode.GROUP_MAX_SIZE_REACHED),
        (False, "waits", NONE),
        (False, "known", NONE),
        (False, "new", NONE),
    ],
)
def test_who_may_join_while_a_full_group_rebalances(full: bool, joins: str, code: ErrorCode) -> None:
    """GroupMetadataManager.acceptJoiningMember: a member counts in this phase only once it has joined."""
    client = GroupClient({"group.max.size": "2"})
    waits, known = completing(client)
    client.sync_later(known, 2)
    client.sync(waits, 2, {})
    client.join_later(waits)
    if full:
        client.join_later()
    answer = client.join_later({"waits": waits, "known": known, "new": ""}[joins])
    client.advance(60_000)  # who has not joined by then is left behind
    assert answer.result().error_code == code


@pytest.mark.parametrize(
    ("phase", "code", "stays"),
    [
        ("stable", NONE, True),
        ("others rejoin", NONE, True),
        ("assignments are awaited", ErrorCode.REBALANCE_IN_PROGRESS, False),
    ],
)
def test_a_commit_is_a_sign_of_life(client: GroupClient, phase: str, code: ErrorCode, stays: bool) -> None:
    first, second = completing(client)
    if phase != "assignments are awaited":
        client.sync_later(second, 2)
        client.sync(first, 2, {})
    if phase == "others rejoin":
        client.join_later(first)
    client.advance(6000)
    if phase != "others rejoin":
        client.heartbeat(first, 2)
    assert client.commit({("t", 0): 1}, second, 2) == [code]
    client.advance(6000)
    assert (second in members(client)) is stays


def test_a_new_group_waits_for_more_no_longer_than_its_rebalance_timeout() -> None:
    client = GroupClient({"group.initial.rebalance.delay.ms": "3000"})
    joining = []
    for _ in range(4):
        joining.append(client.join_later(rebalance_timeout_ms=10_000))
        client.advance(2000)
    assert not any(answer.done for answer in joining)  # 8 s, and somebody came in each of them
    joining.append(client.join_later(rebalance_timeout_ms=10_000))
    client.advance(1999)
    assert not joining[0].done
    client.advance(1)
    assert {answer.result().generation_id for answer in joining} == {1}


def test_a_new_group_to_which_no_more_come_waits_once() -> None:
    client = GroupClient({"group.initial.rebalance.delay.ms": "3000"})
    joining = client.join_later()
    client.advance(2999)
    assert not joining.done
    client.advance(1)
    assert joining.done


def test_a_group_with_members_outlives_its_offsets(client: GroupClient) -> None:
    """Its offsets of an unread topic expire; a tombstone for the group would lose its members at the next start."""
    member = client.stable()
    client.commit({("t", 0): 1}, version=2, retention_ms=1000)
    client.clock.freeze()
    client.clock.advance(600_001)
    assert client.fetch() == {}
    again = client.restart()
    assert set(again.classic().members) == {member}
    assert again.classic().generation_id == 1


def test_a_coordinator_that_is_closed_ends_no_session() -> None:
    client = GroupClient()
    member = client.join().member_id
    client.sync(member, 1, {member: b""})
    group, armed = client.classic(), client.timers.armed
    client.broker.coordinators.groups.close()
    assert client.timers.armed < armed
    client.advance(3_600_000)
    assert set(group.members) == {member}
