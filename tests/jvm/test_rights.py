"""The matrix of rights, asked of live Apache Kafkas again: their answers are those of the kept tables."""

from __future__ import annotations

import pytest
from rights_record import TABLES, flat, kafka_side, load, record
from toolchain import Unavailable

pytestmark = [pytest.mark.jvm, pytest.mark.slow]


@pytest.mark.parametrize("release", TABLES)
def test_kafka_answers_as_it_did(release: str) -> None:
    matrix, stories = load(release)
    try:
        with kafka_side(release) as side:
            found = record(side)
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert found["stories"] == stories
    now = flat(found["matrix"])
    assert {case: now[case] for case in now if now[case] != matrix[case]} == {}
