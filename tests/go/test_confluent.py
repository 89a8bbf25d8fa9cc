"""confluent-kafka-go (confluent/main.go): a program that needs the time that Kafka's "not yet" gives it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from broker import named_bootstrap, running_broker
from toolchain import Unavailable, go_program, tool

pytestmark = [pytest.mark.go, pytest.mark.slow]  # for the download of librdkafka

HERE = Path(__file__).parent / "confluent"
ROUNDS = 10


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        tool("gcc")  # librdkafka comes as a library for C
        modules = ("github.com/confluentinc/confluent-kafka-go/v2",)
        return go_program(".", tmp_path_factory.mktemp("go"), folder=HERE, modules=modules)
    except Unavailable as missing:
        pytest.skip(str(missing))


def rounds(program: str, bootstrap: str) -> list[str]:
    done = subprocess.run([program, bootstrap, str(ROUNDS)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == ROUNDS
    return told


def test_records_are_delivered_while_kafka_lets_the_offsets_wait(program: str, tmp_path: Path) -> None:
    """As confluent-kafka-go's own TestTransactionalProducer needs it; so it is on an Apache Kafka 4.4.0."""
    with running_broker(tmp_path / "broker.log", "-c", "minibroker.not.yet.answers=true") as bootstrap:
        assert set(rounds(program, bootstrap)) == {"left 0 of 10"}


def test_they_are_not_where_nobody_has_to_wait(program: str, tmp_path: Path) -> None:
    if named_bootstrap():
        pytest.skip("for minibroker's default alone")
    with running_broker(tmp_path / "broker.log") as bootstrap:
        assert set(rounds(program, bootstrap)) != {"left 0 of 10"}
