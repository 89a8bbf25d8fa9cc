"""A described group names no topic that its client may not describe, wherever that stands in the answer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from manual_time import ManualTimers

from minibroker.kernel.turns import STEPS_AT_ONCE, Lane
from minibroker.requests.special_rights import GROUPS_OF_DESCRIBED_TOPICS
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages import ConsumerGroupDescribeResponse as Described

PLACES = [(member, held) for member in (0, 1) for held in ("assignment", "target_assignment")]


class Authorizer:
    """Topic "hidden" may not be described; everything else may."""

    def allows(self, acls: Any, principal: str, host: str, operation: Any, kind: Any, name: str) -> bool:
        assert (operation, kind) == (AclOperation.DESCRIBE, ResourceType.TOPIC)
        return name != "hidden"


def _assigned(*topics: str) -> Described.Assignment:
    partitions = [Described.TopicPartitions(topic_id=NO_ID, topic_name=name, partitions=[0]) for name in topics]
    return Described.Assignment(topic_partitions=partitions)


def _member(number: int, hidden: tuple[int, str] | None) -> Described.Member:
    held = {
        name: _assigned("open", "hidden", "other") if (number, name) == hidden else _assigned("open")
        for name in ("assignment", "target_assignment")
    }
    return Described.Member(
        member_id=f"m{number}", member_epoch=1, client_id="c", client_host="/h", subscribed_topic_names=[], **held
    )


def _group(name: str, members: list[Any]) -> Described.DescribedGroup:
    return Described.DescribedGroup(
        group_id=name, group_state="Stable", group_epoch=4, assignment_epoch=4, assignor_name="uniform", members=members
    )


def _context() -> SimpleNamespace:
    return SimpleNamespace(
        room=STEPS_AT_ONCE,
        inter_broker=False,
        connection=SimpleNamespace(principal="User:alice", client_host="h"),
        broker=SimpleNamespace(authorizer=Authorizer(), image=SimpleNamespace(acls=())),
        refused=lambda *_: None,
    )


@pytest.mark.parametrize("hidden", [None, *PLACES])
def test_a_described_group_with_a_hidden_topic_is_refused(hidden: tuple[int, str] | None) -> None:
    members = [_member(0, hidden), _member(1, hidden)]
    others = [_member(0, None), _member(1, None)]
    groups = [_group("before", others), _group("g", members), _group("after", others)]
    ctx = _context()
    answer: Any = GROUPS_OF_DESCRIBED_TOPICS.part(ctx, None, Described(groups=groups))  # type: ignore[arg-type]
    codes = [(group.group_id, group.error_code, len(group.members)) for group in answer.groups]
    refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
    assert codes == [("before", 0, 2), ("g", *((0, 2) if hidden is None else refused)), ("after", 0, 2)]
    assert b"hidden" not in answer.encode(1)


class Counted(list[Any]):
    """A list that counts its readings, and what is read of it, in the turn that is the last one of `turns`."""

    turns: ClassVar[list[int]]

    def __iter__(self) -> Iterator[Any]:
        self.turns[-1] += 1
        for topic in super().__iter__():
            self.turns[-1] += 1
            yield topic


@pytest.mark.parametrize(("groups", "members", "topics"), [(1, 2000, 5), (2000, 1, 5), (1, 1, 12_000), (1, 12_000, 0)])
def test_no_turn_reads_the_topics_of_all_members(groups: int, members: int, topics: int) -> None:
    timers, ctx = ManualTimers(), _context()
    Counted.turns = turns = [0]

    def begin_turn() -> None:
        ctx.room = STEPS_AT_ONCE
        turns.append(0)

    ctx.takes_long, ctx.begin_turn, ctx.broker.lane = (lambda: None), begin_turn, Lane(timers)
    names = SimpleNamespace(topic_partitions=Counted(SimpleNamespace(topic_name=f"t{n}") for n in range(topics)))
    member = SimpleNamespace(assignment=names, target_assignment=names)
    many = [SimpleNamespace(group_id="g", error_code=0, members=[member] * members)] * groups
    described: Any = SimpleNamespace(groups=[*many, _group("last", [_member(0, PLACES[0])])])
    answer: Any = GROUPS_OF_DESCRIBED_TOPICS.part(ctx, None, described)  # type: ignore[arg-type]
    timers.advance(0)
    refused = [group.group_id for group in answer.result().groups if group.error_code]
    assert (refused, sum(turns) >= 24_000, max(turns) <= 40 * STEPS_AT_ONCE) == (["last"], True, True)
