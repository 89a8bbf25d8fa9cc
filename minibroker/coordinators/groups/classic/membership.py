"""SyncGroup, Heartbeat and LeaveGroup on classic groups.

Why the rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from minibroker.coordinators.groups.classic.effects import AssignmentWritten
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.member import ClassicMember
from minibroker.coordinators.groups.classic.rebalance import Rebalance
from minibroker.coordinators.groups.classic.states import GroupState
from minibroker.coordinators.groups.records import group_metadata
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.deferred import Deferred
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

MemberResponse = m.LeaveGroupResponse.MemberResponse


def _awaits(assigned: AssignmentWritten) -> bool:
    """Whether the group is still in the generation that the assignment is for."""
    group = assigned.group
    return group.state is GroupState.COMPLETING_REBALANCE and group.generation_id == assigned.generation_id


def sync_error(code: ErrorCode) -> m.SyncGroupResponse:
    return m.SyncGroupResponse(error_code=code)


class Membership:
    """Handles the requests of members between two joins."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance

    # -- SyncGroup -------------------------------------------------------------------------------------------------

    def sync(
        self, group: ClassicGroup, request: m.SyncGroupRequest, answer: Deferred[m.SyncGroupResponse]
    ) -> CoordinatorResult[None]:
        """Answer with the assignment, or park the request until the leader has sent it. Raises ApiError with the
        refusal."""
        member = _check_sync(group, request)
        if group.state is GroupState.STABLE:
            self._rebalance.synced(group, member.member_id)
            answer.resolve(
                m.SyncGroupResponse(
                    protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
                )
            )
            return CoordinatorResult(None)
        if member.awaiting_sync is not None and not member.awaiting_sync.done:
            # The client gave up on its first request (Kafka never answers it).
            member.awaiting_sync.resolve(sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = answer
        self._rebalance.synced(group, member.member_id)
        if member.member_id != group.leader_id:
            return CoordinatorResult(None)
        return self._assign(group, request)

    def _assign(self, group: ClassicGroup, request: m.SyncGroupRequest) -> CoordinatorResult[None]:
        """Write the leader's assignment; members that it lacks get an empty one."""
        assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
        value = group.metadata_value(lambda member: assignments.get(member.member_id, b""))
        assigned = AssignmentWritten(group, group.generation_id, assignments)
        record = group_metadata(group.group_id, value)
        return CoordinatorResult(None, (record,), pending=(assigned,), effects=(assigned,))

    def assignment_written(self, assigned: AssignmentWritten) -> None:
        group = assigned.group
        if _awaits(assigned):
            for member in group.members.values():
                member.assignment = assigned.assignments.get(member.member_id, b"")
            group.transition_to(GroupState.STABLE, self._rebalance.now_ms())
            self._rebalance.propagate(group)

    def assignment_refused(self, assigned: AssignmentWritten, code: ErrorCode) -> None:
        if _awaits(assigned):
            self._rebalance.fail_syncs(assigned.group, code)
            # Nothing to write here: members are there and none has rejoined yet.
            self._rebalance.maybe_prepare(assigned.group, f"the assignment could not be written: {code.name}")

    # -- Heartbeat -------------------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, request: m.HeartbeatRequest) -> ErrorCode:
        """NONE or REBALANCE_IN_PROGRESS, both of which keep the session; raises ApiError with anything else."""
        group.check_alive()
        member = group.validate_member(request.member_id, request.group_instance_id, "Heartbeat")
        group.check_generation(request.generation_id)
        if group.state is GroupState.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} is empty")
        # Clients send heartbeats from their JoinGroup answer on, so also while the group awaits assignments.
        self._rebalance.rearm_session(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- LeaveGroup ------------------------------------------------------------------------------------------------

    def leave(self, group: ClassicGroup, request: m.LeaveGroupRequest) -> CoordinatorResult[m.LeaveGroupResponse]:
        """Each member for itself; the rebalance starts once for all of them."""
        group.check_alive()
        responses = [self._leave_one(group, member) for member in request.members]
        response = m.LeaveGroupResponse(members=responses)
        removed = [r.member_id or r.group_instance_id or "" for r in responses if r.error_code == ErrorCode.NONE]
        if not removed:
            return CoordinatorResult(response)
        follows = self._rebalance.after_removal(group, f"left: {', '.join(removed)}")
        return CoordinatorResult(response, follows.records)

    def _leave_one(self, group: ClassicGroup, identity: m.LeaveGroupRequest.MemberIdentity) -> MemberResponse:
        response = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        if identity.member_id in group.pending_joins:
            # An id that was given out and never joined: it had no assignment, so nothing is to be reassigned.
            group.remove(identity.member_id)
            self._rebalance.cancel_session(group, identity.member_id)
            return response
        member_id: str | None = identity.member_id
        if member_id == "":
            # An admin client removes a static member without knowing its member id.
            member_id = (
                None if identity.group_instance_id is None else group.static_members.get(identity.group_instance_id)
            )
            if member_id is None:
                response.error_code = ErrorCode.UNKNOWN_MEMBER_ID
                return response
        assert member_id is not None
        try:
            self._rebalance.drop(group, group.validate_member(member_id, identity.group_instance_id, "LeaveGroup"))
        except ApiError as error:
            response.error_code = error.code
        return response

    # -- offsets ---------------------------------------------------------------------------------------------------

    def keep_alive(self, group: ClassicGroup, member_id: str) -> None:
        """An offset commit of a member counts as a sign of life outside the sync phase."""
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            member = group.members.get(member_id)
            if member is not None:
                self._rebalance.rearm_session(group, member)


def _check_sync(group: ClassicGroup, request: m.SyncGroupRequest) -> ClassicMember:
    group.check_alive()
    member = group.validate_member(request.member_id, request.group_instance_id, "SyncGroup")
    group.check_generation(request.generation_id)
    for named, of_group in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name)):
        if named is not None and of_group is not None and named != of_group:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id} has {of_group}, not {named}")
    if group.state is GroupState.PREPARING_REBALANCE:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} gathers its members anew")
    if group.state is GroupState.EMPTY:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} is empty")
    return member
