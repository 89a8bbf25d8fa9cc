"""What a scan makes of single batches."""

from __future__ import annotations

import pytest

from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.records import record_of, tombstone_of
from minibroker.coordinators.transactions.states import PREPARE_ABORT
from minibroker.rules import rows as r
from minibroker.rules.scan import (
    CHECKSUMS,
    HEADERS,
    RECORDS,
    batch_fault,
    control_rows,
    coordinator_rows,
    index_rows,
    snapshot_rows,
)
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    end_txn_marker,
    parse_header,
    patch_offsets,
    rewrite_header,
)
from minibroker_storage.dump_decoders import decode_coordinator_record

LOG = r.Log("", "t", 0)
HEADER_SIZE = 61


@pytest.mark.parametrize(
    ("size", "count", "found"),
    [
        (None, 1, [r.ABORT]),
        (HEADER_SIZE, 0, [""]),  # as compaction leaves it
        (HEADER_SIZE, 1, ["record-count"]),  # the record that it counts is not there
        (HEADER_SIZE + 4, 1, ["record-count"]),
    ],
)
def test_a_marker_and_its_record(size: int | None, count: int, found: list[str]) -> None:
    data = bytearray(
        end_txn_marker(producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=3, timestamp_ms=100)
    )[:size]
    header = parse_header(data)
    header.batch_length, header.record_count = len(data) - 12, count
    rewrite_header(data, 0, header)
    rows = list(control_rows(LOG, "f", 0, parse_header(data), memoryview(data)))
    assert [row.outcome if isinstance(row, r.Marker) else row.rule for row in rows] == found  # type: ignore[union-attr]


def batch(at: int = 0, *, records: int = 2, broken: bool = False, **fields: int) -> tuple[memoryview, BatchHeader]:
    """Two records at an offset, with other header fields; the checksum is right unless it is `broken`."""
    data = build_batch([Record(i, 100 + i, None, b"v") for i in range(records)])
    patch_offsets(data, 0, at, 0)
    header = parse_header(data)
    for name, value in fields.items():
        setattr(header, name, value)
    rewrite_header(data, 0, header)
    if broken:
        data[-1] ^= 1
    return memoryview(data), parse_header(data)


@pytest.mark.parametrize(
    ("made", "rule", "readable", "depths"),
    [
        (batch(5), None, None, (HEADERS, CHECKSUMS, RECORDS)),
        (batch(5, last_offset_delta=-1), "record-count", False, (HEADERS, CHECKSUMS, RECORDS)),
        (batch(5, record_count=-1), "record-count", False, (HEADERS, CHECKSUMS, RECORDS)),
        (batch(5, broken=True), "checksum", False, (CHECKSUMS, RECORDS)),
        (batch(5, last_offset_delta=2), None, None, (HEADERS, CHECKSUMS, RECORDS)),  # compaction took one
        (batch(5, last_offset_delta=0, record_count=1), "record-count", True, (RECORDS,)),
        (batch(5, max_timestamp=102), "timestamp", True, (RECORDS,)),
    ],
)
def test_a_batch_by_itself(
    made: tuple[memoryview, BatchHeader], rule: str | None, readable: bool | None, depths: tuple[str, ...]
) -> None:
    """The less is read of it, the less is found; `readable`: the batch can be read all the same."""
    data, header = made
    for depth in (HEADERS, CHECKSUMS, RECORDS):
        found = batch_fault(r.LogFacts(LOG), "f", 7, header, data, depth)
        assert (found is not None) == (rule is not None and depth in depths), depth
        if found is not None:
            assert (found.rule, found.readable) == (rule, readable)
            assert (found.log, found.file, found.position, found.first_offset) == (LOG, "f", 7, 5)


def test_a_state_has_the_same_row_in_every_version_and_layout() -> None:
    state = TransactionMetadata(
        transactional_id="a",
        producer_id=3,
        producer_epoch=2,
        previous_producer_id=4,
        last_producer_epoch=1,
        timeout_ms=60_000,
        state=PREPARE_ABORT,
        partitions=frozenset({("t", 1), ("t", 0)}),
        start_ms=5,
        last_update_ms=6,
    )
    written = [
        record_of(state, value_version=0, with_last_epoch=False),
        record_of(state, value_version=1, with_last_epoch=True),
        record_of(state, value_version=1, with_last_epoch=True, layout="kip-360"),
        tombstone_of("a"),
    ]
    data = bytes(build_batch([Record(i, 7, one.key_bytes(), one.value_bytes()) for i, one in enumerate(written)]))
    log, header = r.Log("", r.TRANSACTION_STATE, 0), parse_header(data)
    *rows, gone = [tuple(row)[1:] for row in coordinator_rows(log, header, memoryview(data))]
    fields = (header.partition_leader_epoch, "a", 3, 2, 60_000, "PrepareAbort", (("t", 0), ("t", 1)), 5, 6, 7)
    assert rows == [(offset, *fields) for offset in range(3)]
    assert gone == (3, header.partition_leader_epoch, "a", r.NONE, r.NONE, 0, "", (), r.NONE, r.NONE, r.NONE)
    shown = [decode_coordinator_record(log.topic, one.key_bytes(), one.value_bytes()) or {} for one in written]
    assert [(one["type"], one.get("version")) for one in shown] == [
        ("TransactionLog", 0), ("TransactionLog", 1), ("LiteralTransactionLog", 1), ("TransactionLog", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("clean", "recovery_point", "snapshot", "index"),
    [(False, 39, True, True), (False, 40, False, True), (False, 41, False, False), (True, 0, False, False)],
)
def test_a_kill_may_leave_a_part_of_a_file_above_the_recovery_point(
    clean: bool, recovery_point: int, snapshot: bool, index: bool
) -> None:
    """A snapshot at the recovery point was synced before it; the index of a segment that begins there is made anew.
    An empty snapshot is what a Kafka 4.4.0 left that was killed while it rolled a segment."""
    facts = r.LogFacts(LOG, clean=clean, recovery_point=recovery_point)
    (fault,) = snapshot_rows(facts, f"{40:020}.snapshot", b"")
    assert isinstance(fault, r.LogFault)
    assert (fault.rule, fault.first_offset, fault.mended) == ("producer-snapshot", 40, snapshot)
    (fault,) = index_rows(facts, f"{40:020}.txnindex", bytes(3))
    assert isinstance(fault, r.LogFault)
    assert (fault.rule, fault.mended) == ("abort-index", index)
