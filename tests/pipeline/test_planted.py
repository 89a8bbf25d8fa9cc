"""Every rule finds its fault in a copy of what Apache Kafka 4.3.1 wrote, and nothing in the copy as it was."""

import re
import struct

import pytest
from planting import Planted, at, changed, flipped_marker, header_of, marker

from minibroker.rules.catalogue import ERROR, NOTICE, RULES
from minibroker.rules.rows import Content, Log
from minibroker.rules.rules import judge_content
from minibroker_pipeline.remedies import remedies_of
from minibroker_protocol.records import Record, build_batch, decode_records
from minibroker_protocol.records.batch import crc32c

TRANSACTIONAL = 0x10
DAY_MS = 86_400_000


def rules(planted: Planted, **options: int) -> set[str]:
    return {finding.rule for finding in planted.findings(**options) if finding.severity == ERROR}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("depth", ["headers", "checksums", "records"])
def test_what_kafka_wrote_has_no_finding(name: str, depth: str) -> None:
    planted = Planted(name)
    latest = max(
        header_of(batch).max_timestamp for batch in planted.batches("rolled-0" if name == "killed" else "txn-a-0")
    )
    assert planted.findings(depth=depth, as_of_ms=latest + (365 * DAY_MS if name == "clean" else 0)) == []


def test_sequence_gap() -> None:
    planted = Planted()
    last = planted.batches("append-time-0")[-1]
    planted.append("append-time-0", last, base_sequence=11)
    assert [at(f) for f in planted.findings()] == [("sequence-gap", "append-time-0", 9, 11)]
    planted = Planted()
    planted.append("append-time-0", last, base_sequence=9)
    assert planted.findings() == []


def test_a_new_epoch_begins_at_sequence_0() -> None:
    planted = Planted()
    last = planted.batches("append-time-0")[-1]
    planted.append("append-time-0", last, base_sequence=3, producer_epoch=1)
    assert [at(f) for f in planted.findings()] == [("sequence-gap", "append-time-0", 9, 11)]
    planted = Planted()
    planted.append("append-time-0", last, base_sequence=0, producer_epoch=1)
    assert planted.findings() == []


def test_sequences_go_on_at_0_after_the_largest() -> None:
    planted = Planted()
    last = planted.batches("append-time-0")[-1]
    planted.append("append-time-0", last, base_sequence=0, producer_epoch=1)
    planted.append("append-time-0", last, base_sequence=2**31 - 2, producer_epoch=2)
    planted.append("append-time-0", last, base_sequence=1, producer_epoch=2)
    planted.append("append-time-0", last, base_sequence=4, producer_epoch=2)
    assert [at(f) for f in planted.findings()] == [("sequence-gap", "append-time-0", 12, 14)]


def test_duplicate() -> None:
    planted = Planted()
    planted.append("append-time-0", planted.find("append-time-0", 3))
    assert [at(f) for f in planted.findings()] == [("duplicate", "append-time-0", 9, 11)]


def test_one_duplicate_is_told_once() -> None:
    planted = Planted()
    planted.append("append-time-0", planted.find("append-time-0", 3))
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=9)
    assert [at(f) for f in planted.findings()] == [("duplicate", "append-time-0", 9, 11)]


def test_duplicate_content_after_a_bump() -> None:
    planted = Planted()
    first = planted.find("append-time-0", 0)
    planted.append("append-time-0", first, base_sequence=0, producer_epoch=1)
    assert planted.findings() == []
    log = Log("", "append-time", 0)
    records: dict[bytes, list[Content]] = {}
    for batch in planted.batches("append-time-0"):
        header = header_of(batch)
        for record in decode_records(batch, 0, header):
            content = Content(log, record.offset, header.producer_id, header.producer_epoch, bytes(record.value or b""))
            records.setdefault(bytes(record.value or b""), []).append(content)
    found = [finding for key, same in records.items() for finding in judge_content(key, same)]
    assert sorted(at(f) for f in found) == [("duplicate-content", "append-time-0", n, n) for n in (9, 10, 11)]


def test_epoch_going_back() -> None:
    planted = Planted()
    last = planted.batches("append-time-0")[-1]
    planted.append("append-time-0", last, base_sequence=0, producer_epoch=1)
    planted.append("append-time-0", last, base_sequence=9)
    assert [at(f) for f in planted.findings()] == [("epoch-back", "append-time-0", 12, 14)]


