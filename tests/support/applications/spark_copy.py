"""A Spark job that copies the topic `in` to `out`: read by Spark's own connector, written by the exactly-once sink.

    python spark_copy.py BOOTSTRAP CHECKPOINT JARS BATCH

BATCH: how many records a batch has at most. Each record says in the header `from` where it was read.
"""

from __future__ import annotations

import sys

from minibroker_pipeline.session import open_session
from minibroker_pipeline.topic_sink import exactly_once

PLACE = "concat(topic, '-', partition, '@', offset)"


def main() -> None:
    bootstrap, checkpoint, jars, batch = sys.argv[1:]
    spark, _ = open_session("local[2]", ["spark.sql.shuffle.partitions=2", f"spark.jars={jars}"])
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "in")
    rows = read.options(startingOffsets="earliest", maxOffsetsPerTrigger=batch).load()
    header = f"array(struct('from' as key, cast({PLACE} as binary) as value)) headers"
    writer = exactly_once(rows.selectExpr("key", "value", header), "out", bootstrap=bootstrap, sink="copy")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
