"""The interfaces of a broker that its parts see: replication, maintenance, heartbeats."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Protocol

from minibroker.config.settings import Settings
from minibroker.kernel.clock import ClockTimers, Timers
from minibroker.kernel.executor import Executor
from minibroker.metadata.cluster_member import ClusterMember
from minibroker.partitions.partition import Partition
from minibroker_storage.directory import DataDirectory


class LogHoldingBroker(Protocol):
    """A broker as the holder of logs."""

    @property
    def clock(self) -> ClockTimers: ...

    def partitions(self) -> Iterator[Partition]:
        """Every partition this broker holds, led or followed."""


class RegisteredBroker(ClusterMember, Protocol):
    """A broker as the controller knows it."""

    @property
    def epoch(self) -> int: ...


class ReplicatingBroker(RegisteredBroker, LogHoldingBroker, Protocol):
    """A broker as follower and leader of replicas."""

    @property
    def random(self) -> Random: ...


class LogManagingBroker(LogHoldingBroker, Protocol):
    """A broker as the keeper of its logs."""

    @property
    def settings(self) -> Settings: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def directory(self) -> DataDirectory: ...
