"""The how-to for Spark is a test; it must work as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "spark" / "test_stream.py"
PLAIN = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "minibroker.testing.pytest_plugin", "--rootdir", str(ROOT)]


def test_the_how_to(connector: list[Path] | str) -> None:
    pytest.importorskip("pyspark")
    if isinstance(connector, str):
        pytest.skip(connector)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["SPARK_KAFKA_JARS"] = ",".join(map(str, connector))
    argv = [sys.executable, "-m", "pytest", "-q", *PLAIN, str(HOW_TO)]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "1 passed" in done.stdout
