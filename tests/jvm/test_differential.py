"""Random requests to a real Apache Kafka and to minibroker side by side, each answer and each state compared."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from differential import Side, compare
from real_kafka import real_kafka
from toolchain import Unavailable

from minibroker import Minibroker
from minibroker.client.connection import Connection
from minibroker.client.transactions import TransactionsClient
from minibroker.config.settings import BROKER_KEYS, ConfigSource, ConfigType
from minibroker.kernel.addresses import parse_address
from minibroker_protocol import messages as m

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


READ_ONLY_HERE = re.compile(r"ssl\.|listeners$|listener\.security\.protocol\.map$|sasl\.enabled\.mechanisms$")
OTHER_DEFAULTS = {"log.dir", "listeners", "broker.id", "process.roles", "controller.listener.names"}
"""Kafka's /tmp/kafka-logs, PLAINTEXT://:9092 and -1 stand for what a broker chooses here; the others it requires."""


def test_every_setting_of_a_broker_has_kafkas_type_and_default(kafka: str) -> None:
    kind = m.DescribeConfigsRequest
    resource = kind.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)

    def rows(bootstrap: str) -> dict[str, tuple[object, ...]]:
        with Connection(parse_address(bootstrap), 30) as connection:
            answer = connection.ask(kind(resources=[resource], include_synonyms=True), 4, "settings", 30)
        assert isinstance(answer, m.DescribeConfigsResponse)
        described = {}
        for row in answer.results[0].configs:
            deviates = row.name in OTHER_DEFAULTS or (row.name in BROKER_KEYS and BROKER_KEYS[row.name].deviation)
            defaults = [] if deviates else [s.value for s in row.synonyms if s.source == ConfigSource.DEFAULT_CONFIG]
            read_only = row.read_only or READ_ONLY_HERE.search(row.name) is not None
            described[row.name] = (ConfigType(row.config_type).name, read_only, row.is_sensitive, defaults)
        return described

    with Minibroker(ephemeral=True) as broker:
        ours, theirs = rows(broker.bootstrap_servers), rows(kafka)
    assert {name: row for name, row in ours.items() if not name.startswith("minibroker.")} == theirs


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
