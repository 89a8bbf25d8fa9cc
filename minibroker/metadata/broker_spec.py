"""Specification of a broker before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from minibroker_storage.disk import Disk

NO_VOLUME: tuple[int, int] = (-1, -1)
NO_LISTENERS: Mapping[int, tuple[str, int]] = MappingProxyType({})


class BrokerSpec(NamedTuple):
    """Specification of one broker before it starts: its advertised address and where it keeps its data.

    host: "" or a wildcard address stands for the local address a client connected to.
    listeners: the port it connected to → advertised (host, port), for a broker with more than one.
    name_for: for a wildcard, the host to advertise to a client, by (its address, our address); None for our address.
    """

    node_id: int
    host: str
    port: int
    disk: Disk
    log_dir: str = ""
    rack: str | None = None
    volume_bytes: Callable[[], tuple[int, int]] = lambda: NO_VOLUME
    listeners: Mapping[int, tuple[str, int]] = NO_LISTENERS
    name_for: Callable[[str, str], str] | None = None
