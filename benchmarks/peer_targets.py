"""The peers beside Apache Kafka's broker; each raises Unavailable, when it is made, where it is not to be had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from broker import PREFIX, START_SECONDS, first_line
from peer_programs import PEERS
from targets import Target


class PeerTarget(Target):
    """A program of `peer_programs`, under the name it has there."""

    peer_name: str

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._scratch = TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        try:
            self._argv, self._address = PEERS[self.peer_name](Path(self._scratch.name))
        except BaseException:
            self._scratch.cleanup()
            raise

    def _start(self) -> None:
        shutil.rmtree(Path(self._scratch.name) / "data", ignore_errors=True)
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if self._address else subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._scratch.name,
        )
        self.pid = self._process.pid
        self.bootstrap = self._address
        while not self.bootstrap:
            line = first_line(self._process, START_SECONDS)
            if not line:
                raise RuntimeError(f"{self.name} did not start")
            if line.startswith(PREFIX):
                self.bootstrap = line.strip().removeprefix(PREFIX)

    def stop(self) -> None:
        if self._process:
            self._ask_to_end(self._process)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
            self._process = None

    def _ask_to_end(self, process: subprocess.Popen[str]) -> None:
        process.terminate()

    def close(self) -> None:
        self.stop()
        self._scratch.cleanup()


class KfakeTarget(PeerTarget):
    name = peer_name = "kfake"


class MockTarget(PeerTarget):
    name, peer_name = "librdkafka mock", "librdkafka-mock"
    creates_topics = False


class TansuTarget(PeerTarget):
    name = peer_name = "tansu"


class NoidaTarget(PeerTarget):
    name = peer_name = "noida-db"


class TestKitTarget(PeerTarget):
    name, peer_name = "KafkaClusterTestKit 4.3.1", "test-kit"

    def _ask_to_end(self, process: subprocess.Popen[str]) -> None:
        """It shuts down cleanly when its input is closed."""
        if process.stdin:
            process.stdin.close()
