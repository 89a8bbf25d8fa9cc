"""Random requests of every API in lockstep with a real Apache Kafka, and no difference that is not listed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

import pytest
from lockstep import Lockstep, Side
from lockstep_known import reason_for
from real_kafka import real_kafka
from toolchain import Unavailable

from minibroker import Minibroker
from minibroker.handlers.table import apis

pytestmark = pytest.mark.jvm

INTERNAL = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
SEED = int(os.environ.get("LOCKSTEP_SEED", "1"))
FEW, MANY = 12, int(os.environ.get("LOCKSTEP_REQUESTS", "2000"))
APIS = frozenset(filter(None, os.environ.get("LOCKSTEP_APIS", "").split(",")))
"""Names of the APIs of the long run; empty for all."""


@pytest.fixture(scope="module")
def lockstep() -> Iterator[Lockstep]:
    extra = "".join(f"{name}={value}\n" for name, value in INTERNAL.items())
    config = INTERNAL | {"group.consumer.assignment.interval.ms": "1000"}
    try:
        with real_kafka(extra) as kafka, Minibroker(ephemeral=True, config=config) as broker:
            made = Lockstep([Side(broker.bootstrap_servers), Side(kafka)], SEED)
            yield made
            made.close()
    except Unavailable as missing:
        pytest.skip(str(missing))


def _run(lockstep: Lockstep, names: Iterable[str], requests: int) -> None:
    for name in names:
        lockstep.run(name, requests)
    report = lockstep.report
    print(f"seed {SEED}: {sum(report.requests.values())} requests", dict(report.requests), file=sys.stderr)
    for found, count in report.classes.most_common():
        print(f"{count:6} {found}  # {reason_for(found) or 'NOT LISTED'}", file=sys.stderr)
    unlisted = [found for found in report.classes if reason_for(found) is None]
    assert not unlisted, "\n\n".join(f"{found}\n{report.examples[found][:3000]}" for found in unlisted)


def test_every_api_answers_as_kafka_does(lockstep: Lockstep) -> None:
    assert {api.name for api in apis().values() if api.advertised} - lockstep.table.keys() == {
        "SaslHandshake",
        "SaslAuthenticate",
    }
    _run(lockstep, lockstep.table, FEW)


@pytest.mark.slow
def test_every_api_answers_as_kafka_does_for_longer(lockstep: Lockstep) -> None:
    assert lockstep.table.keys() >= APIS
    _run(lockstep, [name for name in lockstep.table if not APIS or name in APIS], MANY)
