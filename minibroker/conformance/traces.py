"""What a run leaves on a broker, and its removal: topics and groups under the run's own names.

Configurations are those of such topics, and go with them. Transactional ids cannot be removed; the broker forgets them
after transactional.id.expiration.ms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from minibroker.client.connection import Address

from .cluster import ClusterUnderTest
from .failure import ScenarioFailed
from .messages import api_key

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
            for address in cluster.every_broker():
                self._others.update(_groups(cluster, address))

    def remove(self, cluster: ClusterUnderTest) -> None:
        """Delete what is left of the run."""
        remove(cluster, lambda topic: topic.startswith(self._prefix), self._is_own)

    def _is_own(self, group: str) -> bool:
        return group.startswith(self._prefix) or (group in _FIXED and group not in self._others)


def remove(cluster: ClusterUnderTest, topics: Callable[[str], bool], groups: Callable[[str], bool]) -> None:
    """Delete the topics and groups of these names; members that a group still has are made to leave."""
    with contextlib.suppress(ScenarioFailed):
        for address in cluster.every_broker():
            own = [group for group in _groups(cluster, address) if groups(group)]
            if own:
                _remove_groups(cluster, address, own)
    with contextlib.suppress(ScenarioFailed):
        if chosen := [name for name in cluster.every_topic() if topics(name)]:
            cluster.delete_topics(chosen)


def _groups(cluster: ClusterUnderTest, address: Address) -> list[str]:
    """Those that this broker coordinates."""
    if api_key("ListGroups") not in cluster.versions():
        return []
    listed = cluster.ask(address, "ListGroups", cluster.version("ListGroups", 2), {})["groups"]
    return [group["groupId"] for group in listed]


def _remove_groups(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    known = cluster.versions()
    with contextlib.suppress(ScenarioFailed):
        _empty_classic(cluster, address, groups)
    if api_key("ConsumerGroupDescribe") in known:
        with contextlib.suppress(ScenarioFailed):
            _empty_consumer(cluster, address, groups)
    if api_key("DeleteGroups") in known:
        cluster.ask(address, "DeleteGroups", cluster.version("DeleteGroups", 1), {"groupsNames": groups})


def _empty_classic(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    body = {"groups": groups}
    described = cluster.ask(address, "DescribeGroups", cluster.version("DescribeGroups", 5), body)["groups"]
    for group in described:
        if members := [{"memberId": member["memberId"]} for member in group["members"]]:
            leaving = {"groupId": group["groupId"], "members": members}
            cluster.ask(address, "LeaveGroup", cluster.version("LeaveGroup", 5), leaving)


def _empty_consumer(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    body = {"groupIds": groups, "includeAuthorizedOperations": False}
    described = cluster.ask(address, "ConsumerGroupDescribe", 0, body)["groups"]
    for group in described:
        for member in group["members"]:
            leaving = {"groupId": group["groupId"], "memberId": member["memberId"], "memberEpoch": -1}
            cluster.ask(address, "ConsumerGroupHeartbeat", 0, leaving)
