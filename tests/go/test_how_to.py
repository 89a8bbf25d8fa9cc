"""The how-to for Go is a test; it must work as it stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from broker import installed_command
from toolchain import Unavailable, go_with_libraries

pytestmark = pytest.mark.go

HERE = Path(__file__).parent
HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "go" / "minibroker_test.go"


def test_the_how_to(tmp_path: Path) -> None:
    for file in (HERE / "go.mod", HERE / "go.sum", HOW_TO):
        shutil.copy(file, tmp_path)
    try:
        go = go_with_libraries(tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    command = [go, "test", "-count=1", "-v", "."]
    environment = installed_command(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS: TestALostCommitReplyCommitsOnce" in done.stdout
