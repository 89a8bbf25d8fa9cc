"""README's programs, as they stand there, and what it shows of their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

pytestmark = pytest.mark.clients

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
FAILING, FIXTURE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(PRINTED,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


def test_the_failing_commit_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "test_slow_job.py").write_text(FAILING, encoding="utf-8")
    assert len([line for line in FAILING.partition("\n\n\n")[2].splitlines() if line]) == 6
    plugins = ["-p", "minibroker.testing.pytest_plugin", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), *plugins, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    for line in re.split(r"\n(?! )", PRINTED.strip()):  # a longer line is continued with an indent
        pattern = re.sub(r"^\d\d:\d\d:\d\d\\\.\d{3}", r"\\d\\d:\\d\\d:\\d\\d.\\d{3}", re.escape(" ".join(line.split())))
        assert re.search(pattern, printed), f"{line}\n{done.stdout}"


def test_the_fixture() -> None:
    def application(bootstrap: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "app-1"})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in (b"one", b"two"):
            producer.produce("orders", value)
        producer.commit_transaction(20)

    exec(FIXTURE, {"run_my_application": application})
