"""Accepts the connections of a TLS listener.

A server of asyncio says nothing of a connection before its handshake is over. Clients that never end theirs would take
all file handles for a minute, so this one counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

_ACCEPTED_AT_ONCE = 32
_OUT_OF_HANDLES_SECONDS = 0.1
_END_SECONDS = 1.0


class TlsAcceptor:
    """Serves the bound and listening socket, which belongs to it.

    protocol: a new one for each connection.
    is_full: whether there is no room for a further connection. Then the one that has been in its handshake for longest
        is closed.
    say: a log line, with %-style values.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        tls: ssl.SSLContext,
        protocol: Callable[[], asyncio.BaseProtocol],
        is_full: Callable[[], bool],
        say: Callable[..., None],
    ) -> None:
        self._loop, self._listener, self._tls = loop, listener, tls
        self._protocol, self._is_full, self._say = protocol, is_full, say
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._watch()

    @property
    def handshakes(self) -> int:
        """Connections whose handshake is not over."""
        return len(self._handshakes)

    def close(self) -> None:
        """Close the listening socket, and connections in their handshake."""
        if self._retry is None:
            self._loop.remove_reader(self._listener.fileno())
        else:
            self._retry.cancel()
        self._listener.close()
        while self._handshakes:
            self._close_oldest()

    async def ended(self) -> None:
        """Wait until nothing is left of them, after `close`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_SECONDS)

    def _watch(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connected, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of file handles
                self._loop.remove_reader(self._listener.fileno())
                self._retry = self._loop.call_later(_OUT_OF_HANDLES_SECONDS, self._watch)
                self._make_room()
                return
            if self._is_full():
                self._make_room()
            connected.setblocking(False)
            task = self._loop.create_task(self._shake_hands(connected))
            self._handshakes[task] = connected
            self._tasks.add(task)
            task.add_done_callback(self._over)

    async def _shake_hands(self, connected: socket.socket) -> None:
        # A handshake that fails is the client's doing.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(self._protocol, connected, ssl=self._tls)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        self._tasks.discard(task)

    def _make_room(self) -> None:
        if self._handshakes:
            self._say("closing a connection: of %d TLS handshakes it has taken the longest", len(self._handshakes))
            self._close_oldest()

    def _close_oldest(self) -> None:
        connected = self._handshakes.pop(next(iter(self._handshakes)))
        # Its transport, to which the socket belongs, finds the end and closes it.
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
