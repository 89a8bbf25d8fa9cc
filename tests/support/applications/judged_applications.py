"""The application that `minibroker judge` is shown on, in seven client libraries: how each is built, run and judged.

The tiers run it with the versions that they have, docs/reference/late-requests.md with older ones too, from the
museum's cache; and so benchmarks/results/judge.md the loop of `judged_loops.py`, which commits offsets.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jvm import JVM_TIER, NEWEST, compile_java, java_command
from toolchain import TESTS, go_program, last_line, node_program

from minibroker.cli import main
from minibroker.program import ctrl_c_is_ours
from minibroker_lab.judge.report import HELD, NOT_APPLICABLE
from minibroker_lab.museum.clients import program

PYTHON = ("confluent-kafka", "aiokafka", "kafka-python")
JAVA, NODE = "Java", "kafkajs"
GO = {"franz-go": "github.com/twmb/franz-go", "sarama": "github.com/IBM/sarama"}
CLIENTS = (*PYTHON, JAVA, *GO, NODE)
OLD = {
    "confluent-kafka": ("2.3.0",),
    "aiokafka": ("0.10.0",),
    "kafka-python": ("3.0.0",),
    JAVA: ("2.8.0", "3.9.0", "4.3.1"),
    "franz-go": ("1.17.0",),
    "sarama": ("1.41.0",),
    NODE: ("1.15.0",),
}
"""Older versions beside the tiers' own: the oldest that has a wheel for Python 3.11, or one that many still use."""
_SOURCES = {
    **dict.fromkeys(PYTHON, ("support/applications/judged_client.py",)),
    JAVA: ("jvm/JudgedClient.java",),
    "franz-go": ("go/judged/main.go", "go/judged/franz.go"),
    "sarama": ("go/judged/main.go", "go/judged/sarama.go"),
    NODE: ("node/judged.mjs",),
}
LOOPS = {
    "confluent-kafka": ("support/applications/loop_client.py",),
    "aiokafka": ("support/applications/loop_aiokafka.py",),
    "kafka-python": ("support/applications/loop_kafka_python.py",),
    JAVA: ("jvm/LoopClient.java",),
    "franz-go": ("go/loop/main.go",),
    "sarama": ("go/loop_sarama/main.go",),
    NODE: ("node/loop.mjs",),
}
"""The loop of `judged_loops.py` in each library."""


def command(client: str, directory: Path) -> list[str]:
    """Its command line; what has to be built goes into `directory`. Raises Unavailable."""
    if client in PYTHON:
        return [sys.executable, str(Path(__file__).with_name("judged_client.py")), client]
    if client == JAVA:
        compiled = compile_java([JVM_TIER / "JudgedClient.java"], directory)
        return java_command("JudgedClient", extra=(compiled,), release=NEWEST)
    if client == NODE:
        return node_program("judged.mjs", directory)
    return [go_program("./judged", directory), client]


_REPORT = "judge.json"


class NoReport(Exception):
    """A judge ended without a report; the text says how."""


@contextmanager
def command_of(client: str, version: str) -> Iterator[list[str]]:
    """Its command line with another version of the library. Raises ClientError."""
    with _started(client, version, _SOURCES[client]) as argv:
        yield [*argv, client]


@contextmanager
def loop_of(client: str, version: str) -> Iterator[list[str]]:
    """The command line of the loop without a mistake, with a version of the library. Raises ClientError."""
    with _started(client, version, LOOPS[client]) as argv:
        yield [*argv, "right"]


@contextmanager
def _started(client: str, version: str, sources: Sequence[str]) -> Iterator[list[str]]:
    paths = [TESTS / source for source in sources]
    with program("kafka-clients" if client == JAVA else client, version, paths) as argv:
        yield argv


def client_version(text: str) -> tuple[str, str]:
    """Of CLIENT or CLIENT==VERSION, for argparse; the newest version where there is none."""
    client, _, wanted = text.partition("==")
    if client not in CLIENTS:
        raise argparse.ArgumentTypeError(f"unknown client {client!r}: there are {', '.join(CLIENTS)}")
    return client, wanted or release(client)


def release(client: str) -> str:
    """The version of the library."""
    if client in PYTHON:
        return version(client)
    if client == JAVA:
        return NEWEST
    if client == NODE:
        return _pinned(r'"kafkajs": "(.+?)"', TESTS / "node" / "package.json")
    return _pinned(rf"\t{re.escape(GO[client])} v(\S+)", TESTS / "go" / "go.mod")


def _pinned(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(encoding="utf-8"))
    if match is None:
        raise AssertionError(f"{file.name} does not say {pattern!r}")
    return match[1]


def judged(argv: Sequence[str], *options: str) -> list[dict[str, Any]]:
    """What `minibroker judge` reports of this command, one object a run."""
    with tempfile.TemporaryDirectory() as place:
        main(["judge", *options, *_report_into(place), "--", *argv])
        return _rows(Path(place))


def judged_apart(
    argv: Sequence[str], *options: str, kept: Path | None, ending: threading.Event
) -> list[dict[str, Any]]:
    """The same from a process of its own. Raises NoReport.

    kept: gets the trace, the report, and the output of the command of each run that is not held.
    ending: once it is set, the judge, which sees no Ctrl-C, is ended, with its command and its broker.
    """
    with tempfile.TemporaryDirectory() as place:
        words = ["judge", *options, *_report_into(place), "--traces", place, "--", *argv]
        program = [sys.executable, "-m", "minibroker", *words]
        status, printed = _ended(program, ending)
        if not Path(place, _REPORT).exists():
            raise NoReport(f"the judge ended with {status}: {last_line(printed)}")
        rows = _rows(Path(place))
        for row in rows:
            if kept is not None and row["verdict"] not in (HELD, NOT_APPLICABLE):
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(place, f"{row['script']}.jsonl"), kept)
                said = json.dumps({**row, "printed": printed}, indent=1)
                (kept / f"{row['script']}.json").write_text(said, encoding="utf-8")
    return rows


_LOOK_SECONDS = 0.2


def _ended(program: Sequence[str], ending: threading.Event) -> tuple[int, str]:
    """The exit status, and what was printed to stderr. A second signal would end a judge before it has cleaned up."""
    with ctrl_c_is_ours():
        judge = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    with judge:
        signalled = False
        while True:
            try:
                printed = judge.communicate(timeout=_LOOK_SECONDS)[1]
                return judge.returncode, printed
            except subprocess.TimeoutExpired:
                if ending.is_set() and not signalled:
                    judge.terminate()
                    signalled = True


def _report_into(place: str) -> list[str]:
    return ["--report", "json", "--report-dir", place]


def _rows(place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((place / _REPORT).read_text(encoding="utf-8"))
    return rows


def script_options(scripts: Sequence[str]) -> list[str]:
    return [argument for script in scripts for argument in ("--script", script)]


def hold(argv: Sequence[str], scripts: Sequence[str]) -> None:
    """Assert that exactly-once held under each of these scripts."""
    rows = judged(argv, *script_options(scripts), "--topic", "orders:1")
    assert [row["script"] for row in rows] == list(scripts)
    assert [row for row in rows if row["verdict"] != "held"] == []


def reads_right(argv: Sequence[str]) -> None:
    """Assert that a consumer prints exactly what read_committed promises of the topics of `judge --readers`."""
    assert main(["judge", "--readers", "--timeout", "60", "--", *argv]) == 0


SHORT = ("lost-produce-replies", "timeout-mid-transaction")
"""What the tiers of other languages ask on every run."""
