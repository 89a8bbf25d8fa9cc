"""Arguments of an operation that are taken from the request at which it is done, such as ``$topic``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from minibroker.faults.facts import facts_of
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.requests.tapped_request import TappedRequest

EXAMPLE: Final[Mapping[str, Any]] = {
    "topic": "t",
    "partition": 0,
    "group": "g",
    "transactional_id": "x",
    "producer_id": 0,
    "broker": 1,
    "other_broker": 2,
}
"""A value of the kind that each has."""
BROKERS: Final = frozenset({"broker", "other_broker"})
"""What no request names, and each has."""


def is_taken(value: object) -> bool:
    return isinstance(value, str) and value.startswith("$")


def filled(value: object, values: Mapping[str, Any]) -> Any:
    """The value itself, or the request's value for a name such as ``$topic``. Raises KeyError where the request has
    none, FaultError for an unknown name."""
    if not isinstance(value, str) or not is_taken(value):
        return value
    name = value[1:]
    if name not in EXAMPLE:
        known = [f"${name}" for name in EXAMPLE]
        raise FaultError(f"{value} is nothing that a request has{near(value, known)}; there are {', '.join(known)}")
    return values[name]


def values_of(tapped: TappedRequest, cluster: Cluster) -> dict[str, Any]:
    """What a request names, and the brokers."""
    facts = facts_of(tapped.request, tapped.context.broker.image.topic_names.get)
    taken: dict[str, Any] = {"broker": tapped.receiver}
    for name, index in facts.partitions[:1]:
        taken |= {"topic": name} | ({"partition": index} if index >= 0 else {})
    producers = [producer.producer_id for producer in facts.producers]
    named = (("group", facts.groups), ("transactional_id", facts.transactional_ids), ("producer_id", producers))
    taken |= {name: values[0] for name, values in named if values}
    others = [node for node in sorted(cluster.brokers) if node != tapped.receiver]
    if others:
        taken["other_broker"] = next((node for node in others if node > tapped.receiver), others[0])
    return taken
