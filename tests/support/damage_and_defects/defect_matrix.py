"""Which scenarios fail for which deliberate defect: a broker per defect, the bundled scenarios against each.

Run as a program: `defect_matrix.py OUT.json [DEFECT…]` writes {defect: [failed scenarios]}, with "" for no defect.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker import start_minibroker
from defects import DEFECTS
from restart import restart, restartable_minibroker

from minibroker_lab.conformance.cluster import ClusterUnderTest
from minibroker_lab.conformance.failure import ScenarioFailed
from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.runner import Options, ScenarioRun
from minibroker_lab.conformance.scenario import KAFKA, KIP, RELEASE_EXPECTATIONS, RESTART, Scenario, bundled
from minibroker_lab.conformance.schedule import run_all

SETTINGS = {
    "producer.id.expiration.ms": 4000,
    "producer.id.expiration.check.interval.ms": 500,
    "transactional.id.expiration.ms": 4000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
"""What scenarios that need `short-expiry` ask of a broker."""

ARGUMENTS: dict[str, list[str]] = {
    # With the answers by which Kafka makes clients wait: scenarios must not fail for them.
    "short-expiry": [
        argument
        for key, value in {**SETTINGS, "minibroker.not.yet.answers": "true"}.items()
        for argument in ("-c", f"{key}={value}")
    ],
    "draft-codes": [
        *("-c", "minibroker.semantics.timed_out_codes=draft"),
        *("-c", "minibroker.semantics.fenced_code=91"),
        *("-c", "transaction.abort.timed.out.transaction.cleanup.interval.ms=500"),
    ],
    "draft-check-at-level-0": [
        *("--transaction-version", "0", "-c", "minibroker.semantics.check_unknown_producer=true"),
        *("-c", "transaction.partition.verification.enable=false"),
    ],
    RESTART: [],
}
"""What a scenario may need → the arguments of a minibroker that has it."""

TIMEOUT_SECONDS = 2.0
PATIENCE_SECONDS = 6.0


def results(
    bootstrap: str,
    scenarios: Sequence[Scenario],
    jobs: int = 8,
    expectation: str = KAFKA,
    have: str = "short-expiry",
    restart: Callable[[], None] | None = None,
) -> list[Result]:
    """Run the scenarios; those that need something else than what the broker has are not run."""
    cluster = ClusterUnderTest(bootstrap, timeout=TIMEOUT_SECONDS, patience=PATIENCE_SECONDS)
    token = secrets.token_hex(3)
    try:
        cluster.versions()
    except ScenarioFailed as failure:
        return [Result(scenario, Status.FAILED, str(failure)) for scenario in scenarios]
    cluster.warm_up(token)
    options = Options(timeout=TIMEOUT_SECONDS, patience=PATIENCE_SECONDS, expectation=expectation, restart=restart)
    runs = [
        ScenarioRun(cluster, scenario, f"{token}-{number}", options, lambda: time.time_ns() // 1_000_000)
        for number, scenario in enumerate(scenarios)
    ]
    return list(run_all(runs, frozenset({have}), jobs))


CAUGHT = frozenset({Status.FAILED, Status.NOT_REACHED})
"""Of a broker with a defect: the scenario does not pass."""
Running = tuple[str, Callable[[], None] | None]
"""Bootstrap address, and what restarts the broker."""


def failures(defects: Sequence[str], scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Scenario → why it failed against a fresh broker with these defects: one like Kafka or, when it passed there, one
    that follows the KIPs."""
    failures: dict[str, str] = {}
    for expectation in (KAFKA, KIP, *RELEASE_EXPECTATIONS[1:]):
        own = [scenario for scenario in scenarios if expectation in scenario.only and scenario.name not in failures]
        if expectation not in (KAFKA, KIP):  # of the others only what neither of the two is asked
            own = [scenario for scenario in own if not {KAFKA, KIP} & set(scenario.only)]
        for have in ARGUMENTS:
            same = [scenario for scenario in own if have == (scenario.needs or ("short-expiry",))[0]]
            if same:
                with running(have, broker_like(expectation), defects) as (bootstrap, restart):
                    ran = results(bootstrap, same, expectation=expectation, have=have, restart=restart)
                failures |= {result.scenario.name: result.why for result in ran if result.outcome in CAUGHT}
    return failures


def broker_like(expectation: str) -> list[str]:
    """Arguments of a minibroker that is to answer as expected."""
    if expectation in (KAFKA, KIP):
        return ["--semantics", "kip" if expectation == KIP else "kafka"]
    return ["--as-version", expectation.removeprefix("kafka-")]


@contextmanager
def running(have: str, like: Sequence[str], defects: Sequence[str] = ()) -> Iterator[Running]:
    """A fresh minibroker that has what scenarios need."""
    plain = [sys.executable, "-m", "minibroker"]
    command = [sys.executable, "-m", "defects", ",".join(defects)] if defects else plain
    arguments = [*like, *ARGUMENTS[have]]
    if have == RESTART:
        with restartable_minibroker(arguments, command=command) as (bootstrap, state):
            yield bootstrap, lambda: restart(state)
        return
    with tempfile.TemporaryDirectory() as directory:
        broker = start_minibroker(Path(directory) / "log", "--ephemeral", *arguments, command=command)
        try:
            yield broker.bootstrap, None
        finally:
            broker.process.kill()
            broker.process.wait()
            if broker.process.stdout:
                broker.process.stdout.close()


def main(arguments: list[str]) -> int:
    out = Path(arguments[0])
    known: dict[str, list[str]] = json.loads(out.read_text()) if out.exists() else {}
    scenarios = [scenario for scenario in bundled() if "slow" not in scenario.tags and KAFKA in scenario.only]
    for name in arguments[1:] or ["", *DEFECTS]:
        begin = time.monotonic()
        caught = failures([name] if name else [], scenarios)
        known[name] = sorted(caught)
        out.write_text(json.dumps(known, indent=1))
        first = f"{min(caught)}: {caught[min(caught)]}" if caught else ""
        print(f"{name or '(none)'}: {len(caught)} [{time.monotonic() - begin:.0f}s] {first[:150]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
