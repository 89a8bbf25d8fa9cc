"""The rules by records' content: lineage of an application, and the same record written twice around an epoch bump."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from minibroker.rules.history_rules import Place, judge_content, judge_lineage
from minibroker.rules.offset_rules import final_offsets
from minibroker.rules.rows import COMMIT, CONSUMER_OFFSETS, CommittedOffset, Content, Finding, Log, Transaction
from minibroker_pipeline.files import Part
from minibroker_pipeline.plan import Lineage, Plan
from minibroker_pipeline.reading import PlainRecord, read_records

INPUT, OUTPUT = "input", "output"


class Outcomes(NamedTuple):
    """Transactions that did not commit: (log, producer id) -> their first and last offsets, in order."""

    undone: dict[tuple[Log, int], list[tuple[int, int]]]

    def committed(self, record: PlainRecord) -> bool:
        """Whether a read_committed reader is given the record."""
        spans = self.undone.get((record.log, record.producer_id)) if record.transactional else None
        if not spans:
            return True
        number = bisect_right(spans, (record.offset, 1 << 62)) - 1
        return number < 0 or record.offset > spans[number][1]


def outcomes_of(transactions: Iterable[Transaction], topics: Iterable[str] | None = None) -> Outcomes:
    """Of these topics' transactions, of all when None."""
    chosen = None if topics is None else set(topics)
    undone: dict[tuple[Log, int], list[tuple[int, int]]] = defaultdict(list)
    for txn in transactions:
        if (chosen is None or txn.log.topic in chosen) and txn.first_offset >= 0 and txn.outcome != COMMIT:
            undone[txn.log, txn.producer_id].append((txn.first_offset, txn.last_offset))
    return Outcomes({place: sorted(spans) for place, spans in undone.items()})


def consumed(
    lineage: Lineage, commits: Iterable[CommittedOffset], transactions: Iterable[Transaction]
) -> dict[tuple[str, int], int] | None:
    """(topic, partition) -> the offset up to which the group has consumed; None without a group: everything."""
    if lineage.group is None:
        return None
    offsets = [txn for txn in transactions if txn.log.topic == CONSUMER_OFFSETS]
    final = final_offsets(commits, offsets)
    return {(c.topic, c.partition): c.committed for c in final if c.group == lineage.group}


def key_of(record: PlainRecord, how: str) -> bytes | None:
    """What ties an input record to its output; None for a record that has nothing of the kind."""
    if how == "key":
        return record.key
    if how == "value":
        return record.value
    name = how.removeprefix("header:")
    return next((value for found, value in record.headers if found == name), None)


def lineage_rows(
    plan: Plan, part: Part, outcomes: Outcomes, offsets: Mapping[tuple[str, int], int] | None
) -> Iterator[tuple[bytes, tuple[str, Place]]]:
    """(key, (side, place)) of a part's committed records."""
    lineage = plan.lineage
    assert lineage is not None
    log = part.facts.log
    sides = [side for side, topics in ((INPUT, lineage.inputs), (OUTPUT, lineage.outputs)) if log.topic in topics]
    end = 1 << 62 if offsets is None else offsets.get((log.topic, log.partition), 0)
    for record in read_records(plan.files, part) if sides else ():
        key = key_of(record, lineage.key)
        if key is None or record.offset < part.facts.start_offset or not outcomes.committed(record):
            continue
        for side in sides:
            if side == OUTPUT or record.offset < end:
                yield key, (side, Place(log, record.offset))


def judge_key(key: bytes, rows: Iterable[tuple[str, Place]]) -> list[Finding]:
    """`judge_lineage` over what `lineage_rows` gave for one key."""
    sides: dict[str, list[Place]] = {INPUT: [], OUTPUT: []}
    for side, place in rows:
        sides[side].append(place)
    return judge_lineage(_shown(key), sorted(sides[INPUT]), sorted(sides[OUTPUT]))


def _shown(key: bytes) -> Any:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def content_rows(plan: Plan, part: Part, outcomes: Outcomes) -> Iterator[tuple[tuple[Log, int, bytes], Content]]:
    """((log, producer id, digest), content) of the records that have a producer and stand: what was aborted is rightly
    written again."""
    log = part.facts.log
    for record in read_records(plan.files, part, chosen=_of_producers):
        if not outcomes.committed(record):
            continue
        digest = hashlib.blake2b(digest_size=16)
        for piece in (record.key, record.value, *(item for header in record.headers for item in header)):
            data = b"" if piece is None else piece.encode() if isinstance(piece, str) else piece
            digest.update(f"{-1 if piece is None else len(data)} ".encode())
            digest.update(data)
        digest.update(str(record.timestamp).encode())
        found = Content(log, record.offset, record.producer_id, record.producer_epoch, digest.hexdigest())
        yield (log, record.producer_id, digest.digest()), found


def _of_producers(headers: Any) -> Any:
    return (headers["producer_id"] >= 0) & ((headers["attributes"] & 0x20) == 0)


def judge_same(key: tuple[Log, int, bytes], rows: Iterable[Content]) -> list[Finding]:
    return judge_content(key[2], rows)
