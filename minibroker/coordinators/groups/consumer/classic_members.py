"""Members of a KIP-848 group that speak the classic protocol: they rejoin where native ones follow by heartbeats.

Kafka: GroupMetadataManager.classicGroupJoinToConsumerGroup and its siblings for the other requests. Why the rules are
as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from dataclasses import replace

from minibroker.coordinators.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from minibroker.coordinators.groups.classic.join import MEMBER_ID_REQUIRED_VERSION, join_error
from minibroker.coordinators.groups.consumer.change import Change
from minibroker.coordinators.groups.consumer.consumer_protocol import (
    by_id,
    read_subscription,
    version_of,
    write_assignment,
)
from minibroker.coordinators.groups.consumer.effects import ClassicMemberJoined
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.heartbeat import HeartbeatDecisions, check_instance
from minibroker.coordinators.groups.consumer.member import (
    ClassicMemberMetadata,
    ConsumerMember,
    MemberState,
    protocols_of,
)
from minibroker.coordinators.groups.environment import ClientInfo, Environment, TimerKey
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker_protocol import messages as m
from minibroker_protocol.coordinator_records import ConsumerGroupMemberMetadataValue
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed

log = get_logger(__name__)

_MemberResponse = m.LeaveGroupResponse.MemberResponse
_ClassicProtocol = ConsumerGroupMemberMetadataValue.ClassicProtocol


class ClassicMembers:
    """Members of KIP-848 groups that speak the classic protocol."""

    def __init__(self, env: Environment, heartbeat: HeartbeatDecisions) -> None:
        self._env = env
        self._heartbeat = heartbeat

    # -- JoinGroup -------------------------------------------------------------------------------------------------

    def join(
        self,
        group: ConsumerGroup,
        client: ClientInfo,
        request: m.JoinGroupRequest,
        answer: Deferred[m.JoinGroupResponse],
    ) -> CoordinatorResult[None]:
        """Rejoining is how a classic member follows its target. Refusals go into `answer`."""
        member_id = request.member_id or self._env.new_id()
        try:
            self._heartbeat.check_room(group, member_id)
            self._check_protocols(group, request)
            required = client.api_version >= MEMBER_ID_REQUIRED_VERSION and request.group_instance_id is None
            if not request.member_id and required:
                answer.resolve(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
                return CoordinatorResult(None)
            return self._follow(group, client, request, member_id, answer)
        except ApiError as error:
            log.debug("group %s: JoinGroup refused: %s", group.group_id, error)
            answer.resolve(join_error(error.code, ""))
            return CoordinatorResult(None)

    @staticmethod
    def _check_protocols(group: ConsumerGroup, request: m.JoinGroupRequest) -> None:
        """As in Kafka the member that asks counts with what it said before, if it is one already."""
        common = {protocol.name for protocol in request.protocols}
        for member in group.members.values():
            # Native members name no protocols.
            if member.uses_classic_protocol:
                common &= {name for name, _ in protocols_of(member)}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"no protocol is common to group {group.group_id}")

    def _follow(
        self,
        group: ConsumerGroup,
        client: ClientInfo,
        request: m.JoinGroupRequest,
        member_id: str,
        answer: Deferred[m.JoinGroupResponse],
    ) -> CoordinatorResult[None]:
        change = Change(client, group, self._env.image(), group)
        member = self._member(change, request, member_id)
        try:
            subscription = read_subscription(bytes(request.protocols[0].metadata))
        except Malformed as error:
            raise ApiError(self._env.config().unreadable_subscription, str(error)) from None
        updated = replace(
            member,
            instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
            rack_id=member.rack_id if subscription.rack_id is None else subscription.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            subscribed_topic_names=tuple(sorted(set(subscription.topics))),
            client_id=client.client_id,
            client_host=client.client_host,
            classic=ClassicMemberMetadata(
                session_timeout_ms=request.session_timeout_ms,
                supported_protocols=[
                    _ClassicProtocol(name=protocol.name, metadata=bytes(protocol.metadata))
                    for protocol in request.protocols
                ],
            ),
        )
        owned = by_id({topic.topic: topic.partitions for topic in subscription.owned_partitions}, self._env.image())
        _, updated = self._heartbeat.follow(change, member, updated, list(owned.items()))
        # Timers are memory's and follow the decision; what has to wait for its records is `joined`.
        change.take_effect()
        response = m.JoinGroupResponse(
            generation_id=updated.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
            member_id=member_id,
        )

        joined = ClassicMemberJoined(group.group_id, updated, request, response, answer)
        return CoordinatorResult(None, tuple(change.records), pending=(joined,), effects=(joined,))

    def joined(self, joined: ClassicMemberJoined) -> None:
        """The member's record is durable."""
        join_key = ("join", joined.group_id, joined.member.member_id)
        sync_key = ("sync", joined.group_id, joined.member.member_id)
        self._env.timers.cancel(join_key)
        self._heartbeat.watch(joined.group_id, joined.member)
        self._env.timers.cancel(sync_key)
        self._expect(sync_key, joined.member.rebalance_timeout_ms)
        joined.answer.resolve(joined.response)

    def _member(self, change: Change, request: m.JoinGroupRequest, member_id: str) -> ConsumerMember:
        group = change.group
        member = group.members.get(member_id) or ConsumerMember(member_id)
        if request.group_instance_id is None:
            return member
        held_by = group.static_member(request.group_instance_id)
        if not request.member_id:
            return member if held_by is None else self._heartbeat.replace_static(change, held_by, member_id)
        check_instance(held_by, request.group_instance_id, member_id)
        return member

    # -- SyncGroup, Heartbeat, LeaveGroup ----------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: m.SyncGroupRequest) -> m.SyncGroupResponse:
        """The member's assignment as its embedded protocol tells it, empty as long as the target is older than the
        member (group.consumer.assignment.interval.ms). Raises ApiError with the refusal."""
        member = self._known(group, request.member_id, request.group_instance_id, request.generation_id)
        name = protocols_of(member)[0][0]
        for named, of_group in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol_name, name)):
            if named is not None and named != of_group:
                raise ApiError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id} has {of_group}, not {named}"
                )
        # A newer target makes this assignment old: it rejoins first, unless it has partitions to give up, of which only
        # the assignment tells it.
        if group.target_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect(("join", group.group_id, member.member_id), member.rebalance_timeout_ms)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} has a newer target")
        self._env.timers.cancel(("sync", group.group_id, member.member_id))
        self._heartbeat.watch(group.group_id, member)
        version = version_of(protocols_of(member)[0][1])
        return m.SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=name,
            assignment=write_assignment(member.assigned, version, self._env.image()),
        )

    def heartbeat(self, group: ConsumerGroup, request: m.HeartbeatRequest) -> ErrorCode:
        """NONE, or REBALANCE_IN_PROGRESS when it should rejoin. Raises ApiError with a refusal."""
        member = self._known(group, request.member_id, request.group_instance_id, request.generation_id)
        self._heartbeat.watch(group.group_id, member)
        if (
            member.member_epoch < group.target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not self._still_waits(group, member))
        ):
            self._expect(("join", group.group_id, member.member_id), member.rebalance_timeout_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    @staticmethod
    def _still_waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether another member still owns a partition of its target assignment."""
        return any(
            group.owners.get((topic_id, partition), member.member_id) != member.member_id
            for topic_id, partitions in group.target(member.member_id).items()
            for partition in partitions
        )

    def leave(self, group: ConsumerGroup, request: m.LeaveGroupRequest) -> CoordinatorResult[m.LeaveGroupResponse]:
        """Each member for itself, native ones too: that is how an admin removes them. The epoch is bumped once."""
        responses = []
        gone: dict[str, ConsumerMember] = {}
        for identity in request.members:
            response = _MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
            responses.append(response)
            try:
                member = self._leaving(group, identity)
            except ApiError as error:
                response.error_code = error.code
                continue
            gone[member.member_id] = member
        result = self._heartbeat.removal(group, *gone.values()) if gone else []
        return CoordinatorResult(m.LeaveGroupResponse(members=responses), tuple(result))

    @staticmethod
    def _leaving(group: ConsumerGroup, identity: m.LeaveGroupRequest.MemberIdentity) -> ConsumerMember:
        if identity.group_instance_id is None:
            member = group.member(identity.member_id)
        else:
            held_by = group.static_member(identity.group_instance_id)
            check_instance(
                held_by, identity.group_instance_id, identity.member_id or (held_by.member_id if held_by else "")
            )
            assert held_by is not None
            member = held_by
        return member

    def _known(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ConsumerMember:
        if instance_id is not None:
            check_instance(group.static_member(instance_id), instance_id, member_id)
        member = group.member(member_id)
        if not member.uses_classic_protocol:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id} uses the consumer protocol")
        if member.member_epoch != generation_id:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION,
                f"member {member_id} is in epoch {member.member_epoch}, not {generation_id}",
            )
        return member

    # -- waits -----------------------------------------------------------------------------------------------------

    def _expect(self, key: TimerKey, delay_ms: int) -> None:
        """Remove the member unless it joins or syncs in time; a wait under way is not made longer."""
        # In any epoch: whichever member moves the group on, this one still has to rejoin.
        self._env.timers.schedule_if_absent(key, delay_ms, self._heartbeat.removal_when_over(key, None))
