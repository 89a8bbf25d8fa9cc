"""The connection to a broker of the upstream, byte by byte."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upstream_by_hand import HandTransport, UpstreamByHand

from minibroker.kernel.deferred import Deferred
from minibroker.requests.context import CloseConnection

KIB = 1024


@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 900, 16 * KIB - 1, 16 * KIB, 70 * KIB, 600 * KIB]), max_size=12),
    seed=st.integers(0, 1 << 32),
)
def test_answers_arrive_whole_once_and_in_order_however_they_are_cut(sizes: list[int], seed: int) -> None:
    random = Random(seed)
    upstream = UpstreamByHand()
    answers = [random.randbytes(size) for size in sizes]
    waiting: list[Deferred[bytes]] = [upstream.connection.send(b"%d" % i) for i in range(len(sizes))]
    received: list[bytes] = []
    for each in waiting:
        each.then(lambda done: received.append(bytes(done.result())))
    stream = b"".join(len(answer).to_bytes(4, "big") + answer for answer in answers)
    cuts = sorted(random.randrange(len(stream) + 1) for _ in range(random.randrange(1, 30)))
    for start, end in itertools.pairwise([0, *cuts, len(stream)]):
        upstream.says(stream[start:end])
    assert received == answers
    assert upstream.requests() == [b"%d" % i for i in range(len(sizes))]
    assert upstream.ended == []


def test_the_buffer_of_a_large_answer_serves_the_next_unless_that_is_still_read() -> None:
    upstream = UpstreamByHand()

    def answered(frame: bytes) -> memoryview:
        waiting = upstream.connection.send(b"a")
        upstream.answers(frame)
        given = waiting.result()
        assert isinstance(given, memoryview)
        return given

    first = answered(b"1" * 100 * KIB)
    kept, buffer = first[50:60], id(first.obj)
    first.release()
    second = answered(b"2" * 100 * KIB)
    assert id(second.obj) != buffer
    assert kept == b"1" * 10
    assert second == b"2" * 100 * KIB
    buffer = id(second.obj)
    second.release()
    third = answered(b"3" * 90 * KIB)
    assert id(third.obj) == buffer
    assert third == b"3" * 90 * KIB


def test_what_is_sent_before_there_is_a_connection_follows_in_order() -> None:
    upstream = UpstreamByHand(connected=False)
    frame = bytearray(b"first")
    upstream.connection.send(frame)
    frame[:] = b"other"  # its buffer serves another request
    upstream.connection.send(b"second")
    upstream.connection.connection_made(upstream.transport)
    assert upstream.requests() == [b"first", b"second"]


def test_a_request_without_an_answer_waits_for_room_only() -> None:
    upstream = UpstreamByHand()
    assert upstream.connection.send(b"a", answered=False).result() == b""
    upstream.connection.pause_writing()
    waits = upstream.connection.send(b"b", answered=False)
    assert not waits.done
    upstream.connection.resume_writing()
    assert waits.result() == b""


def test_before_the_connection_it_waits_for_that() -> None:
    upstream = UpstreamByHand(connected=False)
    waits = upstream.connection.send(b"a", answered=False)
    assert not waits.done
    upstream.connection.connection_made(upstream.transport)
    assert waits.done


@pytest.mark.parametrize("size", [-1, (1 << 30) + 1, 0x48545450])
def test_what_is_no_frame_ends_the_connection(size: int) -> None:
    upstream = UpstreamByHand()
    waits = upstream.connection.send(b"a")
    upstream.says(size.to_bytes(4, "big", signed=True))
    with pytest.raises(CloseConnection, match="frame of size"):
        waits.result()
    assert upstream.transport.calls == ["abort"]
    assert len(upstream.ended) == 1


def test_an_answer_that_nothing_asked_for_ends_the_connection() -> None:
    upstream = UpstreamByHand()
    upstream.answers(b"news")
    assert upstream.ended == ["the upstream sent an answer that no request asked for"]


def test_the_end_of_the_upstream_fails_what_waits_and_what_comes_later() -> None:
    upstream = UpstreamByHand()
    first, second = upstream.connection.send(b"a"), upstream.connection.send(b"b")
    upstream.answers(b"whole")
    upstream.says(b"\0\0\0\x09half")
    upstream.connection.connection_lost(None)
    assert first.result() == b"whole"
    for waits in (second, upstream.connection.send(b"c")):
        with pytest.raises(CloseConnection, match="closed the connection"):
            waits.result()
    assert upstream.ended == ["the upstream closed the connection"]


def test_a_client_that_goes_ends_it_in_good_order_and_without_a_word() -> None:
    upstream = UpstreamByHand()
    waits = upstream.connection.send(b"a")
    upstream.connection.close()
    assert (upstream.transport.calls, upstream.ended, waits.done) == (["close"], [""], True)
    upstream.answers(b"late")
    assert upstream.ended == [""]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnicodeError("label empty or too long"), "label empty or too long"),
        (ValueError("server_hostname cannot start with a dot"), "server_hostname cannot start with a dot"),
        (OSError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "no answer within 10 s"),
    ],
)
async def test_no_connection_ends_it_with_the_reason(error: Exception, said: str) -> None:
    upstream = UpstreamByHand(connected=False)
    waits = upstream.connection.send(b"a")
    await upstream.connection.connect(Loop(error), [("kafka", 9092)], None)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert upstream.ended == [f"kafka:9092 of the upstream cannot be reached: {said}"]
    assert (waits.done, upstream.gone) == (True, 1)


class Loop:
    """One whose connections are made at once, to `transport`, or fail."""

    def __init__(self, made: HandTransport | Exception) -> None:
        self._made = made
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    async def create_connection(self, protocol: Callable[[], asyncio.BaseProtocol], *_: Any, **__: Any) -> None:
        if isinstance(self._made, Exception):
            raise self._made
        protocol().connection_made(self._made)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = (seconds, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))


@pytest.mark.parametrize("is_read", [True, False])
async def test_of_a_client_that_has_left_nothing_stays_for_longer_than_half_a_minute(is_read: bool) -> None:
    upstream = UpstreamByHand(connected=False)
    loop = Loop(upstream.transport)
    await upstream.connection.connect(loop, [("kafka", 9092)], None)  # type: ignore[arg-type]
    upstream.connection.close()
    assert (upstream.ended, upstream.gone) == ([""], 0)  # its bytes may still be on their way
    ((seconds, in_the_end),) = loop.timers
    assert seconds == 30
    if not is_read:
        in_the_end()
    assert upstream.transport.calls == (["close"] if is_read else ["close", "abort"])
    upstream.connection.connection_lost(None)
    assert (upstream.gone, loop.timers) == (1, [])


@pytest.mark.parametrize("sent", [[], [b"a", b"b"]], ids=["nothing", "requests"])
async def test_what_a_client_sent_that_left_before_there_was_a_connection_goes_on(sent: list[bytes]) -> None:
    """A broker does what it has received also for a client that does not wait for the answer."""
    upstream = UpstreamByHand(connected=False)
    connecting = upstream.connection.connect(Loop(upstream.transport), [("kafka", 9092)], None)  # type: ignore[arg-type]
    for frame in sent:
        upstream.connection.send(frame)
    upstream.connection.close()
    await asyncio.wait([connecting])
    assert (upstream.requests(), upstream.ended, upstream.transport.calls) == (sent, [""], ["close"] if sent else [])
