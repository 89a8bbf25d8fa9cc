"""Many scenarios: a broker that dies, scenarios that are left out, and what is printed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from restart import restart_command, restartable_minibroker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.failure import ScenarioFailed
from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.runner import Options, ScenarioRun
from minibroker_lab.conformance.scenario import parse
from minibroker_lab.conformance.schedule import run_all

pytestmark = pytest.mark.waits

MORTAL = """
import os
from minibroker.requests import dispatch
from minibroker.cli import main
serve = dispatch.Dispatcher.dispatch
def dies_of_heartbeats(self, frame, connection):
    if bytes(frame[:2]) == b"\\0\\x0c":
        os._exit(9)
    return serve(self, frame, connection)
dispatch.Dispatcher.dispatch = dies_of_heartbeats
main()
"""
"""A minibroker that ends at the first Heartbeat."""
ASK = "{call: ApiVersions v0, expect: {errorCode: NONE}}"
DEADLY = "{call: Heartbeat v3, req: {groupId: h, generationId: 1, memberId: m}, outcome: closed}"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="the test's command restarts a process with signals")


def suite(folder: Path, *steps: str) -> str:
    """A file of scenarios a, b, c …, each with one step."""
    file = folder / "suite.yaml"
    file.write_text("\n".join(f"- {{name: {chr(97 + n)}, steps: [{step}]}}" for n, step in enumerate(steps)))
    return str(file)


@pytest.fixture
def mortal() -> Iterator[list[str]]:
    """Options: its address, and what starts it."""
    with restartable_minibroker([], command=[sys.executable, "-c", MORTAL]) as (bootstrap, state):
        yield ["--bootstrap", bootstrap, "--start-command", restart_command(state)]


@POSIX
def test_the_scenario_that_killed_the_broker_fails_and_the_rest_is_not_run(
    mortal: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = suite(tmp_path, ASK, DEADLY, ASK, ASK)
    assert cli.main([*mortal[:2], "--jobs", "1", file]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "ok a",
        "FAIL b [recovery]: the broker does not answer any more after step 1 (Heartbeat v3)",
        "not run c (the broker was gone)",
        "not run d (the broker was gone)",
        "1 passed, 1 failed, 2 not run",
    ]


@POSIX
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_command_brings_it_back_and_finds_who_it_was(
    mortal: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    file = suite(tmp_path, ASK, DEADLY, ASK)
    assert cli.main([*mortal, "--jobs", jobs, file]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        "FAIL b [recovery]: the broker does not answer any more after step 1 (Heartbeat v3)",
        "ok a",
        "ok c",
    ]
    assert summary == "2 passed, 1 failed"


@POSIX
def test_of_several_at_once_each_may_have_done_it(
    mortal: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = "{call: ApiVersions v0, until: {errorCode: INVALID_REQUEST}, within: 20}"
    file = suite(tmp_path, wait, DEADLY)
    assert cli.main([*mortal[:2], "--jobs", "2", file]) == 1
    lines = capsys.readouterr().out.splitlines()
    died, told = "the broker does not answer any more after step 1", "--jobs 1 or --start-command tells which of these"
    assert [line.partition(" (")[0] for line in lines[:2]] == [
        f"FAIL a [recovery]: {died}",
        f"FAIL b [recovery]: {died}",
    ]
    assert all(told in line for line in lines[:2])


def test_bytes_that_no_client_sends_come_last(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "suite.yaml"
    raw = "{raw: ffffffff, outcome: closed}"
    file.write_text(f"""
- {{name: malformed, steps: [{raw}]}}
- {{name: by-itself, alone: true, steps: [{ASK}]}}
- {{name: usual, steps: [{ASK}]}}
""")
    assert cli.main(["--bootstrap", bootstrap, str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == ["ok usual", "ok by-itself", "ok malformed"]


@POSIX
def test_a_command_that_does_not_start_it_leaves_the_rest(
    mortal: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = suite(tmp_path, DEADLY, ASK)
    assert cli.main([*mortal[:2], "--start-command", "exit 7", "--jobs", "1", file]) == 3
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "0 passed, 1 failed, 1 not run"
    assert "the start command ended with 7" in said.err


class _Gone:
    """A cluster that has died before it is asked for its versions, `deaths` times in a row."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.up = False

    def lacks(self, _: object) -> list[str]:
        if not self.up:
            raise ScenarioFailed("no response")
        return ["EndTxn v5"]

    def answers(self) -> bool:
        return self.up

    def start(self) -> None:
        self.deaths -= 1
        self.up = self.deaths <= 0


