"""The peer beside Apache Kafka: franz-go's kfake, which keeps everything in memory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from broker import PREFIX, START_SECONDS, first_line
from targets import Target
from toolchain import Unavailable, last_line, tool

HERE = Path(__file__).resolve().parent
BUILD_SECONDS = 600


class KfakeTarget(Target):
    """kfake of the version in kfake/go.mod, built here. Raises Unavailable without Go or its modules."""

    name = "kfake"

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._directory = TemporaryDirectory(prefix="bench-")
        self._program = str(Path(self._directory.name) / "kfake")
        built = subprocess.run(
            [tool("go"), "build", "-o", self._program, "."],
            cwd=HERE / "kfake",
            env=os.environ | {"CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
        if built.returncode:
            raise Unavailable(f"kfake cannot be built: {last_line(built.stderr)}")

    def _start(self) -> None:
        self._process = subprocess.Popen([self._program], stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.bootstrap = first_line(self._process, START_SECONDS).strip().removeprefix(PREFIX)

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._directory.cleanup()
