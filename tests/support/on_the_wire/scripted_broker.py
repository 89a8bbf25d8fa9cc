"""A broker that answers what a test tells it to, over a real socket: for testing what talks to brokers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import Malformed
from minibroker_protocol.frames import FrameSplitter
from minibroker_protocol.headers import encode_response_header, parse_request_header
from minibroker_protocol.messages import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse
from minibroker_protocol.registry import registry

CLOSE = object()
"""Answer of a handler that has the connection closed."""
SILENCE = object()
"""Answer of a handler that has nothing sent."""
Handler = Callable[[Any, int], Any]


class ScriptedBroker:
    """`handlers`: request class → function of the request and its version, which gives a response, bytes that are
    sent as the whole frame, CLOSE or SILENCE. An API without a handler closes the connection."""

    def __init__(self) -> None:
        self.handlers: dict[type[Request], Handler] = {}
        self.requests: list[tuple[Any, int]] = []
        self.raw: list[bytes] = []
        self.client_ids: list[str | None] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        splitter = FrameSplitter()
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                    frames = splitter.feed(data)
                except (OSError, Malformed):
                    return
                if not data:
                    return
                for frame in frames:
                    self.raw.append(bytes(frame))
                    answer = self._answer(frame)
                    if answer is None:
                        return
                    connection.sendall(answer)

    def _answer(self, frame: bytearray) -> bytes | None:
        try:
            key, version, correlation_id, client_id, pos = parse_request_header(frame)
            request = registry()[key][0].decode(frame, version, pos)
        except (Malformed, KeyError):
            return None
        self.requests.append((request, version))
        self.client_ids.append(client_id)
        handler = self.handlers.get(type(request))
        said: Any = CLOSE if handler is None else handler(request, version)
        if said is CLOSE:
            return None
        if said is SILENCE:
            return b""
        if isinstance(said, Response):
            said = encode_response_header(key, version, correlation_id) + said.encode(version)
        return len(said).to_bytes(4, "big") + bytes(said)

    def close(self) -> None:
        self._listener.close()
        for connection in self.connections:
            connection.close()


def plain_broker(broker: ScriptedBroker) -> None:
    """Handlers for what every client asks first: this broker leads, coordinates and controls everything."""
    from minibroker_protocol.messages import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

    node = MetadataResponse.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=broker.port, rack=None)
    versions = [
        ApiVersionsResponse.ApiVersion(
            api_key=key, min_version=request.__versions__[0], max_version=request.__versions__[1]
        )
        for key, (request, _) in registry().items()
        if key != 19  # without CreateTopics the runner expects topics to make themselves
    ]
    broker.handlers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(error_code=0, api_keys=versions)
    broker.handlers[FindCoordinatorRequest] = lambda request, version: FindCoordinatorResponse(
        error_code=0, node_id=0, host="127.0.0.1", port=broker.port
    )
    broker.handlers[MetadataRequest] = lambda request, version: MetadataResponse(
        brokers=[node], controller_id=0, topics=[]
    )


@contextmanager
def scripted_broker() -> Iterator[ScriptedBroker]:
    """A ScriptedBroker with `plain_broker`'s handlers, closed at the end."""
    broker = ScriptedBroker()
    plain_broker(broker)
    try:
        yield broker
    finally:
        broker.close()
