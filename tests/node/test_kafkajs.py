"""kafkajs (checks.mjs) against a running broker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from broker import running_broker
from check_program import Outcomes, declared_checks
from toolchain import Unavailable, node_program

pytestmark = pytest.mark.node

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    try:
        return node_program("checks.mjs", tmp_path_factory.mktemp("node"))
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def outcomes(program: list[str], tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    with running_broker(tmp_path_factory.mktemp("broker") / "broker.log") as bootstrap:
        return Outcomes(subprocess.run([*program, bootstrap], capture_output=True, text=True, timeout=400))


@pytest.mark.parametrize("check", declared_checks(HERE / "checks.mjs", r"^  async (\w+)\("))
def test_kafkajs(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)
