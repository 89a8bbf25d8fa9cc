"""Applies records of KIP-848 groups."""

from __future__ import annotations

from typing import Any, cast

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.consumer.group import ConsumerGroup, Resolved
from minibroker.coordinators.result import CoordinatorRecord
from minibroker_protocol import coordinator_records as c

AnyGroup = ClassicGroup | ConsumerGroup


def replay_consumer_record(groups: dict[str, AnyGroup], record: CoordinatorRecord) -> None:
    """Apply one record of a KIP-848 group. Tombstones of a group that is not one change nothing."""
    key, value = cast("Any", record.key), cast("Any", record.value)
    group = groups.get(key.group_id)
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        # A group known by its offsets alone, or an empty classic one whose tombstone compaction took, gives way.
        group = groups[key.group_id] = ConsumerGroup(key.group_id)
    group.version += 1
    match key:
        case c.ConsumerGroupMetadataKey() if value is None:
            del groups[key.group_id]
        case c.ConsumerGroupMetadataKey():
            group.set_epoch(value)
        case c.ConsumerGroupMemberMetadataKey() if value is None:
            group.remove_member(key.member_id)
        case c.ConsumerGroupMemberMetadataKey():
            group.set_member(key.member_id, value)
        case c.ConsumerGroupTargetAssignmentMetadataKey():
            group.target_epoch = 0 if value is None else value.assignment_epoch
        case c.ConsumerGroupTargetAssignmentMemberKey():
            group.set_target(key.member_id, value)
        case c.ConsumerGroupCurrentMemberAssignmentKey():
            group.set_assignment(key.member_id, value)
        case c.ConsumerGroupRegularExpressionKey() if value is None:
            group.expressions.pop(key.regular_expression, None)
        case c.ConsumerGroupRegularExpressionKey():
            topics = frozenset(value.topics)
            group.expressions[key.regular_expression] = Resolved(topics, value.version, value.timestamp)
        case _:  # the topics of a group as 4.0 wrote them: the metadata hash has taken their place
            pass
