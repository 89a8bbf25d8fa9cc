"""Memory of requests: how much they may take at one time, over all connections (Kafka's ``SimpleMemoryPool``), and the
buffers of large ones, which serve the next.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiter(Protocol):
    def memory_granted(self) -> None:
        """The reservation this waiter asked for is now its own."""


class RequestMemory:
    """Grants whole requests, first come first served.

    A request's full size is reserved before its first byte is kept, so two half-read requests never wait for each
    other. A request larger than the limit is accepted alone. limit <= 0: no limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[Waiter, int]] = deque()

    @property
    def contended(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def reserve(self, waiter: Waiter, size: int) -> bool:
        """Take `size` bytes; False when `waiter` has to wait until `memory_granted` is called."""
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting.append((waiter, size))
        return False

    def release(self, size: int) -> None:
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][1]):
            waiter, wanted = self._waiting.popleft()
            self.used += wanted
            waiter.memory_granted()

    def withdraw(self, waiter: Waiter) -> None:
        """Remove `waiter` from the queue."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
        self.release(0)

    def _fits(self, size: int) -> bool:
        return self.limit <= 0 or self.used == 0 or self.used + size <= self.limit


_ROUND_TO = 128 * 1024
_SPARE = 2
LARGEST_SPARE_BYTES = 4 * 1024 * 1024


class SpareBuffers:
    """Buffers of large requests that were answered, for the next ones: the system takes longer to hand out fresh memory
    than a request takes to arrive in it. Two at most, and none above `LARGEST_SPARE_BYTES`, are kept."""

    def __init__(self) -> None:
        self._spare: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """A buffer of `size` bytes or more without other references; its content is undefined."""
        for number, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                del self._spare[number]
                if _unseen(buffer):
                    return buffer
                break
        return bytearray(-(-size // _ROUND_TO) * _ROUND_TO)

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
