"""What a Spark session keeps while it runs is gone afterwards, after a kill too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.skipif(os.name != "posix", reason="a group of processes is killed")]

pytest.importorskip("pyspark")

from minibroker.server.temporary_directory import remove_abandoned  # noqa: E402

SECONDS = 300.0
PROGRAM = """
import sys
from minibroker_pipeline.session import open_session
spark, _ = open_session("local[1]")
spark.range(10).count()
options = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'of.a.file')")
assert options.first()[0] == "kept"
print("counted", flush=True)
sys.stdin.readline()
"""


@contextmanager
def counting(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a session that has run a job, and waits for a line."""
    (temporary.parent / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dof.a.file=kept")
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["SPARK_CONF_DIR"] = str(temporary.parent)
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "counted\n"
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_session_leaves_nothing_when_its_process_ends_or_is_killed(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary files"
    temporary.mkdir()
    with counting(temporary) as process:
        (directory,) = (path for path in temporary.iterdir() if path.is_dir())
        assert {"spark", "blockmgr", "artifacts"} <= {path.name.partition("-")[0] for path in directory.iterdir()}
        os.killpg(process.pid, signal.SIGKILL)
    assert remove_abandoned(str(temporary)) == [str(directory)]
    with counting(temporary) as process:
        process.communicate("\n", timeout=SECONDS)
    assert list(temporary.iterdir()) == []
