"""The nodes of the upstream as answers name them, each with the port that stands for it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from minibroker.kernel.addresses import Address, format_address
from minibroker.kernel.logs import get_logger
from minibroker.proxy.endpoints import NodeKey

log = get_logger(__name__)

MOST_TOPIC_NAMES: Final = 100_000


class UpstreamNodes:
    """Where each node of the upstream is now, and its port here, which it keeps.

    bootstrap: addresses to begin with.
    open_port: opens a listener for a node and returns its port.
    topic_names: topic id → name, of the topics that answers named.
    """

    def __init__(self, bootstrap: Sequence[Address], open_port: Callable[[NodeKey], int]) -> None:
        self._bootstrap = tuple(bootstrap)
        self._open_port = open_port
        self._addresses: dict[NodeKey, Address] = {}
        self._ports: dict[NodeKey, int] = {}
        self.topic_names: dict[bytes, str] = {}

    def port_of(self, key: NodeKey, address: Address) -> int:
        """The port here of a node, which an answer says is at `address`. Raises ListenError where none can be
        opened."""
        if self._addresses.get(key) != address:
            if key in self._addresses:
                log.info("node %d of the upstream is now at %s", key.node_id, format_address(*address))
            self._addresses[key] = address
        port = self._ports.get(key)
        if port is None:
            port = self._ports[key] = self._open_port(key)
        return port

    def candidates(self, key: NodeKey | None) -> list[Address]:
        """Where to connect for a node; for None, the bootstrap listener: any broker, to be tried in this order."""
        if key is not None:
            return [self._addresses[key]]
        brokers = [address for known, address in self._addresses.items() if not known.listener]
        return list(dict.fromkeys([*self._bootstrap, *brokers]))

    @property
    def brokers(self) -> dict[int, Address]:
        """Node id → address of every broker that an answer named."""
        return {key.node_id: address for key, address in self._addresses.items() if not key.listener}

    @property
    def ports(self) -> dict[int, int]:
        """Node id → port here of every broker that an answer named."""
        return {key.node_id: port for key, port in self._ports.items() if not key.listener}

    def named(self, topic_id: bytes, name: str) -> None:
        """Note the name of a topic."""
        if len(self.topic_names) < MOST_TOPIC_NAMES or topic_id in self.topic_names:
            self.topic_names[topic_id] = name
