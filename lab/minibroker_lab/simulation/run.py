"""One seed from its plan to its verdict, and many of them."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minibroker.rules.rows import Finding
from minibroker.trace.recorder import Recorder
from minibroker_lab.simulation.judge import judge
from minibroker_lab.simulation.plan import Plan, draw
from minibroker_lab.simulation.world import Coverage, World


@dataclass
class SeedResult:
    """What became of a seed.

    findings: broken promises.
    explained: those that a known hole explains, by its name.
    crash: the traceback of an exception that came out of the brokers' code.
    exchanges: of clients with brokers, as a trace has them.
    cpu_s: processor time, in seconds.
    """

    plan: Plan
    findings: list[Finding]
    explained: dict[str, list[Finding]]
    counts: Counter[str]
    crash: str = ""
    story: list[str] = field(default_factory=list)
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def broken(self) -> bool:
        return bool(self.findings or self.crash)

    def why(self) -> str:
        """In one line."""
        return self.crash.strip().rpartition("\n")[2] if self.crash else str(self.findings[0])


def simulate(
    seed: int,
    *,
    telling: bool = False,
    tracing: bool = False,
    coverage: Callable[[World], Coverage] | None = None,
) -> SeedResult:
    """Run a seed and judge it.

    tracing: keep its exchanges.
    coverage: makes the counter of states and events in `counts`.
    """
    began = time.process_time()
    exchanges: list[dict[str, Any]] = []
    recorder = Recorder(kept=0) if tracing else None
    if recorder is not None:
        recorder.listeners.append(lambda recorded: exchanges.append(recorded.to_json()))
    world = World(draw(seed), telling=telling, recorder=recorder)
    if coverage is not None:
        world.coverage = coverage(world)
    findings: list[Finding] = []
    crash = ""
    try:
        world.run()
        findings = judge(world)
    except Exception:
        crash = traceback.format_exc()
    spent = time.process_time() - began
    history = world.history
    return SeedResult(
        world.plan, findings, world.explained, history.counts, crash, history.story, exchanges, cpu_s=spent
    )
