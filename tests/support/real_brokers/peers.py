"""Runs the conformance suite against brokers, one at a time, and records what each did.

    peers.py [--missing] [NAME …]

Names: see `BROKERS`. A run replaces the broker's last one in benchmarks/results/conformance.json; with `--missing` only
the scenarios that are not in the last run are run and added, as after a new scenario. Then, and without a name,
benchmarks/results/conformance.md is written from that file.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import recorded_runs
from broker import PREFIX, first_line
from defect_matrix import ARGUMENTS, SETTINGS, Running, broker_like, running
from peer_programs import PEERS, TANSU_PACKAGE
from real_kafka import RealKafka
from recorded_runs import ROOT, RecordedRun
from restart import end, restart, start

from minibroker.version import __version__
from minibroker_lab.conformance.cluster import ClusterUnderTest
from minibroker_lab.conformance.patience import Patience
from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.runner import Options, ScenarioRun
from minibroker_lab.conformance.scenario import KAFKA, KIP, RELEASE_EXPECTATIONS, Scenario, bundled
from minibroker_lab.conformance.schedule import run_all
from minibroker_lab.conformance.weight import RECOVERY

START_SECONDS = 20.0
JOBS = 4
PEER = Options(timeout=3.0, patience=6.0)
"""What answers at all answers by then: a longer wait would only make the runs longer."""


class Peer:
    """A running broker that is started again when it ends."""

    def __init__(self, argv: list[str], address: str) -> None:
        self._argv = argv
        self._address = address
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None

    def cluster(self) -> ClusterUnderTest:
        """A cluster on a fresh process."""
        cluster = ClusterUnderTest(self.start(), timeout=PEER.timeout, patience=PEER.patience)
        cluster.wait_until_up(secrets.token_hex(3))
        return cluster

    def start(self) -> str:
        """Bootstrap address of a fresh process."""
        self.end()
        self.starts += 1
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self._address or first_line(self._process, START_SECONDS).removeprefix(PREFIX).strip()

    def alive(self, cluster: ClusterUnderTest) -> bool:
        return cluster.answers() and self._process is not None and self._process.poll() is None

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


Ran = tuple[list[Result], int]
"""The results, and how often the broker was started."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One column of the table. `run` is called with the scenarios that are asked of what it is held against."""

    label: str
    version: Callable[[], str]
    how: str
    run: Callable[[Sequence[Scenario]], Ran]
    expect: str = KAFKA


def peer(name: str, scenarios: Sequence[Scenario]) -> Ran:
    """One scenario after the other; what a scenario needs beyond a plain broker, a peer has not."""
    with tempfile.TemporaryDirectory() as place:
        broker = Peer(*PEERS[name](Path(place)))
        return in_turn(broker, scenarios, Patience()), broker.starts


def in_turn(broker: Peer, scenarios: Sequence[Scenario], patience: Patience) -> list[Result]:
    """On a fresh process, and on another one after each that ended."""
    results: list[Result] = []
    try:
        cluster = broker.cluster()
        for scenario in scenarios:
            result = _alone(cluster, scenario, PEER, frozenset(), patience)
            if not broker.alive(cluster):
                cluster = broker.cluster()
                if result.outcome is Status.NOT_RUN:  # the one before ended it
                    result = _alone(cluster, scenario, PEER, frozenset(), patience)
                elif result.outcome not in (Status.ABSENT, Status.SKIPPED):  # these asked it nothing
                    result = Result(scenario, Status.FAILED, "the broker does not answer any more", breach=RECOVERY)
            results.append(result)
    finally:
        broker.end()
    return results


def with_needs(
    expect: str, running_with: Callable[[str], AbstractContextManager[Running]], scenarios: Sequence[Scenario]
) -> Ran:
    """A broker for each thing that scenarios need; one with short expiry for those that need nothing."""
    results: list[Result] = []
    for have in ARGUMENTS:
        same = [scenario for scenario in scenarios if have == (scenario.needs or ("short-expiry",))[0]]
        if same:
            with running_with(have) as (bootstrap, restart_it):
                options = Options(expectation=expect, restart=restart_it)
                cluster = ClusterUnderTest(bootstrap, timeout=options.timeout, patience=options.patience)
                cluster.wait_until_up(secrets.token_hex(3))
                results += _together(cluster, same, options, have)
    return results, 1


def _together(
    cluster: ClusterUnderTest, scenarios: Sequence[Scenario], options: Options, have: str
) -> Iterator[Result]:
    """Several at once. A busy Kafka may answer one otherwise, where verifications met in one request: such a scenario
    is run again by itself."""
    results = run_all([run_of(cluster, scenario, options) for scenario in scenarios], frozenset({have}), JOBS)
    for result in list(map(_said, results)):
        failed = result.outcome is Status.FAILED
        yield _alone(cluster, result.scenario, options, frozenset({have})) if failed else result


def _alone(
    cluster: ClusterUnderTest,
    scenario: Scenario,
    options: Options,
    have: frozenset[str],
    patience: Patience | None = None,
) -> Result:
    (result,) = run_all([run_of(cluster, scenario, options, patience)], have, 1)
    return _said(result)


def run_of(
    cluster: ClusterUnderTest, scenario: Scenario, options: Options, patience: Patience | None = None
) -> ScenarioRun:
    token = f"{secrets.token_hex(3)}-0"
    return ScenarioRun(
        cluster, scenario, token, options, lambda: time.time_ns() // 1_000_000, patience=patience or Patience()
    )


def _said(result: Result) -> Result:
    print(f"{result.outcome.value} {result.scenario.name}: {result.why[:120]} [{result.seconds:.1f} s]", flush=True)
    return result


