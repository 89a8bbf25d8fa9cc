"""One client connection: frames in, answers out, in order, one request at a time."""

from __future__ import annotations

import asyncio
import os
import socket
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker.server.listener_security import OPEN, ListenerSecurity
from minibroker.server.memory import LARGEST_PIECE_BYTES, wanted_bytes
from minibroker_protocol.fields import Buffer
from minibroker_protocol.frames import foreign_protocol

if TYPE_CHECKING:
    from minibroker.kernel.spare_buffers import SpareBuffers
    from minibroker.requests.dispatch import Answered, Dispatch
    from minibroker.server.connection_log import ConnectionLog
    from minibroker.server.memory import RequestMemory

log = get_logger(__name__)

# A frame of this size and up is received into a buffer of its own and counted against the memory limit.
LARGE_FRAME_BYTES = 16 * 1024
# Buffers are a multiple of this long, so that they serve for later requests that are a little larger.
_ROUND_TO_BYTES = 16 * 1024
# Bytes that are still accepted from an event loop that keeps reading after pause_reading.
_OVERRUN_BYTES = 64 * 1024
_READ_BYTES = 512 * 1024
"""Bytes of a large frame read at once. libuv reads up to 32 times in a row as long as the buffer is filled: some 5
ms."""
# Unparsed bytes kept while a request is being answered; with more the socket is no longer read.
_REST_BYTES = 64 * 1024
# Answers up to this size leave in one piece; larger buffers are handed to the system as they are.
_JOIN_BYTES = 32 * 1024
# With so many bytes of answers unsent a connection is served no further.
_WRITE_HIGH_BYTES = 256 * 1024
# After a frame of this size the others have their turn: the work it made can take milliseconds.
_FAIR_FRAME_BYTES = 128 * 1024
# Timers of a loop may be this much early.
_TIMER_SLACK_SECONDS = 0.005
# Requests served before other connections have their turn.
_TURN_REQUESTS = 16

_size_at = Struct(">i").unpack_from

# Why a connection does not serve its next request now.
PARKED = 1  # the answer to a request comes later
WRITING = 2  # the client does not read what it was sent
MEMORY = 4  # the memory limit is reached
TURN = 8  # others first
DRAINING = 16  # the broker stops
CLOSED = 32
MUTED = 64  # throttled (KIP-219)

# Requests that only wait for something to happen: nothing they did is lost when a stop leaves them unanswered.
_WAITING_APIS = frozenset({1, 11, 14})  # Fetch, JoinGroup, SyncGroup


