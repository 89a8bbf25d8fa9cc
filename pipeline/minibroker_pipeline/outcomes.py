"""Which records a read_committed reader sees."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from minibroker.rules.rows import COMMIT, Log, Transaction
from minibroker_pipeline.reading import PlainRecord


class Outcomes(NamedTuple):
    """Transactions that did not commit: (log, producer id) -> their first and last offsets, in order.

    open: (log, producer id) -> the first offset of its open transaction.
    """

    undone: dict[tuple[Log, int], list[tuple[int, int]]]
    open: dict[tuple[Log, int], int]

    def committed(self, record: PlainRecord) -> bool:
        """Whether a read_committed reader sees the record."""
        spans = self.undone.get((record.log, record.producer_id)) if record.transactional else None
        if not spans:
            return True
        number = bisect_right(spans, (record.offset, 1 << 62)) - 1
        return number < 0 or record.offset > spans[number][1]

    def is_open(self, record: PlainRecord) -> bool:
        """Whether the record's transaction has no marker."""
        first = self.open.get((record.log, record.producer_id)) if record.transactional else None
        return first is not None and record.offset >= first


def outcomes_of(transactions: Iterable[Transaction], topics: Iterable[str] | None = None) -> Outcomes:
    """The outcomes of these topics' transactions; None: of all transactions."""
    chosen = None if topics is None else set(topics)
    undone: dict[tuple[Log, int], list[tuple[int, int]]] = defaultdict(list)
    unended: dict[tuple[Log, int], int] = {}
    for txn in transactions:
        if (chosen is None or txn.log.topic in chosen) and txn.first_offset >= 0 and txn.outcome != COMMIT:
            undone[txn.log, txn.producer_id].append((txn.first_offset, txn.last_offset))
            if not txn.outcome:
                unended[txn.log, txn.producer_id] = txn.first_offset
    return Outcomes({place: sorted(spans) for place, spans in undone.items()}, unended)
