"""Groups whose coordinator a client asks for again and again, and then sends nothing.

A share consumer of librdkafka (2.16) does that where share groups are not served, and reports no error. The Java client
(4.4) raises UnsupportedVersionException.
"""

from __future__ import annotations

from typing import Final

from minibroker.kernel.logs import get_logger

log = get_logger("minibroker.broker")

_TIMES: Final = 3
_KEPT: Final = 1000


class UnusedLookups:
    """Lookups of groups that do not exist yet, by client id and group; the last ones are kept."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str | None, str], int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def used(self, client_id: str | None, group: str) -> None:
        """The group exists: a member joined, or offsets were committed."""
        if self._counts:
            self._counts.pop((client_id, group), None)

    def unused(self, client_id: str | None, group: str) -> None:
        """A client looked up the coordinator of a group that does not exist. The third time is logged."""
        key = client_id, group
        count = self._counts[key] = self._counts.pop(key, 0) + 1
        if len(self._counts) > _KEPT:
            del self._counts[next(iter(self._counts))]
        if count == _TIMES:
            log.warning(
                "client %r has looked up the coordinator of group %r %d times and has not joined: "
                "a share consumer does so, and this broker has no share groups",
                client_id,
                group,
                count,
            )
