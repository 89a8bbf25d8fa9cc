"""1,000 connections, and four that misbehave: the others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from importlib.util import find_spec

import pytest
from sampling import thinned

from minibroker import Minibroker
from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.requests.dispatch import Answered
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


ECHO = struct.pack(">i", 6) + b"\0\0ping"
LOOPS = ["uvloop", "asyncio"] if find_spec("uvloop") else ["asyncio"]
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)

Clients = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(size)
    assert request == ECHO or answer[:6] == b"\0\0\0\1\0\0"  # correlation id and NONE


async def pour(client: socket.socket, data: bytes, *, read: bool) -> None:
    """Send for ever, and read what comes back or not."""
    loop = asyncio.get_running_loop()
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


@contextlib.asynccontextmanager
async def misbehaving(port: int, request: bytes) -> AsyncIterator[None]:
    """One that never reads, one that stops mid-frame, one that sends garbage, one that floods."""
    deaf, half, garbage, flood = sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    for client in sockets:
        client.setblocking(False)
    half.send(struct.pack(">i", 90 << 20) + b"\0\0" + b"h" * 30_000)
    garbage.send(b"GET /index.html HTTP/1.1\r\n\r\n" * 10)
    pouring = [
        asyncio.create_task(pour(deaf, request * 5000, read=False)),
        asyncio.create_task(pour(flood, request * 3000, read=True)),
    ]
    try:
        yield
        assert await asyncio.get_running_loop().sock_recv(garbage, 1) == b""  # it was shown the door
    finally:
        for task in pouring:
            task.cancel()
        await asyncio.gather(*pouring, return_exceptions=True)
        for client in sockets:
            client.close()


async def crowd(port: int, request: bytes) -> None:
    """A thousand clients ask and are answered, beside the four that go on all the while."""
    clients: Clients = []
    for _ in range(CONNECTIONS // 50):
        clients += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(50)))
    try:
        async with misbehaving(port, request):
            for start in range(0, CONNECTIONS, 100):
                await asyncio.gather(*(ask(*client, request) for client in clients[start : start + 100]))
    finally:
        for _, writer in clients:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in clients), return_exceptions=True)


@pytest.fixture(params=thinned(LOOPS, len(LOOPS)))
def uvloop(request: pytest.FixtureRequest) -> bool:
    if not enough_handles():
        pytest.skip(f"needs {2 * CONNECTIONS + MARGIN} open files")
    return bool(request.param == "uvloop")


def test_a_thousand_connections_of_the_edge_do_not_notice_four_that_misbehave(uvloop: bool) -> None:
    loop = new_event_loop(uvloop=uvloop)

    async def whole() -> None:
        edge = Edge(loop, Limits(backlog=CONNECTIONS), refusals=(Refusal,))
        (listener,) = listen_all("127.0.0.1", [0], CONNECTIONS)
        port = listener.getsockname()[1]
        await edge.listen(listener, dispatch)
        try:
            await crowd(port, ECHO)
        finally:
            await edge.close()
        assert edge.memory.used == 0

    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()


def test_a_thousand_connections_of_a_broker_do_not_notice_four_that_misbehave(uvloop: bool) -> None:
    with Minibroker(ephemeral=True, config={"minibroker.uvloop": uvloop}) as broker:
        asyncio.run(crowd(int(broker.bootstrap_servers.rpartition(":")[2]), API_VERSIONS))