def test_write_after_fencing() -> None:
    planted = Planted()
    planted.append("txn-a-0", planted.find("txn-a-0", 53), base_sequence=2)
    assert [at(f) for f in planted.findings()] == [("write-after-fencing", "txn-a-0", 58, 59)]


def test_transactional_batch_without_producer_id() -> None:
    planted = Planted()
    planted.append("txn-a-0", planted.find("txn-a-0", 53), producer_id=-1, producer_epoch=-1, base_sequence=-1)
    assert [at(f) for f in planted.findings()] == [("no-producer-id", "txn-a-0", 58, 59)]


def test_batch_outside_its_transaction() -> None:
    planted = Planted()
    opened = planted.find("open-0", 2)
    planted.append("open-0", opened, base_sequence=2, attributes=header_of(opened).attributes & ~TRANSACTIONAL)
    assert [at(f) for f in planted.findings()] == [("outside-transaction", "open-0", 5, 6)]


def test_a_partition_the_coordinator_does_not_know_of() -> None:
    planted = Planted()
    planted.append("append-time-0", planted.find("open-0", 2))
    assert [at(f) for f in planted.findings()] == [("outside-transaction", "append-time-0", 9, 10)]


def test_hanging_transaction_by_its_timeout() -> None:
    planted = Planted()
    batch = planted.find("open-0", 2)
    planted.append("append-time-0", batch, producer_id=5000)
    sent = header_of(batch).max_timestamp
    assert planted.findings(as_of_ms=sent + 900_000) == []
    found = planted.findings(as_of_ms=sent + 900_000 + 301_000)
    assert [at(f) for f in found] == [("hanging-transaction", "append-time-0", 9, 10)]


def test_hanging_transactions_by_the_timeouts_their_coordinator_knows() -> None:
    planted = Planted("open-transactions")
    first = header_of(planted.find("t-0", 0)).max_timestamp
    last = header_of(planted.find("t-1", planted.end("t-1") - 3)).max_timestamp
    assert planted.findings(as_of_ms=first + 60_000 + 299_000) == []
    found = planted.findings(as_of_ms=last + 60_000 + 305_000)
    assert {(f.rule, str(f.log), f.transactional_id) for f in found} == {
        ("hanging-transaction", "t-0", "open"),
        ("hanging-transaction", "t-0", "other"),
        ("hanging-transaction", "t-1", "other"),
    }


def test_a_decision_whose_marker_does_not_come() -> None:
    """The coordinator fell silent between PrepareCommit and the marker in t-1."""
    planted = Planted("transaction-version-0")
    states = planted.batches("__transaction_state-0")
    planted.write("__transaction_state-0", states[:-1])
    last = next(b for b in reversed(planted.batches("t-1")) if header_of(b).is_control)
    at_end = header_of(last).base_offset
    planted.write("t-1", [b for b in planted.batches("t-1") if header_of(b).base_offset < at_end])
    for partition in ("t-1", "__transaction_state-0"):
        del planted.files[planted.path(partition, ".snapshot")]
    decided = header_of(states[-2]).max_timestamp
    assert planted.findings(as_of_ms=decided + 299_000) == []
    found = planted.findings(as_of_ms=decided + 301_000)
    assert [(f.rule, str(f.log), f.last_offset) for f in found] == [("hanging-transaction", "t-1", at_end - 1)]


def test_hanging_transaction_whose_coordinator_has_gone_on() -> None:
    planted = Planted()
    planted.append("append-time-0", planted.find("txn-a-0", 56), producer_id=16, producer_epoch=2)
    (found,) = planted.findings()
    assert at(found) == ("hanging-transaction", "append-time-0", 9, 9)
    # A command with the transactional id would fence its application and leave this open.
    assert [one.command.split()[2] for one in remedies_of(found, "/data")] == ["find-hanging", "commit", "abort"]


def test_marker_without_transaction() -> None:
    planted = Planted()
    planted.append("append-time-0", marker(producer_id=19, producer_epoch=0))
    assert [at(f) for f in planted.findings()] == [("marker-without-transaction", "append-time-0", 9, 9)]


def test_marker_epoch_going_back() -> None:
    planted = Planted()
    planted.append("txn-a-0", marker(producer_id=5, producer_epoch=3))
    assert "marker-epoch" in rules(planted)


