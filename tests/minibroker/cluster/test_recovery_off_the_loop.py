"""After an unclean end the logs are recovered on the executor, not where requests are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from memory_cluster import MemoryCluster

from minibroker.runtime.executor import InlineExecutor
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.directory import DataDirectory
from minibroker_storage.log import PartitionLog
from minibroker_storage.origin import Origin

T = TypeVar("T")


def test_logs_are_opened_inside_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = MemoryCluster(topics={"t": 3})
    for index in range(3):
        batch = build_batch([Record(0, before.clock.now_ms(), None, b"v", [])])
        before.broker.partition("t", index).append(batch, origin=Origin.CLIENT, api_version=9)
    before.disk.locks.clear()  # type: ignore[attr-defined]  # killed: no clean mark, the lock gone with the process

    inside = False
    opened: list[tuple[str, bool]] = []
    each, open_log = InlineExecutor.each, DataDirectory.open_log

    def marked(self: InlineExecutor, work: Callable[[T], None], items: Iterable[T]) -> None:
        nonlocal inside
        inside = True
        each(self, work, items)
        inside = False

    def noted(self: DataDirectory, topic: str, partition: int, **options: object) -> PartitionLog:
        opened.append((f"{topic}-{partition}", inside))
        return open_log(self, topic, partition, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(InlineExecutor, "each", marked)
    monkeypatch.setattr(DataDirectory, "open_log", noted)
    after = MemoryCluster(disk=before.disk)
    assert opened == [("t-0", True), ("t-1", True), ("t-2", True)]
    assert [after.broker.partition("t", i).log.log_end_offset for i in range(3)] == [1, 1, 1]
    after.stop()
