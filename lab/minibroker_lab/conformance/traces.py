"""What a run leaves on a broker, and its removal: transactions, topics and groups under the run's own names.

Configurations are those of such topics, and go with them. Transactions are ended; transactional ids
cannot be removed, the broker forgets the ids after transactional.id.expiration.ms.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

from minibroker.client.cluster import RETRIABLE
from minibroker.kernel.addresses import Address
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

from .cluster import ClusterUnderTest
from .failure import ScenarioFailed

_FIXED = frozenset({"", "g"})
"""Groups of scenarios that are about the empty name, or are raw bytes."""
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_SETTLE_SECONDS: Final = 3.0
"""How long what was asked for may take: markers are written, topics deleted."""
_POLL_SECONDS: Final = 0.1
_NAMED: Final = 3


class _Busy(ScenarioFailed):
    """The broker cannot say yet what there is: ask again."""


class Traces:
    """prefix: what the run's own names begin with. To be made before the first scenario, as groups that exist then are
    not the run's. It raises nothing where the broker is gone or refuses something: every scenario has its verdict.
    """

    def __init__(self, cluster: ClusterUnderTest, prefix: str) -> None:
        self._prefix = prefix
        try:
            self._others = set(_own_groups(cluster, _FIXED.__contains__))
        except ScenarioFailed:
            self._others = set(_FIXED)  # who knows whose they are

    def remove(self, cluster: ClusterUnderTest, unended: Iterable[str] = ()) -> list[str]:
        """End, then delete, what there is of the run, and say what stays, a line a kind.

        unended: transactional ids whose transactions are known to be open; where the broker lists transactions, they
            are those it lists.

        Groups come after the transactions: an offset commit that arrives late would make its group again, and the end
        of its transaction fences it.
        """
        stay = _end_all(cluster, self._prefix, set(unended))
        lines = [_line(f"transactional ids in {state}", ids) for state, ids in sorted(stay.items())]
        return lines + self._remove_all(cluster)

    def _remove_all(self, cluster: ClusterUnderTest) -> list[str]:
        """Delete topics and groups until there are none; a coordinator that is busy or moves may refuse at first."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                remove(cluster, self._is_own_topic, self._is_own)
                topics, groups = _topics(cluster, self._is_own_topic), _own_groups(cluster, self._is_own)
                lines = [_line(kind, names) for kind, names in (("topics", topics), ("groups", groups)) if names]
            except _Busy as error:
                lines = [f"perhaps groups: {error}"]
            except ScenarioFailed as error:
                return [f"perhaps topics and groups: {error}"]
            if not lines or time.monotonic() > deadline:
                return lines
            time.sleep(_POLL_SECONDS)

    def _is_own_topic(self, topic: str) -> bool:
        return topic.startswith(self._prefix)

    def _is_own(self, group: str) -> bool:
        return group.startswith(self._prefix) or (group in _FIXED and group not in self._others)


def _line(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} {kind}: {', '.join(sorted(names)[:_NAMED])}{more}"


def end_transaction(cluster: ClusterUnderTest, transactional_id: str) -> bool:
    """Fence the id's producer, by which the coordinator aborts what is open. True once nothing is open any more; False
    while a transaction ends, and where the broker does not answer."""
    request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    with contextlib.suppress(ScenarioFailed):
        address = cluster.sole_broker() or cluster.address("txn", transactional_id)
        answer = cluster.ask_at_most(address, request, m.InitProducerIdResponse, 4)
        return answer.error_code == ErrorCode.NONE
    return False


def _end_all(cluster: ClusterUnderTest, prefix: str, unended: set[str]) -> dict[str, list[str]]:
    """State → the ids in it that could not be ended."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    before: dict[str, str] | None = None
    while True:
        states = _open(cluster, prefix)
        if states is None:
            states = dict.fromkeys(unended, "a transaction that does not end")
        if states != before:  # as long as something ends there is time
            before, deadline = states, time.monotonic() + _SETTLE_SECONDS
        if not states or time.monotonic() > deadline:
            break
        for name, state in states.items():
            if state not in _OPEN[1:] and end_transaction(cluster, name):
                unended.discard(name)
        time.sleep(_POLL_SECONDS)
    return {state: [name for name, its in states.items() if its == state] for state in {*states.values()}}


def _open(cluster: ClusterUnderTest, prefix: str) -> dict[str, str] | None:
    """Transactional id of the run → its state, of those that are not at an end. None where it cannot be known."""
    request = m.ListTransactionsRequest(state_filters=[*_OPEN], producer_id_filters=[])
    try:
        if not cluster.serves(m.ListTransactionsRequest):
            return None
        answers = [
            cluster.ask_at_most(address, request, m.ListTransactionsResponse, 0)
            for address in cluster.brokers().values()
        ]
    except ScenarioFailed:
        return None
    if any(answer.error_code in RETRIABLE for answer in answers):
        return None
    return {
        listed.transactional_id: listed.transaction_state
        for answer in answers
        for listed in answer.transaction_states
        if listed.transactional_id.startswith(prefix) and listed.transaction_state in _OPEN
    }


def remove(cluster: ClusterUnderTest, topics: Callable[[str], bool], groups: Callable[[str], bool]) -> None:
    """Delete the topics and groups of these names; members that a group still has are made to leave. Raises
    ScenarioFailed where the broker does not say what there is."""
    if chosen := _topics(cluster, topics):
        cluster.delete_topics(chosen)
    for address in cluster.brokers().values():
        own = [group for group in _groups(cluster, address) if groups(group)]
        if own:
            _remove_groups(cluster, address, own)


def _topics(cluster: ClusterUnderTest, wanted: Callable[[str], bool]) -> list[str]:
    return [topic.name for topic in cluster.metadata(None).topics if topic.name and wanted(topic.name)]


def _own_groups(cluster: ClusterUnderTest, wanted: Callable[[str], bool]) -> list[str]:
    return [group for address in cluster.brokers().values() for group in _groups(cluster, address) if wanted(group)]


def _groups(cluster: ClusterUnderTest, address: Address) -> list[str]:
    """The groups that this broker coordinates. Raises _Busy while it cannot list them."""
    if not cluster.serves(m.ListGroupsRequest):
        return []
    answer = cluster.ask_at_most(address, m.ListGroupsRequest(), m.ListGroupsResponse, 2)
    if answer.error_code in RETRIABLE:
        raise _Busy(f"ListGroups: {ErrorCode(answer.error_code).name}")
    return [group.group_id for group in answer.groups]


def _remove_groups(cluster: ClusterUnderTest, address: Address, groups: list[str]) -> None:
    with contextlib.suppress(ScenarioFailed):
        _empty_classic(cluster, address, groups)
    if cluster.serves(m.ConsumerGroupDescribeRequest):
        with contextlib.suppress(ScenarioFailed):
            _empty_consumer(cluster, address, groups)
    if cluster.serves(m.DeleteGroupsRequest):
        with contextlib.suppress(ScenarioFailed):
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
