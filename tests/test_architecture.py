"""docs/architecture.md and the contracts of import-linter name the same rooms, in the same order."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ROOMS = next(contract["layers"] for contract in CONTRACTS if contract.get("exhaustive"))
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = {"__main__", "cli", "program", "transactions_client", "version"}
"""Layers that are single modules."""


def test_the_page_lists_the_rooms_in_the_order_of_the_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `minibroker/(\w+)` \|", page, re.MULTILINE)
    stacked = [room for room in reversed(ROOMS) if room not in MODULES]
    assert [room for room in listed if room != "audit"] == [room for room in stacked if room != "audit"]


def test_every_storage_module_but_the_disk_is_in_the_contract_about_io() -> None:
    (pure,) = [contract["source_modules"] for contract in CONTRACTS if contract["name"].startswith("the core does no")]
    modules = {path.stem for path in (ROOT / "storage" / "minibroker_storage").glob("*.py")}
    assert {f"minibroker_storage.{name}" for name in modules - {"__init__", "os_disk"}} <= set(pure)


def test_imports_inside_functions_are_where_the_page_says_why() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Imports inside functions")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:minibroker|protocol|storage|pipeline)/[\w./]+)`", table)
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("minibroker", "protocol", "storage", "pipeline")
        for path in (ROOT / package).rglob("*.py")
        if imports_late(path)
    }
    assert {file for file in found if not any(file == name or file.startswith(f"{name}/") for name in named)} == set()
    assert {name for name in named if not any(file == name or file.startswith(f"{name}/") for file in found)} == set()


def imports_late(path: Path) -> bool:
    """Whether a function of the module imports."""
    functions = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, FUNCTION))
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) for one in functions for node in ast.walk(one))


BREACHES = {
    "an arrow up": ("minibroker/kernel/deferred.py", "from minibroker.config import types", "the rooms of minibroker"),
    "an arrow up for types only": (
        "minibroker/broker/lifecycle.py",
        "from typing import TYPE_CHECKING as checking\nif checking:\n    from minibroker.cluster import cluster",
        "the rooms of minibroker",
    ),
    "a circle": ("minibroker/kernel/clock.py", "from minibroker.kernel import broker_clock", "no circles: minibroker"),
    "a socket below the edge": ("storage/minibroker_storage/origin.py", "import socket", "the core does no I/O"),
    "the edge in the core": (
        "minibroker/coordinators/hashing.py", "from minibroker.server import watchdog", "the rooms of minibroker"
    ),
    "a broker that knows the pipeline": (
        "minibroker/handlers/table.py", "import minibroker_pipeline.reading", "four packages"
    ),
    "Spark in the rules": ("minibroker/rules/rules.py", "import pyarrow", "the rules need no Spark"),
    "a room without a name": ("minibroker/attic/__init__.py", "", "the rooms of minibroker"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("breach", BREACHES)
def test_a_planted_breach_is_found(breach: str, tmp_path: Path) -> None:
    for name in ("minibroker", "protocol", "storage", "pipeline", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path)
    file, line, contract = BREACHES[breach]
    place = tmp_path / file
    place.parent.mkdir(exist_ok=True)
    before = place.read_text() if place.exists() else ""
    place.write_text(f"{before}\n{line}\n")
    paths = ":".join(str(tmp_path / part) for part in ("", "protocol", "storage", "pipeline"))
    program = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": paths, "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^{re.escape(contract)}.*BROKEN", done.stdout, re.MULTILINE), done.stdout
