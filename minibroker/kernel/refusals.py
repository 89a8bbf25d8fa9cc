"""Why requests were refused: the expected value, the received one, and the rule; kept for later queries.

Most APIs have room for a code only. The reason is logged at debug level under this module's name, and the latest ones
are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from minibroker.kernel.logs import get_logger

log = get_logger(__name__)

KEPT: Final = 1000


class Refusal(NamedTuple):
    """One refused request, or part of one.

    time_ms: broker clock.
    code: as sent, which older versions of an API get instead of a newer one.
    subject: a transactional id, a group, or topic and partition.
    reason: the expected and the received value.
    """

    time_ms: int
    node_id: int
    api: str
    api_version: int
    client_id: str | None
    subject: str
    code: int
    error: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.api} v{self.api_version} of {self.subject} refused with {self.error} ({self.code}): {self.reason}"
        )


class Refusals:
    """The last refusals of one broker, oldest first.

    heard: called with the request's context at the first refusal of a client's request that nothing records yet.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept: deque[Refusal] = deque(maxlen=kept)
        self.heard: Callable[[Any, Refusal], None] | None = None

    def note(self, refusal: Refusal) -> None:
        self._kept.append(refusal)
        log.debug("%s", refusal)

    def __iter__(self) -> Iterator[Refusal]:
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        self._kept.clear()
