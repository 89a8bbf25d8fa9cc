"""The scenarios that come with minibroker, against minibroker itself."""

from pathlib import Path

import pytest
from broker import running_broker
from defect_matrix import SETTINGS

from minibroker.conformance import cli
from minibroker.conformance.scenario import KAFKA, KIP, bundled


@pytest.mark.parametrize(("semantics", "expectation"), [("kafka", KAFKA), ("kip", KIP)])
def test_minibroker_answers_as_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], semantics: str, expectation: str
) -> None:
    configs = [argument for key, value in SETTINGS.items() for argument in ("-c", f"{key}={value}")]
    with running_broker(tmp_path / "broker.log", "--ephemeral", "--semantics", semantics, *configs) as bootstrap:
        status = cli.main(
            ["--bootstrap", bootstrap, "--expect", expectation, "--have", "short-expiry", "--skip-tag", "slow"]
        )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("FAIL", "skip", "n/a"))] == []
    wanted = [one for one in bundled() if expectation in one.only and "slow" not in one.tags]
    assert lines[-1] == f"{len(wanted)} passed, 0 failed"
    assert status == 0
