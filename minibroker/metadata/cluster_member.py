"""A broker as its coordinators and its other parts see it."""

from __future__ import annotations

from typing import Protocol

from minibroker.config.settings import Settings
from minibroker.kernel.clock import Timers
from minibroker.kernel.transport import Transport
from minibroker.metadata.image import MetadataImage


class ClusterMember(Protocol):
    """A broker's id, settings and metadata, and how it reaches other brokers."""

    @property
    def node_id(self) -> int: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def transport(self) -> Transport: ...
