"""How many bytes of requests may be in memory at one time, over all connections (Kafka's ``SimpleMemoryPool``)."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiter(Protocol):
    def memory_granted(self) -> None:
        """The reservation this waiter asked for is now its own."""
        ...


class RequestMemory:
    """Grants whole requests, first come first served.

    A request's full size is reserved before its first byte is kept, so two half-read requests never wait for each
    other. One that is larger than the limit by itself is let in alone. limit <= 0: no limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[Waiter, int]] = deque()

    @property
    def contended(self) -> bool:
        """Somebody waits."""
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
        """Forget what `waiter` waits for."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
        self.release(0)

    def _fits(self, size: int) -> bool:
        return self.limit <= 0 or self.used == 0 or self.used + size <= self.limit
