"""When the process runs out of file handles."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.server import file_descriptors as handles
from minibroker.server.edge import Edge, Limits
from minibroker.server.file_descriptors import Exhaustion, connection_limit
from minibroker.server.listeners import listen_all
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk


async def connect(edge: Edge, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    before = len(edge.connections)
    streams = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        while len(edge.connections) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return streams


async def test_the_newest_connection_is_closed_and_the_others_stay(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    later: list[Callable[[], None]] = []
    clock: Any = SimpleNamespace(
        is_closed=loop.is_closed,
        call_soon_threadsafe=loop.call_soon_threadsafe,
        call_later=lambda _, refill: later.append(refill),
    )
    (listener,) = listen_all("127.0.0.1", [0])
    port = listener.getsockname()[1]
    edge = Edge(loop, Limits())
    await edge.listen(listener, lambda frame, info: None)
    disk = OsDisk(str(tmp_path))
    exhaustion = Exhaustion(clock, edge, [disk])
    streams = [await connect(edge, port) for _ in range(3)]
    assert disk.exhausted is not None
    for _ in range(3):  # one connection for a burst of calls
        thread = threading.Thread(target=disk.exhausted)
        thread.start()
        thread.join()
        assert await asyncio.wait_for(streams[2][0].read(), 60) == b""
    await asyncio.sleep(0)
    assert len(edge.connections) == 2
    later.pop()()
    disk.exhausted()
    assert await asyncio.wait_for(streams[1][0].read(), 60) == b""
    assert len(edge.connections) == 1
    exhaustion.close()
    assert disk.exhausted is None
    for _, writer in streams:
        writer.close()
    await edge.close()
    disk.close()


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="the system does not say what is open")
def test_the_files_in_use_are_counted() -> None:
    with contextlib.ExitStack() as opened:
        before = handles.connection_limit(1 << 40, [])
        for _ in range(50):
            opened.enter_context(open(os.devnull))
        assert handles.connection_limit(1 << 40, []) == before - 50


def test_connections_leave_the_disks_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limit = 1000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    monkeypatch.setattr(os, "listdir", lambda _: ["a file"] * 20)
    disks = [OsDisk(str(tmp_path), max_handles=250), MemoryDisk()]
    assert connection_limit(1 << 31, disks) == 1000 - 250 - 20 - 64
    assert connection_limit(10, disks) == 10
    limit = 100
    assert connection_limit(1 << 31, disks) == 8
    limit = resource.RLIM_INFINITY
    assert connection_limit(1 << 31, disks) == 1 << 31


async def test_a_disk_that_comes_later_is_watched_too(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    edge = Edge(loop, Limits())
    exhaustion = Exhaustion(loop, edge, [])
    later = OsDisk(str(tmp_path))
    exhaustion.watch(later)
    exhaustion.watch(MemoryDisk())
    assert later.exhausted is not None
    exhaustion.close()
    assert later.exhausted is None
    await edge.close()
    later.close()


def test_the_disk_of_a_broker_that_was_added_is_watched(tmp_path: Path) -> None:
    with Minibroker(brokers=2, data_dir=str(tmp_path)) as broker:
        added = broker.cluster.add_broker()
        disks = broker.cluster.run(lambda cluster: [cluster.brokers[n].directory.disk for n in (1, added)])
        assert all(isinstance(disk, OsDisk) and disk.exhausted is not None for disk in disks)
        assert disks[0].max_handles == disks[1].max_handles
