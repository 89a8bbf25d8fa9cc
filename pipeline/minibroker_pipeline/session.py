"""The Spark session an audit runs in."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minibroker_pipeline import java

LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
ALWAYS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}

_JVM_SECONDS = 30.0


def submitted() -> bool:
    """Whether spark-submit started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def open_session(master: str | None = None, conf: Sequence[str] = ()) -> tuple[Any, str]:
    """(session, which Java it has). `master` as for spark-submit; None: what spark-submit said, else local[*].

    `conf`: KEY=VALUE. Raises NoJava, and ValueError for an entry that is not KEY=VALUE.
    """
    found = java.prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("minibroker audit")
    settings = dict(ALWAYS)
    if not submitted():
        master = master or "local[*]"
        if master.startswith("local"):
            settings |= LOCAL
        if master.startswith("local-cluster"):
            _home_of_its_own()
    for item in conf:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--conf {item}: expected KEY=VALUE")
        settings[key] = value
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _signals_stay():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark, found


def _home_of_its_own() -> None:
    """Sets SPARK_HOME to a directory of links to Spark's, which goes when this process ends; not where it is set.

    The workers of a local cluster work below SPARK_HOME (deploy.LocalSparkCluster names no directory), which nobody
    empties: the jars of a session and the output of its executors would stay beside PySpark's own files.
    """
    if "SPARK_HOME" in os.environ:
        return
    import pyspark

    home = Path(tempfile.mkdtemp(prefix="minibroker-spark-"))
    atexit.register(_remove_home, home)
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    os.environ["SPARK_HOME"] = str(home)


def _remove_home(home: Path) -> None:
    """After the JVM has ended, which writes there what its executors print."""
    from pyspark import SparkContext

    jvm = getattr(SparkContext._gateway, "proc", None)
    if jvm is not None:
        jvm.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(_JVM_SECONDS)
    shutil.rmtree(home, ignore_errors=True)


def register_source(spark: Any, source: type[Any]) -> None:
    """Make a data source known to a session, for the thread that calls too.

    Spark looks a Python data source up in the thread's active session, and a thread of the user's has none.
    """
    spark.dataSource.register(source)
    spark.createDataFrame([], "nothing int")  # makes the session the thread's active one


@contextmanager
def _signals_stay() -> Iterator[None]:
    """Ctrl-C stays what it was: PySpark's own handler asks the JVM again in the middle of a request, and prints two
    tracebacks. py4j logs an interrupted request on the root logger, with a third."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
