"""The tables of benchmarks/results/judge.md, which `tests/support/pages/judge_page.py` writes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import judge_page
import judged_applications
import pytest
from judge_page import HELD, Where, _said, columns, kept, measured, table
from judged_applications import NoReport
from late_page import PAGE, SCRIPTS, cell
from late_page import kept as late_rows
from late_page import table as late_table
from real_kafka import NotStarted
from toolchain import TESTS

from minibroker_lab.judge.scripts import bundled


def test_the_programs_of_the_page_are_there() -> None:
    programs = (judged_applications._SOURCES, judged_applications.LOOPS)
    assert [set(every) for every in programs] == [set(judged_applications.CLIENTS)] * 2
    sources = {source for of_clients in programs for every in of_clients.values() for source in every}
    assert [source for source in sources if not (TESTS / source).is_file()] == []


def test_a_client_that_did_not_return_is_counted_and_no_script_is_named() -> None:
    old, new, *_ = columns()
    cells = {old: dict.fromkeys(bundled(), "held"), new: dict.fromkeys(bundled(), "held")}
    cells[old] |= {bundled()[0]: _said({"status": None, "broken": [{"rule": "no-progress"}]})}
    cells[old] |= {bundled()[1]: _said({"status": 0, "broken": [{"rule": "order"}]}), "measured": "2026-11-24"}
    cells[new] |= {"measured": "2026-11-24"}
    text = table("kafka", cells)
    scripts, _, counts = text.partition("\n\n")
    assert (old in scripts, new in scripts, "no verdict" in scripts) == (False, True, False)
    assert f"| {old} | {len(bundled()) - 2} | 1 | 1 | 0 | 0 | 0 | 2026-11-24 |" in counts
    assert not any(f"`{name}`" in counts for name in bundled())
    read = kept(text, "kafka")
    assert (read[new], table("kafka", read)) == (cells[new], text)
    assert set(read) == {old, new}  # a column without a cell is none
    only_counts = table("kafka", {old: cells[old]})
    assert (only_counts, kept(only_counts, "kafka")) == (counts, {old: read[old]})


def test_what_has_no_verdict_is_told_from_what_was_not_run() -> None:
    column = columns()[0]
    names = iter(bundled())
    said = ("no verdict", "held", "undecided", "not applicable", "not applicable")
    cells = {next(names): cell for cell in said} | {next(names): "not run", "measured": "2026-11-24"}
    text = table("upstream", {column: cells})
    assert text.splitlines()[-1] == f"| {column} | 1 | 0 | 1 | 1 | 2 | {len(bundled()) - 5} | 2026-11-24 |"


@pytest.mark.parametrize("failure", [NotStarted("no room"), NoReport("the judge ended with 2")])
def test_a_kafka_that_does_not_start_costs_one_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    """The cells before it are written already, and those of the page stay. A Kafka is kept while what was held there
    can be removed."""
    kafkas, emptied, ended = iter([True, False, True, True]), iter([False, True]), []

    @contextmanager
    def kafka(properties: str) -> Iterator[str]:
        if not next(kafkas):
            raise failure
        yield "127.0.0.1:9092"
        ended.append(properties)

    monkeypatch.setattr(judge_page, "loop_of", lambda client, version: nullcontext(["loop"]))
    monkeypatch.setattr(judge_page, "real_kafka", kafka)
    monkeypatch.setattr(judge_page, "is_emptied", lambda servers: next(emptied))
    said = {"produce-refused": "undecided"}
    monkeypatch.setattr(judge_page, "_cells_of", lambda argv, names, *_: {name: said.get(name, HELD) for name in names})
    names = ["broker-killed", "calm", "leader-moves", "lost-end-txn-reply", "produce-refused", "silent-end-txn"]
    parts = [*measured(columns()[0], Where("upstream"), names, {"leader-moves": "undecided", "late-copies": "held"})]
    assert [len(part) for part in parts] == [4, 5, 6, 7, 8]
    assert (next(kafkas, None), next(emptied, None), len(ended)) == (None, None, 3)
    kept_cells = {name: cell for name, cell in parts[-1].items() if name != "measured"}
    assert kept_cells == {
        "late-copies": "held",
        "leader-moves": "undecided",
        "broker-killed": "not applicable",
        "calm": "held",
        "lost-end-txn-reply": "held",
        "produce-refused": "undecided",
        "silent-end-txn": "held",
    }
    assert capsys.readouterr().err == f"leader-moves: not run: {failure}\n"


class Holder:
    """A lock that says which thread holds it."""

    def __init__(self) -> None:
        self._lock, self.thread = threading.Lock(), 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self.thread = 0
        self._lock.release()


def test_the_page_is_read_and_written_by_one_column_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column keeps what the others wrote; read while it is written, the page would have no cells."""
    lock, text = Holder(), f"{judge_page.BEGIN}\n{judge_page.END}"

    class Page:
        def read_text(self, encoding: str) -> str:
            assert lock.thread == threading.get_ident()
            return text

        def write_text(self, written: str, encoding: str) -> None:
            nonlocal text
            assert lock.thread == threading.get_ident()
            text = written

    def measured(column: str, where: Where, names: list[str], before: dict[str, str]) -> Iterator[dict[str, str]]:
        yield {**before, **dict.fromkeys(names, "held"), "measured": column}

    monkeypatch.setattr(judge_page, "PAGE", Page())
    monkeypatch.setattr(judge_page, "measured", measured)
    monkeypatch.setattr(judge_page, "_tools", str)
    monkeypatch.setattr(judge_page, "threading", SimpleNamespace(Lock=lambda: lock, Event=threading.Event))
    monkeypatch.setattr(judge_page, "ThreadPoolExecutor", lambda workers: nullcontext(SimpleNamespace(map=map)))
    for name in ("calm", "late-copies"):
        monkeypatch.setattr("sys.argv", ["judge_page", "--place", "kip", "--script", name])
        judge_page.main()
    cells = kept(text, "kip")
    assert {name: (cell["calm"], cell["late-copies"]) for name, cell in cells.items()} == dict.fromkeys(
        columns(), ("held", "held")
    )
    assert kept(text, "kafka") == {}


