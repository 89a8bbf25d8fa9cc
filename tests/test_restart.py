"""The command that restarts a broker ends with the status of its own restart."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from restart import restart_command, restartable_minibroker

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="named pipes are used on Linux")


def test_a_restart_that_fails_fails_its_command_and_no_other() -> None:
    with restartable_minibroker([]) as (_, state):
        run = state.read_text()
        state.write_text("no JSON")
        with state.with_suffix(".status").open("w") as statuses:
            statuses.write("0 0\n")  # for a shell that ended before it had its answer
        assert subprocess.run(restart_command(state), shell=True, timeout=60).returncode == 1
        state.write_text(run)
        assert subprocess.run(restart_command(state), shell=True, timeout=60).returncode == 0
        assert json.loads(state.read_text())["pid"] != json.loads(run)["pid"]
