"""What compaction decides of a single batch, where a whole log would not show the reason."""

import pytest
from producers import control, data, marker_header

from minibroker_protocol.records import BatchHeader, Record, build_batch, decode_records, parse_header
from minibroker_storage.compaction_rules import Filter, OffsetMap, Transactions
from minibroker_storage.producer_entry import LastRecord
from minibroker_storage.txn_index import AbortedTxn

NOW = 1_000_000


def filter_of(
    latest: dict[bytes, int] | None = None,
    *,
    until: int = 100,
    aborted: tuple[AbortedTxn, ...] = (),
    last: dict[int, LastRecord] | None = None,
    upper_bound: int = 1 << 60,
) -> Filter:
    offsets = OffsetMap(1 << 20)
    for key, offset in (latest or {}).items():
        offsets.put(key, offset)
    offsets.latest = until
    return Filter(
        offsets,
        Transactions(aborted),
        last or {},
        upper_bound=upper_bound,
        delete_retention_ms=1000,
        now_ms=NOW,
        max_batch_bytes=1 << 20,
    )


def batch(*records: Record, **more: object) -> tuple[BatchHeader, bytes]:
    built = bytes(build_batch(records, base_offset=records[0].offset, keep_offsets=True, **more))  # type: ignore[arg-type]
    return parse_header(built), built


def test_a_key_is_paid_for_once() -> None:
    offsets = OffsetMap(150)
    assert all(offsets.put(b"k", n) for n in range(10))
    assert offsets.put(b"l", 10)
    assert not offsets.put(b"m", 11)
    assert offsets.put(b"k", 12), "a known key always has room"
    assert (offsets.get(b"k"), offsets.get(b"m"), len(offsets)) == (12, -1, 2)


@pytest.mark.parametrize(("offset", "kept"), [(10, False), (11, True)])
def test_past_the_map_everything_stays(offset: int, kept: bool) -> None:
    """A record without a key and a tombstone whose time has come: both only stay where the map does not reach."""
    rules = filter_of({b"k": offset}, until=10)
    assert (rules.clean(*batch(Record(offset, NOW, None, b"v"))) is not None) is kept
    tombstone = batch(Record(offset, NOW, b"k", None), delete_horizon_ms=NOW)
    assert (rules.clean(*tombstone) is not None) is kept


def test_log_append_time_stays_the_time_of_all_records() -> None:
    first, second = Record(0, 5, b"k", b"1"), Record(1, 5, b"l", b"1")
    header, built = batch(first, second, timestamp_type=1, max_timestamp=77)
    kept = filter_of({b"k": 50, b"l": 1}).clean(header, built)
    assert kept is not None
    assert kept[0].log_append_time
    assert [(r.offset, r.timestamp) for r in decode_records(kept[1], 0, kept[0])] == [(1, 77)]


def test_the_batch_that_ends_the_round_stays_empty() -> None:
    rules = filter_of({b"k": 50}, upper_bound=2)
    kept = rules.clean(*batch(Record(0, 5, b"k", b"1"), Record(1, 5, b"k", b"1"), compression=1))
    assert kept is not None
    assert (kept[0].base_offset, kept[0].last_offset, kept[0].record_count, kept[0].size) == (0, 1, 0, 61)
    assert kept[0].compression == 0
    assert kept[0].max_timestamp == 5


@pytest.mark.parametrize(
    ("last", "stays"),
    [
        (LastRecord(0, 0), True),
        (LastRecord(1, 0), False),
        (LastRecord(-1, 0), False),
        (None, False),
    ],
)
def test_the_batch_with_the_last_sequence_stays_empty(last: LastRecord | None, stays: bool) -> None:
    rules = filter_of({b"k": 50}, last={} if last is None else {7: last})
    kept = rules.clean(*batch(Record(0, 5, b"k", b"1"), producer_id=7, producer_epoch=0, base_sequence=3))
    assert (kept is not None) is stays


def aborted(pid: int, first: int, last: int) -> AbortedTxn:
    return AbortedTxn(pid, first, last, last + 1)


def test_an_abort_marker_is_needed_while_a_batch_of_its_own_transaction_is_there() -> None:
    transactions = Transactions([aborted(7, 0, 1), aborted(7, 5, 6)])
    assert transactions.is_aborted(data(0, 0, txn=True))
    assert transactions.end(marker_header(1), control(commit=False)) == (False, aborted(7, 0, 1))
    assert transactions.end(marker_header(6), control(commit=False)) == (True, None), "its data is gone"


def test_a_commit_marker_is_needed_while_a_batch_of_its_own_transaction_is_there() -> None:
    transactions = Transactions([])
    assert not transactions.is_aborted(data(0, 0, txn=True))
    assert transactions.end(marker_header(1), control()) == (False, None)
    assert transactions.end(marker_header(2), control()) == (True, None)


def test_batches_outside_transactions_need_no_marker_and_are_not_aborted() -> None:
    transactions = Transactions([aborted(7, 0, 5)])
    assert not transactions.is_aborted(data(2, 0))
    assert transactions.end(marker_header(5), control(commit=False)) == (True, None)
    assert not transactions.is_aborted(data(6, 0))
    assert transactions.end(marker_header(7), control()) == (True, None)


def test_an_emptied_control_batch_is_not_needed() -> None:
    assert Transactions([]).end(marker_header(1, count=0), None) == (True, None)


def test_a_needed_marker_stays_whatever_its_time() -> None:
    rules = filter_of(aborted=(aborted(7, 0, 1),))
    rules.clean(*batch(Record(0, 5, b"k", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    marker = Record(1, 5, b"\0\0\0\0", b"\0\0\0\0\0\0")
    header, built = batch(
        marker, producer_id=7, producer_epoch=0, transactional=True, control=True, delete_horizon_ms=NOW - 1
    )
    assert rules.clean(header, built) == (header, built)
    assert rules.kept_aborts == [aborted(7, 0, 1)]
    assert rules.clean(header, built) is None, "the same without its data"
