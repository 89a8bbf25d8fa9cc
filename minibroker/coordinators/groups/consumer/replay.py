"""Applies records of KIP-848 groups."""

from __future__ import annotations

from typing import Any, cast

from minibroker.coordinators.groups import records
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.consumer.group import ConsumerGroup, Resolved
from minibroker.coordinators.result import CoordinatorRecord

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
    match record.key_type:
        case records.CONSUMER_GROUP_METADATA:
            if value is None:
                del groups[key.group_id]
            else:
                group.set_epoch(value)
        case records.CONSUMER_GROUP_MEMBER_METADATA:
            if value is None:
                group.remove_member(key.member_id)
            else:
                group.set_member(key.member_id, value)
        case records.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA:
            group.target_epoch = 0 if value is None else value.assignment_epoch
        case records.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER:
            group.set_target(key.member_id, value)
        case records.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT:
            group.set_assignment(key.member_id, value)
        case records.CONSUMER_GROUP_REGULAR_EXPRESSION:
            if value is None:
                group.expressions.pop(key.regular_expression, None)
            else:
                group.expressions[key.regular_expression] = Resolved(
                    frozenset(value.topics), value.version, value.timestamp
                )
        case _:  # the topics of a group as 4.0 wrote them: the metadata hash has taken their place
            pass
