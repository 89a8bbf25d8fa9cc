"""Answers that carry addresses of nodes, and how another address gets into them.

An answer names a node and where it listens. A client would go there, past the proxy, so each such address becomes that
of the proxy's own listener for the node. Node ids and cluster ids stay (KIP-1242).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from minibroker.kernel.addresses import Address
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Response
from minibroker_protocol.registry import registry


class NodeKey(NamedTuple):
    """One listener of one node.

    listener: "" for that of a broker for clients, else the name of a controller's.
    """

    node_id: int
    listener: str = ""


class Endpoint(Protocol):
    """The struct of an answer that has an address."""

    host: str
    port: int


Locate = Callable[[NodeKey, Address], Address]
"""Returns the address at which clients reach the node that the upstream has at this address."""
Found = Iterable[tuple[NodeKey, Endpoint]]

CONTROLLERS: Final = "controllers"
"""Listener of controllers in DescribeCluster, which does not name it."""
_CONTROLLER_ENDPOINTS: Final = 2


def _metadata(answer: m.MetadataResponse) -> Found:
    return ((NodeKey(broker.node_id), broker) for broker in answer.brokers)


def _coordinators(answer: m.FindCoordinatorResponse) -> Found:
    carriers: list[Any] = [answer, *answer.coordinators]
    return ((NodeKey(carrier.node_id), carrier) for carrier in carriers)


def _cluster(answer: m.DescribeClusterResponse) -> Found:
    listener = CONTROLLERS if answer.endpoint_type == _CONTROLLER_ENDPOINTS else ""
    return ((NodeKey(broker.broker_id, listener), broker) for broker in answer.brokers)


def _quorum(answer: m.DescribeQuorumResponse) -> Found:
    return ((NodeKey(node.node_id, each.name), each) for node in answer.nodes for each in node.listeners)


def _new_leaders(
    answer: m.ProduceResponse | m.FetchResponse | m.ShareFetchResponse | m.ShareAcknowledgeResponse,
) -> Found:
    return ((NodeKey(node.node_id), node) for node in answer.node_endpoints)


_ENDPOINTS: Final[dict[int, Callable[[Any], Found]]] = {
    m.ProduceRequest.__api_key__: _new_leaders,
    m.FetchRequest.__api_key__: _new_leaders,
    m.MetadataRequest.__api_key__: _metadata,
    m.FindCoordinatorRequest.__api_key__: _coordinators,
    m.DescribeQuorumRequest.__api_key__: _quorum,
    m.DescribeClusterRequest.__api_key__: _cluster,
    m.ShareFetchRequest.__api_key__: _new_leaders,
    m.ShareAcknowledgeRequest.__api_key__: _new_leaders,
}
CARRIERS: Final = frozenset(_ENDPOINTS)
"""APIs whose answers can carry an address."""
_FIRST_WITH_ENDPOINTS: Final = {
    m.ProduceRequest.__api_key__: 10,
    m.FetchRequest.__api_key__: 16,
    m.DescribeQuorumRequest.__api_key__: 2,
}
"""The first version whose answer has room for an address, where that is not the first of all."""


def carries_address(api_key: int, version: int) -> bool:
    """Whether an answer that can be read here may have an address in it."""
    return api_key in _ENDPOINTS and version >= _FIRST_WITH_ENDPOINTS.get(api_key, 0)


def moved(api_key: int, answer: Response, locate: Locate) -> bool:
    """Put the addresses of `locate` into an answer; whether any changed. No address (an error's "" or -1) stays."""
    changed = False
    for key, endpoint in _ENDPOINTS[api_key](answer):
        upstream_address = endpoint.host, endpoint.port
        if not endpoint.host or endpoint.port <= 0:
            continue
        client_address = locate(key, upstream_address)
        if client_address != upstream_address:
            endpoint.host, endpoint.port = client_address
            changed = True
    return changed


def offered(answer: m.ApiVersionsResponse) -> bool:
    """Take out of the upstream's versions those of address-carrying APIs that cannot be read here; whether any was."""
    changed = False
    for api in list(answer.api_keys):
        if api.api_key not in CARRIERS:
            continue
        lowest, highest = registry()[api.api_key][1].__versions__
        too_old = api.max_version < lowest and carries_address(api.api_key, api.max_version)
        if api.max_version <= highest and not too_old:
            continue
        changed = True
        if too_old or highest < api.min_version:
            answer.api_keys.remove(api)
        else:
            api.max_version = highest
    return changed
