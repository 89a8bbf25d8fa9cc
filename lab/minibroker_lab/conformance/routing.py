"""Which broker a request goes to: the leader, the coordinator or the controller, at the address the broker gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibroker.kernel.addresses import Address

from .cluster import ClusterUnderTest
from .requests import targets
from .scenario import Step
from .values import resolve

_TO_LEADER = frozenset(
    {
        "Produce",
        "Fetch",
        "ListOffsets",
        "DeleteRecords",
        "DescribeProducers",
        "OffsetForLeaderEpoch",
        "WriteTxnMarkers",
    }
)
TO_GROUP = frozenset(
    {
        "OffsetCommit",
        "OffsetFetch",
        "JoinGroup",
        "Heartbeat",
        "LeaveGroup",
        "SyncGroup",
        "DescribeGroups",
        "DeleteGroups",
        "OffsetDelete",
        "TxnOffsetCommit",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
    }
)
TO_TRANSACTION = frozenset(
    {"InitProducerId", "AddOffsetsToTxn", "EndTxn", "AddPartitionsToTxn", "DescribeTransactions"}
)
_TO_CONTROLLER = frozenset({"CreateTopics", "DeleteTopics", "CreatePartitions"})


class Router:
    """Finds addresses for the requests of one step, and keeps them until told to forget."""

    def __init__(self, cluster: ClusterUnderTest, variables: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._variables = variables
        self._known: dict[tuple[str, str], Address] = {}
        self._moved = False

    def forget(self) -> None:
        """Ask again: leaders and coordinators move."""
        self._known.clear()
        self._moved = True

    def address(self, step: Step, body: Mapping[str, Any]) -> Address:
        """Where to send a step's request; what belongs nowhere in particular goes to the bootstrap address."""
        key = self._key(step, body)
        if key is None:
            return self._cluster.bootstrap[0]
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _key(self, step: Step, body: Mapping[str, Any]) -> tuple[str, str] | None:
        if to := step.get("to"):
            kind, _, argument = to.partition(":")
            if kind == "bootstrap":
                return None
            if kind == "leader":
                return kind, argument
            return kind, str(resolve(argument, self._variables, strict=True))
        if step.api in _TO_CONTROLLER:
            return "controller", ""
        if step.api in TO_TRANSACTION:
            return _named("txn", _transactional_id(body))
        if step.api in TO_GROUP:
            return _named("group", group_of(body))
        if step.api in _TO_LEADER and step.get("at"):
            at = step.get("at")
            return "leader", at if isinstance(at, str) else next(iter(at))
        return None

    def _find(self, kind: str, argument: str) -> Address:
        if not self._moved and (sole := self._cluster.sole_broker()) is not None:
            return sole
        if kind != "leader":
            return self._cluster.address(kind, argument)
        (target,) = targets(argument, self._variables)
        return self._cluster.address(kind, target.topic, target.partition)


def _named(kind: str, name: Any) -> tuple[str, str] | None:
    return (kind, str(name)) if name else None


def _transactional_id(body: Mapping[str, Any]) -> Any:
    return next(iter(transactional_ids(body)), None)


def transactional_ids(body: Mapping[str, Any]) -> list[str]:
    """The transactional ids that a request names."""
    batched = [transaction.get("transactionalId") for transaction in body.get("transactions") or ()]
    alone = body.get("transactionalId") or body.get("v3AndBelowTransactionalId")
    return [str(name) for name in (*(body.get("transactionalIds") or ()), *batched, alone) if name]


def group_of(body: Mapping[str, Any]) -> Any:
    """The first group that a request is about."""
    for key in ("groups", "groupIds", "groupsNames"):
        if many := body.get(key):
            return many[0].get("groupId") if isinstance(many[0], dict) else many[0]
    return body.get("groupId")
