"""Logs are recovered and closed on the executor, not where requests are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest
from many_brokers import ManyBrokers
from memory_cluster import MemoryCluster

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import InlineExecutor
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.directory import DataDirectory
from minibroker_storage.log import PartitionLog
from minibroker_storage.origin import Origin

T = TypeVar("T")


def test_logs_are_opened_inside_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = False
    opened: list[tuple[str, bool]] = []

    class Marking(InlineExecutor):
        def each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
            nonlocal inside
            inside = True
            super().each(work, items)
            inside = False

    open_log = DataDirectory.open_log

    def noted(self: DataDirectory, topic: str, partition: int, **options: object) -> PartitionLog:
        opened.append((f"{topic}-{partition}", inside))
        return open_log(self, topic, partition, **options)  # type: ignore[arg-type]

    before = MemoryCluster(topics={"t": 3})
    for index in range(3):
        batch = build_batch([Record(0, before.clock.now_ms(), None, b"v", [])])
        before.broker.partition("t", index).append(batch, origin=Origin.CLIENT, api_version=9)
    before.disk.locks.clear()  # type: ignore[attr-defined]  # killed: no clean mark, the lock gone with the process
    monkeypatch.setattr(DataDirectory, "open_log", noted)
    after = MemoryCluster(disk=before.disk, executor=Marking())
    assert opened == [("t-0", True), ("t-1", True), ("t-2", True)]
    assert [after.broker.partition("t", i).log.log_end_offset for i in range(3)] == [1, 1, 1]
    after.stop()


class HeldAside(InlineExecutor):
    """What may take long waits until the test does it."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        outcome: Deferred[T] = Deferred()
        self.held.append((work, outcome))
        return outcome

    def finish(self) -> None:
        work, outcome = self.held.pop(0)
        outcome.resolve(work())


@pytest.fixture
def aside() -> HeldAside:
    return HeldAside()


@pytest.fixture
def brokers(aside: HeldAside) -> Iterator[ManyBrokers]:
    many = ManyBrokers(3, executor=aside)
    many.create("t", [[1, 2, 3], [1, 2, 3]])
    many.produce("t", b"a")
    many.settle(600)
    yield many
    many.stop()


def isr(brokers: ManyBrokers) -> list[int]:
    partition = brokers.cluster.image.partition("t", 0)
    return [] if partition is None else sorted(partition.isr)


def test_the_others_serve_while_a_broker_recovers(brokers: ManyBrokers, aside: HeldAside) -> None:
    brokers.cluster.kill_broker(1)
    started = brokers.cluster.start_broker(1)
    assert len(aside.held) == 1
    assert brokers.produce("t", b"b").error_code == 0
    brokers.settle(30_000)  # longer than any session
    assert (started.done, sorted(brokers.cluster.brokers), isr(brokers)) == (False, [2, 3], [2, 3])
    for again in (brokers.cluster.start_broker, brokers.cluster.remove_broker):
        with pytest.raises(ApiError):
            again(1)
    aside.finish()
    assert started.result() is brokers.cluster.brokers[1]
    brokers.settle(5000)
    assert isr(brokers) == [1, 2, 3]
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")
    assert brokers.values("t") == [b"a", b"b"]


def test_what_is_decided_while_a_broker_recovers_holds_when_it_starts(brokers: ManyBrokers, aside: HeldAside) -> None:
    brokers.cluster.kill_broker(1)
    started = brokers.cluster.start_broker(1)
    brokers.cluster.reassign("t", 0, [2, 3])
    brokers.settle(1000)
    brokers.create("u", [[2, 3]], at=2)
    aside.finish()
    started.result()
    brokers.settle(2000)
    assert not any(name.startswith("t-0") for name in brokers.disks[1].list(""))
    assert brokers.partition(1, "t", 1).replicas == (1, 2, 3)
    assert brokers.cluster.brokers[1].image is brokers.cluster.image


def test_the_others_serve_while_a_broker_closes_its_logs(brokers: ManyBrokers, aside: HeldAside) -> None:
    closed = brokers.cluster.stop_broker(1)
    started = brokers.cluster.start_broker(1)  # has to wait for the directory
    assert brokers.leader("t") == 2
    assert brokers.produce("t", b"b").error_code == 0
    assert (closed.done, started.done, len(aside.held)) == (False, False, 1)
    aside.finish()
    assert closed.done
    aside.finish()
    assert started.done
    assert brokers.cluster.brokers[1].directory.clean
    brokers.settle(5000)
    assert isr(brokers) == [1, 2, 3]


def test_a_cluster_that_ends_does_not_bring_up_who_still_recovers(brokers: ManyBrokers, aside: HeldAside) -> None:
    brokers.cluster.kill_broker(1)
    started = brokers.cluster.start_broker(1)
    brokers.cluster.stop()
    aside.finish()
    with pytest.raises(ApiError):
        started.result()
    assert not brokers.disks[1].locks


def test_a_controller_that_is_gone_meanwhile_unfences_later(brokers: ManyBrokers, aside: HeldAside) -> None:
    brokers.cluster.kill_broker(1)
    started = brokers.cluster.start_broker(1)
    brokers.cluster.stop_controller()
    aside.finish()
    assert started.done
    brokers.settle(5000)
    assert brokers.cluster.image.brokers[1].fenced
    brokers.cluster.start_controller()
    brokers.settle(10_000)
    assert not brokers.cluster.image.brokers[1].fenced
    assert isr(brokers) == [1, 2, 3]
