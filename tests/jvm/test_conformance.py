"""The recorded scenarios against the broker they were recorded from: what the suite asks for is what Kafka does."""

import time
from pathlib import Path

import pytest
from defect_matrix import SETTINGS
from jvm import NEWEST, POMS
from leftovers import left_on, said_to_stay
from real_kafka import RealKafka, real_kafka
from restart import end, restart_command, start

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.scenario import KAFKA, bundled


@pytest.mark.jvm
@pytest.mark.parametrize("release", POMS)
def test_apache_kafka_passes(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Scenarios run side by side. Kafka on a busy machine may answer one otherwise, such as TRANSACTION_ABORTABLE for
    INVALID_TXN_STATE where verifications met in one request; that scenario then has to pass by itself.
    """
    expectation = f"kafka-{release.rpartition('.')[0]}"
    assert expectation == KAFKA or release != NEWEST
    properties = "\n".join(f"{key}={value}" for key, value in SETTINGS.items()) + "\n"
    with real_kafka(properties, release=release) as bootstrap:
        options = ["--expect", expectation, "--have", "short-expiry", "--skip-tag", "slow"]
        status = cli.main(["--bootstrap", bootstrap, *options])
        said = capsys.readouterr()
        lines = said.out.splitlines()
        # Of a group whose offsets went with a transaction Kafka tells for some time.
        deadline = time.monotonic() + 60
        while (stay := left_on(bootstrap)) and time.monotonic() < deadline:
            if all(" Prepare" in one for one in stay):
                break
            time.sleep(0.2)
        assert [one for one in stay if " Prepare" not in one] == []
        assert len(stay) == said_to_stay(said.err)
        busy = [line.split()[1].rstrip(":") for line in lines if line.startswith("FAIL")]
        for name in busy:
            assert cli.main(["--bootstrap", bootstrap, *options, "--only", name]) == 0, capsys.readouterr().out
    wanted = [one for one in bundled() if expectation in one.only and "slow" not in one.tags]
    elsewhere = sum(bool(set(one.needs) - {"short-expiry"}) for one in wanted)
    absent = [line for line in lines if line.startswith("n/a")]
    assert len(busy) <= 3, busy
    assert release != NEWEST or absent == []
    assert all(" v" in line for line in absent)  # a version that came later
    passed = len(wanted) - elsewhere - len(absent) - len(busy)
    assert lines[-1].startswith(f"{passed} passed, {len(busy)} failed, {elsewhere} skipped")
    assert (status == 0) == (not busy)


@pytest.mark.slow
@pytest.mark.parametrize("release", POMS)
def test_what_apache_kafka_knows_after_a_restart(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = RealKafka(release=release)
    state = tmp_path / "state.json"
    try:
        start(state, kafka.command(), kafka.port, tmp_path / "log")
        options = ["--bootstrap", kafka.bootstrap, "--expect", f"kafka-{release.rpartition('.')[0]}"]
        options += ["--select", "restart", "--restart-command", restart_command(state)]
        assert cli.main(options) == 0, capsys.readouterr().out
    finally:
        end(state)
        kafka.close()
