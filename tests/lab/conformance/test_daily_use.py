"""Runs that are gone on with, repeated, and compared with earlier ones; reports that are there all the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_process import start_command
from scripted_broker import SILENCE, ScriptedBroker, scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance import live
from minibroker_protocol.messages import HeartbeatRequest, HeartbeatResponse

NONE, UNKNOWN = 0, 25


class Suite:
    """Scenarios with a Heartbeat each, that pass as long as `answers` has NONE for their name; `asked` counts."""

    def __init__(self, broker: ScriptedBroker, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap, self.folder, self.capsys = broker.bootstrap, folder, capsys
        self.answers: dict[str, Any] = {}
        self.asked: Counter[str] = Counter()
        broker.handlers[HeartbeatRequest] = self._beat
        self.seen: Callable[[str], None] = lambda name: None
        """Called with each Heartbeat."""
        self.lines: list[str] = []
        self.errors = ""

    def _beat(self, request: HeartbeatRequest, version: int) -> Any:
        self.asked[request.group_id] += 1
        self.seen(request.group_id)
        answer = self.answers[request.group_id]
        return HeartbeatResponse(error_code=answer) if isinstance(answer, int) else answer

    def write(self) -> Path:
        file = self.folder / "suite.yaml"
        call = "call: Heartbeat v3, expect: {errorCode: NONE}"
        file.write_text("".join(f"- {{name: {n}, steps: [{{{call}, req: {{groupId: {n}}}}}]}}\n" for n in self.answers))
        return file

    def __call__(self, *options: str, **answers: int) -> int:
        self.answers |= answers
        self.asked.clear()
        report = ["--report", "json,junit", "--report-dir", str(self.folder)]
        arguments = ["--bootstrap", self.bootstrap, "--jobs", "1", *report, *options, str(self.write())]
        status = cli.main(arguments)
        said = self.capsys.readouterr()
        self.lines, self.errors = said.out.splitlines(), said.err
        return status

    def report(self) -> dict[str, str]:
        """Scenario → outcome, as the JSON report has it now."""
        document = json.loads((self.folder / "conformance.json").read_text())
        return {row["name"]: row["outcome"] for row in document["scenarios"]}

    def kept(self) -> str:
        """The report, under a name that the next run leaves alone."""
        path = self.folder / "old.json"
        path.write_text((self.folder / "conformance.json").read_text())
        return str(path)


@pytest.fixture
def suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Suite]:
    with scripted_broker() as broker:
        yield Suite(broker, tmp_path, capsys)


def test_reports_are_there_while_the_run_goes_on(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.0)
    meanwhile: list[dict[str, str]] = []

    def seen(name: str) -> None:
        # The run waits for this answer. What came last may be written a moment later.
        until = time.monotonic() + 20
        while name == "c" and not meanwhile and time.monotonic() < until:
            if (suite.folder / "conformance.json").exists() and suite.report()["a"] == "passed":
                meanwhile.append(suite.report())
            time.sleep(0.01)

    suite.seen = seen
    assert suite(a=NONE, b=UNKNOWN, c=NONE) == 1
    (early,) = meanwhile
    assert early["a"] == "passed"
    assert early["c"] == "not_run"
    assert suite.report() == {"a": "passed", "b": "failed", "c": "passed"}


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be interrupted alone there")
def test_an_interrupted_run_has_its_reports_and_goes_on(suite: Suite) -> None:
    suite.answers = {"a": NONE, "b": UNKNOWN, "c": SILENCE}
    report = ["--report", "json", "--report-dir", str(suite.folder)]
    command = ("conformance", "--bootstrap", suite.bootstrap, "--jobs", "1", *report, str(suite.write()))
    with start_command(*command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout
        assert any(line.startswith("FAIL b") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert suite.report() == {"a": "passed", "b": "failed", "c": "not_run"}

    assert suite("--resume", suite.kept(), c=NONE) == 1
    assert suite.asked == {"c": 1}
    assert suite.report() == {"a": "passed", "b": "failed", "c": "passed"}
    assert suite.lines[-1] == "2 passed, 1 failed"
    assert suite("--resume", suite.kept(), "--expect", "kip") == 2
    assert suite.errors.endswith("old.json: that run was compared with kafka-4.4\n")


def test_what_failed_is_run_again(suite: Suite) -> None:
    assert suite(a=NONE, b=UNKNOWN, c=UNKNOWN) == 1
    assert suite("--only-failed", suite.kept(), b=NONE) == 1
    assert suite.asked == {"b": 1, "c": 1}
    assert suite.report() == {"b": "passed", "c": "failed"}
    assert suite("--only-failed", suite.kept(), c=NONE) == 0
    assert suite("--only-failed", suite.kept()) == 0
    assert suite.lines == [f"{suite.kept()}: nothing of it failed"]


def test_a_repeated_scenario_fails_if_it_failed_once(suite: Suite) -> None:
    def seen(name: str) -> None:
        suite.answers["b"] = UNKNOWN if suite.asked["b"] == 2 else NONE

    suite.seen = seen
    assert suite("--repeat", "3", a=NONE, b=NONE, c=UNKNOWN) == 1
    assert suite.asked == {"a": 3, "b": 3, "c": 3}
    assert [line for line in suite.lines if line.startswith("not always")] == ["not always: b failed in 1 of 3 runs"]
    assert suite.lines[-1] == "1 passed, 2 failed"
    assert suite.report() == {"a": "passed", "b": "failed", "c": "failed"}


def test_only_what_is_new_fails_beside_a_baseline(suite: Suite) -> None:
    assert suite(a=NONE, b=UNKNOWN, c=UNKNOWN) == 1
    old = suite.kept()
    assert suite("--baseline", old) == 0
    assert suite.lines[-1] == f"against {old}: 0 new failures, 0 mended"
    assert suite("--baseline", old, b=NONE, c=22) == 0
    assert suite.lines[-2:] == [f"against {old}: 0 new failures, 1 mended", "  mended: b"]
    assert suite("--baseline", old, a=UNKNOWN, d=UNKNOWN) == 1
    assert [line.partition(": step")[0] for line in suite.lines[-4:]] == [
        f"against {old}: 2 new failures, 1 mended",
        "  new: a [recovery]",
        "  new: d [recovery]",
        "  mended: b",
    ]


def test_a_heavier_failure_is_new(suite: Suite) -> None:
    assert suite(a=UNKNOWN) == 1
    old = Path(suite.kept())
    old.write_text(old.read_text().replace('"weight": "recovery"', '"weight": "code"'))
    assert suite("--baseline", str(old)) == 1
    assert suite.lines[-1].startswith("  new: a [recovery]: step 1")
    assert suite("--baseline", str(old), "--fail-on", "exactly-once") == 0


@pytest.mark.parametrize("option", ["--resume", "--only-failed", "--baseline"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("{", "not a JSON report of minibroker conformance"),
        ('{"expectation": "kip", "scenarios": [{"name": "a", "outcome": "x"}]}', "not a JSON report"),
    ],
)
def test_a_file_that_is_no_report(suite: Suite, option: str, text: str | None, said: str) -> None:
    file = suite.folder / "odd.json"
    if text is not None:
        file.write_text(text)
    assert suite(option, str(file), a=NONE) == 2
    assert suite.errors.count("\n") == 1
    assert "odd.json" in suite.errors
    assert said in suite.errors
    assert suite.asked == {}


def test_the_release_that_fits_best_is_named(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    """Of c every release expects the same, of a and b each another answer."""
    suite.answers = {"a": UNKNOWN, "b": UNKNOWN, "c": NONE}
    file = suite.folder / "suite.yaml"
    beat = "call: Heartbeat v3, req: {groupId: %s}, expect: {errorCode: NONE}"
    old, older = "kafka-3.9: {errorCode: UNKNOWN_MEMBER_ID}", "kafka-2.8: {errorCode: ILLEGAL_GENERATION}"
    texts = {"a": f"{beat % 'a'}, {old}, {older}", "b": f"{beat % 'b'}, {older}", "c": beat % "c"}
    file.write_text("".join(f"- {{name: {name}, steps: [{{{text}}}]}}\n" for name, text in texts.items()))
    options = ["--bootstrap", suite.bootstrap, "--report", "json", "--report-dir", str(suite.folder), str(file)]
    assert cli.main(options) == 1
    lines = capsys.readouterr().out.splitlines()
    others = "kafka-4.4: 1 of 3, kafka-4.3: 1 of 3, kafka-4.0: 1 of 3, kafka-2.8: 1 of 3, kafka-2.3: 1 of 3"
    assert lines[-2:] == [f"fits best: kafka-3.9: 2 of 3 ({others})", "1 passed, 2 failed"]
    # Once for the newest, and again for each release that expects something else.
    assert suite.asked == {"a": 3, "b": 2, "c": 1}
    assert json.loads((suite.folder / "conformance.json").read_text())["fits"][0] == {
        "expectation": "kafka-3.9",
        "passed": 2,
        "of": 3,
    }
    suite.answers |= {"a": NONE, "b": NONE}
    assert cli.main(options) == 0
    assert "fits best: kafka-4.4: 3 of 3" in capsys.readouterr().out.splitlines()
    assert cli.main([*options, "--expect", "kafka-3.9"]) == 1
    assert "fits best" not in capsys.readouterr().out
