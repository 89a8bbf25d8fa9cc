"""The numpy way of making rows gives what the plain way gives, whatever the block size and wherever a file is split."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import GZIP, message, wrapper
from planting import Planted, changed, header_of
from sampling import search, thinned

np = pytest.importorskip("numpy")

from minibroker.rules.rows import Log, LogFacts, LogFault, Marker, Run, Span  # noqa: E402
from minibroker.rules.runs import merge_runs, merge_spans  # noqa: E402
from minibroker.rules.scan import DEPTHS, scan_directory, scan_log  # noqa: E402
from minibroker_pipeline.headers import BLOCK, scan_bytes  # noqa: E402
from minibroker_pipeline.index_match import IndexMatch  # noqa: E402
from minibroker_protocol.records import Record, build_batch, end_txn_marker  # noqa: E402
from minibroker_storage.indexes import TIME_ENTRY  # noqa: E402
from minibroker_storage.memory_disk import MemoryDisk  # noqa: E402


def plain(disk: MemoryDisk, facts: LogFacts, path: str, depth: str, cuts: list[int]) -> list[Any]:
    rows = list(scan_log(disk, facts, path, depth))
    runs = merge_runs([r for r in rows if isinstance(r, Run)], [r for r in rows if isinstance(r, Marker)], facts, cuts)
    spans = merge_spans([r for r in rows if isinstance(r, Span)], facts)
    return [*runs, *spans, *(row for row in rows if not isinstance(row, (Run, Span)))]


def without_reason(rows: list[Any]) -> list[Any]:
    rows = [row._replace(message="") if isinstance(row, LogFault) and row.rule == "torn-batch" else row for row in rows]
    return sorted(rows, key=lambda row: (type(row).__name__, row))


def compare(disk: MemoryDisk, facts: LogFacts, path: str, depth: str, cuts: list[int], *, block: int = BLOCK) -> None:
    """The records of few batches are walked in lockstep too."""
    data = memoryview(disk.read_bytes(path))
    wanted = plain(disk, facts, path, depth, cuts)
    assert without_reason(
        scan_bytes(facts, path, data, depth=depth, cuts=cuts, block=block, fewest=1).rows
    ) == without_reason(wanted)


@pytest.mark.parametrize(
    ("name", "depth"),
    thinned([(name, depth) for name in ("killed", "clean") for depth in reversed(DEPTHS)], 6, several=True),
)
def test_what_kafka_wrote(name: str, depth: str) -> None:
    disk = Planted(name).disk()
    compared = 0
    for rows in scan_directory(disk).logs:
        facts = rows.facts
        cuts = [snapshot.offset for snapshot in rows.snapshots]
        for file in disk.list(str(facts.log)):
            if file.endswith(".log"):
                for block in (BLOCK, 3):
                    compare(disk, facts, f"{facts.log}/{file}", depth, cuts, block=block)
                    compared += 1
    assert compared > 20


@pytest.mark.parametrize("damage", ["cut", "length", "magic", "checksum", "count"])
def test_broken_files(damage: str) -> None:
    planted = Planted()
    batch = planted.find("append-time-0", 3)
    path = planted.path("append-time-0")
    if damage == "cut":
        planted.files[path] = planted.files[path][:-1]
    elif damage == "length":
        planted.change("append-time-0", 3, lambda _: changed(batch, crc=False, batch_length=12))
    elif damage == "magic":
        planted.change("append-time-0", 3, lambda _: changed(batch, crc=False, magic=3))
    elif damage == "checksum":
        planted.change("append-time-0", 3, lambda _: batch[:-1] + b"x")
    else:
        planted.change("append-time-0", 3, lambda _: changed(batch, record_count=-1))
    for depth in DEPTHS:
        compare(planted.disk(), LogFacts(Log("", "append-time", 0)), path, depth, [])


@pytest.mark.parametrize("damage", ["none", "cut", "checksum", "records"])
def test_messages_of_old_formats(damage: str) -> None:
    old = [message(0, 0, b"k", b"v"), wrapper(1, GZIP, [(n, 50, b"k", b"v") for n in range(1, 5)])]
    new = [bytes(build_batch([Record(n, 5, b"k", b"v")], base_offset=n)) for n in (5, 6)]
    data = b"".join([*old, *new, message(1, 7, b"k", b"v" * 99, 5), message(0, 8, b"k", b"")])
    if damage == "cut":
        data = data[:-1]
    elif damage == "checksum":
        data = data.replace(b"v" * 99, b"w" * 99)
    elif damage == "records":
        data = data.replace(old[1], message(1, 4, None, b"no gzip", 50, GZIP))
    disk = MemoryDisk()
    disk.make_dir("t-0")
    path = "t-0/00000000000000000000.log"
    disk.write_atomic(path, data)
    facts = LogFacts(Log("", "t", 0))
    for block in (BLOCK, 2):
        for depth in DEPTHS:
            compare(disk, facts, path, depth, [], block=block)
    rows = scan_bytes(facts, path, memoryview(data), depth=DEPTHS[-1]).rows
    assert {row.rule for row in rows if isinstance(row, LogFault)} == {
        "none": set(),
        "cut": {"torn-batch"},
        "checksum": {"checksum"},
        "records": {"record-count"},
    }[damage]


ONE = st.tuples(
    st.sampled_from(["data", "txn", "commit", "abort", "none", "bare"]),
    st.integers(0, 2),  # producer id
    st.integers(0, 1),  # epoch
    st.sampled_from([0, 0, 0, 1, -1, 7]),  # how far off the sequence is
    st.integers(1, 3),  # records
    st.sampled_from([0, 0, 0, 2]),  # offsets left out
)


def write_log(entries: list[tuple[str, int, int, int, int, int]]) -> bytes:
    out, offset = [], 0
    sequences: dict[tuple[int, int], int] = {}
    for kind, producer_id, epoch, off, count, hole in entries:
        offset += hole
        if kind in ("commit", "abort"):
            batch = end_txn_marker(
                producer_id=producer_id,
                producer_epoch=epoch,
                commit=kind == "commit",
                coordinator_epoch=count,
                timestamp_ms=offset,
                base_offset=offset,
            )
        else:
            records = [Record(offset + n, 1000 + n, b"k", b"v" * n) for n in range(count)]
            sequence = max(0, sequences.get((producer_id, epoch), 0) + off)
            sequences[producer_id, epoch] = sequence + count
            known: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
            producer = known if kind in ("data", "txn") else {}
            batch = build_batch(records, base_offset=offset, transactional=kind in ("txn", "bare"), **producer)
        out.append(bytes(batch))
        offset = header_of(out[-1]).next_offset
    return b"".join(out)


@search(150)
@given(st.lists(ONE, max_size=24), st.lists(st.integers(0, 40), max_size=3), st.sampled_from([0, 9]), st.integers(1, 9))
def test_any_log(entries: Any, cuts: list[int], cleaned: int, block: int) -> None:
    disk = MemoryDisk()
    disk.make_dir("t-0")
    path = "t-0/00000000000000000000.log"
    disk.write_atomic(path, write_log(entries))
    compare(disk, LogFacts(Log("", "t", 0), cleaned_offset=cleaned), path, "headers", cuts, block=block)


@pytest.mark.parametrize(("recovery_point", "mended"), [(1685, True), (1686, False)])
def test_an_entry_of_a_log_that_was_cut_to_nothing(recovery_point: int, mended: bool) -> None:
    """Kafka 4.4.0 leaves it in the file when a follower gives up its only batch (TimeIndex.truncateTo): an empty log
    ends where it begins."""
    facts = LogFacts(Log("", "t", 0), recovery_point=recovery_point, clean=False)
    stem, entries = f"t-0/{1685:020}", TIME_ENTRY.pack(1_795_828_957_336, 0) + bytes(2 * TIME_ENTRY.size)
    disk = MemoryDisk()
    disk.make_dir("t-0")
    disk.write_atomic(f"{stem}.log", b"")
    disk.write_atomic(f"{stem}.timeindex", entries)
    indexes = IndexMatch.of(stem, 1685, b"", entries)
    rows = scan_bytes(facts, f"{stem}.log", memoryview(b""), indexes=indexes).rows
    assert rows == list(scan_log(disk, facts, f"{stem}.log"))
    assert [row.mended for row in rows if isinstance(row, LogFault)] == [mended]
