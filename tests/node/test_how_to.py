"""The how-to for Node is a test; it must work as it stands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from broker import installed_command
from toolchain import Unavailable, node_program

pytestmark = pytest.mark.node

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "node" / "minibroker.test.mjs"


def test_the_how_to(tmp_path: Path) -> None:
    try:
        node, program = node_program(str(HOW_TO), tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    command = [node, "--test", "--test-reporter=tap", program]
    environment = installed_command(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n# pass 1\n" in done.stdout
