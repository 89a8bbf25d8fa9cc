"""Clients that never end their TLS handshake leave room for those that do."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import pytest
from echoing import ECHO, FakeBroker, Refused, answer_of, frame
from tls_files import LOCALHOST, trusting

from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.server.edge import Edge, Limits
from minibroker.server.listener_security import ListenerSecurity
from minibroker.server.listeners import listen_all

LOOPS = ["asyncio", "uvloop"] if find_spec("uvloop") else ["asyncio"]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Story = Callable[[Edge, int], Awaitable[None]]


class OutOfHandles(socket.socket):
    """A listening socket that cannot accept for a while."""

    left = 0

    def accept(self) -> Any:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    def play(story: Story, *, failures: int = 0, **limits: Any) -> None:
        loop = new_event_loop(uvloop=request.param == "uvloop")

        async def whole() -> None:
            edge = Edge(loop, Limits(**limits), refusals=(Refused,))
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(LOCALHOST)
            (opened,) = listen_all("127.0.0.1", [0])
            listener = OutOfHandles(fileno=opened.detach())
            listener.left = failures
            port = listener.getsockname()[1]
            await edge.listen(listener, FakeBroker().dispatch, ListenerSecurity(tls))
            try:
                await asyncio.wait_for(story(edge, port), 60)
            finally:
                await edge.close()
            assert not edge.connections
            assert asyncio.all_tasks() == {asyncio.current_task()}

        try:
            loop.run_until_complete(whole())
        finally:
            loop.close()

    return play


async def connect(port: int) -> Stream:
    return await asyncio.open_connection("127.0.0.1", port, ssl=trusting(), server_hostname="localhost")


async def echo(stream: Stream) -> None:
    request = frame(ECHO, b"hello")
    stream[1].write(request)
    assert await stream[0].readexactly(len(answer_of(request))) == answer_of(request)


def test_a_new_client_is_served_although_handshakes_take_all_connections(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(edge: Edge, port: int) -> None:
        served = [await connect(port) for _ in range(2)]
        half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        half[-1][1].write(b"\x16\x03\x01")
        served.append(await connect(port))
        for stream in served:
            await echo(stream)
        assert await half[0][0].read() == b""
        assert edge.handshakes <= 4
        assert len(edge.connections) == 3
        for stream in [*served, *half]:
            stream[1].transport.abort()

    run(story, max_connections=6)
    assert any("TLS handshakes it has taken the longest" in line for line in caplog.messages)


def test_handshakes_may_take_their_time_while_there_is_room(run: Callable[..., None]) -> None:
    async def story(edge: Edge, port: int) -> None:
        half = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
        for stream in [await connect(port) for _ in range(3)]:
            await echo(stream)
            stream[1].transport.abort()
        assert edge.handshakes == 10
        late = half.pop()
        reader, writer = await asyncio.open_connection(sock=late, ssl=trusting(), server_hostname="localhost")
        await echo((reader, writer))
        writer.transport.abort()
        for client in half:
            client.close()

    run(story)


def test_without_file_handles_a_connection_waits_until_there_are_some(run: Callable[..., None]) -> None:
    async def story(edge: Edge, port: int) -> None:
        stream = await connect(port)
        await echo(stream)
        stream[1].transport.abort()

    run(story, failures=2)


def test_a_stop_ends_handshakes_and_refuses_further_connections(run: Callable[..., None]) -> None:
    async def story(edge: Edge, port: int) -> None:
        half = await asyncio.open_connection("127.0.0.1", port)
        while not edge.handshakes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await edge.stop_accepting()
        assert await half[0].read() == b""
        half[1].transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await connect(port)

    run(story)
