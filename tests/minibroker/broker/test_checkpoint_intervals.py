"""Each checkpoint file is written at its own interval."""

from __future__ import annotations

from collections import Counter
from typing import Any

from memory_cluster import MemoryCluster

RECOVERY, START, WATERMARK = (
    "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint",
)  # fmt: skip


def test_each_checkpoint_has_its_own_interval() -> None:
    config = {
        "log.flush.offset.checkpoint.interval.ms": "1000",
        "log.flush.start.offset.checkpoint.interval.ms": "3000",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }
    cluster = MemoryCluster(topics={"t": 1}, config=config)
    written: Counter[str] = Counter()
    disk = cluster.broker.directory.disk
    write = disk.write_atomic

    def counted(name: str, *arguments: Any, **more: Any) -> None:
        written[name] += 1
        write(name, *arguments, **more)

    disk.write_atomic = counted  # type: ignore[method-assign]
    for _ in range(120):
        cluster.timers.advance(50)
    del disk.write_atomic
    cluster.stop()
    assert {name: written[name] for name in (RECOVERY, START, WATERMARK)} == {RECOVERY: 6, START: 2, WATERMARK: 12}
