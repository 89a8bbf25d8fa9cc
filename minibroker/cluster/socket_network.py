"""The wire between brokers over TCP connections of the loopback interface, as frames that a capture shows.

A connection carries the requests of one broker to another (or to the controller) in Kafka's frames, many at a time; the
correlation id says which answer is whose, as some of them are waited for while others pass.

Its first two requests are SaslAuthenticate, v1, with the steps of `minibroker.cluster.broker_authentication`; a process
that fails gets no further. Until then a frame may have 256 bytes, and the connection some seconds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from minibroker.cluster.broker_authentication import (
    BrokerAuthenticationFailed,
    ClientAuthenticator,
    RandomBytes,
    ServerAuthenticator,
)
from minibroker.cluster.in_process_network import Cuts, Endpoint
from minibroker.kernel.clock import TimerHandle, Timers
from minibroker.kernel.deferred import Deferred, failed
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import CONTROLLER, Receiver, Transport
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.frames import FrameSplitter
from minibroker_protocol.headers import decode_response, encode_request, encode_response_header, parse_request_header
from minibroker_protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse
from minibroker_protocol.registry import registry

log = get_logger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 64
_LARGEST_FRAME: Final = 512 * 1024 * 1024
_LARGEST_FIRST_FRAME: Final = 256
"""Largest frame of the two steps by which an end authenticates itself."""
_AUTHENTICATE: Final = SaslAuthenticateRequest.__api_key__
_AUTHENTICATE_VERSION: Final = 1
_PROOF_MS: Final = 10_000
"""How long an end may take to authenticate, in real time."""
_MOST_UNPROVEN: Final = 64
"""Unauthenticated connections to one node at a time; a further one closes the oldest."""
_CORRELATION_IDS: Final = 1 << 31
_PATIENCE_TICKS: Final = 6
_FIRST_STEP: Final = bytes(4)
"""Correlation id of the first answer on a connection."""


class SocketNetwork:
    """`minibroker.kernel.transport.Network` over sockets.

    secret: shared by all nodes of the cluster, and known to nothing else.
    random_bytes: as `secrets.token_bytes`.
    patience_ms: how long an answer is waited for (request.timeout.ms) of real time, and up to a sixth longer.
    proof_ms: how long a connection may take to prove itself.
    refused: told, as %-style text and values, of every connection that is closed because it could not, or sent what
        cannot be read.

    A node that sends to itself is called at once. News of the controller stay within the process: KRaft's brokers fetch
    them as records of a log that is not kept here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        patience_ms: float = 30_000,
        *,
        secret: bytes,
        random_bytes: RandomBytes,
        proof_ms: float = _PROOF_MS,
        refused: Callable[..., None] = log.warning,
    ) -> None:
        self.secret = secret
        self.random_bytes = random_bytes
        self.proof_ms = proof_ms
        self.refused = refused
        self.loop = loop
        self.timers = timers
        self.patience_ms = patience_ms
        self.cuts = Cuts(timers)
        self._served: dict[int, _Served] = {}
        self._connections: dict[tuple[int, int], _Connection] = {}

    def attach(self, node_id: int, node: Receiver) -> None:
        self._served[node_id] = _Served(self, node_id, node)

    def detach(self, node_id: int) -> None:
        self.cuts.forget(node_id)
        served = self._served.pop(node_id, None)
        if served is not None:
            served.close()
        for ends in [ends for ends in self._connections if node_id in ends]:
            self._connections.pop(ends).close(sender_runs=ends[1] == node_id)

    def endpoint(self, node_id: int) -> Transport:
        return Endpoint(self, node_id)

    def publish(self, node_id: int, deliver: Callable[[], None]) -> None:
        if node_id in self._served and not self.cuts.holds(CONTROLLER, node_id, deliver):
            deliver()

    def cut(self, one: int, other: int) -> None:
        self.cuts.cut(one, other)

    def mend(self, one: int, other: int) -> None:
        self.cuts.mend(one, other)

    def address(self, node_id: int) -> tuple[str, int]:
        """The address at which a node listens for the others. Raises KeyError for an unknown node."""
        return self._served[node_id].address

    def send(self, source: int, target: int, request: Request, api_version: int) -> Deferred[Response]:
        served = self._served.get(target)
        if served is not None and source == target:
            return served.node(request, api_version)
        if served is None:
            unreachable: Deferred[Response] = Deferred()
            error = ApiError(ErrorCode.NETWORK_EXCEPTION, f"node {target} cannot be reached")
            self.timers.call_later(0, lambda: unreachable.fail(error))
            return unreachable
        connection = self._connections.get((source, target))
        if connection is None or connection.lost:
            connection = self._connections[source, target] = _Connection(self, source, target, served.address)
        return connection.send(request, api_version)