PAGE_OF_A_SLEEPER = """
import runpy, sys
from contextlib import contextmanager, nullcontext
import judged_applications, real_kafka
from minibroker import Minibroker

@contextmanager
def kafka(properties):
    with Minibroker() as broker:
        yield broker.bootstrap_servers

sleeps = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
command = [sys.executable, "-c", sleeps, sys.argv.pop()]
real_kafka.real_kafka = kafka
judged_applications.loop_of = lambda client, version: nullcontext(command)
runpy.run_module("judge_page", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM")
@pytest.mark.parametrize("place", ["upstream", "kip"])
def test_a_signal_ends_what_the_page_has_started(tmp_path: Path, place: str) -> None:
    """The judge, its command and the broker, with their directories."""
    page = judge_page.PAGE.read_bytes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        words = ["--place", place, "--script", "calm", columns()[0].replace(" ", "=="), str(server.getsockname()[1])]
        started = subprocess.Popen([sys.executable, "-c", PAGE_OF_A_SLEEPER, *words], env=environment)
        try:
            command, _ = server.accept()
            started.terminate()
            assert started.wait(60) == 128 + signal.SIGTERM
        finally:
            started.kill()
            started.wait()
        with command:
            command.setblocking(False)
            assert command.recv(1) == b""
    assert [*tmp_path.iterdir()] == []
    assert judge_page.PAGE.read_bytes() == page


def test_the_cells_of_the_page_of_late_requests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = late_rows(text)
    assert {len(row) for row in rows.values()} == {len(SCRIPTS) + 1}
    assert set(rows) <= set(columns())
    assert late_table(rows) in text
    assert cell("yes", "3 of 3", "EndTxn v1 (exchange 27) ended it") == "**yes** 3 of 3: EndTxn v1"
    assert (
        cell("no", "2 of 3", "EndTxn v1 (exchange 2) was refused with PRODUCER_FENCED") == "no 2 of 3: PRODUCER_FENCED"
    )
    assert [cell("not told", times, "x") for times in ("3 of 3", "1 of 3")] == ["not told", "not told 1 of 3"]