class ConnectionOwner(Protocol):
    """What connections share (`Edge`).

    refusals: exceptions of a dispatch that close the connection with one log line; any other is logged with its
        traceback.
    scratch: where small frames are received.
    greedy: see `Edge`.
    """

    loop: asyncio.AbstractEventLoop
    max_frame_bytes: int
    refusals: tuple[type[Exception], ...]
    memory: RequestMemory
    spare: SpareBuffers
    scratch: memoryview
    connection_log: ConnectionLog
    greedy: bool
    unread: set[Connection]
    holding: set[Connection]

    def answer_room(self) -> int | None: ...
    def opened(self, connection: Connection) -> bool: ...
    def closed(self, connection: Connection) -> None: ...
    def drained(self, connection: Connection) -> None: ...
    def watch_memory(self) -> None: ...
    def write_large(self, transport: asyncio.Transport, buffers: list[Buffer]) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """Reads frames, hands each to `dispatch` once the one before was answered, and writes the answers.

    The next request of a connection is not begun while one is parked (Kafka mutes the channel), so responses are always
    in order. Small frames arrive in a scratch buffer that all connections of a loop share; a large one arrives in
    place, in the buffer that handlers see and may write to.
    """

    def __init__(self, edge: ConnectionOwner, owner: Dispatch, security: ListenerSecurity = OPEN) -> None:
        self._edge = edge
        self.owner = owner  # the broker behind the listener
        self._max_frame_bytes = security.max_frame_bytes(edge.max_frame_bytes)
        self.dispatch = security.dispatch_of(self, owner)
        self._transport: asyncio.Transport | None = None
        self.info = ConnectionInfo()
        self._blocked = 0
        self._api_key = -1
        self._rest = bytearray()  # received, not yet parsed
        self._frame: bytearray | None = None  # a large frame on its way in
        self._filled = 0
        self._size = 0
        self._ready: bytearray | None = None  # a large frame that arrived whole while another request was parked
        self._large: bytearray | None = None  # the buffer of the large request that is being answered
        self._reserved = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._read_paused = False
        self._ended = False  # the client sends nothing more
        self.active = True
        self.held = 0  # bytes of an answer that is written in several turns
        self.idle_ticks = 0
        self.received_at = -1  # bytes of its large request at the last look; -1: it had none
        self.unread_at = -1  # what was unsent at the last look
        self._muted_until = 0.0
        self.number = 0  # grows with every connection
        self.answer_room = edge.answer_room

    # -- asyncio's calls -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        local = transport.get_extra_info("sockname") or ("", 0)
        self.info = ConnectionInfo(str(peer[0]), int(peer[1]), str(local[0]), int(local[1]), channel=self)
        self.info.release = self._release_frame
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None:
            from minibroker.security.tls import principal, server_name

            self.info.server_name = server_name(ssl_object)
            try:
                self.info.principal = principal(ssl_object)
            except ValueError as error:
                self._say(f"the subject of its certificate cannot be read: {error}")
                self._blocked |= CLOSED
                self._transport.abort()
                return
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        if not self._edge.opened(self):
            self._blocked |= CLOSED
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return self._edge.scratch
        filled = self._filled
        if filled == len(frame):
            # Filling more than a piece with zeros at once would hold the loop up.
            end = self._reserved if self._reserved > filled else min(filled + _OVERRUN_BYTES, self._size)
            end = min(end, filled + LARGEST_PIECE_BYTES)
            more = bytes(_buffer_bytes(end, self._size) - filled)
            try:
                frame += more
            except BufferError:  # Windows' event loop still holds the view it filled last
                self._frame = frame = frame + more
        return memoryview(frame)[filled : min(self._size, filled + _READ_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        self.active = True
        if self._frame is not None:
            filled = self._filled = self._filled + nbytes
            if filled == self._size:
                self._frame_complete(self._frame)
            elif filled >= self._reserved and not self._blocked & MEMORY:
                self._reserve(filled)
            return
        scratch = self._edge.scratch
        if self._blocked or self._rest:
            self._rest += scratch[:nbytes]
            if not self._blocked:
                self._parse_rest()
            elif len(self._rest) >= _REST_BYTES:
                self._pause_reading()
            return
        used = self._parse(scratch, nbytes)
        if used < nbytes:
            self._rest += scratch[used:nbytes]

    def eof_received(self) -> bool:
        """Serve what has arrived before, as Kafka does, and close then: a producer with acks=0 does not wait for it.

        A request that only waits, now or later, ends at once, and whatever came after it: its client may be gone.
        """
        waits = self._blocked & PARKED and self._api_key in _WAITING_APIS
        tls = self._transport is None or self._transport.get_extra_info("ssl_object") is not None
        self._ended = not (waits or tls or self._blocked & (MEMORY | DRAINING | CLOSED))
        return self._ended and self._blocked != 0

    def pause_writing(self) -> None:
        self._blocked |= WRITING
        self._edge.unread.add(self)

    def resume_writing(self) -> None:
        self._edge.unread.discard(self)
        self._unblock(WRITING)

    def connection_lost(self, exc: BaseException | None) -> None:
        waited = self._blocked & MEMORY
        self._blocked |= CLOSED
        self._frame = self._ready = None
        self._rest = bytearray()
        self._out = []
        self._edge.unread.discard(self)
        self._edge.holding.discard(self)
        self._edge.closed(self)
        if waited:
            self._edge.memory.withdraw(self, self._size)
        self._transport = None
        self.info.channel = None
        self.info.gone = True
        if self.info.on_gone is not None:
            self.info.on_gone()
        if not self._blocked & PARKED:  # else the handler may still read the frame
            self.forget_request()

    # -- frames --------------------------------------------------------------------------------------------------------

    def _parse(self, data: memoryview, end: int) -> int:
        """Serve the whole frames in data[:end]; returns how many bytes were taken."""
        position = 0
        turn = _TURN_REQUESTS
        while not self._blocked and end - position >= 4:
            size: int = _size_at(data, position)[0]
            after = position + 4 + size
            if size < 0 or size > self._max_frame_bytes:
                limits = f"between 0 and {self._max_frame_bytes}"
                self._refuse(f"request size {size} is not {limits}{foreign_protocol(size)}")
            elif after <= end:
                if turn == 0:
                    self._blocked |= TURN
                    self._edge.loop.call_soon(self._unblock, TURN)
                    break
                turn -= 1
                frame = bytearray(data[position + 4 : after])
                position = after
                self._serve(frame)
            elif size < LARGE_FRAME_BYTES:
                break
            elif self._begin_large(size, end - position - 4):
                self._fill(data[position + 4 : end])
                position = end
        if self._out:
            self._flush()
        return position

    def _parse_rest(self) -> None:
        rest = self._rest
        self._rest = bytearray()
        used = self._parse(memoryview(rest), len(rest))
        if used < len(rest) and not self._blocked & CLOSED:
            self._rest = rest[used:] + self._rest

    def _begin_large(self, size: int, received: int) -> bool:
        self._size, self._filled = size, 0
        if not self._reserved and not self._reserve(received):
            return False
        # More may have arrived while it waited for memory.
        first = _buffer_bytes(min(max(self._reserved, received), LARGEST_PIECE_BYTES), size)
        self._frame = self._edge.spare.take(size) or bytearray(first)
        return True

    def _reserve(self, received: int) -> bool:
        """Take memory for the next piece of the large request; False when it has to wait."""
        more = wanted_bytes(self._size, received) - self._reserved
        granted = self._edge.memory.reserve(self, self._size, self._reserved, more)
        if not granted:
            self._blocked |= MEMORY
            self._pause_reading()
            self._edge.watch_memory()
            return False
        self._reserved += granted
        return True

    def memory_granted(self, granted: int) -> None:
        """This much more of the request whose size is known may arrive."""
        self._reserved += granted
        # Called from within another connection's work, so not served before that is done.
        self._edge.loop.call_soon(self._unblock, MEMORY)

    def _fill(self, data: memoryview) -> None:
        frame = self._frame
        assert frame is not None
        frame[: len(data)] = data
        self._filled = len(data)

    def _frame_complete(self, frame: bytearray) -> None:
        self._frame = None
        if self._blocked:
            self._ready = frame
            self._pause_reading()
            return
        size = self._size
        self._serve_large(frame)
        if self._edge.greedy and not self._blocked and size >= _FAIR_FRAME_BYTES:
            self._blocked |= TURN
            self._pause_reading()
            self._edge.loop.call_soon(self._unblock, TURN)

    @property
    def received(self) -> int:
        """Bytes of a large request that have arrived; -1 without one."""
        return self._filled if self._reserved else -1

    @property
    def missing(self) -> int:
        """Bytes of the large request that have not arrived."""
        return self._size - self._filled

    @property
    def reserved(self) -> int:
        """Bytes of request memory that it holds."""
        return self._reserved

    @property
    def idle(self) -> bool:
        """Nothing is done for what it holds: its client has to send the rest, or to read responses first."""
        # A parked request is not idle: its handler would hold the frame after the connection is closed, too.
        return not self._blocked & ~WRITING

    @property
    def parked(self) -> bool:
        """A request waits for its answer, and its client may, too."""
        return bool(self._blocked & PARKED) and not self._ended

    def _release_memory(self) -> None:
        if self._reserved:
            held, self._reserved = self._reserved, 0
            self.received_at = -1
            self._edge.memory.release(self._size, held)
        if self._large is not None:
            self._edge.spare.give_back(self._large)
            self._large = None

    def _release_frame(self, frame: Buffer) -> None:
        """The request being served waits, and its frame is not read any more."""
        if self._large is not None and isinstance(frame, memoryview) and frame.obj is self._large:
            self._release_memory()

    def forget_request(self) -> None:
        """The connection is closed, and its last request is over, or is never going to be."""
        self._release_memory()
        self.info.release = None

    # -- requests ------------------------------------------------------------------------------------------------------

    def _serve_large(self, frame: bytearray) -> None:
        self._large = frame
        self._serve(memoryview(frame)[: self._size])
        if self._out:
            self._flush()

    def _serve(self, frame: Buffer) -> None:
        try:
            answer = self.dispatch(frame, self.info)
            if isinstance(answer, Deferred):
                pending = answer
                if not pending.done:
                    self._api_key = int.from_bytes(frame[:2], "big")
                    self._blocked |= PARKED
                    pending.then(self._answered_later)
                    if self._ended and self._api_key in _WAITING_APIS:
                        self._edge.loop.call_soon(self.close)  # what was answered before it is written first
                    return
                answer = pending.result()
        except Exception as error:
            self._failed(error)
            return
        if self._reserved:
            self._release_memory()
        if answer is not None:
            self._respond(answer)

    def _answered_later(self, pending: Deferred[Answered]) -> None:
        self._blocked &= ~PARKED
        self._api_key = -1
        self._release_memory()
        if self._blocked & CLOSED:
            self.forget_request()
            return
        self.active = True
        try:
            answer = pending.result()
        except Exception as error:
            self._failed(error)
            return
        if answer is not None:
            self._respond(answer)
            self._flush()
        if self._blocked & DRAINING:
            self._edge.drained(self)
        elif not self._blocked and (self._rest or self._ready is not None or self._read_paused or self._ended):
            # The caller is in the middle of another connection's request; wait until that is done.
            self._blocked |= TURN
            self._edge.loop.call_soon(self._unblock, TURN)

    def _unblock(self, reason: int) -> None:
        self._blocked &= ~reason
        if not self._blocked and self._ready is not None:
            frame, self._ready = self._ready, None
            self._serve_large(frame)
        if not self._blocked and self._rest:
            self._parse_rest()
        if self._blocked or self._transport is None:
            return
        if self._ended:
            self.close()
        elif self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused and self._transport is not None and not self._blocked & CLOSED:
            self._read_paused = True
            self._transport.pause_reading()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _respond(self, buffers: list[Buffer]) -> None:
        if self.held:  # from now on they are unsent, or gone
            self.held = 0
            self._edge.holding.discard(self)
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if self._out_bytes > _JOIN_BYTES:
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        transport = self._transport
        if transport is None or self._blocked & CLOSED:
            return
        if size <= _JOIN_BYTES:
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        else:
            self._edge.write_large(transport, _join_small(out))

    # -- the end -------------------------------------------------------------------------------------------------------

    def drain(self) -> bool:
        """Serve no further request; True when one is still to be answered."""
        self._blocked |= DRAINING
        self._pause_reading()
        return bool(self._blocked & PARKED) and self._api_key not in _WAITING_APIS

    def close(self) -> None:
        """Close once everything written has left."""
        self._blocked |= CLOSED
        if self._transport is not None:
            self._transport.close()

    def authenticated(self, dispatch: Dispatch) -> None:
        """The client may send every request from now on; `dispatch` serves them."""
        self.dispatch = dispatch
        self._max_frame_bytes = self._edge.max_frame_bytes

    def close_once_answered(self, reason: str) -> None:
        """Close, and log the reason, once the response to the current request is sent."""
        self._say(reason)
        self._edge.loop.call_soon(self.close)

    def push(self, buffers: list[Buffer]) -> None:
        """Write bytes that are no answer to the request being served (`Link`)."""
        self._respond(buffers)
        self._flush()

    def hold(self, size: int) -> None:
        """Count bytes of the answer that is being made (`Link`)."""
        self.held += size
        self._edge.holding.add(self)

    @property
    def unsent(self) -> int:
        """Bytes written that the system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def mute(self, ms: int) -> None:
        """Serve no further request for this long (`Link`)."""
        # The longest of several counts, as each would be lifted by its own end.
        until = self._edge.loop.time() + ms / 1000
        if until > self._muted_until:
            self._muted_until = until
            self._blocked |= MUTED
            self._edge.loop.call_at(until, self._unmute)

    def _unmute(self) -> None:
        if self._edge.loop.time() >= self._muted_until - _TIMER_SLACK_SECONDS:
            self._unblock(MUTED)

    def reset(self) -> None:
        """Close so that the client sees a reset instead of an end (`Link`)."""
        if self._transport is not None:
            send_reset_on_close(self._transport.get_extra_info("socket"))
        self.abort()

    def abort(self, reason: str = "") -> None:
        """Close now; log the reason, if there is one."""
        if reason:
            self._say(reason)
        self._blocked |= CLOSED
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, reason: str) -> None:
        # Earlier answers are still sent; nothing after the broken bytes is decoded.
        self._say(reason)
        if self._out:
            self._flush()
        self.close()

    def _failed(self, error: Exception) -> None:
        if self._reserved:
            self._release_memory()
        if isinstance(error, self._edge.refusals):
            self._refuse(str(error))
        else:
            log.error("closing %s after an unexpected error", self, exc_info=error)
            if self._out:
                self._flush()
            self.close()
        _forget_frames(error)

    def _say(self, reason: str) -> None:
        self._edge.connection_log.say("closing the connection of %s: %s", self, reason)

    def __str__(self) -> str:
        return f"{self.info.client_host}:{self.info.client_port}"


def _buffer_bytes(end: int, size: int) -> int:
    """Length of a buffer that has room for the first `end` bytes of a request of `size` bytes."""
    return end if end < size else -(-size // _ROUND_TO_BYTES) * _ROUND_TO_BYTES


def _forget_frames(error: BaseException) -> None:
    """Break the cycle of an error and its traceback, which would keep the request until a garbage collection."""
    passed: BaseException | None = error
    while passed is not None:
        passed.__traceback__ = None
        passed = passed.__context__


def send_reset_on_close(connected: Any) -> None:
    """Discard unsent data and end with RST (SO_LINGER with a time of zero)."""
    linger = Struct("hh" if os.name == "nt" else "ii").pack(1, 0)
    if hasattr(connected, "setsockopt"):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return
    # uvloop shows only the descriptor; a duplicate of it is the same socket.
    with socket.socket(fileno=os.dup(connected.fileno())) as twin:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _join_small(buffers: list[Buffer]) -> list[Buffer]:
    """Runs of small buffers joined, large ones left as they are."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < LARGE_FRAME_BYTES:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return joined
