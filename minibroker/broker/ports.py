"""What the parts of a broker need of it: its replication, its upkeep, its heartbeat."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Protocol

from minibroker.config.settings import Settings
from minibroker.kernel.clock import ClockTimers, Timers
from minibroker.kernel.executor import Executor
from minibroker.kernel.transport import Transport
from minibroker.metadata.image import MetadataImage
from minibroker.partitions.partition import Partition
from minibroker_storage.directory import DataDirectory


class ClusterMember(Protocol):
    """A broker as a member of its cluster: its id, its metadata and its transport."""

    @property
    def node_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def transport(self) -> Transport: ...


class ReplicatingBroker(ClusterMember, Protocol):
    """A broker as it follows and is followed."""

    @property
    def clock(self) -> ClockTimers: ...
    @property
    def random(self) -> Random: ...

    def partitions(self) -> Iterator[Partition]:
        """Every partition this broker holds, led or followed."""


class LogManagingBroker(Protocol):
    """A broker as the keeper of its logs."""

    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> ClockTimers: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def directory(self) -> DataDirectory: ...

    def partitions(self) -> Iterator[Partition]:
        """Every partition this broker holds, led or followed."""
