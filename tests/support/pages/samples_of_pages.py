"""Programs that stand on a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
INTEGRATIONS = ROOT / "integrations"


def sample(page: Path, language: str) -> str:
    """The one block of a language on a page."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(code)


def run_recipe(recipe: Path, *options: str) -> str:
    """What pytest prints of a file of recipes, run with nothing but the plugin; every test of it must pass."""
    plain = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "minibroker.testing.pytest_plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "pytest", "-q", *plain, "--rootdir", str(ROOT), *options, str(recipe)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout
