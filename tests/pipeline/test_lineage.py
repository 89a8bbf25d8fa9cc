"""Lineage by position: output records that name the place of their input, over several topics and applications."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from planting import write_files

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker_pipeline.lineage import lineage_rows
from minibroker_pipeline.outcomes import outcomes_of
from minibroker_pipeline.planning import plan_for
from minibroker_protocol.records import Record, build_batch, end_txn_marker
from minibroker_storage.checkpoints import LOG_START_OFFSET, encode_offsets

Named = Sequence[str | None]


def written(*records: Record, base: int = 0, transactional: bool = False) -> bytes:
    moved = [Record(base + n, one.timestamp, one.key, one.value, one.headers) for n, one in enumerate(records)]
    who = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if transactional else {}
    return bytes(build_batch(moved, base_offset=base, transactional=transactional, **who))  # type: ignore[arg-type]


def output(place: object, how: str) -> Record:
    """A record that names its input in a header `from`, or a field `meta.from` of its value."""
    if how == "header":
        return Record(0, 1, b"k", b"v", [] if place is None else [("from", str(place).encode())])
    value = {"meta": {} if place is None else {"from": place}}
    return Record(0, 1, b"k", json.dumps(value).encode())


def audit(tmp_path: Path, logs: dict[str, bytes], *options: str, code: int | None = None) -> list[tuple[str, str, int]]:
    files = {f"{name}/00000000000000000000.log": content for name, content in logs.items()}
    path = write_files({**files, "cleaner-offset-checkpoint": b""}, tmp_path / "data")
    ended = main(["audit", str(path), *options, "--json", str(tmp_path / "s.json")])
    shown = json.loads((tmp_path / "s.json").read_text())["shown"]
    found = sorted((one["rule"], f"{one['topic']}-{one['partition']}", one["first_offset"]) for one in shown)
    assert ended == bool(found) if code is None else ended == code
    return found


INPUT = written(*[Record(0, 1, b"same", b"same")] * 3)
WAYS = {"header": "position:header:from", "field": "position:field:meta.from"}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("places", "found"),
    [
        (["in-0@2", "in-0@0", "in-0@1", "in-1@0"], []),
        (["in-0@0", "in-0@1", "in-0@1", "in-1@0"], [("lineage-duplicate", "out-0", 2), ("lineage-lost", "in-0", 2)]),
        (["in-0@0", "in-0@1", "in-0@2", "in-1@0", "in-0@3"], [("lineage-stray", "out-0", 4)]),
        (["in-0@0", "in-0@1", "in-0@2", "in-1@0", None], [("lineage-stray", "out-0", 4)]),
        (["in-0@0", "in-0@1", "in-0@2", "in-1@0", "here"], [("lineage-stray", "out-0", 4)]),
        (["in-0@0", "in-0@1", "in-0@2", "in-1@0", "other-0@0"], [("lineage-stray", "out-0", 4)]),
        (["in-0@0", "in-0@1", "in-0@2", "in-1@0", "in-7@5"], []),  # of a partition that is not in the data
    ],
    ids=["whole", "twice and lost", "past the end", "none", "no place", "another topic", "elsewhere"],
)
def test_places(places: Named, found: list[tuple[str, str, int]], how: str, tmp_path: Path) -> None:
    logs = {
        "in-0": INPUT,
        "in-1": written(Record(0, 1, b"same", b"same")),
        "other-0": INPUT,
        "out-0": written(*(output(place, how) for place in places)),
    }
    assert audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", WAYS[how]) == found


def test_a_place_may_be_an_object_and_an_output_of_several(tmp_path: Path) -> None:
    places = [{"topic": "in", "partition": 0, "offset": 0}, ["in-0@1", {"topic": "in", "partition": 0, "offset": 2}]]
    logs = {"in-0": INPUT, "out-0": written(*(output(place, "field") for place in places))}
    assert audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", WAYS["field"]) == []


def test_an_aborted_record_is_no_input_and_its_reader_is_seen(tmp_path: Path) -> None:
    """An application that reads uncommitted data makes output of what never was."""
    undone = written(Record(0, 1, b"k", b"v"), transactional=True)
    end = end_txn_marker(
        producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=0, base_offset=1
    )
    logs = {"in-0": undone + bytes(end), "out-0": written(output("in-0@0", "header"))}
    found = audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", WAYS["header"])
    assert [one for one in found if one[0] != "abort-index"] == [("lineage-stray", "out-0", 0)]


def test_what_retention_took_is_not_missed(tmp_path: Path) -> None:
    logs = {"out-0": written(output("in-0@0", "header"), output("in-0@3", "header"))}
    left = {f"in-0/{3:020d}.log": written(Record(0, 1, b"k", b"v"), base=3)}
    write_files(left, tmp_path / "data")
    assert audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", WAYS["header"]) == []


@pytest.mark.parametrize(("start", "found"), [(0, [("lineage-lost", "in-0", 0), ("lineage-lost", "in-0", 1)]), (2, [])])
def test_input_below_the_start_of_its_log_is_no_input(
    start: int, found: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    """DeleteRecords moves the start within a segment: the records before it are still in the file."""
    write_files({LOG_START_OFFSET: encode_offsets({("in", 0): start})}, tmp_path / "data")
    logs = {"in-0": INPUT, "out-0": written(output("in-0@2", "header"))}
    got = audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", WAYS["header"])
    assert got == found


@pytest.mark.parametrize(
    ("deleted", "rules"),
    [
        ("", [("lineage-lost", "error"), ("lineage-stray", "error"), ("lineage-duplicate", "error")]),
        ("in", [("lineage-lost", "error"), ("lineage-stray", "notice"), ("lineage-duplicate", "notice")]),
        ("out", [("lineage-lost", "notice"), ("lineage-stray", "error"), ("lineage-duplicate", "error")]),
    ],
)
def test_a_counterpart_that_retention_may_have_taken(
    deleted: str, rules: list[tuple[str, str]], tmp_path: Path
) -> None:
    def records(topic: str, *keys: bytes) -> dict[str, bytes]:
        base = 3 if topic == deleted else 0
        batches = [written(Record(0, 1, key, b""), base=base + number) for number, key in enumerate(keys)]
        return {f"{topic}-0/{base:020d}.log": b"".join(batches)}

    write_files({**records("in", b"a", b"b", b"c"), **records("out", b"b", b"c", b"c", b"d")}, tmp_path / "data")
    summary = tmp_path / "s.json"
    code = main(["audit", str(tmp_path / "data"), "--lineage", "in=out", "--json", str(summary)])
    shown = json.loads(summary.read_text())["shown"]
    assert code == 1
    assert {(one["rule"], one["severity"]) for one in shown} == set(rules)
    for one in shown:
        assert (f"; or it was deleted: {deleted}-0 starts at offset 3" in one["message"]) == (
            one["severity"] == "notice"
        )


def test_several_topics_and_several_applications(tmp_path: Path) -> None:
    logs = {
        "a-0": INPUT,
        "b-0": INPUT,
        "x-0": written(*(output(place, "header") for place in ("a-0@0", "a-0@1", "a-0@2", "b-0@0"))),
        "y-0": written(*(output(place, "header") for place in ("b-0@2", "b-0@1"))),
    }
    how = ("--lineage-key", WAYS["header"])
    assert audit(tmp_path, logs, "--lineage", "a,b=x,y", *how) == []
    assert audit(tmp_path, logs, "--lineage", "a=x", *how) == [("lineage-stray", "x-0", 3)]
    both = audit(tmp_path, logs, "--lineage", "a=x", "--lineage", "a=y", *how)
    assert both == [
        ("lineage-lost", "a-0", 0),
        ("lineage-lost", "a-0", 1),
        ("lineage-lost", "a-0", 2),
        ("lineage-stray", "x-0", 3),
        ("lineage-stray", "y-0", 0),
        ("lineage-stray", "y-0", 1),
    ]


def test_replicas_of_a_record_are_one(tmp_path: Path) -> None:
    logs = {
        "1/in-0": INPUT,
        "2/in-0": INPUT,
        "1/out-0": written(*(output(place, "header") for place in ("in-0@0", "in-0@1", "in-0@2"))),
    }
    for key in (WAYS["header"], "key"):
        found = audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", key, code=int(key == "key"))
        assert found == ([] if key != "key" else [("lineage-lost", "in-0", 0), ("lineage-stray", "out-0", 0)])


def test_a_field_of_both_sides(tmp_path: Path) -> None:
    def order(number: object) -> Record:
        return Record(0, 1, b"k", json.dumps({"order": {"id": number}, "more": number}).encode())

    logs = {"in-0": written(order(1), order("2"), order(3)), "out-0": written(order(3), order(1), order(1))}
    found = audit(tmp_path, logs, "--lineage", "in=out", "--lineage-key", "field:order.id")
    assert found == [("lineage-duplicate", "out-0", 2), ("lineage-lost", "in-0", 1)]


@pytest.mark.parametrize("key", ["key", "header:name", "field:id"])
def test_records_that_nothing_ties_are_told(key: str, tmp_path: Path) -> None:
    """One notice a side; the others are compared all the same."""
    tied, untied = Record(0, 1, b"k", b'{"id": 1}', [("name", b"n")]), Record(0, 1, None, b"")
    logs = {"in-0": written(tied, untied, untied, tied), "in-1": written(untied), "out-0": written(tied, untied)}
    options = ("--lineage", "in=out", "--lineage-key", key)
    told, lost = ("lineage-lost", "in-0", 1), ("lineage-lost", "in-0", 3)
    assert audit(tmp_path, logs, *options) == [told, lost, ("lineage-stray", "out-0", 1)]
    logs = {"in-0": written(untied), "out-0": written(tied)}
    shutil.rmtree(tmp_path / "data")
    found = audit(tmp_path, logs, "--lineage", "out=in", "--lineage-key", key)
    assert found == [("lineage-lost", "out-0", 0), ("lineage-stray", "in-0", 0)]
    found = audit(tmp_path, {"out-0": written(untied)}, *options, code=0)
    assert found == [("lineage-lost", "in-0", 0), ("lineage-stray", "out-0", 0)]


def test_keys_of_rows_can_be_sorted(tmp_path: Path) -> None:
    """As Spark does when it spills what it groups."""
    content = written(Record(0, 1, b"", b""), Record(0, 1, None, b""), Record(0, 1, b"k", b""))
    path = write_files({"in-0/00000000000000000000.log": content}, tmp_path)
    plan = plan_for(str(path), lineage=["in=in"])
    rows = lineage_rows(0, plan.lineages[0], plan.files, plan.parts[0], outcomes_of([]), None, {})
    assert sorted({key for key, _ in rows}) == [(0, False, b""), (0, True, b""), (0, True, b"k")]


@pytest.mark.parametrize("options", [("--lineage", "in=oops"), ("--lineage", "in,oops=in"), ("--topic", "oops")])
def test_a_topic_that_is_not_there_is_named(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_files({"in-0/00000000000000000000.log": INPUT}, tmp_path)
    assert main(["audit", str(path), "--topic", "in", *options]) == 2
    among = "among those that --topic and --partition choose"
    assert capsys.readouterr().err == f"minibroker audit: {path}: no partition of oops {among}\n"
    assert main(["audit", str(path), "--lineage", "oops=in"]) == 2
    assert capsys.readouterr().err == f"minibroker audit: {path}: no partition of oops\n"


@pytest.mark.parametrize("key", ["header:", "field:", "position:key", "position:", "position:header:", "nothing"])
def test_a_key_that_is_none(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_files({"in-0/00000000000000000000.log": INPUT}, tmp_path)
    assert main(["audit", str(path), "--lineage", "in=out", "--lineage-key", key]) == 2
    assert capsys.readouterr().err.startswith(
        f"minibroker audit: --lineage-key {key}: expected key, value, header:NAME"
    )
