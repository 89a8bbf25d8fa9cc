"""Cuts a byte stream into frames: an int32 size, then so many bytes."""

from __future__ import annotations

from minibroker_protocol.errors import Malformed

# The first bytes of a TLS record that begins a handshake, in any version up to 1.3.
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"PATC", b"OPTI", b"CONN", b"TRAC", b"PRI "})


def foreign_protocol(size: int) -> str:
    """``: a client speaks HTTP``, to append to why a frame of this size (an int32) is refused; TLS likewise. Empty
    where the four bytes begin neither."""
    first = size.to_bytes(4, "big", signed=True)
    if first in _HTTP:
        return f": these bytes are {first.decode().strip()!r}, so the client speaks HTTP, not Kafka's protocol"
    if first.startswith(_TLS_HANDSHAKE):
        return ": these bytes begin a TLS handshake, and this listener has no TLS"
    return ""


class FrameSplitter:
    """Splits a stream that arrives in pieces of any size into frames, without their size prefix.

    ``max_size`` is the largest frame accepted, in bytes (Kafka's socket.request.max.bytes). No more than a frame's
    bytes that have arrived are held in memory.
    """

    __slots__ = ("_pending", "max_size")

    def __init__(self, max_size: int = 104_857_600) -> None:
        self.max_size = max_size
        self._pending = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held that are not a whole frame yet, size prefix included."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytearray]:
        """The frames that ``data`` completes. Raises ``Malformed`` for a size below 0 or above ``max_size``; if there
        are whole frames before it, they are given first and the next call raises."""
        pending = self._pending
        pending += data
        frames: list[bytearray] = []
        pos = 0
        while len(pending) - pos >= 4:
            size = int.from_bytes(pending[pos : pos + 4], "big", signed=True)
            if not 0 <= size <= self.max_size:
                if frames:
                    break
                raise Malformed(f"frame: size {size} is not between 0 and {self.max_size}{foreign_protocol(size)}")
            end = pos + 4 + size
            if end > len(pending):
                break
            frames.append(pending[pos + 4 : end])
            pos = end
        if pos:
            del pending[:pos]
        return frames
