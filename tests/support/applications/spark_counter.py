"""A driver of Spark that counts: 0, 1, 2 … into the topic `out`, by the exactly-once sink, until it is killed.

    python spark_counter.py MASTER BOOTSTRAP CHECKPOINT [DEFECT]

A query that fails is started again in the same session, and a line says why. DEFECT: one of `sink_job.DEFECTS`, in the
processes that plan and commit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from sink_job import DEFECTS

from minibroker_pipeline.session import open_session, register_source
from minibroker_pipeline.topic_sink import ExactlyOnce, StreamWriter, exactly_once

TOPIC, SINK, ROWS = "out", "counter", 30
SETTINGS = [
    *(f"spark.{who}.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for who in ("driver", "executor")),
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
]


class Defective(ExactlyOnce):
    """The sink with a defect of `sink_job`, which its options name."""

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        options: Mapping[str, str] = self.options
        chosen = options["defect"]
        self.options = type(self.options)({name: value for name, value in options.items() if name != "defect"})
        DEFECTS[chosen](Path())
        return super().streamWriter(schema, overwrite)


def start(spark: Any, bootstrap: str, checkpoint: str, defect: str = "") -> Any:
    """A query that writes `ROWS` numbers a batch, one batch after the other."""
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=2).load()
    writer = exactly_once(numbers.selectExpr("string(value) value"), TOPIC, bootstrap=bootstrap, sink=SINK)
    if defect:
        register_source(spark, Defective)
        writer = writer.option("defect", defect)
    return writer.option("checkpointLocation", checkpoint).start()


def main() -> None:
    master, bootstrap, checkpoint, *defect = sys.argv[1:]
    spark, _ = open_session(master, SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    while True:
        try:
            start(spark, bootstrap, checkpoint, *defect).awaitTermination()
        except StreamingQueryException as error:
            print(str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
