"""The recorded scenarios of Apache Kafka under `kip`: those that differ, and because of which row of the texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker import start_minibroker
from seeds import ROOT, SEEDS

from minibroker_lab.conformance import command as cli

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SHORT_EXPIRY = {
    "producer.id.expiration.ms": 4000,
    "producer.id.expiration.check.interval.ms": 500,
    "transactional.id.expiration.ms": 4000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}

RECORDED = sorted((ROOT / "lab" / "minibroker_lab" / "conformance" / "scenarios").glob("[01][0-9]-*.yaml"))[:11]
"""What was recorded of Apache Kafka; the files after these have expectations of their own for `kip`."""

DIFFER = {
    "idem-duplicate-window": "oos-4",
    "idem-unknown-pid-nonzero-seq": "oos-1",
    "idem-sequence-wrap": "oos-1",
    "txn-v5-next-transaction-sequence": "oos-1",
    "timeout-old-epoch-coordinator": "588-2",
    "timeout-old-epoch-offsets": "588-2",
    "timeout-v2-flow": "588-2",
}
"""Scenario → the seed that makes it differ."""


def test_what_differs_under_kip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(DIFFER.values()) <= set(SEEDS)
    page = (ROOT / "docs" / "reference" / "semantics.md").read_text(encoding="utf-8")
    assert all(f"| `{scenario}` | {seed} |" in page for scenario, seed in DIFFER.items())
    configs = [argument for key, value in SHORT_EXPIRY.items() for argument in ("-c", f"{key}={value}")]
    broker = start_minibroker(tmp_path / "broker.log", "--ephemeral", "--semantics", "kip", *configs)
    try:
        cli.main(["--bootstrap", broker.bootstrap, "--have", "short-expiry", "--jobs", "2", *map(str, RECORDED)])
    finally:
        broker.process.kill()
        broker.process.wait()
        assert broker.process.stdout
        broker.process.stdout.close()
    lines = capsys.readouterr().out.splitlines()
    failed = {line.split()[1].rstrip(":") for line in lines if line.startswith("FAIL")}
    assert failed == set(DIFFER), [line for line in lines if line.startswith("FAIL")]
