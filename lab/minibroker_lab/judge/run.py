"""One run: a cluster, a script of failures, and the user's command under a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from minibroker.program import uninterrupted
from minibroker_lab.judge.exchanges import Exchange, Produced, produced
from minibroker_lab.judge.own_cluster import JudgedCluster, LeftBehind
from minibroker_lab.judge.scripts import Script, Step
from minibroker_lab.judge.wait import Wait

if TYPE_CHECKING:
    from minibroker.control.client import Fault
    from minibroker.testing.life_cycle import Embedded

_POLL_SECONDS = 0.05
_KEPT = 10_000
_OF_TIMEOUT = 0.25
"""How much of its time a command may spend on requests that fail while a hold waits for one that succeeds."""
STANDARD_ERROR = 2
RESTARTS = "MINIBROKER_RESTARTS"
"""The environment variable that tells the command how often it was killed and started again."""


@dataclass(slots=True)
class JudgedRun:
    """What happened.

    status: the command's exit status, None when it had to be ended.
    lost: exchanges that came too fast to be kept.
    moved: when the script had time pass for the brokers, and how much, in ms.
    restarts: how often the script killed the command and started it again.
    misfit: why the script cannot act here, so that nothing was run.
    """

    script: Script
    status: int | None = None
    seconds: float = 0.0
    fired: int = 0
    lost: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    produced: list[Produced] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    restarts: int = 0
    misfit: str = ""
    left_behind: LeftBehind = field(default_factory=LeftBehind)

    @property
    def topic_names(self) -> dict[str, str]:
        """By topic id as exchanges have it."""
        return {str(uuid.UUID(bytes=topic_id)): name for topic_id, name in self.left_behind.topic_names.items()}

    @property
    def unapplied(self) -> frozenset[int]:
        """Numbers of the exchanges without an answer that the script kept from being applied."""
        return frozenset(
            exchange["number"]
            for exchange in self.exchanges
            if exchange["fault"]
            and exchange["outcome"] != "answered"
            and not self.script.steps[exchange["fault"] - 1].applies
        )


def run_command(
    command: Sequence[str],
    script: Script,
    *,
    cluster: JudgedCluster,
    history: Path,
    timeout: float,
    start: float = 0.0,
    watch: Callable[[JudgedRun, float], None] = lambda run, seconds: None,
) -> JudgedRun:
    """timeout: seconds that the command may take, from its first request on if that comes within `start` seconds; anew
    where the script starts it again. The seconds that the script has pass do not count.
    watch: told again and again how it stands, with the seconds since the command began. Raises OSError when the
    command cannot be started, ConfigError or StartError when the cluster cannot."""
    run = JudgedRun(script, misfit=cluster.misfit(script))
    if run.misfit:
        return run
    with cluster.running() as broker:
        broker.control.record(_KEPT, frames=True)
        waiting = _by_hold(script.steps)
        numbers: dict[int, int] = {}
        steps: list[tuple[Step, Fault]] = []

        def inject(hold: int) -> None:
            for number, step in waiting.pop(hold, ()):
                rule = dict(step.rule)
                fault = broker.faults.inject(rule.pop("api", None), rule.pop("action"), **rule)
                numbers[fault.id] = number
                steps.append((step, fault))

        def end_rule(step: Step, fault: Fault) -> None:
            run.fired += fault.fired
            steps.remove((step, fault))
            fault.remove()

        inject(0)
        due: dict[int, float] = {}
        waits: dict[int, Wait] = {}
        environment = {
            **os.environ,
            "BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "MINIBROKER_HISTORY": str(history),
            RESTARTS: "0",
        }
        began = time.monotonic()
        child = None
        try:
            with uninterrupted():
                child = _start(command, environment)
            started, earlier, ready, passed = began, 0, start, 0.0
            while time.monotonic() - started < timeout + ready + passed:
                run.status = child.poll()
                _collect(broker, run, numbers)
                if len(run.exchanges) > earlier:
                    ready = min(ready, time.monotonic() - started)
                watch(run, time.monotonic() - began)
                if run.status is not None:
                    break
                for step, fault in steps.copy():
                    if not fault.held:
                        continue
                    inject(numbers[fault.id])
                    if step.restart:
                        end(child)
                        end_rule(step, fault)  # the held request came from the killed command
                    if step.advance_ms and fault.id not in due:
                        run.moved.append((time.time_ns() // 1_000_000, step.advance_ms))
                        # A killed command has no live members: what it left in its groups would keep it waiting.
                        seconds = cluster.passes(step.advance_ms, sessions=step.restart)
                        due[fault.id] = time.monotonic() + seconds
                        passed += seconds
                        if step.restart:
                            time.sleep(seconds)
                    if step.restart:
                        run.restarts += 1
                        _collect(broker, run, numbers)
                        earlier = len(run.exchanges)
                        with uninterrupted():
                            child = _start(command, {**environment, RESTARTS: str(run.restarts)})
                        started, ready, passed = time.monotonic(), start, 0.0
                    elif step.advance_ms:
                        if time.monotonic() >= due[fault.id]:
                            fault.release()
                            end_rule(step, fault)  # repetitions were held with the request; what comes now is another
                    elif step.until:
                        if fault.id not in waits:
                            _collect(broker, run, numbers)  # what was answered between the last look and the hold
                            waits[fault.id] = Wait(step, run.exchanges, timeout * _OF_TIMEOUT)
                        if waits[fault.id].is_over(run.exchanges):
                            fault.release()
                            del waits[fault.id]
                time.sleep(_POLL_SECONDS)
        finally:
            if child is not None:
                end(child)
        run.seconds = time.monotonic() - began
        run.fired += sum(fault.fired for _, fault in steps)
        broker.faults.clear()
        run.left_behind = cluster.settle(run.exchanges)
        _collect(broker, run, numbers)
    run.produced = produced(run.exchanges, run.left_behind.topic_names)
    return run


def _by_hold(steps: Sequence[Step]) -> dict[int, list[tuple[int, Step]]]:
    """Each step with its number, by the number of the hold that it waits for; 0: it is there from the start."""
    waiting: dict[int, list[tuple[int, Step]]] = {}
    hold = 0
    for number, step in enumerate(steps, 1):
        waiting.setdefault(hold if step.after_hold else 0, []).append((number, step))
        hold = number if step.holds else hold
    return waiting


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=STANDARD_ERROR, start_new_session=True
    )


def _collect(broker: Embedded, run: JudgedRun, numbers: Mapping[int, int]) -> None:
    """numbers: of the script's faults, by the broker's ids."""
    last = run.exchanges[-1]["number"] if run.exchanges else 0
    for exchange in broker.control.exchanges(_KEPT, after=last or -1, frames=True):
        number = exchange["number"]
        if number <= last:
            continue
        run.lost += number - (run.exchanges[-1]["number"] if run.exchanges else 0) - 1
        exchange.pop("response_frame", None)
        exchange["fault"] = numbers.get(exchange["fault"], 0)
        if exchange["api"] != "Produce":
            exchange.pop("request_frame", None)
        run.exchanges.append(exchange)


def end(child: subprocess.Popen[bytes]) -> None:
    """A process that was started with a session of its own, and what it started, where there are process groups."""
    if child.poll() is None:
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
