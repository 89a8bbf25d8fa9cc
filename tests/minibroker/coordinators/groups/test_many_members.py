"""Classic groups of very many members: told of a generation some hundred in one turn, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from calls import Calls
from memory_cluster import MemoryCluster

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEPS_AT_ONCE
from minibroker_protocol import messages as m

MANY = 2 * STEPS_AT_ONCE + 100
LONG_ENOUGH = 7000  # members that join within the initial delay prolong it


@dataclass
class Group:
    """in_turns: how many answers came in each turn of the loop."""

    cluster: MemoryCluster
    in_turns: list[int] = field(default_factory=list)

    def ask(self, request: Any, version: int) -> Deferred[Any]:
        return self.cluster.send(request, version)

    def answered(self, answers: list[Deferred[Any]], ms: float) -> None:
        """Let `ms` pass, with a look after each timer."""
        timers, before = self.cluster.timers, sum(answer.done for answer in answers)
        self.in_turns = [before]
        arm = timers.call_later

        def watched(delay_ms: float, callback: Any) -> Any:
            def turn() -> None:
                nonlocal before
                callback()
                done = sum(answer.done for answer in answers)
                if done != before:
                    self.in_turns.append(done - before)
                before = done

            return arm(delay_ms, turn)

        timers.call_later = watched  # type: ignore[method-assign]
        timers.call_later(0, lambda: None)
        timers.advance(ms)
        timers.call_later = arm  # type: ignore[method-assign]

    def join(self, member_id: str = "") -> Deferred[Any]:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        return self.ask(
            m.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            3,
        )

    def sync(self, member_id: str, generation_id: int, assigned: list[str] | None = None) -> Deferred[Any]:
        made = m.SyncGroupRequest.SyncGroupRequestAssignment
        assignments = [made(member_id=one, assignment=one.encode()) for one in assigned or ()]
        return self.ask(
            m.SyncGroupRequest(group_id="g", generation_id=generation_id, member_id=member_id, assignments=assignments),
            3,
        )


@pytest.fixture
def group() -> Iterator[Group]:
    cluster = MemoryCluster(config={"group.initial.rebalance.delay.ms": "3000"})
    cluster.send(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    cluster.timers.advance(100)
    yield Group(cluster)
    cluster.stop()


def joined(group: Group) -> list[Any]:
    waiting = [group.join() for _ in range(MANY)]
    group.answered(waiting, LONG_ENOUGH)
    return [answer.result() for answer in waiting]


def test_a_generation_and_its_assignment_are_told_in_turns(group: Group) -> None:
    answers = joined(group)
    assert max(group.in_turns) == STEPS_AT_ONCE
    assert {answer.error_code for answer in answers} == {0}
    ids, leader = [answer.member_id for answer in answers], answers[0].leader
    assert len(answers[ids.index(leader)].members) == MANY
    waiting = [group.sync(member, 1) for member in ids if member != leader]
    waiting.append(group.sync(leader, 1, ids))
    group.answered(waiting, 1000)
    assert max(group.in_turns) <= STEPS_AT_ONCE
    assert [answer.result().assignment for answer in waiting[:-1]] == [one.encode() for one in ids if one != leader]


def test_a_coordinator_that_resigns_answers_all_at_once(group: Group) -> None:
    waiting = [group.join() for _ in range(MANY)]
    timers, arm = group.cluster.timers, group.cluster.timers.call_later
    timers.call_later = lambda delay_ms, turn: arm(delay_ms or 60_000, turn)  # type: ignore[method-assign]
    timers.advance(LONG_ENOUGH)
    assert sum(answer.done for answer in waiting) == STEPS_AT_ONCE
    _, shard = group.cluster.broker.coordinators.groups.shard_for("g")
    shard.resigned()
    assert {answer.result().error_code for answer in waiting} == {0}
    assert shard.groups["g"].is_dead, "what still holds the group finds that it moved away"


def test_a_session_does_not_end_before_its_member_is_answered(group: Group) -> None:
    ids = [answer.member_id for answer in joined(group)]
    timers, arm = group.cluster.timers, group.cluster.timers.call_later
    _, shard = group.cluster.broker.coordinators.groups.shard_for("g")
    members = shard.groups["g"].members
    timers.advance(20_000)  # of their sessions of 30 s
    waiting = [group.sync(member, 1) for member in ids[1:]]
    timers.call_later = lambda delay_ms, turn: arm(delay_ms or 15_000, turn)  # type: ignore[method-assign]
    waiting.append(group.sync(ids[0], 1, ids))
    timers.advance(14_000)
    assert sum(answer.done for answer in waiting) == STEPS_AT_ONCE
    assert len(members) == MANY
    timers.call_later = arm  # type: ignore[method-assign]
    timers.advance(2_000)
    assert all(answer.done for answer in waiting)
    timers.advance(27_000)
    assert len(members) == MANY - STEPS_AT_ONCE, "the first ones were answered 15 s earlier"
    timers.advance(2_000)
    assert not members, "their sessions began with their answers"


def work_of_leaving(count: int) -> int:
    """Calls of functions while an admin removes all members of a group with the consumer protocol."""
    cluster = MemoryCluster(topics={"t": 1})
    cluster.send(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    cluster.timers.advance(100)
    for number in range(count):
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=f"m{number}",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert cluster.send(request, 1).result().error_code == 0
    leaving = m.LeaveGroupRequest(
        group_id="g", members=[m.LeaveGroupRequest.MemberIdentity(member_id=f"m{number}") for number in range(count)]
    )
    with Calls() as calls:
        answer = cluster.send(leaving, 5)
        cluster.timers.advance(100)
    assert {member.error_code for member in answer.result().members} == {0}
    cluster.stop()
    return calls.count


def test_the_work_of_a_leave_is_linear_to_the_members_that_it_names() -> None:
    work_of_leaving(1)  # imports, and compiles
    assert work_of_leaving(100) < 5 * work_of_leaving(20)