def test_marker_with_an_epoch_nobody_decided() -> None:
    planted = Planted()
    planted.change("txn-b-1", 74, lambda batch: changed(batch, producer_epoch=0))
    found = [f for f in planted.findings() if f.rule != "producer-snapshot"]
    assert [at(f) for f in found] == [("marker-epoch", "txn-b-1", 69, 74)]
    planted = Planted()
    planted.change("txn-b-1", 74, lambda batch: changed(batch, producer_epoch=2))
    assert ("marker-epoch", "txn-b-1", 74, 74) in [at(f) for f in planted.findings()]


def test_coordinator_epoch_going_back() -> None:
    planted = Planted()
    planted.append("txn-a-0", marker(producer_id=1000, producer_epoch=2, coordinator_epoch=1, commit=False))
    assert ("coordinator-epoch", "txn-a-0", 58, 58) in [at(f) for f in planted.findings()]


def test_coordinator_epoch_older_than_the_decision() -> None:
    planted = Planted()
    old = marker(producer_id=1000, producer_epoch=1, coordinator_epoch=1)
    planted.change("txn-a-0", 55, lambda batch: changed(old, base_offset=55))
    assert ("coordinator-epoch", "txn-a-0", 53, 55) in [at(f) for f in planted.findings()]


def test_torn_transaction_with_the_other_marker() -> None:
    planted = Planted()
    planted.change("txn-a-1", 41, flipped_marker)
    found = [at(f) for f in planted.findings()]
    assert ("torn-transaction", "txn-a-1", 36, 41) in found
    assert ("abort-index", "txn-a-1", 41, 41) in found


def test_torn_transaction_without_a_marker() -> None:
    planted = Planted()
    batches = planted.batches("txn-b-1")
    del planted.files[planted.path("txn-b-1", ".snapshot")]
    planted.without_small_files("txn-b-1")
    planted.write("txn-b-1", batches[:-1])
    assert rules(planted) == {"hanging-transaction", "abort-index"}
    assert ("hanging-transaction", "txn-b-1", 69, 73) in [at(f) for f in planted.findings()]


def test_a_committed_partition_without_data_and_marker() -> None:
    planted = Planted()
    other = bytes(build_batch([Record(0, 1, b"k", b"v")]))
    planted.change("txn-b-1", 68, lambda batch: changed(other, base_offset=68))
    assert ("torn-transaction", "txn-b-1", -1, -1) in [at(f) for f in planted.findings()]


def test_index_of_aborted_transactions() -> None:
    for offset, value in ((2 + 8, 7), (2 + 24, 99)):
        planted = Planted()
        path = planted.path("txn-a-0", ".txnindex")
        data = bytearray(planted.files[path])
        struct.pack_into(">q", data, offset, value)
        planted.files[path] = bytes(data)
        assert [at(f) for f in planted.findings()] == [("abort-index", "txn-a-0", 11, 11)]


def test_missing_and_additional_entries_of_the_index() -> None:
    planted = Planted()
    path = planted.path("txn-a-0", ".txnindex")
    planted.files[path] = planted.files[path][34:]
    assert [at(f) for f in planted.findings()] == [("abort-index", "txn-a-0", 11, 11)]
    planted = Planted()
    planted.files[path] += struct.pack(">hqqqq", 0, 77, 57, 58, 59)
    assert [at(f) for f in planted.findings()] == [("abort-index", "txn-a-0", 57, 58)]


@pytest.mark.parametrize("field", ["8h", "10i", "14q", "22i", "26q", "34i", "38q"])
def test_producer_snapshot(field: str) -> None:
    planted = Planted()
    path = planted.path("open-0", ".snapshot")
    data = bytearray(planted.files[path])
    struct.pack_into(f">{field[-1]}", data, 10 + int(field[:-1]), 1000)
    data[2:6] = struct.pack(">I", crc32c(bytes(data[6:])))
    planted.files[path] = bytes(data)
    assert [at(f) for f in planted.findings()] == [("producer-snapshot", "open-0", 5, 5)]


def test_broken_snapshot() -> None:
    planted = Planted()
    path = planted.path("txn-a-0", ".snapshot")
    planted.files[path] = planted.files[path][:-1]
    assert [at(f) for f in planted.findings()] == [("producer-snapshot", "txn-a-0", 58, 58)]