@contextmanager
def _kafka(release: str, have: str) -> Iterator[Running]:
    properties = "\n".join(f"{key}={value}" for key, value in SETTINGS.items()) if have == "short-expiry" else ""
    kafka = RealKafka(properties + "\n", release=release)
    state = kafka.directory / "state.json"
    try:
        start(state, kafka.command(), kafka.port, kafka.directory / "broker.log")
        yield kafka.bootstrap, partial(restart, state)
        end(state)
    finally:
        kafka.close()


@contextmanager
def _minibroker(expect: str, have: str) -> Iterator[Running]:
    with running(have, broker_like(expect)) as broker:
        yield broker


def _minibroker_kafka(scenarios: Sequence[Scenario]) -> Ran:
    """As the newest release; as an older one where a scenario is about that alone."""
    results, _ = with_needs(KAFKA, partial(_minibroker, KAFKA), scenarios)
    older = [scenario for scenario in bundled() if not {KAFKA, KIP} & set(scenario.only)]
    for expect in RELEASE_EXPECTATIONS[1:]:
        own = [scenario for scenario in older if scenario.only[0] == expect]
        results += with_needs(expect, partial(_minibroker, expect), own)[0]
    return results, 1


def _kfake_version() -> str:
    (version,) = re.findall(r"pkg/kfake (\S+)", (ROOT / "benchmarks" / "kfake" / "go.mod").read_text(encoding="utf-8"))
    return str(version)


def _apache_kafka(release: str) -> Broker:
    expect = f"kafka-{release.rpartition('.')[0]}"
    how = "`python tests/support real_kafka`: KRaft, one node, with short expiry; `restart` on another one without"
    return Broker(
        f"Apache Kafka {release}", lambda: release, how, partial(with_needs, expect, partial(_kafka, release)), expect
    )


_SERVE = "`minibroker serve{}`, with what a scenario needs"
BROKERS: dict[str, Broker] = {
    "kafka-4.4.0": _apache_kafka("4.4.0"),
    "kafka-4.3.1": _apache_kafka("4.3.1"),
    "kafka-4.0.1": _apache_kafka("4.0.1"),
    "kafka-3.9.1": _apache_kafka("3.9.1"),
    "minibroker-kafka": Broker(
        "minibroker `kafka`",
        lambda: __version__,
        _SERVE.format("") + "; `--as-version 2.3` for scenarios about that release",
        _minibroker_kafka,
    ),
    "minibroker-kip": Broker(
        "minibroker `kip`",
        lambda: __version__,
        _SERVE.format(" --semantics kip"),
        partial(with_needs, KIP, partial(_minibroker, KIP)),
        KIP,
    ),
    "kfake": Broker("kfake", _kfake_version, "franz-go's, built from `benchmarks/kfake`", partial(peer, "kfake")),
    "librdkafka-mock": Broker(
        "librdkafka's mock",
        lambda: f"in confluent-kafka {importlib.metadata.version('confluent-kafka')}",
        "`test.mock.num.brokers=1`",
        partial(peer, "librdkafka-mock"),
    ),
    "tansu": Broker(
        "Tansu",
        lambda: f"in the PyPI package {TANSU_PACKAGE.replace('==', ' ')}",
        "its memory engine",
        partial(peer, "tansu"),
    ),
}
"""The columns of the table, by the name under which they are run."""


def record(name: str, *, missing: bool) -> None:
    """Run the suite, or what is missing of it, and keep the results."""
    broker = BROKERS[name]
    began = time.monotonic()
    last = next((run for run in recorded_runs.load() if missing and run.broker == broker.label), None)
    own = [scenario for scenario in bundled() if broker.expect in scenario.only]
    sizes = Counter(scenario.group for scenario in own)
    # Of a group that is told by numbers nobody can say which scenario is new.
    counted = {} if last is None else {key: its for key, its in last.counted.items() if sum(its.values()) == sizes[key]}
    before = (
        {}
        if last is None
        else {scenario.name: last.scenarios[scenario.name] for scenario in own if scenario.name in last.scenarios}
    )
    to_run = [scenario for scenario in own if scenario.name not in before and scenario.group not in counted]
    results, starts = broker.run([scenario for scenario in to_run if "slow" not in scenario.tags])
    results += [Result(scenario, Status.SKIPPED, "it takes minutes") for scenario in to_run if "slow" in scenario.tags]
    scenarios, silent, broken = recorded_runs.recorded(results)
    for scenario in own:
        if scenario.name in before and scenario.group in silent:
            outcome = before.pop(scenario.name).partition(":")[0]
            silent[scenario.group][outcome] = silent[scenario.group].get(outcome, 0) + 1
    run = RecordedRun(
        broker.label,
        broker.version(),
        broker.how,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        broker.expect,
        # each run needs a first start
        starts if last is None else last.starts + starts - 1,
        {**before, **scenarios},
        {**counted, **silent},
        broken if last is None else dict(Counter(last.broken) + Counter(broken)),
    )
    known = {run.broker: run for run in recorded_runs.load()} | {broker.label: run}
    recorded_runs.save([known[broker.label] for broker in BROKERS.values() if broker.label in known])
    counts = ", ".join(f"{sum(result.outcome is status for result in results)} {status.value}" for status in Status)
    print(f"{broker.label}: {counts} in {time.monotonic() - began:.0f} s, started {starts} times")


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if argument != "--missing"]
    if unknown := set(names) - set(BROKERS):
        print(f"peers: {min(unknown)} is none of {', '.join(BROKERS)}", file=sys.stderr)
        return 2
    for name in names:
        record(name, missing="--missing" in arguments)
    recorded_runs.write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
