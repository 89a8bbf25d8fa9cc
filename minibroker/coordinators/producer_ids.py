"""Producer ids from blocks that the controller hands out (Kafka's RPCProducerIdManager and ProducerIdsBlock).

A broker takes ids from its current block and asks for the next one when most of it is used. After a restart the rest of
a block is never handed out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.kernel.deferred import Deferred, resolved
from minibroker.kernel.logs import get_logger
from minibroker_protocol.errors import ApiError, ErrorCode

log = get_logger(__name__)

_PREFETCH_AT: Final = 0.9

Block = tuple[int, int]
"""(first producer id, count)."""

_READY: Final[Deferred[None]] = resolved(None)


class ProducerIdBlocks:
    """allocate_block() asks the controller for a block of unused ids; its allocation survives a restart."""

    def __init__(self, allocate_block: Callable[[], Deferred[Block]]) -> None:
        self._allocate_block = allocate_block
        self._next_id = 0
        self._end_id = 0
        self._prefetch_id = 0
        self._following: Block | None = None
        self._request: Deferred[None] | None = None

    @property
    def available(self) -> bool:
        """Whether `take` would succeed now."""
        return self._next_id < self._end_id or self._following is not None

    def take(self) -> int:
        """A producer id never given out before.

        Raises ApiError(COORDINATOR_LOAD_IN_PROGRESS), which clients retry, while the next block is still on its way.
        """
        if self._next_id >= self._end_id and not self._start_following():
            self._ask()
            if not self._start_following():
                raise ApiError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the next block of producer ids is still being allocated"
                )
        producer_id = self._next_id
        self._next_id += 1
        if self._next_id >= self._prefetch_id and self._following is None:
            self._ask()
        return producer_id

    def ready(self) -> Deferred[None]:
        """Resolved once `take` can succeed, or asking for a block has failed (which `take` then reports)."""
        if self.available:
            return _READY
        self._ask()
        return self._request or _READY

    def _start_following(self) -> bool:
        if self._following is None:
            return False
        first, count = self._following
        self._following = None
        self._next_id, self._end_id = first, first + count
        self._prefetch_id = first + int(count * _PREFETCH_AT)
        return count > 0

    def _ask(self) -> None:
        if self._request is not None:
            return
        request: Deferred[None] = Deferred()
        self._request = request

        def arrived(block: Deferred[Block]) -> None:
            self._request = None
            try:
                self._following = block.result()
            except ApiError as error:
                log.warning("no block of producer ids: %s", error)
            request.resolve(None)

        self._allocate_block().then(arrived)
