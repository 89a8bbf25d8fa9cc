"""All connections of one event loop: shared limits, idle connections, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from minibroker.kernel.logs import get_logger
from minibroker.kernel.spare_buffers import SpareBuffers
from minibroker.requests.dispatch import Dispatch
from minibroker.server.connection import Connection
from minibroker.server.connection_log import ConnectionLog
from minibroker.server.listener_security import OPEN, ListenerSecurity
from minibroker.server.memory import RequestMemory, Waiting
from minibroker_protocol.fields import Buffer

if TYPE_CHECKING:
    from minibroker.config.settings import Settings
    from minibroker.server.tls_acceptor import TlsAcceptor

log = get_logger(__name__)

_SCRATCH_BYTES = 64 * 1024
# A client that reads nothing for this long is closed while the responses of all are at their limit.
_STALL_SECONDS = 5.0
# While requests wait for memory, the edge looks this often at the connections that hold some.
_LOOK_SECONDS = 1.0
# A request that would take more looks than this to arrive is slow.
_SLOW_LOOKS = 10
_LOOKS_PER_LINE = 10
_IDLE_TICKS = 8


class Limits(NamedTuple):
    """What connections may use; the names are the settings'."""

    max_frame_bytes: int = 104_857_600
    queued_max_request_bytes: int = 256 * 1024 * 1024
    queued_max_response_bytes: int = 256 * 1024 * 1024
    connections_max_idle_ms: int = 600_000
    max_connections: int = (1 << 31) - 1
    backlog: int = 128
    stall_seconds: float = _STALL_SECONDS
    look_seconds: float = _LOOK_SECONDS

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits that the settings name."""
        return cls(
            max_frame_bytes=settings.get_int("socket.request.max.bytes"),
            queued_max_request_bytes=settings.get_int("queued.max.request.bytes"),
            queued_max_response_bytes=settings.get_int("minibroker.queued.max.response.bytes"),
            connections_max_idle_ms=settings.get_int("connections.max.idle.ms"),
            max_connections=settings.get_int("max.connections"),
            backlog=settings.get_int("socket.listen.backlog.size"),
        )


class Edge:
    """Accepts connections on any number of listening sockets, each with its own dispatch.

    refusals: exception types of `Dispatch` that are the client's doing and need no traceback.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        *,
        refusals: tuple[type[Exception], ...] = (),
        vectored: bool | None = None,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.max_frame_bytes = limits.max_frame_bytes
        self.refusals = refusals
        self.memory = RequestMemory(limits.queued_max_request_bytes)
        self.spare = SpareBuffers()
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.connections: set[Connection] = set()
        #: those whose client does not read what it was sent
        self.unread: set[Connection] = set()
        #: those whose answer is being made in turns with others
        self.holding: set[Connection] = set()
        self.connection_log = ConnectionLog(loop)
        self._opened = 0
        self._servers: list[tuple[asyncio.Server | TlsAcceptor, Dispatch]] = []
        self._acceptors: list[TlsAcceptor] = []
        self._served: list[Dispatch] = []
        self._awaited: set[Connection] = set()
        self._all_drained: asyncio.Event | None = None
        self._none_left: asyncio.Event | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._memory_timer: asyncio.TimerHandle | None = None
        self._looks = 0
        self._unread_timer: asyncio.TimerHandle | None = None
        uvloop = "uvloop" in type(loop).__module__
        # libuv reads one socket up to 32 times in a row as long as it fills the buffer it is given.
        self.greedy = uvloop
        # asyncio's own writelines joins its buffers before 3.12, and until 3.12.9 and 3.13.2 it does not tell the
        # protocol to pause when a client does not read (CVE-2024-12254).
        self._vectored = vectored if vectored is not None else uvloop

    async def listen(self, listener: socket.socket, dispatch: Dispatch, security: ListenerSecurity = OPEN) -> None:
        """Serve the bound and listening socket; it belongs to this object from now on."""
        self._served.append(dispatch)  # before the first connection can come
        self._servers.append(
            (await self._server(listener, lambda: Connection(self, dispatch, security), security), dispatch)
        )
        self._watch_idle()

    async def _server(
        self, listener: socket.socket, protocol: Callable[[], Connection], security: ListenerSecurity
    ) -> asyncio.Server | TlsAcceptor:
        if security.tls is None:
            return await self.loop.create_server(protocol, sock=listener, backlog=self.limits.backlog)
        from minibroker.server.tls_acceptor import TlsAcceptor

        if "Proactor" in type(self.loop).__name__:  # of Windows, which cannot watch a socket
            return await self.loop.create_server(protocol, sock=listener, backlog=self.limits.backlog, ssl=security.tls)
        listener.listen(self.limits.backlog)
        acceptor = TlsAcceptor(self.loop, listener, security.tls, protocol, self._is_full, self.connection_log.say)
        self._acceptors.append(acceptor)
        return acceptor

    @property
    def handshakes(self) -> int:
        """TLS clients whose handshake is not over; they are not among the connections yet."""
        return sum(acceptor.handshakes for acceptor in self._acceptors)

    def _is_full(self) -> bool:
        return len(self.connections) + self.handshakes >= self.limits.max_connections

    def unlisten(self, dispatch: Dispatch) -> None:
        """Close the listeners of `dispatch`, and its connections without sending what is pending."""
        self._served.remove(dispatch)
        for entry in [entry for entry in self._servers if entry[1] == dispatch]:
            entry[0].close()
            self._servers.remove(entry)
        for connection in [c for c in self.connections if c.owner == dispatch]:
            connection.abort()
            connection.forget_request()  # the broker that has ended answers nothing that it was asked

    def write_large(self, transport: asyncio.Transport, buffers: list[Buffer]) -> None:
        """Hand large buffers to the system without joining them."""
        if self._vectored:
            transport.writelines(buffers)
            return
        for buffer in buffers:
            transport.write(buffer)

    # -- connections come and go -------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        """Count a new connection; False when it is one too many."""
        if self._all_drained is not None:
            return False
        if connection.owner not in self._served:
            return False  # its broker ended between the system's accept and this call
        if len(self.connections) >= self.limits.max_connections:
            self.connection_log.say(
                "closing the newest connection, of %s: %d are open", connection, len(self.connections)
            )
            return False
        self._opened += 1
        connection.number = self._opened
        self.connections.add(connection)
        return True

    def shed_newest(self) -> None:
        """The process has no file descriptors left: close the newest connection."""
        newest = max(self.connections, key=lambda connection: connection.number, default=None)
        if newest is not None:
            self.connection_log.say("closing the newest connection, of %s: the process is out of file handles", newest)
            newest.abort()

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.drained(connection)
        if self._none_left is not None and not self.connections:
            self._none_left.set()

    def _watch_idle(self) -> None:
        if self.limits.connections_max_idle_ms <= 0 or self._idle_timer is not None:
            return
        self._idle_timer = self.loop.call_later(self.limits.connections_max_idle_ms / 1000 / _IDLE_TICKS, self._idle)

    def _idle(self) -> None:
        self._idle_timer = None
        for connection in list(self.connections):
            if connection.active or connection.parked:
                connection.active = False
                connection.idle_ticks = 0
                continue
            connection.idle_ticks += 1
            if connection.idle_ticks >= _IDLE_TICKS:
                log.info("closing the connection of %s: idle", connection)
                connection.abort()
        self._watch_idle()

    def watch_memory(self) -> None:
        """A request waits for memory: until none does, close connections that hold some and hardly send."""
        if self._memory_timer is None:
            self._looks = 0
            self._look_later()

    def _look_later(self) -> None:
        for connection in self.connections:
            connection.received_at = connection.received
        self._memory_timer = self.loop.call_later(self.limits.look_seconds, self._look)

    def _look(self) -> None:
        self._memory_timer = None
        waiting = self.memory.waiting
        if not waiting:
            return
        if self._looks % _LOOKS_PER_LINE == 0:
            self._say_who_waits(waiting)
        self._looks += 1
        wanted = sum(request.more for request in waiting)
        for connection in self._slow():
            if wanted <= 0:
                break
            wanted -= connection.reserved
            received, size = connection.received, connection.received + connection.missing
            connection.abort(f"{received} of {size} bytes of its request arrived, and others wait for its memory")
        self._look_later()

    def _slow(self) -> list[Connection]:
        """Connections that held memory at the last look and have hardly sent since, the slowest and largest first."""
        slow = []
        for connection in self.connections:
            if connection.received_at < 0 or not connection.idle:
                continue
            arrived = connection.received - connection.received_at
            if arrived == 0 or arrived * _SLOW_LOOKS < connection.missing:
                slow.append((arrived, -connection.reserved, connection.number, connection))
        return [entry[-1] for entry in sorted(slow)]

    def _say_who_waits(self, waiting: list[Waiting]) -> None:
        most = max(self.connections, key=lambda connection: connection.reserved)
        self.connection_log.say(
            "requests waiting for memory: %d, the first from %s; %d of %d bytes are taken (queued.max.request.bytes), "
            "%d of them by %s",
            len(waiting),
            waiting[0].waiter,
            self.memory.used,
            self.memory.limit,
            most.reserved,
            most,
        )

    def answer_room(self) -> int | None:
        """Bytes left for unread answers; None for no limit. Clients that read nothing while there is no room are
        closed."""
        limit = self.limits.queued_max_response_bytes
        if limit < 0:
            return None
        if not self.holding and not self.unread:  # as mostly
            return limit
        room = self._answer_room()
        if room == 0:
            self._watch_unread()
        return room

    def _answer_room(self) -> int:
        held = sum(connection.held for connection in self.holding) + sum(
            connection.unsent for connection in self.unread
        )
        return max(0, self.limits.queued_max_response_bytes - held)

    def _watch_unread(self) -> None:
        if self._unread_timer is None:
            for connection in self.unread:
                connection.unread_at = connection.unsent
            self._unread_timer = self.loop.call_later(self.limits.stall_seconds, self._close_unread)

    def _close_unread(self) -> None:
        self._unread_timer = None
        if self._answer_room():
            return
        for connection in list(self.unread):
            unsent = connection.unsent
            if unsent == connection.unread_at:
                connection.abort(f"it read nothing of {unsent} bytes while the answers of all were at their limit")
        self._watch_unread()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop_accepting(self) -> None:
        """Close the listening sockets."""
        servers, self._servers = self._servers, []
        for server, _ in servers:
            server.close()
        self._all_drained = asyncio.Event()
        for acceptor in self._acceptors:
            await acceptor.ended()

    async def drain(self, grace_seconds: float) -> None:
        """Begin no further request, and wait at most this long for responses to requests that changed something."""
        if self._all_drained is None:
            await self.stop_accepting()
        assert self._all_drained is not None
        self._awaited = {connection for connection in list(self.connections) if connection.drain()}
        if self._awaited:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_drained.wait(), grace_seconds)

    def drained(self, connection: Connection) -> None:
        """The last answer of a connection was written, or the connection is gone."""
        self._awaited.discard(connection)
        if self._all_drained is not None and not self._awaited:
            self._all_drained.set()

    async def close(self, grace_seconds: float = 1.0) -> None:
        """Close every connection; one whose client does not read its responses within this time is reset."""
        for timer in (self._idle_timer, self._memory_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._memory_timer = self._unread_timer = None
        self.connection_log.close()
        await self.stop_accepting()
        self._none_left = asyncio.Event()
        for connection in list(self.connections):
            connection.close()
        await self._wait_none_left(grace_seconds)
        for connection in list(self.connections):
            connection.abort()
        await self._wait_none_left(grace_seconds)

    async def _wait_none_left(self, grace_seconds: float) -> None:
        if self.connections:
            assert self._none_left is not None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), grace_seconds)
