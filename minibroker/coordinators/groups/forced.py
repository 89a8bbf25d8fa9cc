"""Rebalances and removals of members on request of a test. Members learn of them as of any other change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from minibroker.coordinators.groups.consumer import records
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.words import near
from minibroker_protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from minibroker.coordinators.groups.consumer.replay import AnyGroup
    from minibroker.coordinators.groups.shard import GroupShard


class Known(NamedTuple):
    """How a member may be named.

    instance_id: None for a dynamic member.
    """

    member_id: str
    client_id: str
    instance_id: str | None


def members(shard: GroupShard, group_id: str) -> list[Known]:
    """The members of a group. Raises GROUP_ID_NOT_FOUND."""
    group = _group(shard, group_id)
    if isinstance(group, ConsumerGroup):
        return [Known(each.member_id, each.client_id, each.instance_id) for each in group.members.values()]
    return [Known(each.member_id, each.client_id, each.group_instance_id) for each in group.members.values()]


def rebalance(shard: GroupShard, group_id: str) -> CoordinatorResult[None]:
    """Make all members join again; a KIP-848 group gets its next epoch, which its members learn with their heartbeats.
    A running rebalance continues. Raises GROUP_ID_NOT_FOUND, also for a group without members.
    """
    group = _group(shard, group_id)
    if not group.members:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} has no members")
    if isinstance(group, ConsumerGroup):
        return CoordinatorResult(None, (records.group_epoch(group_id, group.group_epoch + 1, group.metadata_hash),))
    return shard.rebalance.maybe_prepare(group, "a rebalance was asked for")


def remove(shard: GroupShard, group_id: str, member_id: str) -> CoordinatorResult[None]:
    """Remove a member, as if its session had expired; no effect on an unknown member. Raises GROUP_ID_NOT_FOUND."""
    group = _group(shard, group_id)
    if isinstance(group, ConsumerGroup):
        leaving = group.members.get(member_id)
        return CoordinatorResult(None) if leaving is None else shard.consumers.remove(group, leaving)
    member = group.members.get(member_id)
    if member is None:
        return CoordinatorResult(None)
    shard.rebalance.drop(group, member)
    return shard.rebalance.after_removal(group, f"{member_id} was taken out")


def _group(shard: GroupShard, group_id: str) -> AnyGroup:
    group = shard.groups.get(group_id)
    if group is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}{near(group_id, shard.groups)}")
    return group
