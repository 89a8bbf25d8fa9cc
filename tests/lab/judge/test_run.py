"""How long a judged command may take."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker_lab.judge import run
from minibroker_lab.judge.own_cluster import LeftBehind
from minibroker_lab.judge.scripts import Script, step


class Held:
    """A fault that holds one request, and the cluster, its broker and the command that is done once it is released.
    Each look at the clock takes a second."""

    id, pid, fired, held = 1, 1, 1, True
    bootstrap_servers = ""
    misfit = staticmethod(lambda script: "")
    passes = staticmethod(lambda ms, *, sessions: ms / 1000)
    settle = staticmethod(lambda exchanges: LeftBehind())

    def __init__(self) -> None:
        request = {"number": 1, "api": "EndTxn", "request": None, "fault": 1, "errors": []}
        self.control = SimpleNamespace(
            record=lambda *_, **__: None, exchanges=lambda kept, after, frames: [dict(request)] if after < 1 else []
        )
        self.faults = SimpleNamespace(inject=lambda *_, **__: self, clear=lambda: None)
        self.running = lambda: nullcontext(self)

    def release(self) -> None:
        self.held = False

    def remove(self) -> None:
        self.held = False

    def poll(self) -> int | None:
        return None if self.held else 0

    def kill(self) -> None: ...

    def wait(self) -> None: ...


@pytest.mark.parametrize("more", [{}, {"restart_client": True}])
def test_time_that_the_script_has_pass_is_none_of_the_command(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, bool]
) -> None:
    clock = itertools.count()
    child: Any = Held()
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: child)
    monkeypatch.setattr("os.killpg", lambda *_: None, raising=False)  # Windows has none
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr("time.sleep", lambda seconds: [next(clock) for _ in range(int(seconds))])
    meanwhile = {"advance_ms": 75_000, **more}
    script = Script("s", "", (step({"api": "EndTxn", "action": "hold", "meanwhile": meanwhile}),))
    ran = run.run_command([], script, cluster=child, history=Path("none"), timeout=40, start=60)
    assert ran.status == 0
    assert ran.seconds > 75
