"""One run: a broker, a script of failures, and the user's command under a limit."""

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
from typing import TYPE_CHECKING, Any

from minibroker.program import uninterrupted, whole
from minibroker.testing.embedded import Minibroker
from minibroker_lab.judge.exchanges import Exchange, Produced, produced
from minibroker_lab.judge.scripts import Script

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster

_POLL_SECONDS = 0.05
_REPLICATED_SECONDS = 10.0
_KEPT = 10_000
_ENDING_MS = 16 * 60_000
"""Above transaction.max.timeout.ms, so that every open transaction has been aborted."""
STANDARD_ERROR = 2
RESTARTS = "MINIBROKER_RESTARTS"
"""The environment variable that tells the command how often it was killed and started again."""


@dataclass(slots=True)
class JudgedRun:
    """What happened. status: of the command, None when it had to be ended. lost: exchanges that came too fast to be
    kept. moved: when the script advanced the broker clock, and how far, in ms. compacted: the topics that compaction
    may have touched. restarts: how often the script killed the command and started it again.
    topic_names: by topic id as exchanges have it."""

    script: Script
    status: int | None = None
    seconds: float = 0.0
    fired: int = 0
    as_of_ms: int = 0
    lost: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    produced: list[Produced] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    compacted: frozenset[str] = frozenset()
    restarts: int = 0
    topic_names: dict[str, str] = field(default_factory=dict)

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
    data_dir: Path,
    history: Path,
    timeout: float,
    start: float = 0.0,
    broker_options: Mapping[str, Any],
    watch: Callable[[JudgedRun, float], None] = lambda run, seconds: None,
) -> JudgedRun:
    """timeout: seconds that the command may take, from its first request on if that comes within `start` seconds.
    watch: told again and again how it stands, with the seconds since the command began. Raises OSError when the
    command cannot be started, ConfigError or StartError when the broker cannot."""
    run = JudgedRun(script)
    with whole(Minibroker(data_dir=str(data_dir), **broker_options)) as broker:
        broker.control.record(_KEPT, frames=True)
        steps = [
            (step, broker.faults.inject(rule.pop("api", None), rule.pop("action"), **rule))
            for step in script.steps
            for rule in [dict(step.rule)]
        ]
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
            ready = start
            while time.monotonic() - began < timeout + ready:
                run.status = child.poll()
                _collect(broker, run)
                if run.exchanges:
                    ready = min(ready, time.monotonic() - began)
                watch(run, time.monotonic() - began)
                if run.status is not None:
                    break
                for step, fault in list(steps):
                    if not fault.held:
                        continue
                    if step.restart:
                        end(child)
                        run.fired += fault.fired
                        steps.remove((step, fault))
                        fault.remove()  # the held request came from the killed command
                    if step.advance_ms:
                        run.moved.append((time.time_ns() // 1_000_000, step.advance_ms))
                        # A killed command has no live members: what it left in its groups would keep it waiting.
                        broker.clock.advance(ms=step.advance_ms, sessions=step.restart)
                    if step.restart:
                        run.restarts += 1
                        with uninterrupted():
                            child = _start(command, {**environment, RESTARTS: str(run.restarts)})
                    elif step.advance_ms or (step.until and _answered(run, step.until) >= step.times):
                        fault.release()
                time.sleep(_POLL_SECONDS)
        finally:
            if child is not None:
                end(child)
        run.seconds = time.monotonic() - began
        run.fired += sum(fault.fired for _, fault in steps)
        broker.faults.clear()
        run.as_of_ms = broker.clock.advance(ms=_ENDING_MS)
        _collect(broker, run)
        _wait_for_replicas(broker)
        run.compacted = broker.cluster.run(compacted_topics)
        names = broker.cluster.run(lambda c: {bytes(t.topic_id): t.name for t in c.image.topics.values()})
    run.produced = produced(run.exchanges, names)
    run.topic_names = {str(uuid.UUID(bytes=topic_id)): name for topic_id, name in names.items()}
    return run


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=STANDARD_ERROR, start_new_session=True
    )


def compacted_topics(cluster: Cluster) -> frozenset[str]:
    """Topics with `cleanup.policy=compact`, and those with another policy by now that the cleaner worked on."""
    return frozenset(
        partition.topic
        for broker in cluster.brokers.values()
        for partition in broker.partitions()
        if partition.has_log
        and (
            partition.log.config.compacts
            or broker.directory.cleaner_offsets.get((partition.topic, partition.index), 0) > 0
        )
    )


def _wait_for_replicas(broker: Minibroker) -> None:
    """Any replica is read for all, so each must have all."""
    deadline = time.monotonic() + _REPLICATED_SECONDS
    while not broker.cluster.run(_replicated) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _replicated(cluster: Cluster) -> bool:
    brokers = cluster.brokers.values()
    ends: dict[tuple[str, int], set[int]] = {}
    for partition in (partition_ for broker in brokers for partition_ in broker.partitions()):
        ends.setdefault((partition.topic, partition.index), set()).add(partition.log_end_offset)
    return all(len(offsets) == 1 for offsets in ends.values())


def _answered(run: JudgedRun, api: str) -> int:
    return sum(exchange["api"] == api for exchange in run.exchanges)


def _collect(broker: Minibroker, run: JudgedRun) -> None:
    last = run.exchanges[-1]["number"] if run.exchanges else 0
    for exchange in broker.control.exchanges(_KEPT, after=last or -1, frames=True):
        number = exchange["number"]
        if number <= last:
            continue
        run.lost += number - (run.exchanges[-1]["number"] if run.exchanges else 0) - 1
        exchange.pop("response_frame", None)
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
