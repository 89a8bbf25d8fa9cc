#!/usr/bin/env bash
# pyspark 4.3.0 (Python 3.11, Java 17).
# Expected: a Python data source that yields bytes for a string column fails, or the bytes are decoded; commit() is called for a
# batch that is done.
# Seen: the value is the text that Python writes for bytes, b'v0'. With the trigger availableNow a query ends without any commit(),
# and so does the next one, which goes on behind the batch and does not ask for initialOffset() again.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python_packages pyspark==4.3.0
export PYSPARK_PYTHON="$folder/env/bin/python" SPARK_LOCAL_IP=127.0.0.1
env/bin/python - > log 2>&1 << 'PYTHON' || { tail -30 log; exit 1; }
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


def note(text):
    with open("seen", "a") as seen:
        seen.write(text + "\n")


class Reader(DataSourceStreamReader):
    def initialOffset(self):
        note("initialOffset")
        return {"n": 0}

    def latestOffset(self):
        return {"n": 2}

    def partitions(self, start, end):
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition):
        for number in range(*partition.value):
            yield (b"v%d" % number,)

    def commit(self, end):
        note(f"commit {end['n']}")


class Source(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "value string"

    def streamReader(self, schema):
        return Reader()


def show(rows, number):
    note(f"batch {number}: {sorted(row.value for row in rows.collect())}")


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(Source)
for number in (1, 2):
    note(f"query {number}")
    written = spark.readStream.format("numbers").load().writeStream.option("checkpointLocation", "checkpoint")
    written.foreachBatch(show).trigger(availableNow=True).start().awaitTermination()
spark.stop()
PYTHON
same seen << 'EXPECTED'
query 1
initialOffset
batch 0: ["b'v0'", "b'v1'"]
query 2
EXPECTED
