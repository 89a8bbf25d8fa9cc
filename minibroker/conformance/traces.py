"""What a run leaves on a broker, and its removal: topics and groups under the run's own names.

Configurations are those of such topics, and go with them. Transactional ids cannot be removed; the broker forgets them
after transactional.id.expiration.ms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from minibroker.client.connection import Address
from minibroker_protocol import messages as m

from .cluster import ClusterUnderTest
from .failure import ScenarioFailed

_FIXED = frozenset({"", "g"})
"""Groups of scenarios that are about the empty name, or are raw bytes."""


class Traces:
    """prefix: of the run's own names. To be made before the first scenario, as groups that are there are not its own.

    It says nothing where the broker is gone or does not let a thing happen: every scenario has its verdict.
    """

    def __init__(self, cluster: ClusterUnderTest, prefix: str) -> None:
        self._prefix = prefix
        self._others: set[str] = set()
        with contextlib.suppress(ScenarioFailed):
            for address in cluster.brokers().values():
                self._others.update(_groups(cluster, address))

    def remove(self, cluster: ClusterUnderTest) -> None:
        """Delete what is left of the run."""
        remove(cluster, lambda topic: topic.startswith(self._prefix), self._is_own)

    def _is_own(self, group: str) -> bool:
        return group.startswith(self._prefix) or (group in _FIXED and group not in self._others)


def remove(cluster: ClusterUnderTest, topics: Callable[[str], bool], groups: Callable[[str], bool]) -> None:
    """Delete the topics and groups of these names; members that a group still has are made to leave."""
    with contextlib.suppress(ScenarioFailed):
        for address in cluster.brokers().values():
            own = [group for group in _groups(cluster, address) if groups(group)]
            if own:
                _remove_groups(cluster, address, own)
    with contextlib.suppress(ScenarioFailed):
        if chosen := [topic.name for topic in cluster.metadata(None).topics if topic.name and topics(topic.name)]:
            cluster.delete_topics(chosen)


def _groups(cluster: ClusterUnderTest, address: Address) -> list[str]:
    """Those that this broker coordinates."""
    if not cluster.serves(m.ListGroupsRequest):
        return []
    listed = cluster.ask_at_most(address, m.ListGroupsRequest(), m.ListGroupsResponse, 2).groups
    return [group.group_id for group in listed]


def _remove_groups(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    with contextlib.suppress(ScenarioFailed):
        _empty_classic(cluster, address, groups)
    if cluster.serves(m.ConsumerGroupDescribeRequest):
        with contextlib.suppress(ScenarioFailed):
            _empty_consumer(cluster, address, groups)
    if cluster.serves(m.DeleteGroupsRequest):
        cluster.ask_at_most(address, m.DeleteGroupsRequest(groups_names=groups), m.DeleteGroupsResponse, 1)


def _empty_classic(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    request = m.DescribeGroupsRequest(groups=groups)
    kind = m.LeaveGroupRequest
    for group in cluster.ask_at_most(address, request, m.DescribeGroupsResponse, 5).groups:
        if members := [kind.MemberIdentity(member_id=member.member_id) for member in group.members]:
            leaving = kind(group_id=group.group_id, members=members)
            cluster.ask_at_most(address, leaving, m.LeaveGroupResponse, 5)


def _empty_consumer(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    request = m.ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False)
    for group in cluster.ask(address, request, m.ConsumerGroupDescribeResponse, 0).groups:
        for member in group.members:
            leaving = m.ConsumerGroupHeartbeatRequest(
                group_id=group.group_id, member_id=member.member_id, member_epoch=-1
            )
            cluster.ask(address, leaving, m.ConsumerGroupHeartbeatResponse, 0)
