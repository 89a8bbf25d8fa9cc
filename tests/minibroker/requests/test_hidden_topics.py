"""A described group names no topic that its client may not describe, wherever that stands in the answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.kernel.turns import STEPS_AT_ONCE
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


@pytest.mark.parametrize("hidden", [None, *PLACES])
def test_a_described_group_with_a_hidden_topic_is_refused(hidden: tuple[int, str] | None) -> None:
    groups = [
        Described.DescribedGroup(
            group_id=name, group_state="Stable", group_epoch=4, assignment_epoch=4, assignor_name="uniform",
            members=[_member(0, at), _member(1, at)],
        )
        for name, at in (("before", None), ("g", hidden), ("after", None))
    ]  # fmt: skip
    ctx = SimpleNamespace(
        room=STEPS_AT_ONCE,
        inter_broker=False,
        connection=SimpleNamespace(principal="User:alice", client_host="h"),
        broker=SimpleNamespace(authorizer=Authorizer(), image=SimpleNamespace(acls=())),
        refused=lambda *_: None,
    )
    answer: Any = GROUPS_OF_DESCRIBED_TOPICS.part(ctx, None, Described(groups=groups))  # type: ignore[arg-type]
    codes = [(group.group_id, group.error_code, len(group.members)) for group in answer.groups]
    refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
    assert codes == [("before", 0, 2), ("g", *((0, 2) if hidden is None else refused)), ("after", 0, 2)]
    assert b"hidden" not in answer.encode(1)
