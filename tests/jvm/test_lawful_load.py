"""What two brokers of Kafka 4.4.0 leave under a load of everything, stopped at twenty points, has no finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from lawful_load import run
from toolchain import Unavailable, tool

pytest.importorskip("confluent_kafka")
pytest.importorskip("pyarrow")

POINTS = 20


@pytest.mark.slow
@pytest.mark.jvm
def test_nothing_is_wrong_that_the_load_knows_no_cause_of(tmp_path: Path) -> None:
    try:
        tool("mvn")
    except Unavailable as missing:
        pytest.skip(str(missing))
    result = run(POINTS, seed=1, keep=tmp_path)
    assert result.unexplained == []
