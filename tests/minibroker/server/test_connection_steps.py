"""What a connection does at each of its limits, to the byte and the millisecond.

The event loop and the transport stand still until the test moves them. Sizes and times are written out here and not
taken from the product.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from echoing import ECHO, FETCH, PRODUCE, REFUSE, SILENT, FakeBroker, Refused, answer_of, frame

from minibroker.server.connection import Connection, send_reset_on_close
from minibroker.server.edge import Edge, Limits
from minibroker.server.listener_security import ListenerSecurity

KIB = 1024
MIB = 1024 * KIB
LARGE = 16 * KIB


class Timer:
    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due, self.call = due, call

    def cancel(self) -> None:
        self.due = float("inf")


class Loop:
    """Time passes in `wait` only, and a turn of the loop is `turn`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._soon: deque[Callable[[], object]] = deque()
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[..., object], *values: Any) -> None:
        self._soon.append(lambda: call(*values))

    def call_at(self, due: float, call: Callable[..., object], *values: Any) -> Timer:
        self._timers.append(timer := Timer(due, lambda: call(*values)))
        return timer

    def call_later(self, seconds: float, call: Callable[..., object], *values: Any) -> Timer:
        return self.call_at(self.now + seconds, call, *values)

    async def create_server(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(close=lambda: None)

    def turn(self) -> None:
        for call in [self._soon.popleft() for _ in range(len(self._soon))]:
            call()

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [timer for timer in self._timers if timer.due <= until + 1e-9]:
            timer = min(due, key=lambda timer: timer.due)
            self._timers.remove(timer)
            self.now = timer.due
            timer.call()
            self.turn()
        self.now = until


class Transport(asyncio.Transport):
    """Notes what is asked of it: the sizes of writes, and the other calls by name."""

    def __init__(self, loop: Loop, connection: Connection) -> None:
        self.calls: list[Any] = []
        noted = SimpleNamespace(setsockopt=lambda *option: self.calls.append(option[:2]))
        super().__init__({"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 9092), "socket": noted})
        self.written = b""
        self.unsent = 0
        self.paused = False
        self._loop, self._connection = loop, connection

    def write(self, data: Any) -> None:
        self.calls.append(len(data))
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.calls.append([len(data) for data in list_of_data])
        self.written += b"".join(list_of_data)

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True
        self.calls.append("pause")

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False
        self.calls.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(("limit", high))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.calls.append("close")
        self._loop.call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.calls.append("abort")
        self._loop.call_soon(self._connection.connection_lost, None)


class Bench:
    def __init__(self, *, vectored: bool = True, **limits: Any) -> None:
        self.loop, self.broker = Loop(), FakeBroker()
        self.edge = Edge(self.loop, Limits(**limits), refusals=(Refused,), vectored=vectored)  # type: ignore[arg-type]
        asyncio.run(self.edge.listen(None, self.broker.dispatch))  # type: ignore[arg-type]

    def connect(self) -> tuple[Connection, Transport]:
        connection = Connection(self.edge, self.broker.dispatch)
        transport = Transport(self.loop, connection)
        connection.connection_made(transport)
        assert transport.calls.pop(0) == ("limit", 256 * KIB)
        return connection, transport

    def close(self) -> None:
        asyncio.run(self.edge.close(grace_seconds=0))

    @property
    def served(self) -> list[int]:
        return [api_key for api_key, _ in self.broker.served]


def receive(connection: Connection, data: bytes) -> list[int]:
    """The system hands over `data`; returns how much was asked for each time."""
    asked = []
    while data:
        view = connection.get_buffer(-1)
        count = min(len(view), len(data))
        view[:count] = data[:count]
        asked.append(len(view))
        connection.buffer_updated(count)
        data = data[count:]
    return asked


def sized(size: int, api_key: int = ECHO) -> bytes:
    """A frame whose size field says `size`."""
    return frame(api_key, bytes(size - 2))


@pytest.mark.parametrize("first", [4, 5, 2000])
@pytest.mark.parametrize(("size", "large"), [(LARGE - 1, False), (LARGE, True), (5 * MIB, True)])
def test_memory_is_taken_for_frames_from_16_kib_on_while_they_arrive(size: int, large: bool, first: int) -> None:
    bench = Bench()
    connection, transport = bench.connect()
    whole = sized(size)
    receive(connection, whole[:first])
    assert (bench.edge.memory.used, connection.received) == ((LARGE, first - 4) if large else (0, -1))
    receive(connection, whole[first:-1])
    assert (bench.edge.memory.used, connection.received) == ((size, size - 1) if large else (0, -1))
    assert bench.served == []
    receive(connection, whole[-1:])
    assert (bench.edge.memory.used, connection.received) == (0, -1)
    assert transport.written == answer_of(whole)


def test_a_client_holds_at_most_four_times_what_it_sent_whatever_it_announces() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    whole, position = sized(100 * MIB)[: 30 * MIB], 0
    for sent in [10, 16 * KIB, 40 * KIB, 64 * KIB + 4, MIB, 4 * MIB + 4, 30 * MIB]:
        receive(connection, whole[position:sent])
        position = sent
        assert len(connection._frame or b"") <= bench.edge.memory.used <= min(max(4 * sent, 16 * KIB), sent + 4 * MIB)


def test_a_large_frame_is_read_half_a_mebibyte_at_once_into_a_buffer_that_grows_fourfold_up_to_four_mebibytes() -> None:
    connection, _ = Bench().connect()
    whole = sized(9 * MIB + 7, SILENT)
    receive(connection, whole[:4])
    asked, grown, position = [], [], 4
    while position < len(whole):
        view = connection.get_buffer(-1)
        asked.append(len(view))
        grown.append(len(view.obj))  # type: ignore[arg-type]
        view[:] = whole[position : position + len(view)]
        position += len(view)
        connection.buffer_updated(len(view))
        del view
    assert asked == [16 * KIB, 48 * KIB, 192 * KIB, 512 * KIB, 256 * KIB, *[512 * KIB] * 16, 7]
    rounded = 9 * MIB + 16 * KIB
    assert grown == [16 * KIB, 64 * KIB, 256 * KIB, MIB, MIB, *[4 * MIB] * 6, *[8 * MIB] * 8, *[rounded] * 3]


def test_a_loop_that_reads_on_although_it_was_paused_loses_nothing() -> None:
    """As the proactor loop of Windows does with what it has read already."""
    bench = Bench(queued_max_request_bytes=100_000)
    (holder, _), (second, transport) = bench.connect(), bench.connect()
    receive(holder, sized(90_000, PRODUCE))
    wanted = sized(60_000)
    receive(second, wanted[:10])
    assert transport.calls == ["pause"]
    receive(second, wanted[10:50_000])
    assert bench.served == [PRODUCE]
    bench.broker.parked[0].resolve(None)
    bench.loop.turn()
    receive(second, wanted[50_000:])
    assert (transport.written, bench.edge.memory.used) == (answer_of(wanted), 0)


def test_sixteen_requests_of_a_connection_are_a_turn() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    receive(connection, sized(2, SILENT) * 40)
    served = [len(bench.served)]
    for _ in range(3):
        bench.loop.turn()
        served.append(len(bench.served))
    assert served == [16, 32, 40, 40]


@pytest.mark.parametrize(
    ("bodies", "writes"),
    [
        ([10, 20], [38]),
        ([32 * KIB - 4], [32 * KIB]),
        ([32 * KIB - 3], [[4, 32 * KIB - 3]]),
        ([16 * KIB - 4, 16 * KIB - 4], [32 * KIB]),
        ([16 * KIB - 4, 16 * KIB - 3], [[32 * KIB + 1]]),
        ([10_000] * 6, [[40_016], 20_008]),
        ([20_000, 10, 20_000, 20], [[4, 20_000, 18, 20_000], 24]),
    ],
)
def test_answers_up_to_32_kib_leave_in_one_piece_and_large_buffers_as_they_are(
    bodies: list[int], writes: list[Any]
) -> None:
    for vectored in (True, False):
        bench = Bench(vectored=vectored)
        connection, transport = bench.connect()
        requests = [sized(size + 2) for size in bodies]
        receive(connection, b"".join(requests))
        apart = [one for write in writes for one in (write if isinstance(write, list) else [write])]
        assert transport.calls == (writes if vectored else apart)
        assert transport.written == b"".join(map(answer_of, requests))


def test_up_to_64_kib_are_kept_behind_a_parked_request() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    receive(connection, sized(2, FETCH))
    behind = sized(1000 - 4, SILENT) * 66
    receive(connection, behind[: 64 * KIB - 1])
    assert not transport.paused
    receive(connection, behind[64 * KIB - 1 : 64 * KIB])
    assert transport.paused
    bench.broker.parked[0].resolve(None)
    assert bench.served == [FETCH]
    for _ in range(5):
        bench.loop.turn()
    assert bench.served == [FETCH, *[SILENT] * 65]
    assert transport.calls == ["pause", "resume"]
    receive(connection, behind[64 * KIB :])
    assert len(bench.served) == 67


@pytest.mark.parametrize(("size", "turns"), [(128 * KIB - 1, []), (128 * KIB, ["pause", "resume"])])
def test_after_a_frame_of_128_kib_the_others_have_their_turn_under_uvloop(size: int, turns: list[str]) -> None:
    bench = Bench()
    bench.edge.greedy = True
    connection, transport = bench.connect()
    receive(connection, sized(size, SILENT))
    assert transport.calls == turns[:1]
    bench.loop.turn()
    assert transport.calls == turns


@pytest.mark.parametrize(("size", "refused"), [(0, False), (1000, False), (1001, True), (-1, True)])
def test_sizes_from_none_to_socket_request_max_bytes_are_taken(size: int, refused: bool) -> None:
    bench = Bench(max_frame_bytes=1000)
    connection, transport = bench.connect()
    before = sized(3)
    receive(connection, before + struct.pack(">i", size) + bytes(max(size, 0)) + sized(2, SILENT))
    assert bench.served == ([ECHO] if refused else [ECHO, 0])
    assert transport.calls == ([len(answer_of(before)), "close"] if refused else [len(answer_of(before))])
    receive(connection, sized(2, SILENT))
    assert bench.served == ([ECHO] if refused else [ECHO, 0])  # 0 is a Produce, which is parked


def test_a_throttled_connection_is_served_again_at_the_end_of_the_longest_time() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.mute(100)
    connection.mute(20)
    receive(connection, sized(2, SILENT))
    assert not transport.paused
    bench.loop.wait(0.05)
    connection.mute(100)
    for seconds, served in [(0.05, 0), (0.049, 0), (0.001, 1)]:
        bench.loop.wait(seconds)
        assert len(bench.served) == served, bench.loop.now
    connection.mute(10)
    receive(connection, sized(2, SILENT))
    bench.loop.wait(0.01)
    assert len(bench.served) == 2


def test_a_timer_that_comes_a_little_early_ends_the_throttling_all_the_same() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    connection.mute(100)
    receive(connection, sized(2, SILENT))
    (timer,) = [timer for timer in bench.loop._timers if timer.due == 0.1]
    bench.loop.now = 0.096
    timer.call()
    assert bench.served == [SILENT]


@pytest.mark.parametrize(
    ("api_key", "awaited"), [(0, True), (1, False), (2, True), (10, True), (11, False), (12, True), (14, False)]
)
def test_a_stop_waits_for_answers_but_not_for_those_that_only_wait(api_key: int, awaited: bool) -> None:
    bench = Bench()
    connection, transport = bench.connect()
    idle, other = bench.connect()
    receive(connection, sized(2, api_key))
    assert connection.drain() is awaited
    assert not idle.drain()
    assert transport.paused
    assert other.paused
    receive(connection, sized(2, SILENT))
    receive(idle, sized(2, SILENT))
    bench.broker.parked[0].resolve([b"answer"])
    bench.loop.turn()
    assert bench.served == [api_key]
    assert transport.written == b"answer"


def test_what_waits_for_memory_is_read_again_when_it_is_granted() -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    (holder, _), (second, transport), (third, _) = [bench.connect() for _ in range(3)]
    held = sized(60_000, PRODUCE)
    receive(holder, held[:10])
    receive(holder, held[10:])
    wanted = sized(50_000)
    receive(second, wanted[:1004])
    receive(second, wanted[1004:30_000])
    assert (transport.calls, bench.edge.memory.used, bench.edge.memory.contended) == (["pause"], 60_000 + LARGE, True)
    receive(third, sized(20_000)[:1000])  # there would be room for it, but it came later
    assert bench.edge.memory.used == 60_000 + LARGE
    bench.broker.parked[0].resolve(None)
    assert (transport.calls, bench.edge.memory.used) == (["pause"], 50_000 + LARGE)
    bench.loop.turn()
    assert transport.calls == ["pause", "resume"]
    receive(second, wanted[30_000:])
    assert transport.written == answer_of(wanted)
    assert (bench.edge.memory.used, bench.edge.memory.contended) == (LARGE, False)
    third.connection_lost(None)
    assert bench.edge.memory.used == 0


def test_a_request_that_waits_from_its_first_byte_is_received_whole() -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    (holder, _), (second, transport) = bench.connect(), bench.connect()
    receive(holder, sized(100_000, PRODUCE))
    wanted = sized(20_000)
    receive(second, wanted[:9])
    assert (transport.calls, connection_bytes(second)) == (["pause"], (-1, 0))
    bench.broker.parked[0].resolve(None)
    bench.loop.turn()
    assert (transport.calls, connection_bytes(second)) == (["pause", "resume"], (5, LARGE))
    receive(second, wanted[9:])
    assert transport.written == answer_of(wanted)


def connection_bytes(connection: Connection) -> tuple[int, int]:
    return connection.received, connection.reserved


def test_memory_fits_to_the_last_byte() -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    (first, _), (second, _) = bench.connect(), bench.connect()
    receive(first, sized(60_000)[:-1])
    receive(second, sized(40_000)[:-1])
    assert (bench.edge.memory.used, bench.edge.memory.contended) == (100_000, False)


def test_an_idle_connection_is_closed_after_the_time_and_an_eighth_of_it() -> None:
    """It counts the eighths that pass without a byte; what is parked is not idle."""
    bench = Bench(connections_max_idle_ms=8000)
    (_, idle), (busy, used), (parked, waiting) = [bench.connect() for _ in range(3)]
    receive(parked, sized(2, FETCH))
    bench.loop.wait(2.5)
    receive(busy, b"\0")
    bench.loop.wait(6.4)
    assert idle.calls == []
    bench.loop.wait(0.1)
    assert (idle.calls, used.calls) == (["abort"], [])
    bench.loop.wait(1.9)
    assert used.calls == []
    bench.loop.wait(0.1)
    assert (used.calls, waiting.calls) == (["abort"], [])
    bench.broker.parked[0].resolve(None)
    bench.loop.wait(8.9)
    assert waiting.calls == []
    bench.loop.wait(0.1)
    assert waiting.calls == ["abort"]
    assert not bench.edge.connections


def test_a_slow_request_is_closed_while_others_wait_for_memory_and_only_then(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    (fast, fast_transport), (slow, slow_transport), (stuck, stuck_transport), (waiting, transport) = [
        bench.connect() for _ in range(4)
    ]
    receive(fast, sized(40_000)[:20_004])
    receive(slow, sized(35_000)[:20_004])
    receive(stuck, sized(20_000)[: LARGE + 4])
    assert bench.edge.memory.used == 95_000
    bench.loop.wait(60)  # no request waits for memory
    assert stuck_transport.calls == []
    receive(waiting, sized(20_000)[:1000])
    assert transport.calls == ["pause"]
    bench.loop.wait(0.9)
    receive(fast, bytes(2_000))  # it would be there in ten looks
    receive(slow, bytes(100))
    assert stuck_transport.calls == []
    bench.loop.wait(0.1)
    assert (stuck_transport.calls, slow_transport.calls, fast_transport.calls) == (["abort"], [], [])
    bench.loop.turn()
    assert transport.calls == ["pause", "resume"]
    assert caplog.messages == [
        (
            "requests waiting for memory: 1, the first from 10.0.0.1:1; 95000 of 100000 bytes are taken "
            "(queued.max.request.bytes), 40000 of them by 10.0.0.1:1"
        ),
        (
            "closing the connection of 10.0.0.1:1: 16384 of 20000 bytes of its request arrived, and others wait for "
            "its memory"
        ),
    ]
    other, other_transport = bench.connect()
    receive(other, sized(40_000)[:20_004])
    assert other_transport.calls == ["pause"]
    receive(fast, bytes(2_000))
    bench.loop.wait(1)
    assert (slow_transport.calls, fast_transport.calls) == (["abort"], [])


@pytest.mark.parametrize("kind", ["does not read", "throttled", "is being served"])
def test_a_large_request_that_is_complete_is_closed_if_only_its_client_could_go_on(kind: str) -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    (holder, transport), (waiting, _) = bench.connect(), bench.connect()
    if kind in ("does not read", "throttled"):
        receive(holder, sized(90_000)[:-1])
        holder.pause_writing() if kind == "does not read" else holder.mute(10_000)
        receive(holder, b"\0")
    else:
        receive(holder, sized(90_000, PRODUCE))
    receive(waiting, sized(20_000)[:1000])
    bench.loop.wait(3)
    assert ("abort" in transport.calls) is (kind == "does not read")
    assert bench.edge.memory.contended is (kind != "does not read")


def test_the_log_says_again_who_waits_every_ten_looks(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    (holder, _), (waiting, _) = bench.connect(), bench.connect()
    receive(holder, sized(90_000, PRODUCE))
    receive(waiting, sized(20_000)[:1000])
    counts = []
    for seconds in (0.9, 0.1, 9.9, 0.1):
        bench.loop.wait(seconds)
        counts.append(len(caplog.messages))
    assert counts == [0, 1, 1, 2]
    bench.broker.parked[0].resolve(None)
    bench.loop.wait(60)
    assert len(caplog.messages) == 2


def test_before_authentication_a_request_has_sasl_server_max_receive_size_at_most() -> None:
    def connect(largest: int) -> tuple[Connection, Transport]:
        security = ListenerSecurity(mechanisms={}, max_receive_bytes=largest)
        connection = Connection(bench.edge, bench.broker.dispatch, security)
        transport = Transport(bench.loop, connection)
        connection.connection_made(transport)
        return connection, transport

    bench = Bench(max_frame_bytes=2000)
    for largest, size, refused in [(1000, 1000, False), (1000, 1001, True), (-1, 2000, False), (-1, 2001, True)]:
        connection, transport = connect(largest)
        receive(connection, struct.pack(">i", size))
        assert ("close" in transport.calls) is refused, (largest, size)
    connection, transport = connect(1000)
    connection.authenticated(bench.broker.dispatch)
    whole = sized(2000)
    receive(connection, whole)
    assert transport.written == answer_of(whole)


def test_answers_have_the_room_that_held_and_unread_ones_leave() -> None:
    bench = Bench(queued_max_response_bytes=1000)
    (making, _), (deaf, transport) = bench.connect(), bench.connect()
    receive(making, sized(2, FETCH))
    making.hold(300)
    making.hold(100)
    assert bench.edge.answer_room() == 600
    deaf.pause_writing()
    transport.unsent = 550
    assert bench.edge.answer_room() == 50
    transport.unsent = 601
    assert bench.edge.answer_room() == 0
    bench.loop.wait(4.9)
    transport.unsent = 600
    bench.loop.wait(5.0)  # it had read something by the first look
    assert transport.calls == []
    bench.broker.parked[0].resolve([b"answer"])
    assert bench.edge.answer_room() == 400
    bench.loop.wait(5)
    transport.unsent = 1000
    assert bench.edge.answer_room() == 0
    bench.loop.wait(4.9)
    assert transport.calls == []
    bench.loop.wait(0.1)
    assert transport.calls == ["abort"]
    assert bench.edge.answer_room() == 1000


def test_a_client_that_does_not_read_is_served_when_it_does() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.pause_writing()
    receive(connection, sized(2, SILENT) + sized(LARGE, SILENT)[:-1])
    assert bench.served == []
    connection.resume_writing()
    receive(connection, b"\0")
    assert bench.served == [SILENT, SILENT]
    assert transport.calls == []
    assert not bench.edge.unread


def test_a_large_request_that_is_complete_while_the_client_does_not_read_stops_its_reading() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    receive(connection, sized(LARGE)[:-1])
    connection.pause_writing()
    receive(connection, b"\0")
    assert (bench.served, transport.calls) == ([], ["pause"])
    connection.resume_writing()
    assert (bench.served, transport.calls[0], transport.paused) == ([ECHO], "pause", False)


def test_a_reset_is_one_for_the_client() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.reset()
    assert transport.calls == [(socket.SOL_SOCKET, socket.SO_LINGER), "abort"]


# -- after the end -----------------------------------------------------------------------------------------------------


def _full(bench: Bench) -> None:
    """Another connection has nearly all memory."""
    other, _ = bench.connect()
    receive(other, sized(90_000)[:80_000])


STATES: dict[str, Callable[[Bench, Connection, Transport], object]] = {
    "idle": lambda *_: None,
    "half a request": lambda bench, connection, transport: receive(connection, sized(2)[:5]),
    "half a large request": lambda bench, connection, transport: receive(connection, sized(50_000)[:1000]),
    "waits for memory": lambda bench, connection, transport: (_full(bench), receive(connection, sized(50_000)[:1000])),
    "parked": lambda bench, connection, transport: receive(connection, sized(2, FETCH)),
    "parked, with more behind": lambda bench, connection, transport: receive(
        connection, sized(2, PRODUCE) + sized(2, SILENT) * 3
    ),
    "more than a turn": lambda bench, connection, transport: receive(connection, sized(2, SILENT) * 40),
    "not read": lambda bench, connection, transport: (connection.pause_writing(), receive(connection, sized(2, ECHO))),
    "throttled": lambda bench, connection, transport: (connection.mute(500), receive(connection, sized(2, SILENT))),
    "its answer is held": lambda bench, connection, transport: (
        receive(connection, sized(2, FETCH)),
        connection.hold(10),
    ),
}
ENDS: dict[str, Callable[[Bench, Connection], object]] = {
    "closed": lambda bench, connection: connection.close(),
    "cut": lambda bench, connection: connection.abort(),
    "reset": lambda bench, connection: connection.reset(),
    "left by its client": lambda bench, connection: connection.connection_lost(None),
    "its broker has ended": lambda bench, connection: bench.edge.unlisten(bench.broker.dispatch),
    "everything is closed": lambda bench, connection: bench.close(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", STATES)
def test_after_its_end_a_connection_serves_and_writes_nothing(state: str, end: str) -> None:
    """Whatever it was about: what is late finds nobody, and what it held is given back."""
    bench = Bench(queued_max_request_bytes=100_000)
    connection, transport = bench.connect()
    STATES[state](bench, connection, transport)
    ENDS[end](bench, connection)
    served, written = len(bench.served), transport.written
    if not connection.info.gone:
        receive(connection, sized(2, SILENT))
    for parked in bench.broker.parked:
        parked.resolve([b"answer"])
    connection.push([b"late"])
    connection.resume_writing()
    bench.loop.wait(3600)
    for other in list(bench.edge.connections - {connection}):
        other.abort()
    bench.loop.turn()
    assert (bench.served[served:], transport.written) == ([], written)
    assert not bench.edge.connections | bench.edge.unread | bench.edge.holding
    assert bench.edge.memory.used == 0


def test_a_connection_that_comes_after_the_end_is_cut() -> None:
    """The system had accepted it before."""
    for end in ("its broker has ended", "everything is closed"):
        bench = Bench()
        connection = Connection(bench.edge, bench.broker.dispatch)
        ENDS[end](bench, connection)
        transport = Transport(bench.loop, connection)
        connection.connection_made(transport)
        receive(connection, sized(2, SILENT))
        bench.loop.turn()
        assert (transport.calls[-1], bench.edge.connections, bench.served) == ("abort", set(), [])


def test_one_connection_too_many_is_cut_and_not_served(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(max_connections=1)
    (first, _), (second, transport) = bench.connect(), bench.connect()
    assert transport.calls == ["abort"]
    receive(second, sized(2, SILENT))
    bench.loop.turn()
    receive(first, sized(2, ECHO))
    assert bench.served == [ECHO]
    assert bench.edge.connections == {first}
    assert caplog.messages == ["closing the newest connection, of 10.0.0.1:1: 1 are open"]


def test_what_a_connection_that_is_gone_held_is_given_back() -> None:
    bench = Bench(queued_max_request_bytes=100_000)
    connection, transport = bench.connect()
    receive(connection, sized(2, FETCH) + sized(50_000)[:1000])
    assert (connection.info.channel, connection.info.gone) == (connection, False)
    connection.hold(10)
    connection.pause_writing()
    transport.unsent = 20
    assert (connection.unsent, bench.edge.memory.used) == (20, 0)  # what came behind the Fetch is not looked at yet
    connection.connection_lost(None)
    assert (connection.unsent, connection.info.channel, connection.info.gone) == (0, None, True)
    assert not bench.edge.connections | bench.edge.unread | bench.edge.holding
    bench.broker.parked[0].resolve([b"answer"])
    bench.loop.turn()
    assert (transport.calls, bench.served) == ([], [FETCH])


def test_a_refusal_behind_a_large_request_sends_the_answers_before_it_and_gives_the_memory_back() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    receive(connection, sized(3) + sized(50_000, REFUSE) + sized(2, SILENT))
    assert (transport.calls, bench.edge.memory.used) == ([5, "close"], 0)
    assert bench.served == [ECHO, REFUSE]


def test_bytes_that_are_no_answer_leave_at_once_and_a_connection_closes_after_its_answer() -> None:
    bench = Bench()
    connection, transport = bench.connect()
    connection.push([b"now", b"!"])
    connection.close_once_answered("it is enough")
    receive(connection, sized(3))
    bench.loop.turn()
    assert transport.calls == [4, 5, "close"]
    assert not connection.eof_received()


@pytest.mark.skipif(os.name == "nt", reason="SO_LINGER has another layout there")
@pytest.mark.parametrize("shown", ["socket", "descriptor"])
def test_a_reset_throws_away_what_is_unsent(shown: str) -> None:
    """SO_LINGER is on, with a time of zero; of uvloop's sockets only the descriptor can be had."""

    class Descriptor:
        def fileno(self) -> int:
            return mine.fileno()

    mine, other = socket.socketpair()
    with mine, other:
        send_reset_on_close(mine if shown == "socket" else Descriptor())
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 0)


def test_a_broker_that_ends_with_a_large_request_under_way_gives_its_memory_back() -> None:
    """Nobody answers the request any more: its broker has dropped it. The memory is that of all brokers here."""
    bench = Bench(queued_max_request_bytes=100_000)
    connection, _ = bench.connect()
    request = sized(50_000, PRODUCE)
    receive(connection, request[:1000])
    receive(connection, request[1000:])
    assert (len(bench.broker.parked), bench.edge.memory.used) == (1, 50_000)
    bench.edge.unlisten(bench.broker.dispatch)
    connection.connection_lost(None)
    assert bench.edge.memory.used == 0
    bench.close()


@pytest.mark.parametrize("follows", ["its end", "a small request that waits", "a large request that waits"])
def test_the_buffer_of_a_request_serves_one_request_at_a_time(follows: str) -> None:
    bench = Bench()
    connection, _ = bench.connect()
    for part in (sized(20_000)[:1000], sized(20_000)[1000:]):  # what arrives whole needs no buffer
        receive(connection, part)
    if follows == "its end":
        connection.connection_lost(None)
    else:
        waits = sized(2 if "small" in follows else 20_000, PRODUCE)
        receive(connection, waits[:5])
        receive(connection, waits[5:])
        bench.broker.parked[0].resolve(None)
    bench.broker.frames.clear()  # a buffer that is looked at is not used again
    clients = [(*bench.connect(), frame(ECHO, letter * 20_000)) for letter in (b"a", b"b", b"c")]
    for start, end in ((0, 10_000), (10_000, None)):
        for other, _, request in clients:
            receive(other, request[start:end])
    assert [transport.written == answer_of(request) for _, transport, request in clients] == [True] * 3
