"""The recorded scenarios against the broker they were recorded from: what the suite asks for is what Kafka does."""

import pytest
from defect_matrix import SETTINGS
from real_kafka import real_kafka

from minibroker.conformance import cli
from minibroker.conformance.scenario import KAFKA, bundled


@pytest.mark.jvm
def test_apache_kafka_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with real_kafka("\n".join(f"{key}={value}" for key, value in SETTINGS.items()) + "\n") as bootstrap:
        status = cli.main(["--bootstrap", bootstrap, "--have", "short-expiry", "--skip-tag", "slow"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("FAIL", "skip", "n/a"))] == []
    wanted = [one for one in bundled() if KAFKA in one.only and "slow" not in one.tags]
    assert lines[-1] == f"{len(wanted)} passed, 0 failed"
    assert status == 0
