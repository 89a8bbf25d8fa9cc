"""Lineage of an application and repeated content, over files as brokers write them."""

import json
from pathlib import Path

import pytest
from planting import Planted, changed, write_files

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.rules.rows import NONE
from minibroker_protocol.records import Record, build_batch, end_txn_marker


def data(*keys: bytes, base: int = 0, epoch: int = 0, sequence: int = 0, txn: bool = True) -> bytes:
    records = [Record(base + n, 1_700_000_000_000, key, b"v", [("id", key)]) for n, key in enumerate(keys)]
    return bytes(
        build_batch(
            records, base_offset=base, producer_id=7, producer_epoch=epoch, base_sequence=sequence, transactional=txn
        )
    )


def marker(base: int, epoch: int, *, commit: bool) -> bytes:
    return bytes(
        end_txn_marker(
            producer_id=7, producer_epoch=epoch, commit=commit, coordinator_epoch=0, timestamp_ms=0, base_offset=base
        )
    )


def directory(tmp_path: Path, inputs: list[bytes], outputs: list[bytes]) -> str:
    files = {
        "in-0/00000000000000000000.log": b"".join(inputs),
        "out-0/00000000000000000000.log": b"".join(outputs),
        "cleaner-offset-checkpoint": b"",
    }
    return str(write_files(files, tmp_path / "data"))


INPUT = [changed(data(b"a", b"b", b"c", txn=False), producer_id=99)]  # not that of the transactions
ABORTED = [data(b"a", b"b"), marker(2, 1, commit=False)]


def run(tmp_path: Path, outputs: list[bytes], *more: str) -> list[tuple[str, int]]:
    path = directory(tmp_path, INPUT, outputs)
    main(["audit", path, "--lineage", "in=out", "--json", str(tmp_path / "s.json"), *more])
    shown = json.loads((tmp_path / "s.json").read_text())["shown"]
    return [(one["rule"], one["first_offset"]) for one in shown if not one["rule"].startswith("abort-index")]


@pytest.mark.parametrize("key", ["key", "header:id"])
def test_each_input_committed_once(tmp_path: Path, key: str) -> None:
    outputs = [*ABORTED, data(b"b", b"a", base=3, epoch=1), data(b"c", base=5, epoch=1, sequence=2)]
    outputs.append(marker(6, 2, commit=True))
    assert run(tmp_path, outputs, "--lineage-key", key) == []


def test_lost_twice_and_from_nowhere(tmp_path: Path) -> None:
    outputs = [*ABORTED, data(b"b", b"a", b"b", b"x", base=3, epoch=1), marker(7, 2, commit=True)]
    found = run(tmp_path, outputs)
    assert sorted(found) == [("lineage-duplicate", 5), ("lineage-lost", 2), ("lineage-stray", 6)]


def test_what_is_not_committed_is_no_output(tmp_path: Path) -> None:
    outputs = [*ABORTED, data(b"a", b"b", b"c", base=3, epoch=1)]
    assert [rule for rule, _ in run(tmp_path, outputs)] == ["lineage-lost"] * 3


def test_only_what_the_group_consumed_counts(tmp_path: Path) -> None:
    path = write_files(Planted().files, tmp_path / "data")
    arguments = ["audit", str(path), "--lineage", "codec-none=empty", "--json", str(tmp_path / "s.json")]
    assert main([*arguments, "--group", "g-java-txn"]) == 1
    lost = json.loads((tmp_path / "s.json").read_text())["findings"]["lineage-lost"]
    assert 0 < lost <= 60
    assert main([*arguments, "--group", "nobody"]) == 2  # it says so, and judges nothing


def test_records_whose_marker_a_replica_missed_are_not_committed(tmp_path: Path) -> None:
    """Its leader's cleaner took them as aborted; the producer wrote them again."""
    others = [changed(data(b"o", base=base, txn=False), producer_id=NONE) for base in (1, 2)]
    outputs = [data(b"a"), *others, data(b"a", base=9, epoch=2), marker(10, 3, commit=True)]
    path = directory(tmp_path, [], outputs)
    assert main(["audit", path, "--compacted", "out", "--content", "--json", str(tmp_path / "s.json")]) == 0
    shown = json.loads((tmp_path / "s.json").read_text())["shown"]
    assert [(one["rule"], one["first_offset"]) for one in shown] == [("torn-transaction", 0)]


def test_equal_records_of_one_epoch_are_no_repetition(tmp_path: Path) -> None:
    path = directory(tmp_path, [data(b"a", b"a", txn=False)], [])
    assert main(["audit", path, "--content"]) == 0


def test_content_written_again_after_a_bump(tmp_path: Path) -> None:
    first = data(b"a", b"b", txn=False)
    again = changed(first, base_offset=2, producer_epoch=1)
    path = directory(tmp_path, [first, again], [])
    assert main(["audit", path]) == 0
    assert main(["audit", path, "--content", "--json", str(tmp_path / "s.json")]) == 1
    shown = json.loads((tmp_path / "s.json").read_text())["shown"]
    assert [(one["rule"], one["first_offset"]) for one in shown] == [("duplicate-content", 2), ("duplicate-content", 3)]


def test_what_was_aborted_is_rightly_written_again(tmp_path: Path) -> None:
    again = data(b"a", b"b", base=3, epoch=1)
    path = directory(tmp_path, [*ABORTED, again, marker(5, 2, commit=True)], [])
    arguments = ["audit", path, "--content", "--json", str(tmp_path / "s.json"), "--topic", "in"]
    main(arguments)
    assert "duplicate-content" not in json.loads((tmp_path / "s.json").read_text())["findings"]
    twice = [again, marker(5, 2, commit=True), data(b"a", b"b", base=6, epoch=2), marker(8, 3, commit=True)]
    directory(tmp_path, [*ABORTED, *twice], [])
    main(arguments)
    assert json.loads((tmp_path / "s.json").read_text())["findings"]["duplicate-content"] == 2
