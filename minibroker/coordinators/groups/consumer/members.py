"""KIP-848 groups of one shard: heartbeats, descriptions, and their records applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from minibroker.cluster.metadata import MetadataImage
from minibroker.coordinators.groups import records
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.heartbeat import Change, Heartbeat
from minibroker.coordinators.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from minibroker.coordinators.groups.environment import ClientInfo, Environment
from minibroker.coordinators.outcome import CoordinatorRecord, Outcome
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

AnyGroup = ClassicGroup | ConsumerGroup

_Described = ConsumerGroupDescribeResponse.DescribedGroup
_Member = ConsumerGroupDescribeResponse.Member
_Assignment = ConsumerGroupDescribeResponse.Assignment
_TopicPartitions = ConsumerGroupDescribeResponse.TopicPartitions

_CONSUMER_MEMBER = 1
_CLASSIC_MEMBER = 0


class ConsumerMembers:
    """What members of KIP-848 groups do, and what is told of them."""

    def __init__(self, env: Environment, groups: Mapping[str, AnyGroup]) -> None:
        self._env = env
        self._groups = groups
        self._heartbeat = Heartbeat(env, self._find, self._expired)

    def heartbeat(
        self, client: ClientInfo, request: ConsumerGroupHeartbeatRequest
    ) -> Outcome[ConsumerGroupHeartbeatResponse]:
        """For a request that `validate` has passed. Raises GROUP_ID_NOT_FOUND beside what Heartbeat raises."""
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(self.group(request.group_id), request)
        change = self._change(request)
        return self._heartbeat.heartbeat(change.group, client, request, change)

    def group(self, group_id: str) -> ConsumerGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            reason = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def _change(self, request: ConsumerGroupHeartbeatRequest) -> Change:
        """The group, made when a member joins; an empty classic group gives way."""
        group = self._groups.get(request.group_id)
        if request.member_epoch != JOIN_EPOCH or isinstance(group, ConsumerGroup):
            return Change(self.group(request.group_id))
        if group is None:
            return Change(ConsumerGroup(request.group_id))
        if not group.is_empty:
            return Change(self.group(request.group_id))
        return Change(ConsumerGroup(request.group_id), group.tombstones())

    def _leave(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
    ) -> Outcome[ConsumerGroupHeartbeatResponse]:
        member = self._heartbeat.leave(group, request)
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
        )
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return Outcome(response, tuple(self._heartbeat.leave_for_now(group, member)))
        return Outcome(response, tuple(self._heartbeat.removal(group, member)))

    def _find(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def _expired(self, group: ConsumerGroup, member: ConsumerMember) -> Outcome[None]:
        return Outcome(None, tuple(self._heartbeat.removal(group, member)))

    def loaded(self, group: ConsumerGroup) -> None:
        self._heartbeat.loaded(group)

    # -- telling ---------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> _Described:
        """Raises GROUP_ID_NOT_FOUND."""
        group, image = self.group(group_id), self._env.image()
        default = self._env.config().consumer_assignors[0]
        return _Described(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.group_epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.preferred_assignor(group.members.values(), default),
            members=[_described(group, member, image) for member in group.members.values()],
        )


def _described(group: ConsumerGroup, member: ConsumerMember, image: MetadataImage) -> _Member:
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(member.assigned, image),
        target_assignment=_assignment(group.target(member.member_id), image),
        member_type=_CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Any], image: MetadataImage) -> _Assignment:
    """Topics that are gone are left out."""
    told = []
    for topic_id, numbers in partitions.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            told.append(_TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers)))
    return _Assignment(topic_partitions=told)


def replay_consumer_record(groups: dict[str, AnyGroup], record: CoordinatorRecord) -> None:
    """Apply one record of a KIP-848 group. Tombstones of a group that is not one change nothing."""
    key, value = cast("Any", record.key), cast("Any", record.value)
    group = groups.get(key.group_id)
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        # A group known by its offsets alone, or an empty classic one whose tombstone compaction took, gives way.
        group = groups[key.group_id] = ConsumerGroup(key.group_id)
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
                group.expressions[key.regular_expression] = frozenset(value.topics)
        case _:  # the topics of a group as 4.0 wrote them: the metadata hash has taken their place
            pass
