"""Frames in and answers out over real sockets, with a dispatch that stands in for the broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from echoing import CRASH, ECHO, FETCH, PRODUCE, REFUSE, SILENT, FakeBroker, Refused, frame

from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.kernel.spare_buffers import LARGEST_SPARE_BYTES, SpareBuffers
from minibroker.server.connection import send_reset_on_close
from minibroker.server.edge import Edge, Limits
from minibroker.server.listeners import listen_all


class Client:
    """A blocking-free client on plain streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def echo(self, payload: bytes) -> bytes:
        self.writer.write(frame(ECHO, payload))
        return await self.answer()

    async def at_end(self) -> bool:
        """True when the broker closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), 60) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Bench:
    def __init__(self, edge: Edge, broker: FakeBroker, port: int) -> None:
        self.edge = edge
        self.broker = broker
        self.port = port
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


Story = Callable[[Bench], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a story against an edge on either event loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")

    def play(story: Story, **limits: Any) -> None:
        loop = new_event_loop(uvloop=request.param == "uvloop")

        async def whole() -> None:
            broker = FakeBroker()
            edge = Edge(loop, Limits(**limits), refusals=(Refused,))
            (listener,) = listen_all("127.0.0.1", [0])
            port = listener.getsockname()[1]
            await edge.listen(listener, broker.dispatch)
            bench = Bench(edge, broker, port)
            try:
                await asyncio.wait_for(story(bench), 30)
            finally:
                for client in bench.clients:
                    await client.close()
                await edge.close()
                assert not edge.connections | edge.unread | edge.holding
                assert edge.memory.used == 0 or broker.parked

        try:
            loop.run_until_complete(whole())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    return play


def test_answers_a_request_and_tells_who_asked(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        assert await client.echo(b"hello") == b"hello"
        info = bench.broker.infos[0]
        assert info.client_port == client.writer.get_extra_info("sockname")[1]
        assert (info.client_host, info.local_host, info.local_port) == ("127.0.0.1", "127.0.0.1", bench.port)

    run(story)


@pytest.mark.parametrize("cuts", [1, 2, 3, 7, 1000])
def test_frames_may_come_in_any_pieces(run: Run, cuts: int) -> None:
    payloads = [b"", b"a", b"x" * 300, b"y" * 1500, b"z"]

    async def story(bench: Bench) -> None:
        client = await bench.client()
        stream = b"".join(frame(ECHO, p) for p in payloads)
        for start in range(0, len(stream), cuts):
            client.writer.write(stream[start : start + cuts])
            await client.writer.drain()
            if cuts > 1 or start % 50 == 0:
                await asyncio.sleep(0)
        assert [await client.answer() for _ in payloads] == payloads

    run(story)


@pytest.mark.parametrize("size", [16 * 1024 - 3, 16 * 1024, 64 * 1024, 1 << 20, (9 << 20) + 5])
def test_large_frames_are_whole_writable_and_echoed(run: Run, size: int) -> None:
    payload = random.Random(size).randbytes(size)

    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(ECHO, b"before") + frame(ECHO, payload) + frame(ECHO, b"after"))
        assert await client.answer() == b"before"
        assert await client.answer() == payload
        assert await client.answer() == b"after"
        bench.broker.frames[1][5] = 7  # type: ignore[index]

    run(story)


def test_requests_wait_for_the_parked_one_and_are_answered_in_order(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(ECHO, b"1") + frame(FETCH) + frame(ECHO, b"3") + frame(SILENT) + frame(ECHO, b"5"))
        assert await client.answer() == b"1"
        await asyncio.sleep(0.02)
        client.writer.write(frame(ECHO, b"6"))
        await asyncio.sleep(0.02)
        assert [key for key, _ in bench.broker.served] == [ECHO, FETCH]  # nothing behind it was begun
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"2"])
        assert [await client.answer() for _ in range(4)] == [b"2", b"3", b"5", b"6"]

    run(story)


def test_what_follows_an_answer_is_not_served_inside_the_request_that_caused_it(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(FETCH) + frame(ECHO, b"next"))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        await asyncio.sleep(0.01)
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"f"])
        assert len(bench.broker.served) == 1  # the resolver's own work is not over yet
        assert [await client.answer(), await client.answer()] == [b"f", b"next"]

    run(story)


def test_a_muted_connection_is_answered_and_then_served_no_further_for_its_time(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(ECHO, b"1"))
        assert await client.answer() == b"1"
        channel = bench.broker.infos[0].channel
        assert channel is not None
        channel.mute(150)
        channel.mute(20)  # the longer one counts
        began = asyncio.get_running_loop().time()
        client.writer.write(frame(ECHO, b"2") + frame(ECHO, b"3"))
        await asyncio.sleep(0.08)
        assert len(bench.broker.served) == 1
        assert await client.answer() == b"2"
        assert asyncio.get_running_loop().time() - began >= 0.14
        assert await client.answer() == b"3"

    run(scenario)


def test_the_buffer_of_a_large_request_serves_the_next_ones(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        buffers: list[object] = []  # kept, so that no other gets the same id
        for number in range(12):
            payload = bytes([number]) * (300_000 - 3000 * number)
            assert await client.echo(payload) == payload
            (data,) = bench.broker.frames
            assert isinstance(data, memoryview)
            buffers.append(data.obj)
            bench.broker.frames.clear()
            del data
        assert len(set(map(id, buffers))) <= 3

    run(story)


def test_what_somebody_still_looks_at_is_not_received_into(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        for number in range(8):
            await client.echo(bytes([number]) * 200_000)
        assert [bytes(data[2:]) for data in bench.broker.frames] == [bytes([number]) * 200_000 for number in range(8)]

    run(story)


def test_no_more_than_two_spare_buffers_are_kept() -> None:
    spare = SpareBuffers()
    assert spare.take(20_000) is None
    buffers = [bytearray(size) for size in (20_000, 300_000, 1_000_000, LARGEST_SPARE_BYTES, LARGEST_SPARE_BYTES + 1)]
    for buffer in buffers:
        spare.give_back(buffer)
    assert spare.take(20_000) is buffers[2]
    assert spare.take(20_000) is buffers[3]
    assert spare.take(20_000) is None


def test_a_large_frame_behind_a_parked_request_waits(run: Run) -> None:
    payload = b"L" * 300_000

    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE) + frame(ECHO, payload))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        await asyncio.sleep(0.02)
        bench.broker.parked[0].resolve(None)
        assert await client.answer() == payload

    run(story)


@pytest.mark.parametrize(
    "garbage",
    [struct.pack(">i", -1), struct.pack(">i", 1 << 30), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"],
)
def test_a_size_that_cannot_be_closes_the_connection_after_the_answers_before_it(
    run: Run, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(bench: Bench) -> None:
        good, bad = await bench.client(), await bench.client()
        bad.writer.write(frame(ECHO, b"ok") + garbage)
        assert await bad.answer() == b"ok"
        assert await bad.at_end()
        assert await good.echo(b"still") == b"still"

    run(story)
    told = {b"GET ": "the client speaks HTTP", b"\x16\x03\x01\x02": "these bytes begin a TLS handshake"}
    assert told.get(garbage[:4], "is not between 0 and ") in caplog.text


@pytest.mark.parametrize(("api_key", "lines"), [(REFUSE, "no such thing"), (CRASH, "ZeroDivisionError")])
def test_a_refusal_and_a_crash_close_only_their_own_connection(
    run: Run, api_key: int, lines: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(bench: Bench) -> None:
        good, bad = await bench.client(), await bench.client()
        bad.writer.write(frame(ECHO, b"ok") + frame(api_key) + frame(ECHO, b"never"))
        assert await bad.answer() == b"ok"
        assert await bad.at_end()
        assert await good.echo(b"still") == b"still"
        assert (ECHO, b"never") not in bench.broker.served

    run(story)
    assert lines in caplog.text
    assert len(caplog.records) == 1
    assert (caplog.records[0].exc_info is not None) == (api_key == CRASH)


def test_a_failed_parked_request_closes_its_connection(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        bench.broker.parked[0].fail(Refused("acks=0"))
        assert await client.at_end()

    run(story)


@pytest.mark.parametrize(("api_key", "held"), [(FETCH, 0), (PRODUCE, 80_002)])
def test_an_answer_for_a_client_that_left_is_dropped_and_gives_its_memory_back(
    run: Run, api_key: int, held: int
) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(api_key, b"B" * 80_000) + frame(ECHO, b"never"))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        assert bench.edge.memory.used == held  # the handler of Produce still looks at the frame
        gone: list[bool] = []
        bench.broker.infos[0].on_gone = lambda: gone.append(bench.broker.infos[0].gone)
        if api_key == PRODUCE:  # else what it has sent is still served
            send_reset_on_close(client.writer.get_extra_info("socket"))
        await client.close()
        await bench.until(lambda: not bench.edge.connections)
        assert gone == [True]  # what waits for something else may end
        assert bench.edge.memory.used == held
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"f"])
        assert bench.edge.memory.used == 0
        assert bench.broker.infos[0].release is None
        assert [key for key, _ in bench.broker.served] == [api_key]

    run(story)


def test_what_came_before_a_client_sends_nothing_more_is_answered(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE, b"p") + frame(ECHO, b"a") + frame(ECHO, b"b") + b"\0\0\0\x20half")
        client.writer.write_eof()
        await bench.until(lambda: len(bench.broker.parked) == 1)
        assert await (await bench.client()).echo(b"x") == b"x"  # by now the loop has seen the end
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"f"])
        assert [await client.answer() for _ in range(3)] == [b"f", b"a", b"b"]
        assert await client.at_end()

    run(story)


def test_what_came_before_a_client_left_is_served(run: Run) -> None:
    """More than is served in one turn: a producer with acks=0 waits for no answer."""

    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(SILENT) * 100)
        await client.close()
        await bench.until(lambda: not bench.edge.connections and bool(bench.broker.served))
        assert len(bench.broker.served) == 100

    run(story)


def test_what_only_waits_ends_where_the_client_had_left_before(run: Run) -> None:
    """Nothing would end it: the client chose how long it waits."""

    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE) + frame(ECHO, b"a") + frame(FETCH) + frame(ECHO, b"b"))
        client.writer.write_eof()
        await bench.until(lambda: len(bench.broker.parked) == 1)
        assert await (await bench.client()).echo(b"x") == b"x"  # by now the loop has seen the end
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"p"])
        assert [await client.answer() for _ in range(2)] == [b"p", b"a"]
        assert await client.at_end()
        assert bench.broker.infos[0].gone

    run(story)


def test_a_frame_is_given_back_only_while_its_request_is_served(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE, b"B" * 80_000))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"f"])
        assert await client.answer() == b"f"
        client.writer.write(frame(PRODUCE, b"C" * 70_000))
        await bench.until(lambda: len(bench.broker.parked) == 2)
        (info, _), (first, second) = bench.broker.infos, bench.broker.frames
        assert info.release is not None
        info.release(first)  # by something that a request before it left behind
        assert bench.edge.memory.used == 70_002
        info.release(second)
        assert bench.edge.memory.used == 0

    run(story)


def test_many_requests_that_wait_leave_the_memory_to_others(run: Run) -> None:
    async def story(bench: Bench) -> None:
        for _ in range(5):
            (await bench.client()).writer.write(frame(FETCH, b"B" * 80_000))
        await bench.until(lambda: len(bench.broker.parked) == 5)
        last = await bench.client()
        assert await last.echo(b"E" * 90_000) == b"E" * 90_000

    run(story, queued_max_request_bytes=100_000)


def test_a_client_that_does_not_read_is_served_no_further(run: Run) -> None:
    payload = b"p" * 100_000

    async def story(bench: Bench) -> None:
        slow, good = socket.create_connection(("127.0.0.1", bench.port)), await bench.client()
        try:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
            slow.setblocking(False)
            sent = bytearray()
            stream = frame(ECHO, payload) * 300
            while len(sent) < len(stream):
                try:
                    count = slow.send(stream[len(sent) : len(sent) + 65536])
                except BlockingIOError:
                    served = len(bench.broker.served)
                    await asyncio.sleep(0.05)
                    if len(bench.broker.served) == served:
                        break
                    continue
                sent += stream[len(sent) : len(sent) + count]
                await asyncio.sleep(0)
            assert len(bench.broker.served) < 200  # 30 MB would have been answered otherwise
            assert await good.echo(b"fine") == b"fine"
            # Once it reads, everything it asked for arrives.
            got = 0
            asked = len(sent) // len(frame(ECHO, payload))
            async with asyncio.timeout(60):
                while got < asked * (len(payload) + 4):
                    try:
                        got += len(slow.recv(1 << 20))
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
        finally:
            slow.close()

    run(story)


def test_memory_for_requests_is_limited_and_others_get_it_in_turn(run: Run) -> None:
    async def story(bench: Bench) -> None:
        holder, second, small = [await bench.client() for _ in range(3)]
        big = b"B" * 80_000
        holder.writer.write(frame(PRODUCE, big))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        assert bench.edge.memory.used == len(big) + 2
        second.writer.write(frame(ECHO, big))
        await asyncio.sleep(0.05)
        assert len(bench.broker.served) == 1  # 160 kB do not fit in 100 kB
        assert await small.echo(b"s") == b"s"  # small requests are not held up
        bench.broker.parked[0].resolve([struct.pack(">i", 0)])
        assert await second.answer() == big
        assert await holder.answer() == b""

    run(story, queued_max_request_bytes=100_000)


def test_who_holds_memory_and_sends_nothing_is_closed_when_others_wait(run: Run) -> None:
    async def story(bench: Bench) -> None:
        stuck, waiting = await bench.client(), await bench.client()
        stuck.writer.write(frame(ECHO, b"B" * 80_000)[:50_000])
        await bench.until(lambda: bench.edge.memory.used > 0)
        payload = b"W" * 70_000
        waiting.writer.write(frame(ECHO, payload))
        assert await waiting.answer() == payload
        assert await stuck.at_end()

    run(story, queued_max_request_bytes=100_000, look_seconds=0.05)


def test_a_waiting_client_that_leaves_gives_up_its_turn(run: Run) -> None:
    async def story(bench: Bench) -> None:
        holder, leaver, last = [await bench.client() for _ in range(3)]
        payload = b"B" * 80_000
        holder.writer.write(frame(PRODUCE, payload))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        leaver.writer.write(frame(ECHO, payload))
        await bench.until(lambda: bench.edge.memory.contended)
        leaver.writer.transport.abort()
        last.writer.write(frame(ECHO, payload))
        await asyncio.sleep(0.02)
        bench.broker.parked[0].resolve(None)
        assert await last.answer() == payload

    run(story, queued_max_request_bytes=100_000)


def test_a_waiting_client_that_is_closed_holds_no_memory(run: Run) -> None:
    async def story(bench: Bench) -> None:
        payload = b"B" * 80_000
        holder, last = [await bench.client() for _ in range(2)]
        holder.writer.write(frame(PRODUCE, payload))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        closed = await bench.client()
        closed.writer.write(frame(ECHO, payload))
        await bench.until(lambda: bench.edge.memory.contended)
        bench.edge.shed_newest()
        await bench.until(lambda: len(bench.edge.connections) == 2)
        assert not bench.edge.memory.contended
        last.writer.write(frame(ECHO, payload))
        bench.broker.parked[0].resolve(None)
        assert await last.answer() == payload
        assert bench.edge.memory.used == 0

    run(story, queued_max_request_bytes=100_000)


@pytest.mark.parametrize("api_key", [REFUSE, CRASH])
def test_a_large_request_that_is_refused_gives_its_memory_back(run: Run, api_key: int) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(api_key, b"B" * 80_000))
        assert await client.at_end()
        assert bench.edge.memory.used == 0

    run(story)


def test_what_comes_while_a_request_is_parked_is_not_kept_without_bound(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client, other = await bench.client(), await bench.client()
        client.writer.write(frame(FETCH))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        client.writer.write(frame(ECHO, b"x" * 1000) * 32_000)  # more than sockets hold
        for _ in range(500):  # turns in which the broker could read
            assert await other.echo(b"y") == b"y"
        assert client.writer.transport.get_write_buffer_size() > 16 << 20
        bench.broker.parked[0].resolve(None)
        assert await client.answer() == b"x" * 1000  # it reads on
        client.writer.transport.abort()

    run(story)


def test_idle_connections_are_closed_and_busy_and_parked_ones_are_not(run: Run) -> None:
    async def story(bench: Bench) -> None:
        *idle, busy, parked = [await bench.client() for _ in range(7)]
        parked.writer.write(frame(FETCH))
        for _ in range(12):
            await busy.echo(b"x")
            await asyncio.sleep(0.03)
        assert [await one.at_end() for one in idle] == [True] * 5
        assert await busy.echo(b"y") == b"y"
        bench.broker.parked[0].resolve([struct.pack(">i", 1), b"f"])
        assert await parked.answer() == b"f"

    run(story, connections_max_idle_ms=160)


def test_a_request_of_a_client_that_left_waits_no_longer_than_a_connection_may_be_idle(run: Run) -> None:
    """A rule may never let it go; Kafka closes a muted connection after this time, too."""

    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE))
        await bench.until(lambda: bool(bench.broker.parked))
        await client.close()
        assert await (await bench.client()).echo(b"x") == b"x"  # by now the loop has seen the end
        await bench.until(lambda: bench.broker.infos[0].gone)

    run(story, connections_max_idle_ms=160)


def test_no_more_connections_than_allowed(run: Run) -> None:
    async def story(bench: Bench) -> None:
        clients = [await bench.client() for _ in range(3)]
        assert [await c.echo(b"x") for c in clients[:2]] == [b"x", b"x"]
        assert await clients[2].at_end()

    run(story, max_connections=2)


def test_a_stop_answers_what_changed_something_and_leaves_the_rest(run: Run) -> None:
    async def story(bench: Bench) -> None:
        producer, fetcher, idle = [await bench.client() for _ in range(3)]
        producer.writer.write(frame(PRODUCE) + frame(ECHO, b"late"))
        fetcher.writer.write(frame(FETCH))
        await bench.until(lambda: len(bench.broker.parked) == 2)
        await bench.edge.stop_accepting()
        order = [api_key for api_key, _ in bench.broker.served]
        producing = bench.broker.parked[order.index(PRODUCE)]
        stopping = asyncio.ensure_future(bench.edge.drain(3600))
        await asyncio.sleep(0)
        assert not stopping.done()
        producing.resolve([struct.pack(">i", 1), b"p"])
        await stopping
        await bench.edge.close(3600)
        assert await producer.answer() == b"p"
        assert await producer.at_end()
        assert await fetcher.at_end()
        assert await idle.at_end()
        assert (ECHO, b"late") not in bench.broker.served
        with pytest.raises(OSError):
            await bench.client()

    run(story)


def test_a_stop_does_not_wait_for_ever(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        await bench.edge.drain(0.05)
        await bench.edge.close(0.05)
        assert await client.at_end()

    run(story)


def test_a_stop_does_not_wait_for_a_client_that_left(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        stopping = asyncio.ensure_future(bench.edge.drain(3600))
        await asyncio.sleep(0)
        size = 32 << 20
        bench.broker.parked[0].resolve([struct.pack(">i", size), memoryview(bytes(size))])
        await asyncio.sleep(0)
        assert not stopping.done(), "the client has not taken all of its answer"
        client.writer.transport.abort()
        await asyncio.wait_for(stopping, 60)

    run(story)


def test_a_stop_does_not_wait_for_a_connection_that_was_closed_unanswered(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        client.writer.write(frame(PRODUCE))
        await bench.until(lambda: len(bench.broker.parked) == 1)
        stopping = asyncio.ensure_future(bench.edge.drain(3600))
        await asyncio.sleep(0)
        assert not stopping.done()
        bench.edge.shed_newest()
        await asyncio.wait_for(stopping, 20)

    run(story)


def test_a_stream_of_large_requests_lets_the_others_have_their_turn(run: Run) -> None:
    """No request of the others waits for more than a few of the large ones."""
    large = frame(SILENT, bytes(400_000))

    async def story(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        behind: list[int] = []

        def note() -> None:
            behind.append(len(bench.broker.served))

        with socket.create_connection(("127.0.0.1", bench.port)) as flood:
            flood.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            # All of it lies in the socket's buffers before the loop runs again.
            flood.setblocking(False)
            sent = flood.send(large * 12)
            while len(bench.broker.served) < sent // len(large):
                loop.call_soon(note)
                await asyncio.sleep(0)
        assert max(b - a for a, b in itertools.pairwise(behind)) <= 2

    run(story)


def test_a_flood_of_small_requests_lets_the_others_have_their_turn(run: Run) -> None:
    """Whatever one client sent at once, the loop comes round after a few of its requests."""
    flood_of = 400

    async def story(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        behind: list[int] = []

        def note() -> None:
            behind.append(len(bench.broker.served))

        with socket.create_connection(("127.0.0.1", bench.port)) as flood:
            flood.sendall(frame(SILENT) * flood_of)
            while len(bench.broker.served) < flood_of:
                loop.call_soon(note)
                await asyncio.sleep(0)
        assert max(b - a for a, b in itertools.pairwise([*behind, flood_of])) <= 32

    run(story)


def test_a_view_the_loop_still_holds_does_not_stop_a_frame_from_growing() -> None:
    """Windows' proactor loop asks for the next buffer while it holds the last one."""

    class Transport(asyncio.Transport):
        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ("127.0.0.1", 1) if name.endswith("name") else default

    from minibroker.server.connection import Connection

    class StandInEdge:
        greedy = False
        scratch = memoryview(bytearray(64 * 1024))
        max_frame_bytes = 100 << 20

        def opened(self, _: Connection) -> bool:
            return True

        def answer_room(self) -> None: ...

    edge = StandInEdge()
    from minibroker.server.memory import RequestMemory

    edge.memory = RequestMemory(0)  # type: ignore[attr-defined]
    edge.spare = SpareBuffers()  # type: ignore[attr-defined]
    broker = FakeBroker()
    connection = Connection(edge, broker.dispatch)  # type: ignore[arg-type]
    connection.connection_made(Transport())
    payload = random.Random(1).randbytes(9 << 20)
    data = frame(SILENT, payload)
    position = 0
    held: memoryview | None = None
    while position < len(data):
        view = connection.get_buffer(-1)
        count = min(len(view), len(data) - position)
        view[:count] = data[position : position + count]
        position += count
        connection.buffer_updated(count)
        held = view  # noqa: F841  kept alive on purpose
    assert bytes(broker.frames[0][2:]) == payload


