"""A Spark job on a cluster: copies the topic `in` to `out` exactly once, audits the broker, and prints what it saw.

python spark_cluster_job.py MASTER BOOTSTRAP
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import minibroker_pipeline
from minibroker_pipeline import topic_source
from minibroker_pipeline.session import open_session
from minibroker_pipeline.topic_sink import exactly_once

# A JVM that lives for half a minute is not worth its second compiler.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = [
    f"spark.driver.extraJavaOptions={QUICK}",
    f"spark.executor.extraJavaOptions={QUICK}",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.executor.memory=512m",
    "spark.default.parallelism=2",
    "spark.sql.shuffle.partitions=2",
    # No job begins before both executors are there; without a number of cores Spark expects none.
    "spark.cores.max=2",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
]


def main() -> None:
    master, bootstrap = sys.argv[1:]
    spark, _ = open_session(master, SETTINGS)
    topic_source.register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "in", "includeHeaders": "true"}
    rows = spark.read.format("kafka-topics").options(**options).load()
    copied = rows.select("key", "value", "headers", "timestamp")
    exactly_once(copied, "out", bootstrap=bootstrap, sink="copy", jobId="once").save()
    with minibroker_pipeline.audit(spark, bootstrap=bootstrap, topics=["in", "out"]) as audited:
        findings = [row.rule for row in audited.findings.collect()]
        ended = sorted(f"{row.topic}-{row.partition} {row.outcome}" for row in audited.transactions.collect())
    executors = sorted(set(spark.sparkContext.parallelize(range(16), 16).mapPartitions(seen_there).collect()))
    spark.stop()
    print(json.dumps({"findings": findings, "transactions": ended, "executors": executors}))


def seen_there(_: Iterator[int]) -> Iterator[tuple[str, str, str]]:
    """Of an executor: its directory, its Python, and where that has the package from."""
    yield os.getcwd(), sys.executable, minibroker_pipeline.__file__


if __name__ == "__main__":
    main()
