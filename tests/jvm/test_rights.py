"""The matrix of rights, asked of a live Apache Kafka again: its answers are those of the kept table."""

from __future__ import annotations

import pytest
from rights_record import flat, kafka_side, load, record
from toolchain import Unavailable

pytestmark = [pytest.mark.jvm, pytest.mark.slow]


def test_kafka_answers_as_it_did() -> None:
    matrix, stories = load()
    try:
        with kafka_side() as side:
            found = record(side)
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert found["stories"] == stories
    now = flat(found["matrix"])
    assert {case: now[case] for case in now if now[case] != matrix[case]} == {}
