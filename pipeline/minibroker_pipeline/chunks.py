"""The rows that a log is judged by on their way through Spark: bytes, many rows together, keyed by a log's piece."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from minibroker.rules import rows as r
from minibroker.rules.file_rules import LogRow
from minibroker.rules.log_rules import LogVerdict, group_rows, judge_log
from minibroker_pipeline.pieces import head_of, judge_piece, lefts_of, piece_of, place_of

ROWS_TOGETHER = 65_536
"""Rows of a log travel as bytes, so many together at most, and are decoded only where they are judged."""
Extents: TypeAlias = dict[r.Log, list[tuple[int, int]]]
"""Of each log's chunks the first offset and the number of rows."""
Piece: TypeAlias = tuple[r.Log, int]
"""A log and the number of its piece, which is 0 for a log that is judged as a whole."""
Borders: TypeAlias = Mapping[r.Log, tuple[int, ...]]
"""Where the pieces after the first begin, of the logs that are judged in pieces."""


class Chunk(NamedTuple):
    """Pickled rows, `size` of them, of the offsets [first, last]; (-1, -1): of all pieces of their log."""

    first: int
    last: int
    size: int
    data: bytes

    @property
    def rows(self) -> Sequence[LogRow]:
        rows: Sequence[LogRow] = pickle.loads(self.data)
        return rows


def chunks_of(rows: Iterable[LogRow], together: int = ROWS_TOGETHER) -> Iterator[Chunk]:
    """A log's rows, of one part of it, in chunks of up to `together`."""
    placed, others = list[tuple[int, LogRow]](), list[tuple[int, LogRow]]()
    for row in rows:
        place = place_of(row)
        if place is None:
            others.append((r.NONE, row))
        else:
            placed.append((place, row))
    if len(placed) > together:
        placed.sort(key=itemgetter(0))
    for kind in (placed, others):
        for at in range(0, len(kind), together):
            places, some = zip(*kind[at : at + together], strict=True)
            yield Chunk(min(places), max(places), len(some), pickle.dumps(some, 5))


def pieces_of(borders: Borders) -> Iterator[Piece]:
    return ((log, piece) for log, offsets in borders.items() for piece in range(len(offsets) + 1))


def number_of(numbers: Mapping[Piece, int], piece: Piece) -> int:
    """Which partition of an RDD a piece goes to: those that are `numbers` are as large as a task may be."""
    from pyspark.core.rdd import portable_hash

    number = numbers.get(piece)
    return portable_hash(piece) if number is None else number


def by_piece(pair: tuple[r.Log, r.LogFacts | Chunk], borders: Borders) -> Iterator[tuple[Piece, r.LogFacts | Chunk]]:
    log, row = pair
    own = borders.get(log, ())
    if isinstance(row, r.LogFacts) or row.first < 0:
        yield from (((log, piece), row) for piece in range(len(own) + 1))
    elif (first := piece_of(row.first, own)) == piece_of(row.last, own):
        yield (log, first), row
    else:
        divided: dict[int, list[LogRow]] = defaultdict(list)
        for inner in row.rows:
            divided[piece_of(place_of(inner) or 0, own)].append(inner)
        for piece, rows in divided.items():
            yield from (((log, piece), chunk) for chunk in chunks_of(rows))


def _unpacked(values: Iterable[Any]) -> tuple[r.LogFacts, list[LogRow]]:
    """The facts and the rows of a log or a piece of one."""
    kept = list(values)
    facts = next(value for value in kept if isinstance(value, r.LogFacts))
    return facts, [row for value in kept if isinstance(value, Chunk) for row in value.rows]


def heads_in(pair: tuple[Piece, Iterable[Any]], borders: Borders) -> Iterator[tuple[r.Log, bytes]]:
    """By log the pickled facts and `Head` of a piece; nothing of a log that is judged as a whole."""
    (log, piece), values = pair
    if log in borders:
        facts, rows = _unpacked(values)
        yield log, pickle.dumps((facts, head_of(piece, facts, rows)), 5)


def lefts_in(
    pair: tuple[r.Log, Iterable[bytes]], borders: Borders, as_of_ms: int | None
) -> Iterator[tuple[Piece, bytes]]:
    """By piece its pickled `Left`, given all that `heads_in` gives of a log."""
    log, packed = pair
    facts, heads = zip(*map(pickle.loads, packed), strict=True)
    for piece, border in lefts_of(facts[0], heads, borders[log], as_of_ms):
        yield (log, piece), pickle.dumps(border, 5)


def judge_chunks(pair: tuple[Piece, Iterable[Any]], as_of_ms: int | None) -> LogVerdict:
    """The verdict on a log, or on a piece of one if a pickled `Left` is among its rows."""
    values = list(pair[1])
    facts, rows = _unpacked(values)
    border = next((pickle.loads(value) for value in values if isinstance(value, bytes)), None)
    if border is not None:
        return judge_piece(facts, rows, border, as_of_ms)
    return judge_log(group_rows([facts], rows)[0], as_of_ms=as_of_ms)
