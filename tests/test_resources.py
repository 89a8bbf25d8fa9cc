"""What the long load holds against a broker is seen where it is: a process with a log that forgot to let go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from resources import DELETED, Resources

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what a process holds is in /proc")

KEPT = 2
LOG = """
import os, sys
sys.path[:0] = sys.argv[2:]
from logs import NOW, append, batch, open_log
from minibroker_storage.config import LogConfig
from minibroker_storage.os_disk import OsDisk
from minibroker_storage.retention import delete_old_segments

config = LogConfig(segment_bytes=100, retention_bytes=100, file_delete_delay_ms=0)
log = open_log(OsDisk(sys.argv[1]), config=config)
for _ in range(3):
    append(log, batch(b"v"))
for offset in range(3):
    log.read(offset, 100, bound=3)  # what was rolled is open again once it is read
"""
HOLD = 'handle = open(os.path.join(sys.argv[1], "t-0", "%020d.log" % 0))\n'
KEEP = "delete_old_segments(log, NOW)\nlog.files.removals.due(NOW)\n"
WAIT = 'print("ready", flush=True)\nsys.stdin.read()\n'


@pytest.mark.parametrize(
    ("steps", "leaks"),
    [
        pytest.param(KEEP, [], id="nothing"),
        pytest.param(HOLD + KEEP, ["/t-0/00000000000000000000.log.deleted" + DELETED], id="a deleted file is open"),
        pytest.param("", ["/t-0: 3 segments"], id="retention forgot a segment"),
    ],
)
def test_what_a_log_does_not_let_go_is_named(steps: str, leaks: list[str], tmp_path: Path) -> None:
    path = [folder for folder in sys.path if folder]
    argv = [sys.executable, "-c", LOG + steps + WAIT, str(tmp_path), *path]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.stdout.read()
        assert Resources.of(process.pid).leaks(KEPT) == [f"{tmp_path}{leak}" for leak in leaks]
        process.stdin.close()
        assert process.wait() == 0
