"""Stands in the chain for the broker that a request is for, when that broker belongs to an upstream cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minibroker.broker.connection import ConnectionInfo
from minibroker.config.settings import Settings
from minibroker.kernel.addresses import Address
from minibroker.kernel.clock import Timers
from minibroker.kernel.executor import Executor
from minibroker.kernel.refusals import Refusals
from minibroker.kernel.turns import Lane
from minibroker.kernel.words import reason
from minibroker.proxy.endpoints import NodeKey
from minibroker.proxy.upstream_nodes import UpstreamNodes
from minibroker.requests.context import CloseConnection

BOOTSTRAP: Final = -1
"""Node id by which rules and traces name the listener that reaches any broker."""
_WILDCARDS: Final = ("0.0.0.0", "::", "")


class Advertised(NamedTuple):
    """A broker as an answer of the proxy's own making names it."""

    node_id: int
    rack: str | None = None


class TopicNames(NamedTuple):
    """Topic id → name, of the topics that answers named."""

    topic_names: Mapping[bytes, str]


class WallClock(NamedTuple):
    """`Clock` of the refusals."""

    now_ms: Callable[[], int]


@dataclass(slots=True)
class AskedNode:
    """One listener of the proxy, under the names that the chain has for what it needs of a broker.

    key: the node of the upstream behind it, None for the bootstrap listener.
    host: in answers to clients; "" (or an address that stands for all) where it is the one that each came to.
    """

    key: NodeKey | None
    nodes: UpstreamNodes
    host: str
    timers: Timers
    executor: Executor
    clock: WallClock
    settings: Settings = field(default_factory=Settings)
    lane: Lane = field(init=False)
    refusals: Refusals = field(default_factory=Refusals)

    def __post_init__(self) -> None:
        self.lane = Lane(self.timers)

    @property
    def node_id(self) -> int:
        return BOOTSTRAP if self.key is None else self.key.node_id

    @property
    def image(self) -> TopicNames:
        return TopicNames(self.nodes.topic_names)

    def advertised(self, connection: ConnectionInfo) -> list[tuple[Advertised, str, int]]:
        """(broker, host, port) of all brokers, as this client reaches them through the proxy."""
        host = self.host_for(connection)
        return [(Advertised(node_id), host, port) for node_id, port in self.nodes.ports.items()]

    def local(self, connection: ConnectionInfo, key: NodeKey, address: Address) -> Address:
        """Where this client reaches a node that an answer says is at `address`. Raises CloseConnection where that
        needs a listener and there are no file handles or ports left."""
        try:
            port = self.nodes.port_of(key, address)
        except OSError as error:
            raise CloseConnection(f"node {key.node_id} of the upstream gets no port here: {reason(error)}") from None
        return self.host_for(connection), port

    def host_for(self, connection: ConnectionInfo) -> str:
        """The host in answers to this client: `host`, or the name it asked for (SNI), or the address it came
        to."""
        return self.host if self.host not in _WILDCARDS else connection.server_name or connection.local_host
