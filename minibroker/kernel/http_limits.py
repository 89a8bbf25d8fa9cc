"""What an HTTP server of the standard library lacks towards clients that it does not know: limits."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
from collections.abc import Callable
from typing import IO, Any

from minibroker.kernel.logs import get_logger

log = get_logger(__name__)

MAX_CONNECTIONS = 128
MAX_HEAD_BYTES = 64 * 1024
"""Of the headers of a request; the standard library takes 100 of 64 KB each."""


class ConnectionLimit:
    """Limits the connections: each takes a thread, and anybody may open one. When all places are taken, the connection
    that has waited longest to be served makes room for the next."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._waiting: dict[Any, None] = {}  # in the order in which they began to wait

    def take(self, connection: Any) -> bool:
        """False when every place is taken by one that is served."""
        with self._lock:
            if len(self._open) >= self._most:
                oldest = next(iter(self._waiting), None)
                if oldest is None:
                    return False
                del self._waiting[oldest]
                self._open.discard(oldest)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds it ended, and ends
            self._open.add(connection)
            self._waiting[connection] = None
            return True

    def waits(self, connection: Any) -> None:
        """The connection waits for its next request."""
        with self._lock:
            if connection in self._open:
                self._waiting.setdefault(connection)

    def serves(self, connection: Any) -> None:
        """The connection has sent a request with the token, if one is needed, and is served."""
        with self._lock:
            self._waiting.pop(connection, None)

    def give_back(self, connection: Any) -> None:
        with self._lock:
            self._open.discard(connection)
            self._waiting.pop(connection, None)


class LimitedServer(http.server.ThreadingHTTPServer):
    """purpose: the server's name in log lines. max_connections: served at one time."""

    purpose = ""
    max_connections = MAX_CONNECTIONS
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self.connection_limit = ConnectionLimit(self.max_connections)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connection_limit.take(request):
            served = self.max_connections
            log.warning("closing a %s connection of %s: %d are served", self.purpose, client_address, served)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connection_limit.give_back(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a %s connection of %s broke off", self.purpose, client_address, exc_info=True)


def of_family(server: type[LimitedServer], address: tuple[str, int], **attributes: Any) -> Callable[..., Any]:
    """`server` for an address of either family, with these attributes; one that is None stays what it is."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    own = {name: value for name, value in attributes.items() if value is not None}
    return type("_Server", (server,), {"address_family": family, **own})


class BoundedHead:
    """A handler's `rfile`: the headers of a request are read up to MAX_HEAD_BYTES, then LineTooLong is raised, which
    the base class answers with 431."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.read = file.read
        self.close = file.close
        self._head_bytes: int | None = None

    def begin(self) -> None:
        """A request comes. Its first line has a limit of its own, in the base class."""
        self._head_bytes = None

    def readline(self, size: int) -> bytes:
        if self._head_bytes is None:
            self._head_bytes = MAX_HEAD_BYTES
            return self._file.readline(size)
        line = self._file.readline(min(size, self._head_bytes + 1))
        self._head_bytes -= len(line)
        if self._head_bytes < 0:
            raise http.client.LineTooLong("headers")
        return line