def test_offset_hole_and_overlap() -> None:
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_offset=12, base_sequence=9)
    assert [at(f) for f in planted.findings()] == [("offset-hole", "append-time-0", 9, 11)]
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_offset=8, base_sequence=9)
    assert [at(f) for f in planted.findings() if f.rule == "offset-hole"] == [("offset-hole", "append-time-0", 8, 8)]


def test_a_missing_segment_is_a_hole() -> None:
    planted = Planted()
    del planted.files[planted.path("sized-0", number=1)]
    assert ("offset-hole", "sized-0", 256, 511) in [at(f) for f in planted.findings()]


def test_checksum() -> None:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))
    assert [at(f) for f in planted.findings()] == [("checksum", "append-time-0", 3, 5)]
    assert planted.findings(depth="headers") == []
    planted.change("append-time-0", 6, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))
    assert [at(f) for f in planted.findings()] == [("checksum", "append-time-0", n, n + 2) for n in (3, 6)]


def test_record_count() -> None:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: changed(batch, record_count=4))
    assert [at(f) for f in planted.findings()] == [("record-count", "append-time-0", 3, 5)]


def test_fewer_records_than_offsets_where_nothing_was_compacted() -> None:
    planted = Planted()
    planted.append("append-time-0", bytes(build_batch([Record(0, 1, b"k", b"v")])), last_offset_delta=2)
    assert [at(f) for f in planted.findings()] == [("record-count", "append-time-0", 9, 11)]


def test_timestamp() -> None:
    planted = Planted()
    latest = header_of(planted.find("txn-a-0", 0)).max_timestamp
    planted.change("txn-a-0", 0, lambda batch: changed(batch, max_timestamp=latest + 1))
    assert [at(f) for f in planted.findings()] == [("timestamp", "txn-a-0", 0, 0)]


def test_bytes_that_are_no_batch() -> None:
    planted = Planted()
    path = planted.path("append-time-0")
    planted.files[path] = planted.files[path][:-1]
    del planted.files[planted.path("append-time-0", ".snapshot")]
    assert [(f.rule, f.severity, f.first_offset) for f in planted.findings()] == [("torn-batch", ERROR, 6)]
    del planted.files[".kafka_cleanshutdown"]
    assert [(f.rule, f.severity, f.first_offset) for f in planted.findings()] == [("torn-batch", NOTICE, 6)]


def test_what_follows_broken_bytes_is_not_told_again() -> None:
    planted = Planted()
    planted.change("sized-0", 100, lambda batch: changed(batch, crc=False, batch_length=7), number=0)
    assert [(f.rule, f.first_offset) for f in planted.findings()] == [("torn-batch", 100)]


def test_a_broken_batch_before_a_marker_is_no_gap_after_it() -> None:
    planted = Planted("transaction-version-0")
    planted.change("t-0", 22, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))
    assert [at(f) for f in planted.findings()] == [("checksum", "t-0", 22, 31)]


def test_offsets_beyond_the_transactions_outcome() -> None:
    planted = Planted()
    planted.change("__consumer_offsets-1", 5, flipped_marker)
    found = [at(f) for f in planted.findings()]
    assert ("offset-outcome", "__consumer_offsets-1", 4, 5) in found
    assert ("torn-transaction", "__consumer_offsets-1", 4, 5) in found


def test_committed_offset_past_the_end() -> None:
    planted = Planted()
    for batch in planted.batches("__consumer_offsets-0"):
        for record in decode_records(batch, 0, header_of(batch)):
            if record.key is not None and record.key[:2] == b"\0\1" and b"codec-zstd" in record.key:
                key, value = record.key, bytearray(record.value or b"")
    struct.pack_into(">q", value, 2, 151)
    past = build_batch([Record(0, 1, key, bytes(value))], producer_id=-1, producer_epoch=-1, base_sequence=-1)
    planted.append("__consumer_offsets-0", bytes(past))
    assert [at(f) for f in planted.findings()] == [("offset-end", "__consumer_offsets-0", 30, 30)]


def test_each_rule_says_what_it_promises() -> None:
    assert len({rule.title for rule in RULES.values()}) == len(RULES) > 30
    for rule in RULES.values():
        assert re.fullmatch(r"(KIP-\d+|[A-Z]\w+)(, (KIP-\d+|[A-Z]\w+))*", rule.source), rule
        assert rule.promise.endswith("."), rule
        assert rule.evidence, rule
