"""`minibroker audit` without Spark: exit statuses, what is printed and written, and how data is found."""

import argparse
import json
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from planting import Planted, changed, header_of, marker, write_files

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from minibroker.cli import main
from minibroker_pipeline import audit_command as command
from minibroker_pipeline.audit_command import add_arguments, engine_for, plan_of
from minibroker_pipeline.engine import audit_here
from minibroker_pipeline.files import Files, NotReadable
from minibroker_pipeline.listing import list_directory
from minibroker_pipeline.planning import as_of, plan_for
from minibroker_pipeline.reading import read_part


def directory(path: Path, planted: Planted) -> str:
    return str(write_files(planted.files, path))


def broken() -> Planted:
    planted = Planted()
    planted.append("append-time-0", planted.batches("append-time-0")[-1], base_sequence=11)
    return planted


def test_clean_data_gives_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", directory(tmp_path, Planted())]) == 0
    out = capsys.readouterr().out
    assert "30 logs" in out
    assert out.endswith("\n0 findings\n")


def test_a_finding_gives_1_and_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory(tmp_path / "data", broken())
    out = tmp_path / "out"
    assert main(["audit", path, "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "error: sequence-gap: append-time-0 offsets 9-11: expected sequence 9 after offset 8, got 11" in printed
    summary = json.loads((out / "summary.json").read_text())
    assert summary["findings"] == {"sequence-gap": 1}
    assert summary["exit_code"] == 1
    found = summary["shown"][0]
    assert found["show"] == f"minibroker audit {path} --show append-time-0@9-11"
    assert main(found["show"].split()[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "base_sequence: 11" in lines[0]


def test_tables(tmp_path: Path) -> None:
    path = directory(tmp_path / "data", broken())
    out = tmp_path / "out"
    main(["audit", path, "--out", str(out), "--json", str(tmp_path / "s.json")])
    summary = json.loads((tmp_path / "s.json").read_text())
    tables = {name: pq.read_table(out / name) for name in ("batches", "runs", "transactions", "findings")}
    assert tables["batches"].num_rows == summary["batches"]
    assert tables["findings"].column("rule").to_pylist() == ["sequence-gap"]
    assert sorted(set(tables["transactions"].column("outcome").to_pylist())) == ["", "ABORT", "COMMIT"]
    assert sum(tables["runs"].column("batches").to_pylist()) <= summary["batches"]
    assert main(["audit", path, "--out", str(tmp_path / "less"), "--no-batches"]) == 1
    assert not (tmp_path / "less" / "batches").exists()


def test_the_page_needs_nothing_else_and_names_the_finding(tmp_path: Path) -> None:
    path = directory(tmp_path / "data", broken())
    main(["audit", path, "--html", str(tmp_path / "r.html")])
    page = (tmp_path / "r.html").read_text()
    assert not re.findall(r"(?:src|href)\s*=|@import|url\(|<script", page)
    assert page.count("<figure>") == page.count("<svg") == 5
    assert "1 broken promise found" in page
    assert "--show append-time-0@9-11" in page
    assert "sequence gap" in page
    figure = page.split("Findings by rule")[1].split("</figure>")[0]
    assert ">sequence-gap</text>" in figure
    durations = page.split("How long transactions took")[1].split("</figure>")[0]
    assert durations.count("<rect") == 14
    assert [label for label in (">1 ms<", ">10 ms<", ">1,000 s<", ">more<") if label not in durations] == []


def test_times_beyond_the_calendar(tmp_path: Path) -> None:
    """As of producers that count microseconds, or of a marker with nonsense in it."""
    planted = Planted()
    batch = planted.find("open-0", 2)
    micros = header_of(batch).max_timestamp * 1_000
    planted.append("append-time-1", batch, base_timestamp=micros, max_timestamp=micros, producer_id=77)
    end = planted.end("append-time-1")
    planted.append("append-time-1", marker(producer_id=77, producer_epoch=0, timestamp_ms=1 << 60))
    assert planted.end("append-time-1") == end + 1
    main(["audit", directory(tmp_path / "data", planted), "--html", str(tmp_path / "r.html")])
    page = (tmp_path / "r.html").read_text()
    assert f"judged as of {1 << 60:,} ms" in page
    assert page.endswith("</html>\n")


def test_a_broken_batch_is_a_row_that_says_so(tmp_path: Path) -> None:
    planted = Planted()
    planted.change("append-time-0", 3, lambda batch: batch[:-1] + b"x")
    file = planted.path("append-time-1")
    planted.files[file] = planted.files[file][:-1]
    out = tmp_path / "out"
    assert main(["audit", directory(tmp_path / "data", planted), "--out", str(out)]) == 1
    faults = [fault.split(":")[0] for fault in pq.read_table(out / "batches").column("fault").to_pylist() if fault]
    assert sorted(faults) == ["checksum", "torn-batch"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give a PATH"),
        (["nothing-here"], "nothing-here"),
        (["DIR", "--bootstrap", "h:1"], "one of them"),
        (["DIR", "--follow"], "--follow goes with"),
        (["--bootstrap", "127.0.0.1:1", "--follow", "--html", "x"], "do not go with it"),
        (["--bootstrap", "127.0.0.1:1", "--follow", "--engine", "spark"], "--follow runs in this process only"),
        (["--bootstrap", "127.0.0.1:1", "--follow", "--master", "local[2]"], "--follow runs in this process only"),
        (["DIR", "--group", "g"], "--group goes with --lineage"),
        (["DIR", "--group", "key"], "--group goes with --lineage"),  # what is a default elsewhere
        (["DIR", "--lineage-key", "value"], "--lineage-key goes with --lineage"),
        (["DIR", "--no-batches"], "--no-batches goes with --out"),
        (["DIR", "--engine", "here", "--master", "local[2]"], "leave them out, or --engine here"),
        (["DIR", "--engine", "here", "--conf", "a=b"], "leave them out, or --engine here"),
        (["DIR", "--as-of", "soon"], "--as-of soon"),
        (["DIR", "--lineage", "a"], "expected INPUT=OUTPUT"),
        (["DIR", "--lineage", "a=b", "--lineage-key", "x"], "--lineage-key x"),
        (["DIR", "--topic", "nobody"], "no directory of a partition"),
        (["DIR", "--show", "plain"], "--show plain"),
        (["DIR", "--show", "plain-0@900"], "no batch of plain-0@900"),
    ],
)
def test_what_cannot_be_run_gives_2(
    arguments: list[str], reason: str, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *(str(golden) if a == "DIR" else a for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("terminal", "more", "shown"), [(True, [], True), (True, ["--quiet"], False), (False, [], False)]
)
def test_a_progress_bar_on_a_terminal(
    terminal: bool,
    more: list[str],
    shown: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["audit", directory(tmp_path, Planted()), *more]) == 0
    drawn = capsys.readouterr().err
    assert ("[########################################] 100% of 3 MB" in drawn) is shown
    assert drawn.endswith("\n") is shown


def test_what_nobody_foresaw_gives_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not 1, which says that a promise was broken."""
    raised = "Job aborted: lost task\n  File \"x.py\", line 3\nFileNotFoundError: [Errno 2] gone: 'x'\n\n\tat java.base"
    spark_error = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    error: Exception = spark_error(raised)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "audit_path", fail)
    assert main(["audit", directory(tmp_path, Planted())]) == 2
    assert capsys.readouterr().err == "minibroker audit: a worker failed: FileNotFoundError: [Errno 2] gone: 'x'\n"
    error = RuntimeError("odd")
    with pytest.raises(RuntimeError, match="odd"):  # `minibroker.program` makes one line of it, and 70
        main(["audit", directory(tmp_path, Planted())])


def test_a_relative_path_means_the_same_in_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory(tmp_path / "data", Planted())
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(plan_of(parser().parse_args(["data", "--out", "tables"])))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    plan = pickle.loads(sent)
    assert plan.source == "data"
    plan.out.write_text("name", "text")
    assert (tmp_path / "tables" / "name").read_text() == "text"
    read_part(plan.files, plan.parts[0])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    command.add_arguments(made)
    return made


def test_several_data_directories_and_a_choice_of_topics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory(tmp_path / "broker-1", Planted())
    directory(tmp_path / "broker-2", broken())
    assert main(["audit", str(tmp_path), "--json", "-"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["logs"] == 60
    assert [(f["root"], f["topic"]) for f in summary["shown"]] == [("broker-2", "append-time")]
    assert main(["audit", str(tmp_path), "--topic", "plain", "--topic", "open", "--partition", "0"]) == 0
    assert "4 logs" in capsys.readouterr().out


def test_times() -> None:
    assert as_of(None) is None
    assert as_of("1700000000000") == 1_700_000_000_000
    assert as_of("2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    assert (as_of("now") or 0) > 1_700_000_000_000


def test_compacted_topics_may_lack_anything(tmp_path: Path) -> None:
    planted = Planted()
    del planted.files["cleaner-offset-checkpoint"]
    path = directory(tmp_path, planted)
    counts = []
    for more in ([], ["--compacted", "compacted"]):
        assert main(["audit", path, *more, "--json", str(tmp_path / "s.json")]) == 0
        counts.append(json.loads((tmp_path / "s.json").read_text())["notices"])
    assert counts == [{"offset-hole": 2}, {}]  # without metadata and checkpoint the policy is not known


@pytest.mark.parametrize(
    ("size", "spark", "options", "engine"),
    [
        (1 << 20, True, [], "here"),
        (1 << 30, True, [], "here"),
        (2 << 30, True, [], "spark"),
        (2 << 30, True, ["--engine", "here"], "here"),
        (1 << 20, True, ["--master", "local"], "spark"),
        (1 << 20, True, ["--engine", "spark"], "spark"),
        (2 << 30, False, [], "here"),
        (5 << 30, False, [], "an audit of 5.4 GB needs pyspark and pandas"),
        (5 << 30, False, ["--engine", "here"], "here"),
        (1 << 20, False, ["--master", "local"], "an audit on Spark needs pyspark and pandas"),
    ],
)
def test_the_engine_that_fits(
    size: int, spark: bool, options: list[str], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark only where it is asked for or there is much data, and where it is not installed a process reads more."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if spark or name == "pip" else None)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["DATA_DIR", *options])
    try:
        chosen = engine_for(size, arguments)
    except ValueError as refused:
        chosen = str(refused).partition(":")[0]
    assert chosen == engine


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_a_damaged_checkpoint_is_taken_as_missing(name: str, tmp_path: Path) -> None:
    """It is told, and where compaction was is not known then, so that nothing lawful is called a hole."""
    planted = Planted("compacted")
    planted.files[name] = b"\xff" + planted.files[name]
    assert main(["audit", directory(tmp_path / "data", planted), "--json", str(tmp_path / "s.json")]) == 1
    shown = json.loads((tmp_path / "s.json").read_text())["shown"]
    (found,) = [one for one in shown if one["severity"] == "error"]
    assert (found["rule"], found["file"]) == ("checkpoint", name)
    assert {one["rule"] for one in shown if one["severity"] != "error"} <= {"offset-hole"}


def test_a_file_system_of_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, content in broken().files.items():
        memory.pipe(f"/audited/{name}", content)
    try:
        assert main(["audit", "memory://audited", "--topic", "append-time", "--out", str(tmp_path)]) == 1
        found = json.loads((tmp_path / "summary.json").read_text())["shown"]
        assert [(f["rule"], f["first_offset"]) for f in found] == [("sequence-gap", 9)]
        with pytest.raises(NotReadable, match="nonsense"):
            Files("nonsense://x").list()
    finally:
        memory.rm("/audited", recursive=True)


def test_outputs_go_where_their_uris_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    data = directory(tmp_path / "data", broken())
    monkeypatch.chdir(tmp_path)
    here = [*tmp_path.iterdir()]
    try:
        ways = ["--json", "memory://written/s.json", "--html", f"file://{tmp_path}/page.html"]
        assert main(["audit", data, "--topic", "append-time", "--out", "memory://written/all", *ways]) == 1
        (tmp_path / "page.html").unlink()
        names = ["all/report.html", "all/summary.json", "s.json"]
        names += [f"all/{table}/part-000000.parquet" for table in ("batches", "findings", "runs", "transactions")]
        assert sorted(memory.find("/written")) == [f"/written/{name}" for name in sorted(names)]
        assert json.loads(memory.cat("/written/s.json"))["findings"] == {"sequence-gap": 1}
        assert pq.read_table("/written/all/findings", filesystem=memory).num_rows == 1
    finally:
        memory.rm("/written", recursive=True)
    capsys.readouterr()
    for option in ("--out", "--json", "--html"):
        assert main(["audit", data, option, "nonsense://x/y"]) == 2
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err.startswith("minibroker audit: nonsense://x/y: ")
    assert [*tmp_path.iterdir()] == here


def test_large_files_are_split_at_index_entries(tmp_path: Path) -> None:
    path = directory(tmp_path, Planted())
    whole = list_directory(Files(path), topics=["sized"])
    split = list_directory(Files(path), topics=["sized"], split_bytes=100_000)
    assert len(split.parts) > len(whole.parts) + 5
    assert split.bytes == whole.bytes
    logs = [part for part in split.parts if part.path == "sized-0/00000000000000000000.log"]
    assert [part.start for part in logs][1:] == [part.stop for part in logs][:-1]
    assert all(part.size >= 100_000 for part in logs[:-1])


def test_parts_give_what_whole_files_give(tmp_path: Path) -> None:
    planted = Planted()
    planted.change("sized-0", 100, lambda batch: changed(batch, base_sequence=5), number=0)
    path = directory(tmp_path / "data", planted)
    results = []
    whole = plan_for(path)
    split = replace(whole, parts=tuple(list_directory(Files(path), split_bytes=50_000).parts))
    assert len(split.parts) > len(whole.parts)
    for plan in (whole, split):
        figures, found, _ = audit_here(plan)
        results.append((figures.batches, figures.records, figures.bytes, sorted(one.rule for one in found)))
    assert results[0] == results[1]
    assert results[0][-1].count("duplicate") == 1
