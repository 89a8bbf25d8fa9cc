"""One partition by itself, on a disk in memory, with a controller and followers that a test speaks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from held_executor import HeldExecutor
from manual_time import ManualTimers

from minibroker.metadata.image import PartitionImage
from minibroker.partitions.log_flush import LogFlush
from minibroker.partitions.partition import Partition
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import ProducerRules

LEADER, FOLLOWER = 1, 2


@dataclass
class Rules:
    """ReplicationRules in which a test says who is eligible and which tick it is; proposals are only written down."""

    tick: int = 0
    absent: set[int] = field(default_factory=set)
    proposed: list[set[int]] = field(default_factory=list)

    def eligible(self, node_id: int, broker_epoch: int) -> bool:
        return node_id not in self.absent

    def alive(self, node_id: int) -> bool:
        return node_id not in self.absent

    def propose(self, partition: Partition, isr: frozenset[int]) -> None:
        self.proposed.append(set(isr))


class OnePartition:
    """t-0 on broker 1, with replicas 1, 2, 3 of which 1 leads and all are in sync, unless `image` says otherwise."""

    def __init__(
        self, config: LogConfig | None = None, *, disk: Disk | None = None, written: bool = False, **image: Any
    ) -> None:
        self.config = config or LogConfig(min_insync_replicas=2)
        self.disk, self.timers, self.rules = disk or MemoryDisk(), ManualTimers(), Rules()
        self.held = HeldExecutor()
        self.opened = 0  # how often its log was
        self.image = PartitionImage(0, (1, 2, 3), (1, 2, 3), LEADER, 5, partition_epoch=1)
        self.image = replace(self.image, **image)
        self.partition = Partition(
            "t", 0, bytes(16), broker_id=1, image=self.image, open_log=self.open, make_flush=self.flush,
            clock=self.timers, replication=self.rules, written=written,
        )  # fmt: skip

    def open(self) -> PartitionLog:
        self.opened += 1
        return PartitionLog.open(
            self.disk, "t-0", topic="t", partition=0, config=self.config, rules=ProducerRules(), now_ms=0
        )

    def flush(self, log: PartitionLog, flushed: Callable[[], None], failed: Callable[[ApiError], None]) -> LogFlush:
        return LogFlush(log, executor=self.held, clock=self.timers, flushed=flushed, failed=failed)

    def write(self, count: int = 10, *, required_acks: int = 1) -> None:
        batch = build_batch([Record(offset, 0, None, b"v") for offset in range(count)])
        self.partition.append(bytearray(batch), origin=Origin.CLIENT, required_acks=required_acks)

    def fetch(self, **offsets: int) -> None:
        """`b2=10`: broker 2 asks from 10 on."""
        for name, offset in offsets.items():
            self.partition.follower_fetched(int(name[1:]), offset, 1)

    def decide(self, **changes: Any) -> bool:
        """The controller says something new."""
        self.image = replace(self.image, partition_epoch=self.image.partition_epoch + 1, **changes)
        return self.partition.follow(self.image)
