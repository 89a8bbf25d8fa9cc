"""Records of KIP-848 groups (Kafka's GroupCoordinatorRecordHelpers)."""

from __future__ import annotations

from collections.abc import Iterable

from minibroker.coordinators.groups import records as types
from minibroker.coordinators.groups.consumer.member import ConsumerMember, Target
from minibroker.coordinators.result import CoordinatorRecord
from minibroker_protocol import coordinator_records as c


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.CONSUMER_GROUP_METADATA,
        c.ConsumerGroupMetadataKey(group_id=group_id),
        c.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def member_metadata(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.CONSUMER_GROUP_MEMBER_METADATA,
        c.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        member.metadata_value(),
    )


def target_epoch(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        c.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        c.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms),
    )


def target_assignment(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    topics = [
        c.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in target.items()
    ]
    return CoordinatorRecord(
        types.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        c.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        c.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
    )


def current_assignment(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
        c.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        member.assignment_value(),
    )


def regular_expression(
    group_id: str, expression: str, topics: Iterable[str], version: int, timestamp_ms: int
) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.CONSUMER_GROUP_REGULAR_EXPRESSION,
        c.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression),
        c.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=timestamp_ms),
    )


def regular_expression_tombstone(group_id: str, expression: str) -> CoordinatorRecord:
    return CoordinatorRecord(
        types.CONSUMER_GROUP_REGULAR_EXPRESSION,
        c.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression),
        None,
    )


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """What removes a member: its assignment, its target, itself."""
    return [
        CoordinatorRecord(
            types.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
            c.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            None,
        ),
        CoordinatorRecord(
            types.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
            c.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            None,
        ),
        CoordinatorRecord(
            types.CONSUMER_GROUP_MEMBER_METADATA,
            c.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
            None,
        ),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str], expressions: Iterable[str]) -> list[CoordinatorRecord]:
    """What removes a group with all its members."""
    records = [record for member_id in member_ids for record in member_tombstones(group_id, member_id)]
    records += [regular_expression_tombstone(group_id, expression) for expression in expressions]
    records.append(
        CoordinatorRecord(
            types.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
            c.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            None,
        )
    )
    records.append(
        CoordinatorRecord(
            types.CONSUMER_GROUP_PARTITION_METADATA, c.ConsumerGroupPartitionMetadataKey(group_id=group_id), None
        )
    )
    records.append(
        CoordinatorRecord(types.CONSUMER_GROUP_METADATA, c.ConsumerGroupMetadataKey(group_id=group_id), None)
    )
    return records
