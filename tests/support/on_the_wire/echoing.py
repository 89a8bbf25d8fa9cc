"""Stands in for the broker behind a connection: answers with what it was sent, later, or not at all."""

from __future__ import annotations

import struct

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.requests.dispatch import Answered
from minibroker_protocol.fields import Buffer

FETCH, PRODUCE, ECHO, SILENT, REFUSE, CRASH = 1, 0, 100, 101, 102, 103


class Refused(Exception):
    pass


def frame(api_key: int, payload: bytes = b"") -> bytes:
    body = struct.pack(">h", api_key) + payload
    return struct.pack(">i", len(body)) + body


def answer_of(request: bytes) -> bytes:
    """What the fake answers to an ECHO frame: its body."""
    return struct.pack(">i", len(request) - 6) + request[6:]


class FakeBroker:
    """Echoes; parks Fetch and Produce until the test resolves them. Of Fetch it needs no byte while it is parked."""

    def __init__(self) -> None:
        self.parked: list[Deferred[Answered]] = []
        self.served: list[tuple[int, bytes]] = []
        self.frames: list[Buffer] = []
        self.infos: list[ConnectionInfo] = []

    def dispatch(self, data: Buffer, info: ConnectionInfo) -> Answered | Deferred[Answered]:
        api_key = int.from_bytes(data[:2], "big")
        body = bytes(data[2:])
        self.served.append((api_key, body[:16]))
        self.frames.append(data)
        self.infos.append(info)
        if api_key == ECHO:
            return [struct.pack(">i", len(body)), memoryview(body)]
        if api_key == SILENT:
            return None
        if api_key == REFUSE:
            raise Refused("no such thing")
        if api_key == CRASH:
            raise ZeroDivisionError
        if api_key == FETCH and info.release is not None:
            info.release(data)
        later: Deferred[Answered] = Deferred()
        self.parked.append(later)
        return later
