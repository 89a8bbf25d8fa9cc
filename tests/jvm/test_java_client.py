"""Kafka's Java client (ClientChecks.java) against a running broker."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from jvm import JVM_TIER, run_java

pytestmark = pytest.mark.jvm

LOG_REQUESTS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=debug"
CHECKS = re.findall(r'run\("(\w+)"', (JVM_TIER / "ClientChecks.java").read_text())


@pytest.fixture(scope="module")
def finished(programs: Path, bootstrap: str) -> CompletedProcess[str]:
    return run_java("ClientChecks", bootstrap, extra=(programs,), options=(LOG_REQUESTS,), seconds=300)


@pytest.fixture(scope="module")
def outcomes(finished: CompletedProcess[str]) -> dict[str, str]:
    """Name of each check → what the program said of it."""
    lines = [[*line.partition(":")[0].split(), line] for line in finished.stdout.splitlines()]
    return {words[1]: words[-1] for words in lines if words[0] in ("ok", "FAIL")}


def test_there_are_checks() -> None:
    assert len(CHECKS) > 10


@pytest.mark.parametrize("check", CHECKS)
def test_java_client(outcomes: dict[str, str], finished: CompletedProcess[str], check: str) -> None:
    assert outcomes.get(check, f"not reached: {finished.stderr[-2000:]}") == f"ok {check}"


def test_newest_requests_are_used(finished: CompletedProcess[str]) -> None:
    """Produce v12 and EndTxn v5, which bumps the epoch, are what KIP-890 gives to clients."""
    used: dict[str, set[int]] = defaultdict(set)
    for api, version in re.findall(
        r"Sending (\w+) request with header RequestHeader\(apiKey=\w+, apiVersion=(\d+)", finished.stderr
    ):
        used[api].add(int(version))
    assert max(used["PRODUCE"]) >= 12
    assert max(used["END_TXN"]) >= 5
    assert max(used["TXN_OFFSET_COMMIT"]) >= 5
