"""kafkajs (checks.mjs) against a running broker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from broker import running_broker
from check_program import Outcomes, declared_checks
from toolchain import Unavailable, last_line, tool

pytestmark = pytest.mark.node

HERE = Path(__file__).parent
INSTALL = ("install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Command line of the program, in a directory with its one dependency."""
    directory = tmp_path_factory.mktemp("node")
    for name in ("package.json", "checks.mjs"):
        shutil.copy(HERE / name, directory)
    try:
        node, npm = tool("node"), tool("npm")
    except Unavailable as missing:
        pytest.skip(str(missing))
    done = subprocess.run([npm, *INSTALL], cwd=directory, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm could not fetch kafkajs: {last_line(done.stderr)}")
    return [node, str(directory / "checks.mjs")]


@pytest.fixture(scope="module")
def outcomes(program: list[str], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    with running_broker(tmp_path_factory.mktemp("broker") / "broker.log") as bootstrap:
        return Outcomes(subprocess.run([*program, bootstrap], capture_output=True, text=True, timeout=400))


@pytest.mark.parametrize("check", declared_checks(HERE / "checks.mjs", r"^  async (\w+)\("))
def test_kafkajs(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)
