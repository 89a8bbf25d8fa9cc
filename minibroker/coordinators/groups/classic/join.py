"""JoinGroup on classic groups (Kafka's classicGroupJoinToClassicGroup and what it calls).

Why the rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from minibroker.coordinators.groups.classic.effects import GroupCreated, StaticMemberReplaced
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.member import ClassicMember, protocols_of
from minibroker.coordinators.groups.classic.rebalance import Rebalance
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.environment import ClientInfo, Environment
from minibroker.coordinators.groups.records import group_metadata
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker_protocol.coordinator_records import GroupMetadataValue
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.groups import JoinGroupRequest, JoinGroupResponse

log = get_logger(__name__)

MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9

Answer = Deferred[JoinGroupResponse]


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name=None, member_id=member_id)


class Join:
    """Decides about one JoinGroup. `answer` is resolved now or, when the request is parked, by the rebalance."""

    def __init__(self, env: Environment, rebalance: Rebalance) -> None:
        self._env = env
        self._rebalance = rebalance

    def join(
        self, group: ClassicGroup, client: ClientInfo, request: JoinGroupRequest, answer: Answer
    ) -> CoordinatorResult[None]:
        member_id = request.member_id
        if not self._has_room(group, member_id):
            # Also an id that was given out and has not joined: it would keep its place
            # (GroupMetadataManager.classicGroupJoin).
            group.remove(member_id)
            answer.resolve(join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            return CoordinatorResult(None)
        # Another shard has the group by now: the member looks for its coordinator again, and joins there
        # (classicGroupJoinExistingMember).
        if group.is_dead:
            answer.resolve(join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))
            return CoordinatorResult(None)
        if not group.supports(request.protocol_type, [protocol.name for protocol in request.protocols]):
            answer.resolve(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return CoordinatorResult(None)
        if member_id == "":
            return self._new(group, client, request, answer)
        return self._known(group, client, request, answer)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """A full group accepts only its members; during a join phase only those that have joined."""
        most = self._env.config().max_size
        # Those that have joined count, not the members: after group.max.size was lowered the last to rejoin are left
        # out (GroupMetadataManager.acceptJoiningMember).
        if group.state is GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            return (member is not None and member.awaiting_join is not None) or group.awaiting_joins < most
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member_id in group.members or len(group.members) < most
        return True

    # -- without a member id ---------------------------------------------------------------------------------------

    def _new(
        self, group: ClassicGroup, client: ClientInfo, request: JoinGroupRequest, answer: Answer
    ) -> CoordinatorResult[None]:
        instance = request.group_instance_id
        member_id = f"{client.client_id if instance is None else instance}-{self._env.new_uuid()}"
        if instance is not None:
            old_id = group.static_members.get(instance)
            if old_id is not None:
                return self._replace(group, client, request, old_id, member_id, answer)
        elif client.api_version >= MEMBER_ID_REQUIRED_VERSION:
            # Else each retry of a client whose answer was lost would leave a member that never comes back (KIP-394).
            group.pending_joins.add(member_id)
            self._rebalance.watch(group, member_id, request.session_timeout_ms)
            answer.resolve(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return CoordinatorResult(None)
        return self._add(group, client, request, member_id, answer)

    def _add(
        self, group: ClassicGroup, client: ClientInfo, request: JoinGroupRequest, member_id: str, answer: Answer
    ) -> CoordinatorResult[None]:
        member = ClassicMember(
            member_id,
            group_instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=client.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=protocols_of(request),
        )
        member.is_new = True
        # The first join phase lasts as long as members keep coming (KIP-134).
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, answer)
        # A member cannot send heartbeats before it knows its id, but a client that gave up must not stay forever.
        self._rebalance.rearm_session(group, member, self._env.config().new_member_join_timeout_ms)
        return self._rebalance.maybe_prepare(group, f"member {member_id} joined; {_reason(request)}")

    def _replace(
        self,
        group: ClassicGroup,
        client: ClientInfo,
        request: JoinGroupRequest,
        old_id: str,
        new_id: str,
        answer: Answer,
    ) -> CoordinatorResult[None]:
        """A static member rejoined without its member id: it replaces its earlier instance (KIP-345)."""
        instance = request.group_instance_id
        assert instance is not None
        old_leader = group.leader_id or ""
        member = group.replace_static(instance, old_id, new_id)
        self._rebalance.cancel_session(group, old_id)
        self._rebalance.rearm_session(group, member)
        replaced = StaticMemberReplaced(
            group,
            member,
            instance,
            old_id,
            new_id,
            old_leader,
            before=(member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms),
            api_version=client.api_version,
            answer=answer,
        )
        group.update(member, protocols_of(request), request.rebalance_timeout_ms, request.session_timeout_ms, answer)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be computing an assignment for the old id.
            return self._rebalance.prepare(group, f"static member {instance} came back while assignments were awaited")
        if group.state is not GroupState.STABLE:
            return self._rebalance.maybe_complete(group)
        if group.select_protocol() != group.protocol_name:
            return self._rebalance.maybe_prepare(group, f"static member {instance} changes the protocol")

        record = group_metadata(group.group_id, group.metadata_value())
        return CoordinatorResult(None, (record,), pending=(replaced,), effects=(replaced,))

    def static_member_written(self, replaced: StaticMemberReplaced) -> None:
        """The replacement is durable: the new instance gets its answer."""
        group, new_id = replaced.group, replaced.new_id
        if replaced.api_version >= SKIP_ASSIGNMENT_VERSION:
            leads = group.leader_id == new_id
            response = group.join_response(new_id, with_members=leads, skip_assignment=leads)
        else:
            # The response names the old leader's id, so the client does not act as leader and does not assign again.
            response = group.join_response(new_id, leader=replaced.old_leader)
        group.complete_join(replaced.member, response)

    def static_member_refused(self, replaced: StaticMemberReplaced, code: ErrorCode) -> None:
        """The replacement was not written: the earlier instance is back, and the new one gets the error."""
        group = replaced.group
        group.update(replaced.member, *replaced.before, None)
        old = group.replace_static(replaced.instance_id, replaced.new_id, replaced.old_id)
        self._rebalance.cancel_session(group, replaced.new_id)
        self._rebalance.rearm_session(group, old)
        if not replaced.answer.done:
            response = group.join_response("", leader=replaced.old_leader)
            response.error_code = code
            replaced.answer.resolve(response)

    # -- with a member id ------------------------------------------------------------------------------------------

    def _known(
        self, group: ClassicGroup, client: ClientInfo, request: JoinGroupRequest, answer: Answer
    ) -> CoordinatorResult[None]:
        member_id = request.member_id
        # It comes back with the id that MEMBER_ID_REQUIRED gave it, which static members never get (KIP-394).
        if member_id in group.pending_joins:
            if request.group_instance_id is None:
                return self._add(group, client, request, member_id, answer)
            answer.resolve(join_error(ErrorCode.UNKNOWN_SERVER_ERROR, ""))  # Kafka: IllegalStateException
            return CoordinatorResult(None)
        try:
            member = group.validate_member(member_id, request.group_instance_id, "JoinGroup")
        except ApiError as error:
            log.debug("group %s: %s", group.group_id, error)
            answer.resolve(join_error(error.code, member_id))
            return CoordinatorResult(None)
        leads = group.leader_id == member_id
        unchanged = member.protocols == protocols_of(request)
        if group.state is GroupState.EMPTY:
            # The group has lost all members: the client forgets its id and generation, and joins as new.
            answer.resolve(join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        elif group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The client may not have received the first answer.
            answer.resolve(group.join_response(member_id, with_members=leads))
        elif group.state is GroupState.STABLE and unchanged and not leads:
            # Nothing has changed for it: it goes on to SyncGroup in the running generation.
            answer.resolve(group.join_response(member_id))
        else:
            # A leader that rejoins always gets a rebalance: it may have seen new partitions, of which subscriptions say
            # nothing.
            group.update(
                member, protocols_of(request), request.rebalance_timeout_ms, request.session_timeout_ms, answer
            )
            what = "leader" if leads else "member"
            return self._rebalance.maybe_prepare(group, f"{what} {member_id} rejoins; {_reason(request)}")
        return CoordinatorResult(None)


def creation(group: ClassicGroup, decided: CoordinatorResult[None], answer: Answer) -> CoordinatorResult[None]:
    """Write the record of a group that a join has just created, unless the join wrote one itself."""
    if decided.records:
        return decided

    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=[],
    )
    return CoordinatorResult(None, (group_metadata(group.group_id, value),), pending=(GroupCreated(answer),))


def _reason(request: JoinGroupRequest) -> str:
    return request.reason or "no reason given"
