"""A broker of an upstream by hand: what was sent to it, and what it says next, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

from manual_time import ManualTimers

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred, failed, resolved
from minibroker.kernel.executor import InlineExecutor
from minibroker.kernel.spare_buffers import SpareBuffers
from minibroker.proxy.asked_node import AskedNode, WallClock
from minibroker.proxy.endpoints import NodeKey
from minibroker.proxy.proxy_dispatcher import ProxyDispatcher
from minibroker.proxy.upstream_connection import SCRATCH_BYTES, UpstreamConnection
from minibroker.proxy.upstream_nodes import UpstreamNodes
from minibroker.requests.context import CloseConnection
from minibroker_protocol.dsl import Request
from minibroker_protocol.frames import FrameSplitter
from minibroker_protocol.headers import decode_response, encode_request, encode_response_header


class HandTransport(asyncio.Transport):
    """Notes what is written; `calls` are the other calls by name."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.calls: list[str] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class UpstreamByHand:
    """One connection; `ended` has the reasons that were told, `gone` counts how often nothing of it was left."""

    def __init__(self, *, connected: bool = True) -> None:
        self.ended: list[str] = []
        self.gone = 0
        self.transport = HandTransport()
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.connection = UpstreamConnection(scratch, SpareBuffers(), self.ended.append, self._gone)
        if connected:
            self.connection.connection_made(self.transport)

    def _gone(self) -> None:
        self.gone += 1

    def requests(self) -> list[bytes]:
        """The frames that it has been sent since the last call."""
        frames = FrameSplitter().feed(bytes(self.transport.written))
        self.transport.written.clear()
        return [bytes(frame) for frame in frames]

    def says(self, data: bytes) -> None:
        """Bytes arrive, as many at a time as there is room for."""
        while data:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.connection.buffer_updated(taken)
            data = data[taken:]

    def answers(self, frame: bytes) -> None:
        self.says(len(frame).to_bytes(4, "big") + frame)


class Channel:
    """Notes what is asked of a client's connection."""

    def __init__(self) -> None:
        self.closed = 0
        self.calls: list[Any] = []

    def close(self) -> None:
        self.closed += 1

    def push(self, buffers: list[Any]) -> None:
        self.calls.append(b"".join(buffers))

    def reset(self) -> None:
        self.calls.append("reset")

    def mute(self, ms: int) -> None:
        self.calls.append(ms)


class CountingExecutor(InlineExecutor):
    """Counts what is computed off the loop."""

    computed = 0

    def compute(self, work: Any, *arguments: Any, **options: Any) -> Any:
        self.computed += 1
        return super().compute(work, *arguments, **options)


class Proxied:
    """One client behind one listener. `circles`: how often a request of the proxy itself arrived. port_error: why no
    port can be opened for a node."""

    def __init__(self) -> None:
        self.executor = CountingExecutor()
        self.port_error: OSError | None = None
        self.opened: list[NodeKey] = []
        self.timers = ManualTimers()
        self.circles = 0
        self.nodes = UpstreamNodes([("kafka", 9092)], self._open)
        self.node = AskedNode(NodeKey(1), self.nodes, "127.0.0.1", self.timers, self.executor, WallClock(lambda: 0))
        self.upstream = UpstreamByHand()
        self.connects = 0
        self.dispatcher = ProxyDispatcher(self.node, self._connect, "own", self._circle)
        self.channel = Channel()
        self.info = ConnectionInfo(channel=self.channel)  # type: ignore[arg-type]

    def _open(self, key: NodeKey) -> int:
        if self.port_error is not None:
            raise self.port_error
        self.opened.append(key)
        return 19000 + len(self.opened)

    def _circle(self) -> None:
        self.circles += 1

    def _connect(self, node: AskedNode, lost: Any) -> Any:
        self.connects += 1
        self.lost = lost
        return self.upstream.connection

    def send(self, frame: bytes) -> Deferred[Any]:
        try:
            answer = self.dispatcher.dispatch(frame, self.info)
        except CloseConnection as error:
            return failed(error)
        return answer if isinstance(answer, Deferred) else resolved(answer)

    def ask(self, request: Request, version: int, answer: Any) -> Any:
        """What the client gets for a request to which the upstream answers so."""
        key = request.__api_key__
        waiting = self.send(encode_request(request, version, 77, "app"))
        assert self.upstream.requests() == [encode_request(request, version, 77, "app")]
        self.upstream.answers(encode_response_header(key, version, 77) + answer.encode(version))
        frame = b"".join(waiting.result())
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert frame[4:8] == (77).to_bytes(4, "big")
        return decode_response(frame[4:], key, version)
