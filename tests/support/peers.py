"""Runs the conformance suite against another broker for tests, scenarios one by one, and starts it again when it ends.

    peers.py kfake|librdkafka-mock|tansu|noida-db|test-kit REPORT.json [GROUP …]

The report is what `minibroker conformance --report json` writes, for the page (`conformance_page.py`).
"""

from __future__ import annotations

import datetime
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from broker import PREFIX, first_line
from peer_programs import PEERS

from minibroker.client.connection import parse_address
from minibroker.conformance.cluster import ClusterUnderTest
from minibroker.conformance.failure import ScenarioFailed
from minibroker.conformance.reports import as_json
from minibroker.conformance.results import Result, Status, Verdict
from minibroker.conformance.runner import Options, ScenarioRun
from minibroker.conformance.scenario import KAFKA, bundled
from minibroker.conformance.schedule import run_all

TIMEOUT_SECONDS = 3.0
PATIENCE_SECONDS = 6.0
START_SECONDS = 20.0


class Peer:
    """A running broker."""

    def __init__(self, argv: list[str], address: str) -> None:
        self._argv = argv
        self._address = address
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None

    def cluster(self) -> ClusterUnderTest:
        """A cluster on a fresh process."""
        self.end()
        self.starts += 1
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        address = self._address or first_line(self._process, START_SECONDS).removeprefix(PREFIX).strip()
        cluster = ClusterUnderTest(parse_address(address), timeout=TIMEOUT_SECONDS, patience=PATIENCE_SECONDS)
        cluster.wait_until_up(secrets.token_hex(3))
        return cluster

    def alive(self, cluster: ClusterUnderTest) -> bool:
        try:
            cluster.ask(cluster.bootstrap, "ApiVersions", 0, {})
        except ScenarioFailed:
            return False
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def main(arguments: list[str]) -> int:
    name, report, *groups = arguments
    chosen = [one for one in bundled() if KAFKA in one.only and "slow" not in one.tags]
    chosen = [one for one in chosen if not groups or one.group in groups]
    options = Options(timeout=TIMEOUT_SECONDS, patience=PATIENCE_SECONDS)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    begun = time.monotonic()
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as place:
        peer = Peer(*PEERS[name](Path(place)))
        cluster = peer.cluster()
        for number, one in enumerate(chosen):
            token = f"{secrets.token_hex(3)}-{number}"
            run = ScenarioRun(cluster, one, token, options, lambda: time.time_ns() // 1_000_000)
            (result,) = run_all([run], frozenset(), 1)
            found.append(result)
            print(f"{result.outcome.value} {one.name}: {result.why[:120]}", flush=True)
            if not peer.alive(cluster):
                print(f"{name} ended in {one.name}", flush=True)
                cluster = peer.cluster()
        peer.end()
    verdict = Verdict(name, KAFKA, started, found, time.monotonic() - begun)
    Path(report).write_text(as_json(verdict), encoding="utf-8")
    print(verdict.matrix())
    print(f"{verdict.summary()}; {verdict.seconds:.0f} s, started {peer.starts} times")
    return 1 if verdict.count(Status.FAILED) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
