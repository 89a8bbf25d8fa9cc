"""Memory of requests: how much they may take at one time, over all connections.

Kafka's ``SimpleMemoryPool`` reserves the size that a client announces. Here a request takes memory as its bytes arrive,
so a client holds about as much as it has sent.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from minibroker.kernel.spare_buffers import LARGEST_SPARE_BYTES

LARGEST_ORDINARY_BYTES = 2 * 1024 * 1024
"""The largest request that may use the whole limit: a batch of ``message.max.bytes`` fits. Larger ones share half."""
SMALLEST_PIECE_BYTES = 16 * 1024
LARGEST_PIECE_BYTES = LARGEST_SPARE_BYTES
_PIECES_PER_RECEIVED = 4


def wanted_bytes(size: int, received: int) -> int:
    """Memory, in all, for a request of `size` bytes of which `received` are here: at most four times as much."""
    more = min((_PIECES_PER_RECEIVED - 1) * received, LARGEST_PIECE_BYTES)
    return min(size, max(received + more, SMALLEST_PIECE_BYTES))


class Waiter(Protocol):
    def memory_granted(self, granted: int) -> None:
        """It has this many more bytes now."""


class Waiting(NamedTuple):
    """A request that waits.

    held: bytes it has.
    more: bytes it asks for.
    rest: bytes to the end of the request.
    """

    waiter: Waiter
    held: int
    more: int
    rest: int


class _Line:
    """Requests of one kind, ordinary or large: the bytes they hold, and those that wait."""

    def __init__(self) -> None:
        self.used = 0
        self.held_by_waiting = 0
        self.waiting: deque[Waiting] = deque()


class RequestMemory:
    """Grants memory piece by piece, first come first served. limit <= 0: no limit.

    Ordinary requests use the whole limit, large ones at most half, and each kind waits in a line of its own: large
    requests never stop ordinary ones.

    When all memory of a kind is held by requests that wait, none of them would ever end. Then the first in line gets
    the rest of its request at once, beyond the limit. So the limit is exceeded by one request of each kind at most, and
    a request larger than the limit is served.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._ordinary, self._large = _Line(), _Line()

    @property
    def used(self) -> int:
        return self._ordinary.used + self._large.used

    @property
    def waiting(self) -> list[Waiting]:
        """The requests that wait, ordinary ones first, each kind in its order."""
        return [*self._ordinary.waiting, *self._large.waiting]

    @property
    def contended(self) -> bool:
        """Whether a request waits for memory."""
        return bool(self._ordinary.waiting or self._large.waiting)

    def reserve(self, waiter: Waiter, size: int, held: int, more: int) -> int:
        """Take `more` bytes for a request of `size` bytes that has `held`; returns the bytes granted, at least `more`.
        0: `waiter` has to wait until `memory_granted` is called."""
        line = self._line(size)
        if not line.waiting and self._fits(line, more):
            line.used += more
            return more
        mine = Waiting(waiter, held, more, size - held)
        line.waiting.append(mine)
        line.held_by_waiting += held
        while (served := self._next(line)) is not None:
            request, granted = served
            if request is mine:
                return granted
            request.waiter.memory_granted(granted)
        return 0

    def release(self, size: int, held: int) -> None:
        """Give back what a request of `size` bytes held."""
        self._line(size).used -= held
        self._serve()

    def withdraw(self, waiter: Waiter, size: int) -> None:
        """Remove `waiter`, whose request has `size` bytes, from its line."""
        line = self._line(size)
        line.waiting = deque(request for request in line.waiting if request.waiter is not waiter)
        line.held_by_waiting = sum(request.held for request in line.waiting)
        self._serve()

    def _line(self, size: int) -> _Line:
        return self._ordinary if size <= LARGEST_ORDINARY_BYTES else self._large

    def _serve(self) -> None:
        for line in (self._ordinary, self._large):
            while (served := self._next(line)) is not None:
                request, granted = served
                request.waiter.memory_granted(granted)

    def _next(self, line: _Line) -> tuple[Waiting, int] | None:
        """The first in `line`, which leaves it, and what it is granted; None while it has to wait."""
        if not line.waiting:
            return None
        first = line.waiting[0]
        if self._fits(line, first.more):
            granted = first.more
        elif line.used == line.held_by_waiting:
            granted = first.rest
        else:
            return None
        line.waiting.popleft()
        line.held_by_waiting -= first.held
        line.used += granted
        return first, granted

    def _fits(self, line: _Line, more: int) -> bool:
        if self.limit <= 0:
            return True
        if line is self._large and line.used + more > self.limit // 2:
            return False
        return self.used + more <= self.limit
