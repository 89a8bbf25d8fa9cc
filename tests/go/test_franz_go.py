"""franz-go (main.go) against a running broker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from broker import running_broker
from check_program import Outcomes, declared_checks
from toolchain import Unavailable, last_line, tool

pytestmark = pytest.mark.go

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("go") / "franz"
    try:
        go = tool("go")
    except Unavailable as missing:
        pytest.skip(str(missing))
    fetched = subprocess.run([go, "mod", "download"], cwd=HERE, capture_output=True, text=True, timeout=300)
    if fetched.returncode:
        pytest.skip(f"go could not fetch franz-go: {last_line(fetched.stderr)}")
    built = subprocess.run([go, "build", "-o", str(out), "."], cwd=HERE, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def outcomes(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    with running_broker(tmp_path_factory.mktemp("broker") / "broker.log") as bootstrap:
        argv = [str(program), bootstrap]
        return Outcomes(subprocess.run(argv, capture_output=True, text=True, timeout=400))


@pytest.mark.parametrize("check", declared_checks(HERE / "main.go", r'^\trun\("(\w+)"'))
def test_franz_go(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)
