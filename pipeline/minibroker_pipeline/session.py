"""The Spark session an audit runs in."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minibroker.server.temporary_directory import TemporaryDirectory, remove_abandoned
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
    for item in conf:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--conf {item}: expected KEY=VALUE")
        settings[key] = value
    if not submitted():
        master = master or "local[*]"
        if master.startswith("local"):
            settings = LOCAL | settings
            _keep_together(settings, cluster=master.startswith("local-cluster"))
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _signals_stay():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark, found


def _keep_together(settings: dict[str, str], *, cluster: bool) -> None:
    """Have the JVMs that this process is about to start keep what is temporary in a directory that goes when it ends,
    and after a kill with the next session or broker: a killed JVM leaves blocks, jars and native libraries behind.

    cluster: its workers work below SPARK_HOME (deploy.LocalSparkCluster names no directory), where nobody would empty
    what they leave beside PySpark's own files. Unless SPARK_HOME is set, it becomes a directory of links to Spark's.
    """
    import pyspark

    if pyspark.SparkContext._gateway is not None:  # a JVM that somebody started already
        return
    remove_abandoned()
    directory = TemporaryDirectory()
    atexit.register(_remove_after_jvm, directory)
    for process in ("driver", "executor"):
        key = f"spark.{process}.defaultJavaOptions"  # beside those of spark-defaults.conf, which are "extra"
        settings[key] = f"{settings.get(key, '')} {shlex.quote(f'-Djava.io.tmpdir={directory.path}')}".lstrip()
    if cluster and "SPARK_HOME" not in os.environ:
        for name in ("bin", "jars", "python"):
            Path(directory.path, name).symlink_to(Path(pyspark.__file__).parent / name)
        os.environ["SPARK_HOME"] = directory.path


def _remove_after_jvm(directory: TemporaryDirectory) -> None:
    """The JVM writes there until it ends: what its executors print, for one."""
    from pyspark import SparkContext

    jvm = getattr(SparkContext._gateway, "proc", None)
    if jvm is not None:
        jvm.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(_JVM_SECONDS)
    directory.remove()


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
