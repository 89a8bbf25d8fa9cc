"""The Spark session an audit runs in."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def submitted() -> bool:
    """Whether spark-submit started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def open_session(master: str | None = None, conf: Sequence[str] = ()) -> tuple[Any, str]:
    """(session, which Java it has). `master` as for spark-submit; None: what spark-submit said, else local[*].

    `conf`: KEY=VALUE. Raises NoJava, and ValueError for a setting that is none.
    """
    found = java.prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("minibroker audit")
    settings = dict(ALWAYS)
    if not submitted():
        master = master or "local[*]"
        if master.startswith("local"):
            settings |= LOCAL
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
