"""A broker of an upstream by hand: what was sent to it, and what it says next, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

from minibroker.proxy.upstream_connection import SCRATCH_BYTES, UpstreamConnection
from minibroker_protocol.frames import FrameSplitter


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
    """One connection; `ended` has the reasons that were told."""

    def __init__(self, *, connected: bool = True) -> None:
        self.ended: list[str] = []
        self.transport = HandTransport()
        self.connection = UpstreamConnection(memoryview(bytearray(SCRATCH_BYTES)), self.ended.append)
        if connected:
            self.connection.connection_made(self.transport)

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
