"""A replica that was down while its leader was compacted has records whose marker it never got: a notice wherever the
log is read, and a marker that is missing otherwise is an error.

Kafka 4.4.0 under `lawful_load`: a follower ended at offset 470 with a transaction open since 208; its leader's cleaner
took records and marker, and it went on at 689.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from planting import write_files

pytest.importorskip("pyarrow")

from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.directory import check_partition
from minibroker.rules.live import LiveJudge
from minibroker.rules.rows import EVERYTHING, MAX_HOLES, Hole, Log, LogFacts, Span, fewer_holes
from minibroker_pipeline.engine import audit_here
from minibroker_pipeline.files import Files
from minibroker_pipeline.headers import scan_bytes
from minibroker_pipeline.listing import SPLIT_BYTES, list_directory
from minibroker_pipeline.plan import Plan
from minibroker_protocol.records import Record, build_batch, end_txn_marker
from minibroker_storage.os_disk import OsDisk

LOG = Log("", "t", 0)
Found = list[tuple[str, str, int]]
"""Rule, severity, first offset."""


def data(offset: int, epoch: int, sequence: int = 0) -> bytes:
    """A record of a transaction."""
    record = [Record(0, 100 + offset, b"k", b"v")]
    producer = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence}
    return bytes(build_batch(record, base_offset=offset, leader_epoch=0, transactional=True, **producer))  # type: ignore[arg-type]


def other(offset: int) -> bytes:
    """A record of no producer that matters."""
    return bytes(build_batch([Record(0, 100, b"o", b"v")], base_offset=offset, leader_epoch=0))


def marker(offset: int, epoch: int) -> bytes:
    return bytes(
        end_txn_marker(
            producer_id=7,
            producer_epoch=epoch,
            commit=True,
            coordinator_epoch=0,
            timestamp_ms=100 + offset,
            base_offset=offset,
            leader_epoch=0,
        )
    )


def emptied(offset: int, epoch: int) -> bytes:
    """What Kafka's cleaner leaves of a producer's last marker."""
    producer = {"producer_id": 7, "producer_epoch": epoch, "leader_epoch": 0}
    return bytes(build_batch([], base_offset=offset, transactional=True, control=True, last_offset_delta=0, **producer))  # type: ignore[arg-type]


def thinned(first: int, end: int) -> bytes:
    """Of these offsets compaction left a record."""
    return bytes(build_batch([Record(0, 100, b"o", b"v")], base_offset=first, last_offset_delta=end - first - 1))


def others(first: int, end: int) -> list[bytes]:
    return [other(offset) for offset in range(first, end)]


def written(batches: list[bytes], folder: Path) -> Path:
    stem = "t-0/00000000000000000000"
    return write_files({f"{stem}.log": b"".join(batches), f"{stem}.index": b"", f"{stem}.timeindex": b""}, folder)


def check(batches: list[bytes], folder: Path, policies: dict[str, bool | None] = {"t": True}) -> Found:  # noqa: B006
    disk = OsDisk(str(written(batches, folder)))
    found = check_partition(disk, "t-0", policies=policies)
    return [(one.rule, one.severity, one.offset or 0) for one in found]


def audit(batches: list[bytes], folder: Path, split_bytes: int = SPLIT_BYTES) -> Found:
    files = Files(str(written(batches, folder)))
    listed = list_directory(files, compacted={"t"}, split_bytes=split_bytes)
    found = audit_here(Plan(files, tuple(listed.facts), tuple(listed.parts), files.uri))[1]
    return [(one.rule, one.severity, one.first_offset) for one in found]


def follow(batches: list[bytes], folder: Path) -> Found:
    """Each batch comes alone, and is judged before the next one."""
    judge, found = LiveJudge(), []
    facts = LogFacts(LOG, cleaned_offset=EVERYTHING, compacts=True, indexed=False)
    for batch in batches:
        judge.know(facts)
        judge.take(LOG, scan_bytes(facts, "t-0", memoryview(batch)).rows, 1_000)
        found += judge.judge(1_000)
    return [(one.rule, one.severity, one.first_offset) for one in found]


def audit_in_parts(batches: list[bytes], folder: Path) -> Found:
    """Each batch is read by another task."""
    return audit(batches, folder, split_bytes=1)


WAYS = [check, audit, audit_in_parts, follow]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "batches",
    [
        [data(0, 0), data(9, 2), marker(10, 2)],
        [data(0, 0), marker(9, 2)],
        [data(0, 0), *others(1, 5), data(9, 2), marker(10, 2)],
        [data(0, 0), *others(1, 5), other(9)],
        # Kafka empties a marker only when no record of its transaction is left
        [data(0, 0), emptied(1, 0)],
        [data(0, 0), *others(1, 5), emptied(5, 0), data(6, 1), marker(7, 1)],
    ],
)  # fmt: skip
def test_a_replica_that_was_down(
    way: Callable[[list[bytes], Path], Found], batches: list[bytes], tmp_path: Path
) -> None:
    assert way(batches, tmp_path) == [("torn-transaction", NOTICE, 0)]


LATE = [data(6, 2), marker(7, 2)]
WITHIN = ("outside-transaction", ERROR, 6)
ENDS = ("marker-epoch", ERROR, 7)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("batches", "found"),
    [
        # between holes that lie far away
        ([other(0), other(3), *others(4, 5), data(5, 0), *LATE, other(12)], [WITHIN, ENDS]),
        # the marker alone, and a hole that is not where it was
        ([*others(0, 4), data(4, 0), *LATE], [WITHIN, ENDS]),
        ([data(0, 0), *others(2, 4), *LATE], [WITHIN, ENDS]),
        # a hole before the transaction, and one within it
        ([data(5, 0), *LATE], [WITHIN, ENDS]),
        ([data(0, 0), data(5, 0, 1), *LATE], [WITHIN, ENDS]),
        ([data(0, 0), data(3, 0, 1), *LATE], [WITHIN, ENDS]),
    ],
)  # fmt: skip
def test_a_marker_that_is_missing_otherwise(
    way: Callable[[list[bytes], Path], Found], batches: list[bytes], found: Found, tmp_path: Path
) -> None:
    assert way(batches, tmp_path) == found


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        # A file that is lost looks so too
        ([data(0, 0), *LATE], [("offset-hole", NOTICE, 1), WITHIN, ENDS]),
        # compaction was here: a batch has fewer records than offsets
        (
            [thinned(0, 3), data(3, 0), data(9, 2), marker(10, 2)],
            [("offset-hole", NOTICE, 0), ("torn-transaction", NOTICE, 3)],
        ),
    ],
)  # fmt: skip
def test_of_a_topic_whose_policy_is_not_known(batches: list[bytes], found: Found, tmp_path: Path) -> None:
    assert check(batches, tmp_path, policies={}) == found


def test_a_span_has_so_many_holes() -> None:
    """The nearest become one. How much is missing stays exact."""
    span = Span(LOG, "f", 0, 0, 1)
    for number in range(1, 5 * MAX_HOLES):
        at = 10 * number + (number % MAX_HOLES == 0)
        span = span.joined(Span(LOG, "f", 0, at, at + 1))
    assert MAX_HOLES <= len(span.holes) <= 2 * MAX_HOLES
    assert sum(hole.missing for hole in span.holes) == span.end_offset - 5 * MAX_HOLES
    holes = tuple(Hole(first, first + 1, 1) for first in range(0, 9 * MAX_HOLES, 3))
    far = (Hole(100_000, 100_009, 9), Hole(200_000, 200_002, 2))
    fewer = fewer_holes((*holes, *far))
    assert len(fewer) == MAX_HOLES
    assert fewer[-2:] == far
