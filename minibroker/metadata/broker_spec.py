"""A broker to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from minibroker_storage.disk import Disk

NO_VOLUME: tuple[int, int] = (-1, -1)
NO_LISTENERS: Mapping[int, tuple[str, int]] = MappingProxyType({})


class Node(NamedTuple):
    """One broker to be: where it is reached (as clients shall be told) and where it keeps its data.

    host: "" or a wildcard address stands for whichever local address a client connected to. listeners: port a client
    connected to → (host, port) it shall be told, for a broker with more than one. name_for: for a wildcard, the host to
    tell a client, by (its address, our address); None for our address.
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
