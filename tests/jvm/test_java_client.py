"""Kafka's Java client (ClientChecks.java) against a running broker."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from check_program import Outcomes, declared_checks
from jvm import JVM_TIER, run_java

pytestmark = pytest.mark.jvm

LOG_REQUESTS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=debug"
SENT = re.compile(r"Sending (\w+) request with header RequestHeader\(apiKey=\w+, apiVersion=(\d+)")


@pytest.fixture(scope="module")
def outcomes(programs: Path, bootstrap: str) -> Outcomes:
    return Outcomes(run_java("ClientChecks", bootstrap, extra=(programs,), options=(LOG_REQUESTS,), seconds=400))


@pytest.mark.parametrize("check", declared_checks(JVM_TIER / "ClientChecks.java", r'^        run\("(\w+)"'))
def test_java_client(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)


def test_newest_requests_are_used(outcomes: Outcomes) -> None:
    """Produce v12 and EndTxn v5, which bumps the epoch, are what KIP-890 gives to clients."""
    used: dict[str, set[int]] = defaultdict(set)
    for api, version in SENT.findall(outcomes.finished.stderr):
        used[api].add(int(version))
    assert max(used["PRODUCE"]) >= 12
    assert max(used["END_TXN"]) >= 5
    assert max(used["TXN_OFFSET_COMMIT"]) >= 5
