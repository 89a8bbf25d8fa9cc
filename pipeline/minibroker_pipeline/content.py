"""The rule by records' content: the same record written twice around an epoch bump."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from minibroker.rules.history_rules import judge_content
from minibroker.rules.rows import Content, Finding, Log
from minibroker_pipeline.files import Part
from minibroker_pipeline.outcomes import Outcomes
from minibroker_pipeline.plan import Plan
from minibroker_pipeline.reading import read_records


def content_rows(plan: Plan, part: Part, outcomes: Outcomes) -> Iterator[tuple[tuple[Log, int, bytes], Content]]:
    """((log, producer id, digest), content) of the records that have a producer and were not aborted: aborted records
    are rightly written again."""
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
        content = Content(log, record.offset, record.producer_id, record.producer_epoch, digest.hexdigest())
        yield (log, record.producer_id, digest.digest()), content


def _of_producers(headers: Any) -> Any:
    return (headers["producer_id"] >= 0) & ((headers["attributes"] & 0x20) == 0)


def judge_same(key: tuple[Log, int, bytes], rows: Iterable[Content]) -> list[Finding]:
    return judge_content(key[2], rows)