class LaterByHand:
    """An event loop whose timers fire when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.due: list[Callable[[], object]] = []

    def call_later(self, _delay: float, callback: Callable[[], object]) -> LaterByHand:
        self.due.append(callback)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_answers_nobody_reads_are_bounded_over_all_connections(run: Run) -> None:
    """A client that takes nothing is closed once the limit is reached; one that reads is not."""

    async def story(bench: Bench) -> None:
        deaf, reader = await bench.client(), await bench.client()
        for client in (deaf, reader):
            client.writer.write(frame(FETCH))
        await bench.until(lambda: len(bench.broker.parked) == 2)
        bench.edge.loop = later = LaterByHand(bench.edge.loop)  # type: ignore[assignment]
        size = 32 << 20
        channel = bench.broker.infos[0].channel
        assert channel is not None
        assert channel.answer_room() == 1 << 20
        bench.broker.parked[1].resolve([struct.pack(">i", size), memoryview(bytes(size))])
        await bench.until(lambda: channel.answer_room() == 0)
        await reader.reader.readexactly(4 + size // 2)
        later.due.pop()()
        assert len(bench.edge.connections) == 2
        await reader.reader.readexactly(size // 2)
        await bench.until(lambda: channel.answer_room() == 1 << 20)
        later.due.pop()()
        assert len(bench.edge.connections) == 2
        bench.broker.parked[0].resolve([struct.pack(">i", size), memoryview(bytes(size))])
        await bench.until(lambda: channel.answer_room() == 0)
        later.due.pop()()
        await bench.until(lambda: channel.answer_room() == 1 << 20)
        await bench.until(lambda: len(bench.edge.connections) == 1)  # the deaf one is gone
        later.cancel()

    run(story, queued_max_response_bytes=1 << 20)


def test_answers_may_take_any_room_without_a_limit(run: Run) -> None:
    async def story(bench: Bench) -> None:
        client = await bench.client()
        await client.echo(b"x")
        channel = bench.broker.infos[0].channel
        assert channel is not None
        assert channel.answer_room() is None

    run(story, queued_max_response_bytes=-1)
