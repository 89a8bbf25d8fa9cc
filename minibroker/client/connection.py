"""Blocking connections to a broker: frames out, frames in, and a limit on every wait."""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from typing import TYPE_CHECKING

from minibroker.kernel.addresses import Address, format_address, parse_address
from minibroker.kernel.words import reason
from minibroker_protocol.errors import Malformed
from minibroker_protocol.frames import FrameSplitter
from minibroker_protocol.headers import decode_response, encode_request

if TYPE_CHECKING:
    import ssl

    from minibroker_protocol.dsl import Request, Response


class BrokerFailed(Exception):
    """The broker did not answer as expected."""


class ConnectionClosed(BrokerFailed):
    """The broker closed the connection, or it could not be made."""


class NotConnected(ConnectionClosed):
    """No connection could be made."""


class NoResponse(BrokerFailed):
    """No answer within the allowed time."""


class Throttled(BrokerFailed):
    """A quota: the broker reads nothing of the connection for another `seconds` (KIP-219)."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message, seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return str(self.args[0])


_LARGEST_RESPONSE = 200 * 1024 * 1024
_RECEIVE_BYTES = 1 << 20


def servers(text: str) -> str:
    """An option's HOST:PORT[,HOST:PORT…]. Raises argparse.ArgumentTypeError."""
    try:
        for server in text.split(","):
            parse_address(server)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


class Connection:
    """One connection, with `tls` an encrypted one. `correlation_id` is the last one used."""

    def __init__(self, address: Address, timeout: float, *, tls: ssl.SSLContext | None = None) -> None:
        self.correlation_id = 0
        self._frames: list[bytearray] = []
        self._splitter = FrameSplitter(_LARGEST_RESPONSE)
        self._muted_until = 0.0
        try:
            self._socket = socket.create_connection(address, timeout)
        except (OSError, ValueError) as exc:  # ValueError: a name that no resolver takes
            raise NotConnected(f"cannot connect to {format_address(*address)}: {reason(exc)}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
            except (OSError, ValueError) as exc:
                self._socket.close()
                raise NotConnected(f"no TLS with {format_address(*address)}: {_no_tls(exc)}") from None
        self._timeout = timeout

    def send(self, data: bytes) -> None:
        """Write all of it."""
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except TimeoutError:
            raise NoResponse(f"the broker took no bytes within {self._timeout:g} s") from None
        except OSError as exc:
            raise ConnectionClosed(f"connection closed by the broker: {reason(exc)}") from None

    def send_frame(self, body: bytes, *, size_delta: int = 0) -> None:
        """Write a frame; `size_delta` makes its size prefix wrong."""
        self.send((len(body) + size_delta).to_bytes(4, "big", signed=True) + body)

    def receive(self, timeout: float) -> bytearray:
        """The next frame. Raises NoResponse when it is not whole within `timeout` seconds, ConnectionClosed."""
        deadline = time.monotonic() + timeout
        while not self._frames:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise NoResponse(f"no response within {timeout:g} s")
            self._socket.settimeout(seconds)
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                raise NoResponse(f"no response within {timeout:g} s") from None
            except OSError as exc:
                raise ConnectionClosed(f"connection closed by the broker: {reason(exc)}") from None
            if not data:
                raise ConnectionClosed("connection closed by the broker")
            try:
                self._frames += self._splitter.feed(data)
            except Malformed as exc:
                raise BrokerFailed(f"response: {exc}") from None
        return self._frames.pop(0)

    def ask(self, request: Request, version: int, client_id: str, timeout: float) -> Response:
        """Send a request and return its response. Raises BrokerFailed.

        A connection that the broker has throttled is waited for, at most `timeout` seconds (KIP-219).
        """
        muted = self._muted_until - time.monotonic()
        if muted > timeout:
            raise Throttled(f"{client_id} is throttled by a quota for another {muted:.0f} s", muted)
        if muted > 0:
            time.sleep(muted)
        self.correlation_id += 1
        try:
            self.send_frame(encode_request(request, version, self.correlation_id, client_id))
            frame = self.receive(timeout)
            if int.from_bytes(frame[:4], "big", signed=True) != self.correlation_id:
                raise BrokerFailed("the answer belongs to another request")
            answer = decode_response(frame, request.__api_key__, version)
            self._muted_until = time.monotonic() + getattr(answer, "throttle_time_ms", 0) / 1000
            return answer
        except (BrokerFailed, Malformed) as exc:
            kind = type(exc) if isinstance(exc, BrokerFailed) else BrokerFailed
            raise kind(f"{type(request).__name__.removesuffix('Request')} v{version}: {exc}") from None

    def close(self) -> None:
        self._socket.close()

    def shut(self) -> None:
        """Close the connection; a thread that waits for an answer gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _no_tls(error: OSError | ValueError) -> str:
    """The reason of a TLS error, without OpenSSL's codes."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return reason(error)
