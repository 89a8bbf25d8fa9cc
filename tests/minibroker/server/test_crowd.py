"""1,000 connections, and four that misbehave: the others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

import pytest

from minibroker.handlers.context import ConnectionInfo
from minibroker.runtime.asyncio_runtime import new_event_loop
from minibroker.server.connection import Answered
from minibroker.server.edge import Edge, Limits
from minibroker.server.listeners import listen_all

CONNECTIONS = 1000
MARGIN = 100


def enough_handles() -> bool:
    try:
        import resource
    except ImportError:
        return True
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + MARGIN
    if soft < wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, min(hard, wanted)) >= wanted


def dispatch(data: bytearray, info: ConnectionInfo) -> Answered:
    if data[0]:
        raise Refusal("garbage")
    return [struct.pack(">i", len(data)), memoryview(data)]


class Refusal(Exception):
    pass


REQUEST = struct.pack(">i", 6) + b"\0\0ping"


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    started = time.perf_counter()
    writer.write(REQUEST)
    assert await reader.readexactly(10) == REQUEST
    return time.perf_counter() - started


async def misbehave(port: int) -> list[socket.socket]:
    """One that never reads, one that stops mid-frame, one that sends garbage, one that floods."""
    loop = asyncio.get_running_loop()
    sockets = []
    for _ in range(4):
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        sockets.append(client)
    deaf, half, garbage, flood = sockets
    half.send(struct.pack(">i", 90 << 20) + b"\0\0" + b"h" * 30_000)
    garbage.send(b"GET /index.html HTTP/1.1\r\n\r\n" * 10)
    big = struct.pack(">i", 1 << 20) + bytes(1 << 20)

    async def pour(client: socket.socket, data: bytes, read: bool) -> None:
        with contextlib.suppress(OSError):
            while True:
                await loop.sock_sendall(client, data)
                while read:
                    try:
                        if not client.recv(1 << 20):
                            return
                    except BlockingIOError:
                        break
                await asyncio.sleep(0)

    pouring.extend(
        [asyncio.create_task(pour(deaf, big, False)), asyncio.create_task(pour(flood, REQUEST * 3000, True))]
    )
    return sockets


pouring: list[asyncio.Task[None]] = []


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_thousand_connections_do_not_notice_four_that_misbehave(kind: str) -> None:
    if not enough_handles():
        pytest.skip(f"needs {2 * CONNECTIONS + MARGIN} open files")
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    loop = new_event_loop(uvloop=kind == "uvloop")

    async def whole() -> None:
        edge = Edge(loop, Limits(backlog=CONNECTIONS), refusals=(Refusal,))
        (listener,) = listen_all("127.0.0.1", [0], CONNECTIONS)
        port = listener.getsockname()[1]
        await edge.listen(listener, dispatch)
        clients = []
        for _ in range(CONNECTIONS // 50):
            clients += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(50)))
        async with asyncio.timeout(10):
            while len(edge.connections) < CONNECTIONS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        troublemakers = await misbehave(port)
        try:
            times: list[float] = []
            for _ in range(3):
                for start in range(0, CONNECTIONS, 100):
                    times += await asyncio.gather(*(ask(*client) for client in clients[start : start + 100]))
            assert len(times) == 3 * CONNECTIONS
            # 100 at a time beside a flood on a busy machine; a connection that is held up waits for seconds.
            assert max(times) < 1.5
            assert len(edge.connections) in range(CONNECTIONS + 2, CONNECTIONS + 4)  # garbage was shown the door
        finally:
            for task in pouring:
                task.cancel()
            await asyncio.gather(*pouring, return_exceptions=True)
            pouring.clear()
            for troublemaker in troublemakers:
                troublemaker.close()
            for _, writer in clients:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in clients), return_exceptions=True)
            await edge.close()
            assert edge.memory.used == 0

    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()