@pytest.mark.parametrize(
    ("deaths", "restarted", "outcomes"),
    [
        (1, False, [Status.NOT_RUN, Status.NOT_RUN]),
        (1, True, [Status.ABSENT, Status.ABSENT]),
        (3, True, [Status.NOT_RUN, Status.ABSENT]),
    ],
)
def test_a_scenario_that_sent_nothing_is_not_blamed_for_a_broker_that_is_gone(
    deaths: int, restarted: bool, outcomes: list[Status]
) -> None:
    cluster: Any = _Gone(deaths)
    scenarios = parse(f"- {{name: a, steps: [{ASK}]}}\n- {{name: b, steps: [{ASK}]}}", "suite.yaml")
    runs = [ScenarioRun(cluster, scenario, "t", Options(), lambda: 0) for scenario in scenarios]
    results = run_all(runs, frozenset(), 1, cluster.start if restarted else None)
    assert [result.outcome for result in sorted(results, key=lambda result: result.scenario.name)] == outcomes


class _Held:
    """A cluster that holds scenarios without a request until `released` is set, by an abandoned run too."""

    def __init__(self) -> None:
        self.held = threading.Semaphore(0)
        self.released = threading.Event()

    def lacks(self, used: frozenset[tuple[str, int]]) -> list[str]:
        if not used:
            self.held.release()
            assert self.released.wait(30)
        return ["EndTxn v5"]

    def answers(self) -> bool:
        return True

    def abandon(self) -> None:
        self.released.set()


def _runs(cluster: Any, **steps: str) -> list[ScenarioRun]:
    text = "\n".join(f"- {{name: {name}, steps: [{step}]}}" for name, step in steps.items())
    return [ScenarioRun(cluster, scenario, "t", Options(), lambda: 0) for scenario in parse(text, "suite.yaml")]


HELD = "{set: {v1: 1}}"


def test_what_has_ended_does_not_wait_for_a_slow_scenario_before_it() -> None:
    cluster: Any = _Held()
    names = []
    for result in run_all(_runs(cluster, slow=HELD, b=ASK, c=ASK), frozenset(), 2):
        names.append(result.scenario.name)
        if len(names) == 2:
            cluster.released.set()
    assert sorted(names[:2]) == ["b", "c"]
    assert names[2:] == ["slow"]


def test_an_interrupt_loses_no_scenario_that_has_ended() -> None:
    cluster: Any = _Held()
    undelivered: list[Result] = []
    runs = _runs(cluster, slow=HELD, b=ASK, c=ASK, last=HELD, never=ASK)
    results = run_all(runs, frozenset(), 2, undelivered=undelivered)
    taken = next(results)
    # The last one has begun in the thread in which b and c have ended.
    assert all(cluster.held.acquire(timeout=30) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt)
    assert sorted({result.scenario.name for result in (taken, *undelivered)}) == ["b", "c"]


class _Dying(_Held):
    """It does not answer any more once a scenario has run."""

    def lacks(self, used: frozenset[tuple[str, int]]) -> list[str]:
        super().lacks(used)
        return []

    def sole_broker(self) -> None:
        return None

    def answers(self) -> bool:
        return False


def test_an_interrupt_tells_who_was_there_when_the_broker_died() -> None:
    """It comes while the broker is started again."""
    cluster: Any = _Dying()
    cluster.released.set()
    runs = _runs(cluster, a=HELD)

    def interrupted() -> None:
        raise KeyboardInterrupt

    undelivered: list[Result] = []
    with pytest.raises(KeyboardInterrupt):
        next(run_all(runs, frozenset(), 1, interrupted, undelivered))
    assert [(result.scenario.name, result.outcome) for result in undelivered] == [("a", Status.FAILED)]
    assert "does not answer any more" in undelivered[0].why


def test_an_interrupt_finds_a_taken_result_once() -> None:
    cluster: Any = _Dying()
    cluster.released.set()
    undelivered: list[Result] = []
    results = run_all(_runs(cluster, a=HELD), frozenset(), 1, undelivered=undelivered)
    taken = next(results)
    results.close()
    assert len(undelivered) == 1
    assert undelivered[0] is taken


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    from minibroker import Minibroker

    with Minibroker(ephemeral=True) as broker:
        yield broker.bootstrap_servers


def test_quiet_prints_what_is_wrong_and_the_counts(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = suite(tmp_path, ASK, ASK.replace("NONE", "INVALID_REQUEST"), ASK)
    assert cli.main(["--bootstrap", bootstrap, "--quiet", file]) == 1
    said = capsys.readouterr()
    wrong, counts = said.out.splitlines()
    assert wrong.startswith("FAIL b [code]: step 1")
    assert (counts, said.err) == ("2 passed, 1 failed", "")


def test_names_are_skipped(bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = suite(tmp_path, ASK, ASK, ASK)
    assert cli.main(["--bootstrap", bootstrap, "--skip", "a", "--skip", "[cd]", file]) == 0
    assert capsys.readouterr().out.splitlines() == ["ok b", "1 passed, 0 failed"]


def test_a_name_to_skip_that_nothing_has_is_one_line(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--bootstrap", bootstrap, "--skip", "x", suite(tmp_path, ASK)]) == 2
    assert capsys.readouterr().err == "minibroker conformance: --skip x: no scenario has such a name\n"
