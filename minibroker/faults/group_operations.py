"""Operations on consumer groups, for the table in `minibroker.faults.operations`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from minibroker.kernel.fault_error import FaultError
from minibroker_protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.coordinator_runtime.group_service import GroupService
    from minibroker.coordinators.groups.forced import Known


async def rebalance_group(cluster: Cluster, *, group: str) -> None:
    """Make the members of a group rebalance, as when a member joins: they learn of it with their next heartbeats.
    Offsets of the generation before are refused once the members have joined again; a KIP-848 group gets its next
    epoch, and takes offsets of an older one for partitions that have not moved since (KIP-1251)."""
    from minibroker.coordinators.groups import forced

    service = _coordinator(cluster, group)
    index, shard = service.shard_for(group)
    await service.host.execute(index, forced.rebalance(shard, group))


async def remove_member(cluster: Cluster, *, group: str, member: str | None = None) -> list[str]:
    """Remove members from a group, as when their sessions time out. Returns their ids.

    member: a pattern for member ids, client ids or group.instance.ids (``*`` and ``?``); optional where there is one
        member.
    """
    from minibroker.coordinators.groups import forced

    service = _coordinator(cluster, group)
    index, shard = service.shard_for(group)
    members = forced.members(shard, group)
    if member is None and len(members) != 1:
        raise FaultError(f"member is needed: group {group} has {_named(members)}")
    chosen = [each for each in members if member is None or any(fnmatchcase(name or "", member) for name in each)]
    if not chosen:
        raise FaultError(f"no member of group {group} fits {member!r}; it has {_named(members)}")
    for each in chosen:
        await service.host.execute(index, forced.remove(shard, group, each.member_id))
    return sorted(each.member_id for each in chosen)


def _named(known: list[Known]) -> str:
    return ", ".join(sorted(each.member_id for each in known)) or "no members"


def _coordinator(cluster: Cluster, group: str) -> GroupService:
    node = cluster.coordinator("group", group)
    broker = None if node is None else cluster.brokers.get(node)
    if broker is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    return broker.coordinators.groups