class _Framed(asyncio.Protocol):
    """One end of a connection: bytes in, whole frames out.

    `frame` raises Malformed or BrokerAuthenticationFailed for what ends it.
    """

    def __init__(
        self,
        frame: Callable[[bytearray], None],
        lost: Callable[[], None],
        refused: Callable[[_Framed, Exception], None],
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self._frame = frame
        self._lost = lost
        self._refused = refused
        self._made = made
        self._splitter = FrameSplitter(_LARGEST_FIRST_FRAME)
        self.transport: asyncio.Transport | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self.peer = "{}:{}".format(*(transport.get_extra_info("peername") or ("", 0))[:2])
        self._made()

    def proven(self) -> None:
        """The other end is an authenticated broker, so its frames may be large."""
        self._splitter.max_size = _LARGEST_FRAME

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
            while frames:
                for frame in frames:
                    if self.transport is None:
                        return
                    self._frame(frame)
                frames = self._splitter.feed(b"")  # what is behind them may be refused, or was too large until now
        except (Malformed, BrokerAuthenticationFailed) as error:
            self._refused(self, error)
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self._lost()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(len(data).to_bytes(4, "big") + data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            self.transport = None


class _Served:
    """A node that listens: each frame is a request, and its answer leaves when it is there."""

    def __init__(self, network: SocketNetwork, node_id: int, node: Receiver) -> None:
        self.node = node
        self._network = network
        self._node_id = node_id
        self._ends: set[_Framed] = set()
        self._unproven: dict[_Framed, None] = {}  # in the order they came
        self._closed = False
        self._server: asyncio.Server | None = None
        listener = socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
        listener.setblocking(False)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        # Others can connect from here on: the system queues them until the loop accepts.
        self._listening = network.loop.create_task(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        self._server = await self._network.loop.create_server(self._accepted, sock=listener)
        if self._closed:
            self._server.close()

    def _accepted(self) -> _Framed:
        network = self._network
        listening = ServerAuthenticator(network.secret, network.random_bytes, self._node_id)
        timer: TimerHandle | None = None

        def frame(data: bytearray) -> None:
            if listening.source is not None:
                self._request(end, listening.source, data)
                return
            self._authenticate(end, listening, data)
            if listening.source is not None:
                self._unproven.pop(end, None)
                if timer is not None:
                    timer.cancel()
                end.proven()

        def lost() -> None:
            self._ends.discard(end)
            self._unproven.pop(end, None)
            if timer is not None:
                timer.cancel()

        def too_late() -> None:
            if end in self._unproven:
                self._refuse(
                    end,
                    BrokerAuthenticationFailed(f"it has said nothing that proves it for {network.proof_ms / 1000:g} s"),
                )
                end.close()

        end = _Framed(frame, lost, self._refuse)
        self._ends.add(end)
        if len(self._unproven) >= _MOST_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            self._refuse(oldest, BrokerAuthenticationFailed("others wait as well, and it came first"))
            oldest.close()
        self._unproven[end] = None
        timer = network.timers.call_later(network.proof_ms, too_late)
        return end

    def _refuse(self, end: _Framed, error: Exception) -> None:
        self._network.refused(
            "closing a connection of %s to the port where node %d hears the other brokers: %s",
            end.peer,
            self._node_id,
            error,
        )

    def _authenticate(self, end: _Framed, listening: ServerAuthenticator, frame: bytearray) -> None:
        request, version, correlation_id = _read(frame)
        if not isinstance(request, SaslAuthenticateRequest) or version != _AUTHENTICATE_VERSION:
            raise BrokerAuthenticationFailed(f"{type(request).__name__} v{version} comes before a proof")
        answer = SaslAuthenticateResponse(auth_bytes=listening.step(bytes(request.auth_bytes)))
        end.write(encode_response_header(_AUTHENTICATE, version, correlation_id) + answer.encode(version))

    def _request(self, end: _Framed, source: int, frame: bytearray) -> None:
        request, version, correlation_id = _read(frame)
        try:
            served = self.node(request, version)
        except Exception as error:
            served = failed(error)
        served.then(lambda done: self._answer(end, source, request, version, correlation_id, done))

    def _answer(
        self, end: _Framed, source: int, request: Request, version: int, correlation_id: int, done: Deferred[Response]
    ) -> None:
        try:
            response = done.result()
        except ApiError as error:
            from minibroker.requests.error_responses import can_fail, refused

            if not can_fail(type(request)):
                end.close()
                return
            response = refused(request, version, error.code, error.message)
        except Exception:
            log.exception("%s of broker %d failed", type(request).__name__, source)
            end.close()
            return
        key = type(request).__api_key__
        data = encode_response_header(key, version, correlation_id) + response.encode(version)
        if not self._network.cuts.holds(self._node_id, source, lambda: end.write(data)):
            end.write(data)

    def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for end in tuple(self._ends):
            end.close()


def _read(frame: bytearray) -> tuple[Request, int, int]:
    """Request, version and correlation id of a frame. Raises Malformed."""
    api_key, version, correlation_id, _, position = parse_request_header(frame)
    if api_key not in registry():
        raise Malformed(f"API key {api_key} is not known")
    return registry()[api_key][0].decode(frame, version, position), version, correlation_id


class _Connection:
    """From one node to another: what was sent and is not answered yet, and what waits for the connection."""

    def __init__(self, network: SocketNetwork, source: int, target: int, address: tuple[str, int]) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._count = 0
        self._tick = 0
        self._ticking = False
        self._calls: dict[int, _Call] = {}
        self._unsent: list[bytes] = []
        self._proving: ClientAuthenticator | None = ClientAuthenticator(
            network.secret, network.random_bytes, source, target
        )
        self._end = _Framed(self._received, self._broken, self._refuse, self._greet)
        self.lost = False
        self._connecting = network.loop.create_task(self._connect(address))

    async def _connect(self, address: tuple[str, int]) -> None:
        try:
            await self._network.loop.create_connection(lambda: self._end, *address)
        except OSError:
            self._broken()
            return
        if self.lost:
            self._end.close()

    def _greet(self) -> None:
        assert self._proving is not None
        self._authenticate(0, self._proving.hello)

    def _authenticate(self, number: int, data: bytes) -> None:
        request = SaslAuthenticateRequest(auth_bytes=data)
        self._end.write(encode_request(request, _AUTHENTICATE_VERSION, number, str(self._source)))

    def _received(self, frame: bytearray) -> None:
        if self._proving is None:
            self._response(frame)
            return
        answer = SaslAuthenticateResponse.decode(frame, _AUTHENTICATE_VERSION, 4)
        if frame[:4] == _FIRST_STEP:
            self._authenticate(1, self._proving.prove(bytes(answer.auth_bytes)))
            return
        self._proving = None
        self._end.proven()
        unsent, self._unsent = self._unsent, []
        for data in unsent:
            self._end.write(data)

    def _refuse(self, end: _Framed, error: Exception) -> None:
        self._network.refused("closing the connection to node %d at %s: %s", self._target, end.peer, error)

    def send(self, request: Request, api_version: int) -> Deferred[Response]:
        kind = type(request)
        self._count = (self._count + 1) % _CORRELATION_IDS
        number = self._count
        call = self._calls[number] = _Call(kind, api_version, self._tick)
        data = encode_request(request, api_version, number, str(self._source))
        if not self._network.cuts.holds(self._source, self._target, lambda: self._write(data)):
            self._write(data)
        if not self._ticking:
            self._watch_patience()
        return call.answer

    def _write(self, data: bytes) -> None:
        if self._proving is not None or self._end.transport is None:
            if not self.lost:
                self._unsent.append(data)
        else:
            self._end.write(data)

    def _response(self, frame: bytearray) -> None:
        call = self._calls.pop(int.from_bytes(frame[:4], "big"), None)
        if call is None:
            return  # given up
        call.answer.resolve(decode_response(frame, call.kind.__api_key__, call.api_version))

    def _watch_patience(self) -> None:
        self._ticking = True
        self._network.timers.call_later(self._network.patience_ms / _PATIENCE_TICKS, self._patience_tick)

    def _patience_tick(self) -> None:
        self._tick += 1
        self._ticking = False
        for number, call in list(self._calls.items()):
            if self._tick - call.tick > _PATIENCE_TICKS:
                del self._calls[number]
                call.answer.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, f"node {self._target} does not answer"))
        if self._calls:
            self._watch_patience()

    def _broken(self) -> None:
        """Fail the requests that wait for an answer."""
        self.lost = True
        calls, self._calls = self._calls, {}
        self._unsent.clear()
        for call in calls.values():
            call.answer.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, f"node {self._target} cannot be reached"))

    def close(self, *, sender_runs: bool) -> None:
        """One of the two nodes has ended.

        sender_runs: the receiving one, not the sender.
        """
        if not sender_runs:
            self._calls.clear()
        self.lost = True
        self._end.close()
        if self._end.transport is None:
            self._network.timers.call_later(0, self._broken)


class _Call:
    __slots__ = ("answer", "api_version", "kind", "tick")

    def __init__(self, kind: type[Request], api_version: int, tick: int) -> None:
        self.kind = kind
        self.api_version = api_version
        self.tick = tick
        self.answer: Deferred[Response] = Deferred()
