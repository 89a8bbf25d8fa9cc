"""The abort index: Kafka's bytes, and which aborted transactions a read must name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.producer_state import CompletedTxn
from minibroker_storage.txn_index import ENTRY_SIZE, AbortedTxn, TxnIndex

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "snapshots"
MANIFEST: dict[str, dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())
FILES = sorted(GOLDEN.glob("*/*.txnindex"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem[-3:]}")
def test_kafka_index(path: Path) -> None:
    index = TxnIndex.decode(path.read_bytes(), int(path.stem), str(path))
    listed = [
        AbortedTxn(row["producer_id"], row["first_offset"], row["last_offset"], row["last_stable_offset"])
        for row in MANIFEST[path.parent.name]["aborted_index"]
        if row["segment"] == int(path.stem)
    ]
    assert listed
    assert list(index) == listed
    assert index.encode() == path.read_bytes()


def test_recorded_entry() -> None:
    entry = AbortedTxn.of(CompletedTxn(4, 1, 2, True, 0))
    assert entry.encode().hex(" ", 2).replace(" ", "") == (
        "0000" "0000000000000004" "0000000000000001" "0000000000000002" "0000000000000000"
    )  # fmt: skip


def index_of(*rows: tuple[int, int, int]) -> TxnIndex:
    index = TxnIndex()
    for first, last, stable in rows:
        index.append(AbortedTxn(1, first, last, stable))
    return index


def test_collect_stops_where_nothing_later_can_overlap() -> None:
    index = index_of((0, 5, 6), (2, 9, 10), (12, 14, 15))
    found, complete = index.collect(0, 6)
    assert ([e.first_offset for e in found], complete) == ([0], True)
    found, complete = index.collect(6, 12)
    assert ([e.first_offset for e in found], complete) == ([2], True)
    found, complete = index.collect(0, 100)
    assert ([e.first_offset for e in found], complete) == ([0, 2, 12], False)


def test_fetching_at_the_marker_still_lists_its_transaction() -> None:
    index = index_of((0, 5, 6))
    assert len(index.collect(5, 10)[0]) == 1
    assert len(index.collect(6, 10)[0]) == 0


def test_an_older_open_transaction_keeps_the_search_going() -> None:
    """The last stable offset of an entry stays at an older transaction that is still open when the entry is written."""
    index = index_of((3, 5, 1), (1, 8, 9))
    found, complete = index.collect(0, 4)
    assert ([e.first_offset for e in found], complete) == ([3, 1], True)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.booleans()), max_size=20),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_collect_equals_a_full_scan(steps: list[tuple[int, int, bool]], fetch_offset: int, bound: int) -> None:
    """Entries as a log makes them: transactions of three producers open and end in any order."""
    open_: dict[int, int] = {}
    index, offset = TxnIndex(), 0
    for pid, plain, abort in steps:
        offset += plain
        first = open_.pop(pid, None)
        if first is None:
            open_[pid] = offset
        elif abort:
            index.append(AbortedTxn(pid, first, offset, min(open_.values(), default=offset + 1)))
        offset += 1
    wanted = [e for e in index if e.last_offset >= fetch_offset and e.first_offset < bound]
    assert index.collect(fetch_offset, bound)[0] == wanted


def test_truncate_drops_markers_from_the_offset_on() -> None:
    index = index_of((0, 5, 6), (6, 9, 10))
    assert not index.truncate_to(10)
    assert index.truncate_to(9)
    assert [e.last_offset for e in index] == [5]
    index.append(AbortedTxn(1, 6, 7, 8))
    assert len(index) == 2


def test_markers_only_grow() -> None:
    index = index_of((0, 5, 6))
    with pytest.raises(ValueError, match="5"):
        index.append(AbortedTxn(2, 3, 5, 6))
    assert len(index) == 1


@pytest.mark.parametrize(
    ("data", "base", "position"),
    [
        (AbortedTxn(1, 0, 5, 6).encode()[:-1], 0, 0),
        (AbortedTxn(1, 0, 5, 6).encode() + b"\0", 0, ENTRY_SIZE),
        (AbortedTxn(1, 0, 5, 6).encode(), 6, 0),
        (AbortedTxn(1, 6, 5, 6).encode(), 0, 0),
        (AbortedTxn(1, 0, 5, 6).encode() * 2, 0, ENTRY_SIZE),
        (b"\0\1" + AbortedTxn(1, 0, 5, 6).encode()[2:], 0, 0),
    ],
    ids=["torn", "trailing byte", "below the segment", "ends before it begins", "repeated", "version"],
)
def test_broken_files_are_named(data: bytes, base: int, position: int) -> None:
    with pytest.raises(MalformedFile) as refused:
        TxnIndex.decode(data, base, "5.txnindex")
    assert (refused.value.path, refused.value.position) == ("5.txnindex", position)


@given(st.binary(max_size=4 * ENTRY_SIZE))
def test_any_bytes_are_an_index_or_malformed(data: bytes) -> None:
    try:
        index = TxnIndex.decode(data, 0)
    except MalformedFile:
        return
    assert index.encode() == data
