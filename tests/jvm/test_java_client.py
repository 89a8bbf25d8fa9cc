"""Kafka's Java client (ClientChecks.java) against a running broker."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from check_program import Outcomes, declared_checks
from jvm import JVM_TIER, POMS, run_java

pytestmark = pytest.mark.jvm

LOG_REQUESTS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=debug"
SENT = re.compile(r"Sending (\w+) request with header RequestHeader\(apiKey=\w+, apiVersion=(\d+)")


@pytest.fixture(scope="module", params=POMS)
def outcomes(request: pytest.FixtureRequest, programs: Path, bootstrap: str) -> Outcomes:
    """Of the client of each release."""
    release = request.param
    options = (LOG_REQUESTS,)
    done = run_java("ClientChecks", bootstrap, extra=(programs,), options=options, seconds=400, release=release)
    return Outcomes(done)


@pytest.mark.parametrize("check", declared_checks(JVM_TIER / "ClientChecks.java", r'^        run\("(\w+)"'))
def test_java_client(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)


def test_newest_requests_are_used(outcomes: Outcomes) -> None:
    """Produce v12 and EndTxn v5, which bumps the epoch, come with KIP-890; 4.4.0 commits offsets by topic id."""
    used: dict[str, set[int]] = defaultdict(set)
    for api, version in SENT.findall(outcomes.finished.stderr):
        used[api].add(int(version))
    assert max(used["PRODUCE"]) >= 12
    assert max(used["END_TXN"]) >= 5
    assert max(used["TXN_OFFSET_COMMIT"]) == (6 if "kafka-4.4" in " ".join(outcomes.finished.args) else 5)
