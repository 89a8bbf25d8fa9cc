"""Rebalances, removals and the end of sessions that a test asks for, on a broker in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from group_client import GroupClient

from minibroker.control.commands import Commands
from minibroker.faults import FaultError
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

NONE, AGAIN, UNKNOWN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID
SESSION_MS = 10_000
Heartbeat = m.ConsumerGroupHeartbeatRequest


class Forced(GroupClient):
    """A classic group ``g`` and a KIP-848 group ``k``, and the commands."""

    def ask(self, name: str, **arguments: Any) -> Any:
        if not hasattr(self, "commands"):
            self.commands = Commands(self.cluster, self.timers)
        found = self.commands.call(name, arguments)
        self.timers.advance(0)
        return found.result() if hasattr(found, "result") else found

    def beat(self, member_id: str, epoch: int, owned: Iterable[int] | None = None) -> m.ConsumerGroupHeartbeatResponse:
        first: dict[str, Any] = {"rebalance_timeout_ms": 5000, "subscribed_topic_names": ["t"]} if epoch == 0 else {}
        if owned is not None:
            topic_id = self.broker.image.topics["t"].topic_id
            first["topic_partitions"] = [Heartbeat.TopicPartitions(topic_id=topic_id, partitions=list(owned))]
        if epoch == 0:
            first["topic_partitions"] = []
        request = Heartbeat(group_id="k", member_id=member_id, member_epoch=epoch, **first)
        return self.call(request, m.ConsumerGroupHeartbeatResponse, 1, client_id=f"client-{member_id}")

    def pair(self) -> tuple[str, str]:
        """Two members of the classic group, in one generation."""
        first = self.stable()
        joins = self.join_later(""), self.join_later(first)
        second = joins[0].result().member_id
        generation = self.classic().generation_id
        self.sync_later(first, generation, {first: b"1", second: b"2"})
        assert self.sync(second, generation).error_code == NONE
        assert self.heartbeat(first, generation) == NONE
        return first, second


@pytest.fixture
def client() -> Forced:
    return Forced()


def test_a_classic_group_rebalances_and_refuses_offsets_of_the_generation_before(client: Forced) -> None:
    member = client.stable()
    assert client.heartbeat(member, 1) == NONE
    client.ask("state.rebalance_group", group="g")
    assert client.heartbeat(member, 1) == AGAIN
    client.ask("state.rebalance_group", group="g")  # one is under way
    assert client.join(member).generation_id == 2
    assert client.sync(member, 2, {member: b"a"}).error_code == NONE
    assert client.heartbeat(member, 1) == ErrorCode.ILLEGAL_GENERATION
    assert client.heartbeat(member, 2) == NONE


def test_a_group_of_the_newer_protocol_gets_its_next_epoch(client: Forced) -> None:
    before = client.beat("a", 0)
    assert client.beat("a", before.member_epoch).member_epoch == before.member_epoch
    client.ask("state.rebalance_group", group="k")
    after = client.beat("a", before.member_epoch, range(4))
    assert (after.error_code, after.member_epoch) == (NONE, before.member_epoch + 1)
    again = client.restart()
    assert again.beat("a", after.member_epoch).member_epoch == after.member_epoch  # as its log has it


def test_a_member_is_thrown_out_and_the_other_goes_on(client: Forced) -> None:
    first, second = client.pair()
    with pytest.raises(FaultError, match=f"member is needed: group g has .*{first}"):
        client.ask("state.remove_member", group="g")
    with pytest.raises(FaultError, match="no member of group g fits 'nobody'"):
        client.ask("state.remove_member", group="g", member="nobody")
    generation = client.classic().generation_id
    assert client.ask("state.remove_member", group="g", member=second) == [second]
    assert client.heartbeat(second, generation) == UNKNOWN
    assert client.heartbeat(first, generation) == AGAIN
    assert client.join(first).generation_id == generation + 1


def test_members_are_named_by_client_and_instance_and_the_only_one_needs_no_name(client: Forced) -> None:
    epoch = client.beat("a", 0).member_epoch
    assert client.ask("state.remove_member", group="k") == ["a"]
    assert ErrorCode(client.beat("a", epoch).error_code) == UNKNOWN
    client.beat("b", 0)
    assert client.ask("state.remove_member", group="k", member="client-*") == ["b"]
    static = client.stable(instance="i-1", version=5)
    assert client.ask("state.remove_member", group="g", member="i-1") == [static]


@pytest.mark.parametrize("name", ["rebalance_group", "remove_member"])
@pytest.mark.parametrize("prepare", [lambda c: None, lambda c: c.leave((c.stable(), None))], ids=["none", "empty"])
def test_a_group_that_is_not_there(client: Forced, name: str, prepare: Callable[[Forced], object]) -> None:
    prepare(client)
    with pytest.raises((ApiError, FaultError), match=r"group 'g'|group g has no members"):
        client.ask(f"state.{name}", group="g")


def test_sessions_stay_when_the_clock_moves_and_move_when_asked(client: Forced) -> None:
    member = client.stable(session_timeout_ms=SESSION_MS)
    client.ask("clock.advance", minutes=5)
    assert client.heartbeat(member, 1) == NONE
    client.ask("clock.advance", ms=SESSION_MS - 1, sessions=True)
    assert client.heartbeat(member, 1) == NONE
    client.ask("clock.advance", ms=SESSION_MS, sessions=True)
    assert client.heartbeat(member, 1) == UNKNOWN


def test_what_is_left_of_a_session_is_less_after_a_jump(client: Forced) -> None:
    member = client.stable(session_timeout_ms=SESSION_MS)
    client.ask("clock.advance", ms=SESSION_MS - 100, sessions=True)
    client.timers.advance(99)
    assert member in client.classic().members
    client.timers.advance(1)
    assert member not in client.classic().members


def test_sessions_of_the_newer_protocol_and_rebalance_timeouts_end_too(client: Forced) -> None:
    epoch = client.beat("a", 0).member_epoch
    client.beat("b", 0)
    assert client.beat("a", epoch, range(4)).assignment is not None  # must give up two partitions within 5 s
    client.ask("clock.advance", ms=5000, sessions=True)
    assert ErrorCode(client.beat("a", epoch).error_code) == UNKNOWN
    client.ask("clock.advance", minutes=1, sessions=True)
    assert not client.shard("k").groups["k"].members
