"""How long a judged command may take, and a request be held."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker_lab.judge import run
from minibroker_lab.judge.own_cluster import LeftBehind
from minibroker_lab.judge.scripts import Script, step

END: dict[str, Any] = {"api": "EndTxn", "request": None, "fault": 1, "errors": [], "outcome": "answered"}
FETCH, REFUSED = {**END, "api": "Fetch"}, {**END, "errors": ["CONCURRENT_TRANSACTIONS (51)"]}
CLOSED = {**END, "outcome": "closed: fault: the reply to EndTxn is dropped"}


class Held:
    """A fault that holds one request, and the cluster, its broker and the command that is done once it is released.
    Each look at the clock takes a second."""

    id, pid, fired, held = 1, 1, 1, True
    bootstrap_servers = ""
    misfit = staticmethod(lambda script: "")
    passes = staticmethod(lambda ms, *, sessions: ms / 1000)
    settle = staticmethod(lambda exchanges: LeftBehind())

    def __init__(self, requests: Sequence[dict[str, Any]] = (END,)) -> None:
        self._numbered = enumerate(requests, 1)
        self.control = SimpleNamespace(record=lambda *_, **__: None, exchanges=lambda *_, **__: self.next_one())
        self.faults = SimpleNamespace(inject=lambda *_, **__: self, clear=lambda: None)
        self.running = lambda: nullcontext(self)

    def next_one(self) -> list[dict[str, Any]]:
        """One exchange at each look."""
        return [{**request, "number": number} for number, request in islice(self._numbered, 1)]

    def release(self) -> None:
        self.held = False

    def remove(self) -> None:
        self.held = False

    def poll(self) -> int | None:
        return None if self.held else 0

    def kill(self) -> None: ...

    def wait(self) -> None: ...


def stand_in_for_time_and_command(monkeypatch: pytest.MonkeyPatch, child: Held) -> None:
    clock = itertools.count()
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: child)
    monkeypatch.setattr("os.killpg", lambda *_: None, raising=False)  # Windows has none
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr("time.sleep", lambda seconds: [next(clock) for _ in range(int(seconds))])


@pytest.mark.parametrize("more", [{}, {"restart_client": True}])
def test_time_that_the_script_has_pass_is_none_of_the_command(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, bool]
) -> None:
    child: Any = Held()
    stand_in_for_time_and_command(monkeypatch, child)
    meanwhile = {"advance_ms": 75_000, **more}
    script = Script("s", "", (step({"api": "EndTxn", "action": "hold", "meanwhile": meanwhile}),))
    ran = run.run_command([], script, cluster=child, history=Path("none"), timeout=40, start=60)
    assert ran.status == 0
    assert ran.seconds > 75


class StartedAgain(Held):
    """A command that takes thirty looks at it, is killed then, and takes as many once more."""

    held = property(lambda self: self.starts == 1 and self.looks > 30, lambda self, _: None)
    starts = looks = 0

    def start(self) -> StartedAgain:
        self.starts, self.looks = self.starts + 1, 0
        return self

    def poll(self) -> int | None:
        self.looks += 1
        return 0 if self.starts == 2 and self.looks > 30 else None


@pytest.mark.parametrize(("timeout", "status"), [(100, 0), (60, None)])
def test_a_command_that_is_started_again_has_its_whole_time_again(
    monkeypatch: pytest.MonkeyPatch, timeout: float, status: int | None
) -> None:
    child: Any = StartedAgain()
    stand_in_for_time_and_command(monkeypatch, child)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: child.start())
    script = Script("s", "", (step({"api": "EndTxn", "action": "hold", "meanwhile": {"restart_client": True}}),))
    ran = run.run_command([], script, cluster=child, history=Path("none"), timeout=timeout)
    assert (ran.status, ran.restarts) == (status, 0 if status is None else 1)
    assert ran.seconds > 100 or status is None


class HeldAgain(Held):
    """The rule holds another request as soon as one is released."""

    def release(self) -> None: ...


def test_a_rule_ends_with_the_time_that_it_has_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy the client repeats its request meanwhile; the request after it is another one."""
    child: Any = HeldAgain()
    stand_in_for_time_and_command(monkeypatch, child)
    rule = {"api": "EndTxn", "times": 9, "action": "hold", "meanwhile": {"advance_ms": 75_000}}
    ran = run.run_command([], Script("s", "", (step(rule),)), cluster=child, history=Path("none"), timeout=400)
    assert (ran.status, len(ran.moved), ran.fired) == (0, 1, 1)


@pytest.mark.parametrize(
    ("requests", "ends"),
    [
        pytest.param([FETCH] * 9 + [END], True, id="one succeeds"),
        pytest.param([FETCH] * 4 + [REFUSED] * 200, True, id="all are refused"),
        pytest.param([FETCH] * 4 + [CLOSED] * 200, True, id="all get no answer"),
        pytest.param([REFUSED] + [FETCH] * 200, False, id="one was refused before the hold"),
        pytest.param([FETCH] * 200, False, id="none comes"),
    ],
)
def test_a_hold_does_not_wait_for_ever_for_requests_that_only_fail(
    monkeypatch: pytest.MonkeyPatch, requests: list[dict[str, Any]], ends: bool
) -> None:
    child: Any = Held(requests)
    stand_in_for_time_and_command(monkeypatch, child)
    meanwhile = {"until": "EndTxn"}
    script = Script("s", "", (step({"api": "EndTxn", "action": "hold", "meanwhile": meanwhile}),))
    ran = run.run_command([], script, cluster=child, history=Path("none"), timeout=100)
    assert (ran.status, child.held) == ((0, False) if ends else (None, True))


@pytest.mark.parametrize("failed", [pytest.param(REFUSED, id="refused"), pytest.param(CLOSED, id="no answer")])
def test_what_only_fails_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch, failed: dict[str, Any]) -> None:
    """Within a quarter of the limit from the first failure on a success ends the hold, and no failure does."""
    child: Any = Held([FETCH] + [failed] * 4 + [END])
    stand_in_for_time_and_command(monkeypatch, child)
    rule = {"api": "EndTxn", "action": "hold", "meanwhile": {"until": "EndTxn", "since_held": True}}
    ran = run.run_command([], Script("s", "", (step(rule),)), cluster=child, history=Path("none"), timeout=1000)
    assert (ran.status, len(ran.exchanges)) == (0, 6)
