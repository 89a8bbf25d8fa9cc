"""Clients that take what a broker has without using it: they announce and do not send, dribble, or never read.

None of them logs in, except `Waiting`: on a SASL listener they are what the network lets in.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

from minibroker.client.connection import Connection
from minibroker.kernel.addresses import Address
from minibroker_protocol.dsl import Request
from minibroker_protocol.headers import encode_request
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse, JoinGroupRequest

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_DRIBBLE_SECONDS = 0.002
_LONG_MS = (1 << 31) - 1


class Attackers:
    """Their sockets. `tls`: they speak TLS first. `dribbling` gets a byte each, again and again, while `dribble`."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self._address, self._tls = address, tls
        self._sockets: list[socket.socket] = []
        self._dribbling: list[socket.socket] = []

    def connect(self, *, handshake: bool = True) -> socket.socket:
        connected = socket.create_connection(self._address, 10)
        if self._tls is not None and handshake:
            connected = self._tls.wrap_socket(connected, server_hostname=self._address[0])
        self._sockets.append(connected)
        return connected

    def announce(self, count: int, size: int, sent: int = 10) -> None:
        """Requests of `size` bytes of which `sent` are sent. They are ApiVersions, which is allowed to everybody."""
        for _ in range(count):
            client = self.connect()
            client.sendall(struct.pack(">ihh", size, 18, 0) + bytes(sent - 4))
            self._dribbling.append(client)

    def without_handshake(self, count: int) -> None:
        """Connections that stop in the middle of the first size, or of the first record of TLS."""
        for _ in range(count):
            self.connect(handshake=False).sendall(b"\x16\x03\x01"[: None if self._tls else 2])

    def never_read(self, count: int, requests: int) -> None:
        """Clients that send requests as long as the broker takes them, and read no response."""
        for _ in range(count):
            client = self.connect()
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                for _ in range(requests):
                    client.send(_API_VERSIONS * 20)

    @contextlib.contextmanager
    def dribble(self) -> Iterator[None]:
        """Meanwhile each that has announced something sends a byte every other millisecond."""
        over = threading.Event()

        def send() -> None:
            while not over.wait(_DRIBBLE_SECONDS):
                for client in list(self._dribbling):
                    try:
                        client.send(b"\0")
                    except OSError:
                        self._dribbling.remove(client)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        for client in self._sockets:
            client.close()


class Waiting:
    """Clients that log in and send a large request that is not answered for a long time, each over a connection of its
    own."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connections: list[Connection] = []

    def fetch(self, count: int, topic: str, size: int) -> None:
        """For more bytes than there are."""
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
        padding = FetchRequest.ForgottenTopic(topic="other", partitions=list(range(size // 4)))
        request = FetchRequest(
            max_wait_ms=_LONG_MS,
            min_bytes=_LONG_MS,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
            forgotten_topics_data=[padding],
        )
        self._send(count, request, 12)

    def join(self, count: int, group_id: str, size: int) -> None:
        """A group that begins only once no further member has come for a while."""
        find = FindCoordinatorRequest(key_type=0, key=group_id)
        with self._connect() as connection:
            answer = connection.ask(find, 2, "waiting", 10)
        assert isinstance(answer, FindCoordinatorResponse)
        assert answer.error_code == 0
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(size))
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=_LONG_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        self._send(count, request, 3)

    def _send(self, count: int, request: Request, version: int) -> None:
        for _ in range(count):
            connection = self._connect()
            self._connections.append(connection)
            connection.send_frame(encode_request(request, version, 1, "waiting"))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
