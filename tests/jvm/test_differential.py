"""Random requests to a real Apache Kafka and to minibroker side by side, each answer and each state compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from differential import Side, compare
from real_kafka import real_kafka
from toolchain import Unavailable

from minibroker import Minibroker
from minibroker.client.transactions import TransactionsClient

pytestmark = pytest.mark.jvm

STEPS = 120
IN_CI = [(2, 0), (2, 1), (2, 2), (2, 3), (1, 100), (1, 101), (0, 200), (0, 201), (None, 300), (None, 301)]
"""(transaction.version, None for one that changes while they run, and seed)."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    try:
        with real_kafka() as bootstrap:
            yield bootstrap
    except Unavailable as missing:
        pytest.skip(str(missing))


def _compare(kafka: str, level: int | None, seed: int) -> None:
    with (
        Minibroker(ephemeral=True) as broker,
        TransactionsClient(broker.bootstrap_servers) as ours,
        TransactionsClient(kafka) as theirs,
    ):
        sides = Side(ours, str(seed)), Side(theirs, str(seed))
        assert compare(*sides, seed=seed, steps=STEPS, level=level) == STEPS


@pytest.mark.parametrize(("level", "seed"), IN_CI)
def test_every_answer_is_kafkas(kafka: str, level: int | None, seed: int) -> None:
    _compare(kafka, level, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1030))
@pytest.mark.parametrize("level", [2, 1, 0, None])
def test_every_answer_is_kafkas_for_longer(kafka: str, level: int | None, seed: int) -> None:
    _compare(kafka, level, seed + 100 * (3 if level is None else level))
