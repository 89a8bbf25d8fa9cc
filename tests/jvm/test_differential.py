"""Random requests to a real Apache Kafka and to minibroker side by side, each answer and each state compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from differential import Side, compare
from real_kafka import real_kafka
from toolchain import Unavailable

from minibroker import Minibroker
from minibroker.transactions_client import TransactionsClient

pytestmark = pytest.mark.jvm

STEPS = 120


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    try:
        with real_kafka() as bootstrap:
            yield bootstrap
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_kafkas(kafka: str, seed: int) -> None:
    with (
        Minibroker(ephemeral=True) as broker,
        TransactionsClient(broker.bootstrap_servers) as ours,
        TransactionsClient(kafka) as theirs,
    ):
        assert compare(Side(ours, str(seed)), Side(theirs, str(seed)), seed=seed, steps=STEPS) == STEPS
