"""Buffers of large frames that are done with, for the next ones: the system takes longer to hand out fresh memory than
a frame takes to arrive in it."""

from __future__ import annotations

LARGEST_SPARE_BYTES = 4 * 1024 * 1024
_SPARE = 2


class SpareBuffers:
    """Two at most, and none above `LARGEST_SPARE_BYTES`, are kept."""

    def __init__(self) -> None:
        self._spare: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """A buffer of `size` bytes or more without other references, if there is one; its content is undefined."""
        for number, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                del self._spare[number]
                return buffer if _unseen(buffer) else None
        return None

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for later. There may still be views of it: the event loop has one of what it filled last."""
        if len(buffer) <= LARGEST_SPARE_BYTES:
            self._spare.append(buffer)
            self._spare.sort(key=len)
            del self._spare[:-_SPARE]


def _unseen(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())  # refused while there is any view of it
    except BufferError:
        return False
    return True
