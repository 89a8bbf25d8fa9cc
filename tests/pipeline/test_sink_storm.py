"""The sink under random kills: of drivers, tasks and brokers, with two drivers at once.

Each batch is visible once, whole and in order. `MINIBROKER_SINK_SECONDS` (an hour at night: 3600) and `MINIBROKER_SEED`
choose another run, `MINIBROKER_SINK_DEFECT` one of `sink_job.DEFECTS`, of which a minute finds `no transaction` only.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from sink_job import CASES, PARTITIONS
from sink_readers import BATCH, job, visible

from minibroker.client.connection import BrokerFailed
from minibroker.testing.embedded import Minibroker
from minibroker_protocol.errors import ApiError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="tasks are forked, and found in /proc"),
]

SECONDS = float(os.environ.get("MINIBROKER_SINK_SECONDS", "30"))
SEED = int(os.environ.get("MINIBROKER_SEED", "1"))
DEFECT = [one for one in [os.environ.get("MINIBROKER_SINK_DEFECT")] if one]
ENDLESS = 1_000_000
RUNS = 8
BROKERS = (1, 2, 3)


class Reader:
    """Reads on from where it was. Holds what it finds against what was promised."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._positions: dict[int, int] = {}
        self._last = [0] * PARTITIONS
        self._partial: dict[int, set[str]] = {}
        self.whole: set[int] = set()

    def read(self) -> None:
        """A batch is whole at once but for the moment between its markers, so at the latest when it is read again."""
        partial = set(self._partial)
        for partition, value in visible(self._bootstrap, "t", self._positions):
            number = int(value.split(".")[0])
            assert number >= self._last[partition], f"batch {number} after {self._last[partition]}"
            self._last[partition] = number
            assert number not in self.whole, f"{value} again"
            found = self._partial.setdefault(number, set())
            assert value not in found, f"{value} twice"
            found.add(value)
            if len(found) == BATCH:
                del self._partial[number]
                self.whole.add(number)
        assert not partial & set(self._partial), "a part of a batch"


class Storm:
    """Drivers of one sink, and what happens to them."""

    def __init__(self, broker: Minibroker, directory: Path, seed: int) -> None:
        self._broker = broker
        self._directory = directory
        self._drivers: list[subprocess.Popen[bytes]] = []
        self._random = random.Random(seed)
        self._reader = Reader(broker.bootstrap_servers)
        self.done: Counter[str] = Counter()

    def blow(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        kinds = {"driver": self._driver, "task": self._task, "broker": self._kill_broker, "rival": self._rival}
        while time.monotonic() < deadline:
            self._reap()
            if not self._drivers:
                self._start()
            self._wait_for_a_batch()
            time.sleep(self._random.uniform(0.0, 0.3))
            kind = self._random.choice(list(kinds))
            self.done[kind] += kinds[kind]()
            self._read()

    def _noted(self) -> int:
        note = self._directory / "t.checkpoint"
        return int(note.read_text()) if note.exists() else -1

    def _wait_for_a_batch(self) -> None:
        """A driver takes a while to start, and to take the sink over; not for ever, as none may be left."""
        before, deadline = self._noted(), time.monotonic() + 5
        while self._noted() <= before and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
            if not self._drivers:
                break

    def _start(self) -> None:
        """A driver; half of them die at a named step of one of the next batches."""
        armed: tuple[str, ...] = ("-1", "", "")
        if self._random.random() < 0.5:
            step, kind = self._random.choice([case for case in CASES if case[1] != "wait"])
            armed = (str(self._noted() + self._random.randint(1, 3)), step, kind)
            self.done["armed"] += 1
        with (self._directory / "log").open("ab") as log:
            argv = job(self._directory, self._broker.bootstrap_servers, "t", ENDLESS, *armed, *DEFECT)
            self._drivers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _reap(self) -> None:
        self._drivers = [driver for driver in self._drivers if driver.poll() is None]

    def _driver(self) -> bool:
        if self._drivers:
            driver = self._drivers.pop(self._random.randrange(len(self._drivers)))
            driver.kill()
            driver.wait()
        return True

    def _task(self) -> bool:
        """One of a driver's two tasks, if it has any just now."""
        for _ in range(100):
            for driver in self._drivers:
                try:
                    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
                    if children:
                        os.kill(int(self._random.choice(children)), signal.SIGKILL)
                        return True
                except (FileNotFoundError, ProcessLookupError):
                    pass  # it has ended
            time.sleep(0.01)
        return False

    def _kill_broker(self) -> bool:
        broker = self._random.choice(BROKERS)
        self._broker.cluster.kill_broker(broker)
        time.sleep(self._random.uniform(0.0, 1.0))
        self._broker.cluster.start_broker(broker)
        return True

    def _rival(self) -> bool:
        """A second driver on the same checkpoint."""
        if len(self._drivers) < 2:
            self._start()
        return True

    def _read(self) -> None:
        for _ in range(100):
            try:
                return self._reader.read()
            except (BrokerFailed, ApiError) as error:  # leaders move
                failed = error
                time.sleep(0.1)
        raise AssertionError(str(failed))

    def calm(self) -> None:
        """Kill what is left, write three batches more, and look whether all are there."""
        self.close()
        end = self._noted() + 4
        argv = job(self._directory, self._broker.bootstrap_servers, "t", end)
        for _ in range(RUNS):
            ended = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if not ended.returncode:
                break
        assert not ended.returncode, ended.stderr
        deadline = time.monotonic() + 30
        while True:
            self._read()
            if self._reader.whole == set(range(end)) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        assert self._reader.whole == set(range(end))
        said = (self._directory / "log").read_text()
        assert "Traceback" not in said, said[max(said.index("Traceback") - 500, 0) :][:4000]
        self.done["batches"] = end

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
            driver.wait()
        self._drivers = []


@pytest.mark.parametrize("version", [2, 1])
def test_random_kills(tmp_path: Path, version: int) -> None:
    with Minibroker(ephemeral=True, brokers=3, transaction_version=version) as broker:
        broker.state.create_topic(topic="t", partitions=PARTITIONS, replication_factor=3)
        storm = Storm(broker, tmp_path, SEED)
        try:
            storm.blow(SECONDS / 2)
            storm.calm()
        finally:
            storm.close()
        print(f"seed {SEED}, transaction.version {version}: {dict(storm.done)}")
    assert storm.done["batches"] > 3
