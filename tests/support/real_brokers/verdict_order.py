"""Whether a scenario's verdict depends on what ran before it or beside it.

    verdict_order.py [--seed N] [NAME …]

Every scenario alone, then two whole runs in a shuffled order, on each broker: `minibroker`, `kfake`, `tansu`,
`kafka-4.4.0`. A scenario alone has a fresh broker; with Kafka, whose start takes long, the broker for itself. Prints
every scenario whose outcome or weight is not always the same, and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from defect_matrix import SETTINGS
from peer_programs import PEERS
from peers import Peer, in_turn, run_of
from real_kafka import real_kafka

from minibroker.testing.embedded import Minibroker
from minibroker_lab.conformance.cluster import ClusterUnderTest
from minibroker_lab.conformance.patience import Patience
from minibroker_lab.conformance.results import Result
from minibroker_lab.conformance.runner import Options
from minibroker_lab.conformance.scenario import KAFKA, Scenario, bundled
from minibroker_lab.conformance.schedule import run_all

JOBS = 4
SHUFFLED = 2
SUBJECTS = ("minibroker", "kfake", "tansu", "kafka-4.4.0")
_EXPIRY = ("transactional.id.expiration.ms", "producer.id.expiration.ms")
PROMPT = {name: value for name, value in SETTINGS.items() if name not in _EXPIRY}
"""Transactions time out soon; nothing is forgotten meanwhile."""
Run = Callable[[Sequence[Scenario], int], Iterator[Result]]
"""Runs scenarios, so many at once, on one broker that is started for them."""


def chosen() -> list[Scenario]:
    """Those that a plain broker is asked, but for the slow ones."""
    return [
        scenario
        for scenario in bundled()
        if KAFKA in scenario.only and not scenario.needs and "slow" not in scenario.tags
    ]


def differing(name: str, scenarios: Sequence[Scenario], seed: int) -> dict[str, list[str]]:
    """Scenario → its verdicts, alone and in each shuffled run, where outcome or weight are not the same.

    Raises Unavailable where a tool is missing.
    """
    verdicts: dict[str, list[str]] = {scenario.name: [] for scenario in scenarios}
    with _runner(name) as run:
        whole = [scenarios] if name == "kafka-4.4.0" else [[scenario] for scenario in scenarios]
        alone = (result for part in whole for result in run(part, 1))
        shuffled = (run(_shuffled(scenarios, seed + number), JOBS) for number in range(SHUFFLED))
        for results in (alone, *shuffled):
            for result in results:
                verdicts[result.scenario.name].append(verdict(result))
    return {
        scenario: texts for scenario, texts in verdicts.items() if len({text.partition(":")[0] for text in texts}) > 1
    }


def verdict(result: Result) -> str:
    weight = f" {result.weight.value}" if result.weight else ""
    return f"{result.outcome.value}{weight}: {result.why[:160]}"


def _shuffled(scenarios: Sequence[Scenario], seed: int) -> list[Scenario]:
    mixed = [*scenarios]
    random.Random(seed).shuffle(mixed)
    return mixed


@contextmanager
def _runner(name: str) -> Iterator[Run]:
    if name not in PEERS:
        running = {"minibroker": _minibroker, "kafka-4.4.0": _kafka}[name]
        yield lambda scenarios, jobs: _ran(running, scenarios, jobs)
        return
    with tempfile.TemporaryDirectory() as place:
        program = PEERS[name](Path(place))
        patience = Patience()
        # One after the other: when it dies, it comes back at another address.
        yield lambda scenarios, jobs: iter(in_turn(Peer(*program), scenarios, patience))


@contextmanager
def _minibroker() -> Iterator[str]:
    with Minibroker(ephemeral=True, not_yet=True, config=PROMPT) as broker:
        yield broker.bootstrap_servers


def _kafka() -> AbstractContextManager[str]:
    return real_kafka("".join(f"{name}={value}\n" for name, value in PROMPT.items()))


def _ran(
    running: Callable[[], AbstractContextManager[str]], scenarios: Sequence[Scenario], jobs: int
) -> Iterator[Result]:
    options, patience = Options(), Patience()
    with running() as bootstrap:
        cluster = ClusterUnderTest(bootstrap, timeout=options.timeout, patience=options.patience)
        cluster.wait_until_up(secrets.token_hex(3))
        yield from run_all([run_of(cluster, scenario, options, patience) for scenario in scenarios], frozenset(), jobs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default 1)")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(SUBJECTS):
        parser.error(f"{min(unknown)} is none of {', '.join(SUBJECTS)}")
    status = 0
    for name in options.names or SUBJECTS:
        by_scenario = differing(name, chosen(), options.seed)
        for scenario, verdicts in by_scenario.items():
            print(f"{name} {scenario}", *(f"    {text}" for text in verdicts), sep="\n", flush=True)
        print(f"{name}: {len(by_scenario)} of {len(chosen())} scenarios are not always judged the same", flush=True)
        status |= bool(by_scenario)
    return status


if __name__ == "__main__":
    sys.exit(main())
