"""DescribeGroups (15), ListGroups (16), DeleteGroups (42).

DescribeGroups 0-6: v3 authorized operations; v4 static members; v6 GROUP_ID_NOT_FOUND for a group that is not there
(before, it is shown as Dead). ListGroups 0-5: v4 states (KIP-518), v5 types (KIP-848). DeleteGroups 0-3: v3 has a
message, which Kafka fills only for GROUP_DELETION_FAILED; no deletion here fails that way. Kafka:
GroupCoordinatorService, GroupMetadataManager.describeGroups and listGroups.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.kernel.deferred import Deferred, gather, mapped, resolved
from minibroker.requests.answers import outcome_of
from minibroker.requests.auth_helper import authorized_operations
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker.security.acls import ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_TELLS_MISSING = 6
_DEAD = "Dead"

_Described = m.DescribeGroupsResponse.DescribedGroup
_Deleted = m.DeleteGroupsResponse.DeletableGroupResult


def describe_groups(ctx: RequestContext, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
    groups = []
    for group_id in sorted(request.groups, key=bool):  # the empty id is in no partition, and answered first
        try:
            described = ctx.broker.coordinators.groups.shard_for(group_id)[1].describe(group_id)
        except ApiError as error:
            described = _Described(error_code=error.code, group_id=group_id)
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                described.group_state = _DEAD
                if ctx.api_version >= _TELLS_MISSING:
                    described.error_message = error.message
                else:
                    described.error_code = ErrorCode.NONE
            if described.error_code != ErrorCode.NONE:
                ctx.refused(group_id, error)
        if described.error_code == ErrorCode.NONE:
            described.authorized_operations = authorized_operations(
                ctx, ResourceType.GROUP, group_id, wanted=request.include_authorized_operations
            )
        groups.append(described)
    return m.DescribeGroupsResponse(groups=groups)


def list_groups(ctx: RequestContext, request: m.ListGroupsRequest) -> Answer:
    """Groups of every partition of ``__consumer_offsets`` that this broker leads."""
    host = ctx.broker.coordinators.groups.host
    if host.loading:
        return m.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    groups: list[m.ListGroupsResponse.ListedGroup] = []

    def choose(some: Sequence[m.ListGroupsResponse.ListedGroup]) -> None:
        for listed in some:
            wanted = not states or listed.group_state.lower() in states
            if wanted and (not types or listed.group_type.lower() in types):
                groups.append(listed)

    every = [listed for _, shard in host.shards() for listed in shard.listed()]
    return in_slices(ctx, every, choose, lambda: m.ListGroupsResponse(groups=groups), keep=False)


def delete_groups(ctx: RequestContext, request: m.DeleteGroupsRequest) -> Deferred[m.DeleteGroupsResponse]:
    """GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP and the coordinator's errors, each for its group."""
    deleted = gather(_deleted(ctx, group_id) for group_id in sorted(request.groups_names, key=bool))
    return mapped(deleted, lambda results: m.DeleteGroupsResponse(results=results))


def _deleted(ctx: RequestContext, group_id: str) -> Deferred[m.DeleteGroupsResponse.DeletableGroupResult]:
    def refused(error: ApiError) -> m.DeleteGroupsResponse.DeletableGroupResult:
        ctx.refused(group_id, error)
        return _Deleted(group_id=group_id, error_code=error.code)

    groups = ctx.broker.coordinators.groups
    result = outcome_of(lambda: groups.delete_group(group_id), lambda _: _Deleted(group_id=group_id), refused)
    return result if isinstance(result, Deferred) else resolved(result)
