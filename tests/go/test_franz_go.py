"""franz-go (main.go) against a running broker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from broker import running_broker
from check_program import Outcomes, declared_checks
from toolchain import Unavailable, go_program

pytestmark = pytest.mark.go

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        return go_program(".", tmp_path_factory.mktemp("go"))
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def outcomes(program: str, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    with running_broker(tmp_path_factory.mktemp("broker") / "broker.log") as bootstrap:
        argv = [program, bootstrap]
        return Outcomes(subprocess.run(argv, capture_output=True, text=True, timeout=400))


@pytest.mark.parametrize("check", declared_checks(HERE / "main.go", r'^\trun\("(\w+)"'))
def test_franz_go(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)
