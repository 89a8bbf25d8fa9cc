"""How much of topics is read at once: limits of a stream's batches, and the splitting of partitions into tasks."""

from __future__ import annotations

import heapq
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from minibroker.client.topics import Span
from minibroker_pipeline.stream_offsets import from_json

Place = tuple[str, int]
"""Topic and partition."""


def sizes(start: Mapping[Place, int], end: Mapping[Place, int]) -> dict[Place, int]:
    """How many offsets each partition has between two positions, of those that have any. A partition that `start` lacks
    begins at 0."""
    new = {place: stop - start.get(place, 0) for place, stop in end.items()}
    return {place: size for place, size in new.items() if size > 0}


def limited(start: Mapping[Place, int], end: Mapping[Place, int], most: int) -> dict[Place, int]:
    """`end` with about `most` offsets after `start`, shared by the partitions in proportion to what they have.

    As Spark's own connector: each partition with anything new gets at least one, so that none starves.
    """
    new = sizes(start, end)
    total = sum(new.values())
    if total <= most:
        return dict(end)
    stops = dict(end)
    for place, size in new.items():
        # The whole numbers are exact where a float is not.
        share = max(1, most * size // total)
        stops[place] = min(end[place], start.get(place, 0) + share)
    return stops


class Delay:
    """Holds a batch back while it is small, but not for ever. Times are ms, of a clock that never goes back."""

    def __init__(self, least: int, longest_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._longest_ms = longest_ms
        self._clock = clock
        self._last: float | None = None

    def holds(self, count: int) -> bool:
        """Whether a batch of so many offsets has to wait. The first one with any never does, as with Spark's own."""
        if not count:
            return True
        now = self._clock() * 1000
        if count < self._least and self._last is not None and now - self._last < self._longest_ms:
            return True
        self._last = now
        return False


def split(spans: Sequence[Span], least: int | None, most: int | None) -> list[Span]:
    """The spans cut into at least `least` tasks of at most `most` offsets, the longest first. Each has an offset."""
    counts = [1 if most is None else math.ceil((span.stop - span.start) / most) for span in spans]
    # What is longest after its cuts is cut once more.
    waiting = [(-_length(span, count), index) for index, (span, count) in enumerate(zip(spans, counts, strict=True))]
    heapq.heapify(waiting)
    missing = (least or 0) - sum(counts)
    while missing > 0 and waiting:
        _, index = heapq.heappop(waiting)
        span = spans[index]
        if counts[index] < span.stop - span.start:
            counts[index] += 1
            missing -= 1
            heapq.heappush(waiting, (-_length(span, counts[index]), index))
    return [part for span, count in zip(spans, counts, strict=True) for part in _parts(span, count)]


def _length(span: Span, count: int) -> float:
    return (span.stop - span.start) / count


def _parts(span: Span, count: int) -> list[Span]:
    edges = [span.start + (span.stop - span.start) * number // count for number in range(count + 1)]
    return [span._replace(start=start, stop=stop) for start, stop in pairwise(edges)]


class Behind(NamedTuple):
    """How many offsets a stream has still to read, by partition: Spark's metrics `…OffsetsBehindLatest`."""

    minimum: int
    maximum: int
    average: float
    total: int


def behind(source: Mapping[str, Any]) -> Behind:
    """The lag in one of the `sources` of a query's progress. Raises ValueError without offsets of this source."""
    latest, end = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
    missing = [max(0, offset - end.get(place, 0)) for place, offset in latest.items()] or [0]
    return Behind(min(missing), max(missing), sum(missing) / len(missing), sum(missing))


def _offsets(content: Any) -> dict[Place, int]:
    if isinstance(content, str):
        content = json.loads(content)
    if not isinstance(content, Mapping):
        raise ValueError("the progress has no offsets yet")
    return {
        (topic, partition): position.offset
        for topic, of in from_json(content).items()
        for partition, position in of.partitions.items()
    }
