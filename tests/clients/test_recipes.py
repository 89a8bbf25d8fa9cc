"""The how-tos are programs; they must work as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.clients

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "docs" / "how-to" / "recipes").glob("test_*.py"))


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 2


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe(recipe: Path) -> None:
    plain = [
        "-c",
        os.devnull,
        "-p",
        "no:cacheprovider",
        "-p",
        "minibroker.testing.pytest_plugin",
        "--rootdir",
        str(ROOT),
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plain, str(recipe)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
