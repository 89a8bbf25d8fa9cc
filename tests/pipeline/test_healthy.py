"""Ten data directories that Apache Kafka 4.3.1 wrote, each healthy in another way, give no finding at any depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planting import golden_files, write_files

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.rules.rows import LogFacts, TxnState
from minibroker.rules.rules import judge_log, judge_logs
from minibroker.rules.scan import DEPTHS, Scanned, scan_directory
from minibroker_protocol.records import decode_records, iter_batches
from minibroker_storage.memory_disk import MemoryDisk

LAST_EPOCH = 32_766
"""A producer never gets 32767 (Kafka's ProducerIdAndEpoch)."""


LARGE = "id-rotation"
"""An id whose epochs were all used, as the tier `matrix` reads it."""
SHORT = "id-rotation-shortened"
"""Without most of the epochs between the first and the last, as if the log had been compacted."""


def files_of(name: str) -> dict[str, bytes]:
    if name != SHORT:
        return golden_files(name)
    files, log = golden_files(LARGE), "__transaction_state-0/00000000000000000000.log"
    kept = [
        files[log][at : at + header.size]
        for number, (at, header) in enumerate(iter_batches(files[log]))
        if number % 32_768 < 100 or number % 32_768 > 32_600
    ]
    return {**files, log: b"".join(kept)}


@cache
def scanned(name: str, depth: str) -> Scanned:
    """The rows of all the data directories of a set."""
    files = files_of(name)
    roots = ["broker-1", "broker-2"] if name == "reassigned" else [""]
    found = Scanned([], [], [], [])
    for root in roots:
        disk = MemoryDisk()
        for path, content in files.items():
            if path.startswith(root):
                below = path[len(root) :].lstrip("/")
                disk.make_dir(below.rpartition("/")[0])
                disk.write_atomic(below, content)
        rows = scan_directory(disk, root=root, depth=depth)
        for one, more in zip(found, rows, strict=True):
            one.extend(more)  # type: ignore[arg-type]
    return found


def facts(rows: Scanned) -> dict[str, LogFacts]:
    return {f"{one.facts.log.root}/{one.facts.log}".lstrip("/"): one.facts for one in rows.logs}


def states(rows: Scanned, *names: str) -> list[TxnState]:
    return [state for state in rows.states if state.state in names]


def was_compacted(rows: Scanned) -> bool:
    """Something is gone between what is left, in segments that transactions wrote."""
    log = next(one for one in rows.logs if str(one.facts.log) == "t-0")
    ends = {span.end_offset for span in log.spans}
    holes = [span for span in log.spans if span.first_offset and span.first_offset not in ends]
    return log.facts.cleaned_offset > 0 and len(holes) > 3 and any(marker.outcome == "ABORT" for marker in log.markers)


def was_cut(rows: Scanned) -> bool:
    """Retention took whole segments, DeleteRecords part of one."""
    found = facts(rows)
    return found["t-0"].first_offset > 0 and found["cut-0"].start_offset == 17 > found["cut-0"].first_offset


def has_open_transactions(rows: Scanned) -> bool:
    return len(states(rows, "Ongoing")) > len(states(rows, "PrepareCommit", "PrepareAbort"))


def has_rotated(rows: Scanned) -> bool:
    """Each of the two ids went from its first producer id, whose epochs were used up, to another one."""
    found = []
    for name in ("by-init", "by-end"):
        own = [(state.producer_id, state.producer_epoch) for state in rows.states if state.transactional_id == name]
        first = [epoch for producer_id, epoch in own if producer_id == own[0][0]]
        later = {producer_id for producer_id, _ in own} - {own[0][0]}
        found.append(max(first) >= LAST_EPOCH and len(later) == 1)
    return all(found)


def was_reassigned(rows: Scanned) -> bool:
    """Both brokers have partition 1, only the second one partition 0, and there the log begins later."""
    found = facts(rows)
    gone = "broker-1/t-0" not in found and "broker-1/cut-0" not in found
    return (
        gone
        and {"broker-1/t-1", "broker-2/t-1", "broker-2/t-0"} <= {*found}
        and found["broker-2/cut-0"].start_offset == 17
    )


def with_version(version: int) -> Callable[[Scanned], bool]:
    """The state log's values are of version 0 with transaction.version 0 only; with 2 a COMMIT marker may have the
    epoch after its transaction's (KIP-890)."""

    def wrote(rows: Scanned) -> bool:
        files = golden_files(f"transaction-version-{version}")
        log = files["__transaction_state-0/00000000000000000000.log"]
        values = {
            int.from_bytes(record.value[:2], "big")
            for at, header in iter_batches(log)
            for record in decode_records(log, at, header)
            if record.value is not None and not header.is_control
        }
        verdicts = [judge_log(one) for one in rows.logs]
        ended = [txn for one in verdicts for txn in one.transactions if txn.outcome == "COMMIT"]
        bumped = any(txn.marker_epoch == txn.producer_epoch + 1 for txn in ended)
        return values == {min(version, 1)} and bumped == (version == 2) and len(ended) > 10

    return wrote


SETS: dict[str, Callable[[Scanned], bool]] = {
    "clean": lambda rows: len(rows.logs) == 30 and all(one.facts.clean for one in rows.logs),
    "killed": lambda rows: not any(one.facts.clean for one in rows.logs),
    "compacted": was_compacted,
    "retention": was_cut,
    "transaction-version-0": with_version(0),
    "transaction-version-1": with_version(1),
    "transaction-version-2": with_version(2),
    "reassigned": was_reassigned,
    "open-transactions": has_open_transactions,
    LARGE: has_rotated,
    SHORT: has_rotated,
}


def but_large(name: str) -> Any:
    """Parameters of a test."""
    return pytest.param(name, marks=[pytest.mark.matrix] if name == LARGE else [])


@pytest.mark.parametrize("name", [*map(but_large, SETS)])
def test_it_is_what_its_name_says(name: str) -> None:
    assert SETS[name](scanned(name, "headers"))


WHOLE = ("killed", "transaction-version-2")
"""Read at every depth by the default tests, the others at the deepest, which has all the rules."""


def quick(name: str, depth: str) -> bool:
    return name != LARGE and (depth == DEPTHS[-1] or name in WHOLE)


AT_DEPTHS = [
    pytest.param(name, depth, marks=[] if quick(name, depth) else [pytest.mark.matrix])
    for name in SETS
    for depth in DEPTHS
]


@pytest.mark.parametrize(("name", "depth"), AT_DEPTHS)
def test_it_gives_no_finding(name: str, depth: str) -> None:
    rows = scanned(name, depth)
    assert judge_logs(rows.logs, rows.states, rows.commits, rows.members) == []


@pytest.mark.parametrize("name", [*map(but_large, SETS), "own-clean", "own-killed", "own-kip"])
def test_nor_does_the_command(name: str, tmp_path: Path) -> None:
    """Which reads the files in the other way, with numpy, and takes the latest marker for the time. Directories that
    minibroker itself wrote are healthy too."""
    path, summary = write_files(files_of(name), tmp_path / "data"), tmp_path / "summary.json"
    more = [] if name.startswith("own-") else ["--content"]  # its clock stood still
    assert main(["audit", str(path), "--json", str(summary), *more]) == 0
    found = json.loads(summary.read_text())
    assert found["shown"] == []
    assert found["transactions"]["COMMIT"] > 0
