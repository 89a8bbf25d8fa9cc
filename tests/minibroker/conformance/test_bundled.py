"""The scenarios that come with minibroker, against minibroker itself."""

from pathlib import Path

import pytest
from broker import running_broker

from minibroker.conformance import cli

SHORT_EXPIRY = {
    "producer.id.expiration.ms": 4000,
    "producer.id.expiration.check.interval.ms": 500,
    "transactional.id.expiration.ms": 4000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


def test_minibroker_answers_as_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = [argument for key, value in SHORT_EXPIRY.items() for argument in ("-c", f"{key}={value}")]
    with running_broker(tmp_path / "broker.log", "--ephemeral", *configs) as bootstrap:
        status = cli.main(["--bootstrap", bootstrap, "--have", "short-expiry", "--skip-tag", "slow"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[:-1] if not line.startswith("ok ")] == []
    assert lines[-1] == "106 passed, 0 failed"
    assert status == 0
