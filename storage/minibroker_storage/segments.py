"""The segments of a log in order of their base offsets (Kafka's LogSegments)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from minibroker_storage.segment import Segment


class Segments:
    """Copy on write: a caller of ``all``, also in another thread, has a list that does not change."""

    __slots__ = ("_state", "active")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._state: tuple[list[int], list[Segment]] = ([], [])
        self.active: Segment
        self.replace(segments)

    def replace(self, segments: Iterable[Segment]) -> None:
        ordered = sorted(segments, key=lambda segment: segment.base_offset)
        self._state = ([segment.base_offset for segment in ordered], ordered)
        # Kept beside the list: every append asks for it.
        if ordered:
            self.active = ordered[-1]

    def drop(self, gone: Iterable[Segment]) -> None:
        lost = set(map(id, gone))
        self.replace([segment for segment in self._state[1] if id(segment) not in lost])

    @property
    def all(self) -> list[Segment]:
        return self._state[1]

    @property
    def first(self) -> Segment:
        return self._state[1][0]

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that would hold ``offset`` and all later ones."""
        bases, segments = self._state
        return segments[max(bisect_right(bases, offset) - 1, 0) :]

    def next_base(self, segment: Segment) -> int | None:
        """Base offset of the segment after this one, None for the last."""
        bases, _ = self._state
        i = bisect_right(bases, segment.base_offset)
        return bases[i] if i < len(bases) else None

    def __len__(self) -> int:
        return len(self._state[1])

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._state[1])

    @property
    def size(self) -> int:
        """Bytes of all logs together."""
        return sum(segment.size for segment in self._state[1])
