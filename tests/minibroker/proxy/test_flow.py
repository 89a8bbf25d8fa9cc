"""Both connections of a proxy together, under random cuts, pauses and resets: nothing is answered twice, out of order
or lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upstream_by_hand import Proxied

from minibroker.requests.chain import Place
from minibroker.requests.context import CloseConnection
from minibroker.server.connection import Connection
from minibroker.server.edge import Edge, Limits
from minibroker_protocol import messages as m
from minibroker_protocol.frames import FrameSplitter
from minibroker_protocol.headers import encode_request

KIB = 1024
UNKNOWN_API = 600
LIST = m.ListGroupsRequest()


class Loop:
    """Turns of a loop, taken by hand. There is no time."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], object]] = deque()

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[..., object], *values: Any) -> None:
        self._soon.append(lambda: call(*values))

    def call_later(self, seconds: float, call: Callable[..., object], *values: Any) -> Any:
        class Never:
            def cancel(self) -> None: ...

        return Never()

    call_at = call_later

    def run(self) -> None:
        while self._soon:
            self._soon.popleft()()


class ClientSide(asyncio.Transport):
    """The socket of a client: `received` is what it has been sent; `lost` once either side has ended it."""

    def __init__(self, loop: Loop, connection: Connection) -> None:
        super().__init__({"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 9092)})
        self._loop, self._connection = loop, connection
        self.received = bytearray()
        self.reads = True
        self.lost = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        assert not self.lost
        self.received += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.lost:
            self.lost = True
            self._loop.call_soon(self._connection.connection_lost, None)


class Both:
    """A client and a broker, with the proxy between them."""

    def __init__(self, random: Random, *, chained: bool) -> None:
        self.random = random
        self.loop = Loop()
        self.proxied = Proxied()
        if chained:
            self.proxied.dispatcher.link(Place.FAULTS_AND_TRACE, _PassOn())
        edge = Edge(self.loop, Limits(), refusals=(CloseConnection,))  # type: ignore[arg-type]
        edge._served.append(self.proxied.dispatcher.dispatch)
        self.connection = Connection(edge, self.proxied.dispatcher.dispatch)
        self.client = ClientSide(self.loop, self.connection)
        self.connection.connection_made(self.client)
        self.upstream = self.proxied.upstream
        self.to_send = bytearray()  # of the client
        self.to_answer = bytearray()  # of the broker
        self.answers: list[bytes] = []
        self.asked: list[bytes] = []
        self._requests = FrameSplitter()
        self.broken = False

    def ask(self, number: int) -> None:
        size = self.random.choice([0, 10, 3 * KIB, 20 * KIB, 200 * KIB])
        if self.random.random() < 0.3:  # acks=0: there is no answer
            request = m.ProduceRequest(acks=0, timeout_ms=number, topic_data=[], transactional_id="x" * min(size, 9000))
            frame = encode_request(request, 9, number, "app")
        else:
            frame = UNKNOWN_API.to_bytes(2, "big") + bytes(2) + number.to_bytes(4, "big") + bytes(size)
            self.answers.append(number.to_bytes(4, "big") + self.random.randbytes(self.random.choice([0, 9, 70 * KIB])))
        self.asked.append(frame)
        self.to_send += len(frame).to_bytes(4, "big") + frame

    # -- steps ---------------------------------------------------------------------------------------------------------

    def client_sends(self, most: int = 90 * KIB) -> None:
        while self.to_send and self.client.reads and not self.client.lost:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(self.to_send), self.random.randrange(1, most))
            room[:taken] = self.to_send[:taken]
            del room
            del self.to_send[:taken]
            self.connection.buffer_updated(taken)
            if self.random.random() < 0.5:
                break

    def broker_reads(self) -> None:
        for frame in self._requests.feed(bytes(self.upstream.transport.written)):
            assert bytes(frame) == self.asked[self.reached], "in another order, changed or twice"
            self.reached += 1
            if frame[:2] != b"\0\0":
                answer = next(one for one in self.answers if one[:4] == frame[4:8])
                self.to_answer += len(answer).to_bytes(4, "big") + answer
        self.upstream.transport.written.clear()

    reached = 0

    def broker_answers(self) -> None:
        taken = self.random.randrange(1, 90 * KIB)
        data = bytes(self.to_answer[:taken])
        del self.to_answer[:taken]
        if not self.broken:
            self.upstream.says(data)

    def client_reads_no_more(self) -> None:
        self.connection.pause_writing()

    def client_reads_on(self) -> None:
        self.connection.resume_writing()

    def broker_reads_no_more(self) -> None:
        self.upstream.connection.pause_writing()

    def broker_reads_on(self) -> None:
        self.upstream.connection.resume_writing()

    def turn(self) -> None:
        self.loop.run()

    def broker_resets(self) -> None:
        if not self.broken:
            self.broken = True
            self.upstream.connection.connection_lost(ConnectionResetError("reset"))
            if self.proxied.connects:
                self.proxied.lost("reset")  # as the service does

    def finish(self) -> None:
        for _ in range(2000):
            if not self.client.lost:
                self.client_reads_on()
            if not self.broken:
                self.broker_reads_on()
            self.client_sends()
            self.broker_reads()
            if self.to_answer:
                self.broker_answers()
            self.turn()

    def got(self) -> list[bytes]:
        return [bytes(frame) for frame in FrameSplitter().feed(bytes(self.client.received))]


class _PassOn:
    def around(self, api: Any, onward: Any) -> Any:
        return lambda ctx, request: onward(ctx, request)


STEPS = (
    Both.client_sends,
    Both.broker_reads,
    Both.broker_answers,
    Both.client_reads_no_more,
    Both.client_reads_on,
    Both.broker_reads_no_more,
    Both.broker_reads_on,
    Both.turn,
)


@pytest.mark.parametrize("chained", [False, True], ids=["raw", "through the chain"])
@given(seed=st.integers(0, 1 << 32), resets=st.booleans())
def test_nothing_is_answered_twice_out_of_order_or_lost(chained: bool, seed: int, resets: bool) -> None:
    random = Random(seed)
    both = Both(random, chained=chained)
    for number in range(1, random.randrange(2, 12)):
        both.ask(number)
    for _ in range(random.randrange(80)):
        random.choice(STEPS)(both)
    if resets:
        both.broker_resets()
    both.finish()
    got = both.got()
    assert got == both.answers[: len(got)]
    if not resets:
        assert got == both.answers
        assert both.reached == len(both.asked)
    elif both.proxied.connects:
        assert both.client.lost
        assert both.connection.info.gone
        connects = both.proxied.connects
        with suppress(CloseConnection):
            both.proxied.dispatcher.dispatch(encode_request(LIST, 0, 1, "app"), both.connection.info)
        assert both.proxied.connects == connects + 1, "what comes at its place has an upstream of its own"
