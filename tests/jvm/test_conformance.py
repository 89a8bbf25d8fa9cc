"""The recorded scenarios against the broker they were recorded from: what the suite asks for is what Kafka does."""

from pathlib import Path

import pytest
from defect_matrix import SETTINGS
from real_kafka import RealKafka, real_kafka
from restart import end, restart_command, start

from minibroker.conformance import cli
from minibroker.conformance.scenario import KAFKA, bundled


@pytest.mark.jvm
def test_apache_kafka_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with real_kafka("\n".join(f"{key}={value}" for key, value in SETTINGS.items()) + "\n") as bootstrap:
        status = cli.main(["--bootstrap", bootstrap, "--have", "short-expiry", "--skip-tag", "slow"])
    lines = capsys.readouterr().out.splitlines()
    wanted = [one for one in bundled() if KAFKA in one.only and "slow" not in one.tags]
    elsewhere = [one for one in wanted if set(one.needs) - {"short-expiry"}]
    assert [line for line in lines if line.startswith(("FAIL", "n/a"))] == []
    assert lines[-1] == f"{len(wanted) - len(elsewhere)} passed, 0 failed, {len(elsewhere)} skipped"
    assert status == 0


@pytest.mark.slow
def test_what_apache_kafka_knows_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kafka = RealKafka()
    state = tmp_path / "state.json"
    try:
        start(state, kafka.command(), kafka.port, tmp_path / "log")
        options = ["--bootstrap", kafka.bootstrap, "--select", "restart", "--restart-command", restart_command(state)]
        assert cli.main(options) == 0, capsys.readouterr().out
    finally:
        end(state)
        kafka.close()
