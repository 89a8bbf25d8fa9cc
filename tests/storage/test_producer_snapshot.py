"""Snapshots: Kafka's own bytes, and the side file that keeps the whole duplicate window."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from producers import KAFKA, KIP, NOW, Partition

from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.origin import Origin
from minibroker_storage.producer_snapshot import decode_snapshot, encode_snapshot
from minibroker_storage.producer_state import ProducerRules, ProducerStateManager

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "snapshots"
MANIFEST: dict[str, dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())
SNAPSHOTS = sorted(GOLDEN.glob("*/*.snapshot"))


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{path.stem[-3:]}")
def test_kafka_snapshot_is_rewritten_byte_for_byte(path: Path) -> None:
    producers = ProducerStateManager(KAFKA)
    producers.load_snapshot(path.read_bytes(), int(path.stem), 0)
    assert producers.snapshot() == path.read_bytes()


@pytest.mark.parametrize("partition", sorted(MANIFEST))
def test_kafka_snapshot_means_what_the_manifest_says(partition: str) -> None:
    newest = MANIFEST[partition]["newest_snapshot"]
    data = (GOLDEN / partition / f"{newest['offset']:020d}.snapshot").read_bytes()
    found = {
        str(entry.producer_id): {
            "epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_data_offset,
            "offset_delta": entry.batches[-1].offset_delta if entry.batches else 0,
            "timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.current_txn_first_offset,
        }
        for entry in decode_snapshot(data)
    }
    assert found == newest["producers"]


def test_layout() -> None:
    partition = Partition(ProducerRules(verification_enabled=False))
    partition.append(0, txn=True, pid=3, timestamp=9)
    data = partition.producers.snapshot()
    assert data[:2] == b"\x00\x01"
    assert struct.unpack(">iqhiqiqiq", data[6:]) == (1, 3, 0, 0, 0, 0, 9, -1, 0)
    assert ProducerStateManager(KAFKA).snapshot() == bytes.fromhex("0001 48674bc7 00000000")


def test_open_transactions_are_back_in_log_order() -> None:
    partition = Partition(ProducerRules(verification_enabled=False))
    for pid in (9, 3, 5):
        partition.append(0, pid=pid, txn=True)
    reloaded = ProducerStateManager(KAFKA)
    reloaded.load_snapshot(encode_snapshot(reversed(decode_snapshot(partition.producers.snapshot()))), 3, NOW)
    assert reloaded.open_transactions() == {0: 9, 1: 3, 2: 5}
    assert reloaded.first_unstable_offset == 0


@pytest.mark.parametrize(("rules", "known"), [(KAFKA, [4]), (KIP, [0, 1, 2, 3, 4])], ids=["kafka", "kip"])
def test_duplicate_window_after_a_restart(rules: ProducerRules, known: list[int]) -> None:
    partition = Partition(rules)
    for sequence in range(5):
        partition.append(sequence)
    data = partition.producers.snapshot()
    restarted = Partition(rules)
    restarted.end = partition.end
    restarted.producers.load_snapshot(data, 5, NOW, remembered=partition.producers.remembered(data))
    found = [n for n in range(5) if restarted.append(n) == f"dup@{n}"]
    assert found == known
    assert restarted.append(5) == "@5"


def test_kafka_keeps_no_side_file() -> None:
    partition = Partition(KAFKA)
    partition.append(0)
    assert partition.producers.remembered(partition.producers.snapshot()) is None


def test_side_file_of_another_snapshot_is_not_used() -> None:
    partition = Partition(KIP)
    partition.append(0)
    stale = partition.producers.remembered(partition.producers.snapshot())
    partition.append(1)
    data = partition.producers.snapshot()
    restarted = ProducerStateManager(KIP)
    restarted.load_snapshot(data, 2, NOW, remembered=stale)
    entry = restarted.entry(7)
    assert entry is not None
    assert [batch.last_sequence for batch in entry.batches] == [1]


def test_side_file_keeps_the_arrival_and_expired_producers_are_left_out() -> None:
    rules = ProducerRules(snapshot_all_batches=True, expire_by="arrival", producer_id_expiration_ms=1000)
    partition = Partition(rules)
    partition.append(0, timestamp=5)
    data = partition.producers.snapshot()
    remembered = partition.producers.remembered(data)
    for now, count in ((NOW + 999, 1), (NOW + 1000, 0)):
        restarted = ProducerStateManager(rules)
        restarted.load_snapshot(data, 1, now, remembered=remembered)
        assert len(restarted.active()) == count
    without = ProducerStateManager(rules)
    without.load_snapshot(data, 1, NOW + 5000)
    assert len(without.active()) == 1, "without a known arrival the age counts from the load"


def test_expired_by_record_timestamp_is_left_out_unless_in_a_transaction() -> None:
    rules = ProducerRules(producer_id_expiration_ms=1000, verification_enabled=False)
    partition = Partition(rules)
    partition.append(0, pid=1, timestamp=5)
    partition.append(0, pid=2, timestamp=5, txn=True)
    restarted = ProducerStateManager(rules)
    restarted.load_snapshot(partition.producers.snapshot(), 2, NOW)
    assert [row.producer_id for row in restarted.active()] == [2]


def sample() -> tuple[bytes, bytes]:
    partition = Partition(KIP)
    for sequence in range(3):
        partition.append(sequence)
    partition.append(0, pid=8)
    data = partition.producers.snapshot()
    remembered = partition.producers.remembered(data)
    assert remembered is not None
    return data, remembered


def test_every_flipped_bit_of_a_snapshot_is_one_clear_error() -> None:
    data, _ = sample()
    for position in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            producers = Partition(KIP)
            producers.append(0, pid=99)
            with pytest.raises(MalformedFile, match=r"^x\.snapshot, byte \d+: .*expected|bytes"):
                producers.producers.load_snapshot(bytes(broken), 4, NOW, path="x.snapshot")
            assert [row.producer_id for row in producers.producers.active()] == [99], "state changed by a broken file"


def test_every_cut_of_a_snapshot_is_an_error_and_of_a_side_file_is_not() -> None:
    data, remembered = sample()
    for length in range(len(data)):
        with pytest.raises(MalformedFile):
            decode_snapshot(data[:length])
    for length in range(len(remembered)):
        producers = ProducerStateManager(KIP)
        producers.load_snapshot(data, 4, NOW, remembered=remembered[:length])
        assert len(producers.active()) == 2


@given(st.binary(max_size=200))
def test_any_bytes_are_a_snapshot_or_malformed(data: bytes) -> None:
    entries = []
    with suppress(MalformedFile):
        entries = decode_snapshot(data)
    assert len(entries) <= len(data) // 46


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30))
def test_snapshot_round_trip(batches: list[tuple[int, int]]) -> None:
    partition = Partition(KIP)
    following = dict.fromkeys(range(4), 0)
    for pid, count in batches:
        assert partition.append(following[pid], count, pid=pid, origin=Origin.CLIENT).startswith("@")
        following[pid] += count
    data = partition.producers.snapshot()
    restarted = ProducerStateManager(KIP)
    restarted.load_snapshot(data, partition.end, NOW, remembered=partition.producers.remembered(data))
    for pid in following:
        assert restarted.entry(pid) == partition.producers.entry(pid)
    assert restarted.snapshot() == data
