"""The recorded scenarios against the broker they were recorded from: what the suite asks for is what Kafka does."""

import pytest
from real_kafka import real_kafka

from minibroker.conformance import cli

SHORT_EXPIRY = """\
producer.id.expiration.ms=4000
producer.id.expiration.check.interval.ms=500
transactional.id.expiration.ms=4000
transaction.remove.expired.transaction.cleanup.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""


@pytest.mark.jvm
def test_apache_kafka_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with real_kafka(SHORT_EXPIRY) as bootstrap:
        status = cli.main(["--bootstrap", bootstrap, "--have", "short-expiry", "--skip-tag", "slow"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[:-1] if not line.startswith("ok ")] == []
    assert lines[-1] == "106 passed, 0 failed"
    assert status == 0
