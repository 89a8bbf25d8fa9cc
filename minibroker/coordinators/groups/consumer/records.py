"""Records of KIP-848 groups (Kafka's GroupCoordinatorRecordHelpers)."""

from __future__ import annotations

from collections.abc import Iterable

from minibroker.coordinators.groups.consumer.member import ConsumerMember, Target
from minibroker.coordinators.result import CoordinatorRecord
from minibroker_protocol import coordinator_records as c


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    value = c.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return CoordinatorRecord(c.ConsumerGroupMetadataKey(group_id=group_id), value)


def member_metadata(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    key = c.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key, member.metadata_value())


def target_epoch(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    value = c.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return CoordinatorRecord(c.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_assignment(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    topics = [
        c.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in target.items()
    ]
    value = c.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return CoordinatorRecord(c.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def current_assignment(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    key = c.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key, member.assignment_value())


def regular_expression(
    group_id: str, expression: str, topics: Iterable[str], version: int, timestamp_ms: int
) -> CoordinatorRecord:
    key = c.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    value = c.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=timestamp_ms)
    return CoordinatorRecord(key, value)


def regular_expression_tombstone(group_id: str, expression: str) -> CoordinatorRecord:
    key = c.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return CoordinatorRecord(key)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """What removes a member: its assignment, its target, itself."""
    return [
        CoordinatorRecord(c.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)),
        CoordinatorRecord(c.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)),
        CoordinatorRecord(c.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str], expressions: Iterable[str]) -> list[CoordinatorRecord]:
    """What removes a group with all its members."""
    return [
        *(record for member_id in member_ids for record in member_tombstones(group_id, member_id)),
        *(regular_expression_tombstone(group_id, expression) for expression in expressions),
        CoordinatorRecord(c.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)),
        # Written by 4.0 alone; who has upgraded from it may still have one (GroupCoordinatorRecordHelpers).
        CoordinatorRecord(c.ConsumerGroupPartitionMetadataKey(group_id=group_id)),
        CoordinatorRecord(c.ConsumerGroupMetadataKey(group_id=group_id)),
    ]
