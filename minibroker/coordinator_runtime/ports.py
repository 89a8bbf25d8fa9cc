"""The interface of a broker that its coordinators see."""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

from minibroker.coordinator_runtime.effect_queue import EffectQueue
from minibroker.coordinators.producer_ids import ProducerIdBlocks
from minibroker.kernel.clock import ClockTimers
from minibroker.kernel.executor import Executor
from minibroker.metadata.cluster_member import ClusterMember
from minibroker.partitions.partition import Partition
from minibroker.partitions.refused_appends import RefusedAppends
from minibroker.releases.semantics import Semantics


class CoordinatingBroker(ClusterMember, Protocol):
    """A broker as its coordinators see it."""

    @property
    def semantics(self) -> Semantics: ...
    @property
    def clock(self) -> ClockTimers: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def random(self) -> Random: ...
    @property
    def producer_ids(self) -> ProducerIdBlocks: ...
    @property
    def refused_appends(self) -> RefusedAppends: ...

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads.

        Raises ApiError UNKNOWN_TOPIC_OR_PARTITION, or NOT_LEADER_OR_FOLLOWER when another broker leads it.
        """

    def partition_count(self, internal_topic: str, config: str) -> int:
        """Partitions of an internal topic, or what `config` says it will have while it does not exist."""

    def coordinator_of(self, internal_topic: str, key: str) -> int | None:
        """Node that coordinates a group or transactional id; None while the topic or its leader is missing."""


class Coordinator(Protocol):
    """A coordinator: keeps its state in an internal topic and follows the leadership of its partitions."""

    @property
    def effects(self) -> EffectQueue[Any]:
        """The effects that its decisions have yet to have, in order."""

    def start(self) -> None:
        """Start the sweeps."""

    def close(self) -> None: ...

    def elected(self, partition: Partition, epoch: int) -> None:
        """This broker leads `partition` of the internal topic now."""

    def resigned(self, index: int) -> None:
        """This broker no longer leads partition `index`."""

    def reconfigure(self) -> None:
        """Settings or finalized features have changed."""

    def topic_deleted(self, name: str) -> None:
        """The topic was deleted: forget what is kept about its partitions."""
