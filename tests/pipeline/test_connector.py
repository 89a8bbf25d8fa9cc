"""Spark's own connector for Kafka (spark-sql-kafka, whose Java clients are 3.9) with minibroker as source and sink."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("pyspark")
confluent_kafka = pytest.importorskip("confluent_kafka")

SUPPORT = Path(__file__).parents[1] / "support" / "applications"
SECONDS = 300.0


@pytest.fixture(scope="module")
def bootstrap(connector: list[Path] | str) -> Iterator[str]:
    if isinstance(connector, str):
        pytest.skip(connector)
    from minibroker.testing.embedded import Minibroker

    topics = {"written": 2, "transactions": 2, "in": 2, "out": 2, "same": 2}
    with Minibroker(ephemeral=True, topics=topics) as broker:
        yield broker.bootstrap_servers


def source(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    """The topic as the connector reads it, as one finished table."""
    return configured(spark.read, bootstrap, topic, **options).load()


def configured(reader: Any, bootstrap: str, topic: str, **options: str) -> Any:
    named = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", **options}
    return reader.format("kafka").options(**named)


def pairs(table: Any) -> list[tuple[str, str]]:
    rows = table.selectExpr("cast(key as string) k", "cast(value as string) v").collect()
    return sorted((row.k, row.v) for row in rows)


def test_what_a_batch_job_writes_it_reads_back(spark: Any, bootstrap: str) -> None:
    made = spark.range(500).selectExpr(
        "cast(id as string) key",
        "concat('v', id) value",
        "array(struct('h' as key, cast('x' as binary) as value)) headers",
        "cast(id % 2 as int) partition",
    )
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "written", "kafka.compression.type": "zstd"}
    made.write.format("kafka").options(**options).option("includeHeaders", "true").save()
    table = source(spark, bootstrap, "written", includeHeaders="true")
    assert pairs(table) == sorted((str(n), f"v{n}") for n in range(500))
    assert table.where("headers[0].key = 'h' and headers[0].value = cast('x' as binary)").count() == 500
    assert {row.partition: row["count"] for row in table.groupBy("partition").count().collect()} == {0: 250, 1: 250}
    part = source(
        spark,
        bootstrap,
        "written",
        startingOffsets='{"written":{"0":100,"1":-2}}',
        endingOffsets='{"written":{"0":-1,"1":10}}',
    )
    assert part.count() == 150 + 10


def test_only_what_was_committed(spark: Any, bootstrap: str) -> None:
    patient = {"transactional.id": "x", "linger.ms": 0, "transaction.timeout.ms": 900_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **patient})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for key in range(10):
            producer.produce("transactions", key=f"{number}-{key}", value=b"v", partition=key % 2)
        producer.flush()
        if number < 3:
            (producer.abort_transaction if number == 1 else producer.commit_transaction)(30)
    committed = source(spark, bootstrap, "transactions", **{"kafka.isolation.level": "read_committed"})
    try:
        assert pairs(committed) == sorted((f"{number}-{key}", "v") for number in (0, 2) for key in range(10))
        assert source(spark, bootstrap, "transactions").count() == 40
    finally:
        producer.abort_transaction(30)


OFFSETS = {"startingOffsets": '{"same": {"0": 3, "1": -2}}', "endingOffsets": '{"same": {"0": -1, "1": 7}}'}
TIMES = {"startingTimestamp": "1700000000005", "endingTimestamp": "1700000000030", "minPartitions": "5"}
EACH = {"startingOffsetsByTimestamp": '{"same": {"0": 1700000000031, "1": 1}}', "maxRecordsPerPartition": "7"}
LATER = {"startingTimestamp": "1800000000000", "startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([OFFSETS, TIMES], id="bounds"),
        pytest.param(
            [{}, EACH, LATER, {"subscribePattern": "sam."}, {"assign": '{"same": [1]}'}], marks=pytest.mark.slow
        ),
    ],
)
def test_this_project_s_source_gives_the_same(spark: Any, bootstrap: str, cases: list[dict[str, str]]) -> None:
    """Names and types of columns, and every row, for the options that both have."""
    from minibroker_pipeline.topic_source import register

    register(spark)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(40):
        at = {"partition": number % 2, "timestamp": 1_700_000_000_000 + number}
        producer.produce("same", value=str(number), key=None, headers=[("h", None), ("h", b"x")][: number % 3], **at)
    producer.flush()

    def rows(source: str) -> Any:
        tables = []
        for number, options in enumerate(cases):
            chosen = {"subscribe": "same"} if not options.keys() & {"subscribePattern", "assign"} else {}
            chosen |= {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true", **options}
            tables.append(spark.read.format(source).options(**chosen).load().selectExpr("*", f"{number} case"))
        return functools.reduce(lambda one, other: one.unionAll(other), tables)

    ours, theirs = rows("kafka-topics"), rows("kafka")
    assert ours.schema == theirs.schema
    read = ours.collect()
    assert sorted(map(repr, read)) == sorted(map(repr, theirs.collect()))
    assert {row.case for row in read} == {number for number, options in enumerate(cases) if options is not LATER}


def test_a_stream_from_topic_to_topic_goes_on_from_its_checkpoint(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(*keys: str) -> None:
        for number, key in enumerate(keys):
            producer.produce("in", key=key, value=key.upper(), partition=number % 2)
        producer.flush()

    def run(most: int) -> int:
        """Carries over what has come in, `most` records at once; returns how many batches that took."""
        query = (
            configured(spark.readStream, bootstrap, "in", maxOffsetsPerTrigger=str(most))
            .load()
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": bootstrap, "topic": "out"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(one["numInputRows"] > 0 for one in query.recentProgress)

    send("a", "b", "c", "d")
    assert run(2) == 2
    assert pairs(source(spark, bootstrap, "out")) == [(key, key.upper()) for key in "abcd"]
    send("e", "f")
    assert run(10) == 1
    assert pairs(source(spark, bootstrap, "out")) == [(key, key.upper()) for key in "abcdef"]


@pytest.mark.skipif(os.name == "nt", reason="a process group is killed")
@pytest.mark.slow
@pytest.mark.parametrize("when", ["after", "before"])
def test_into_the_exactly_once_sink_with_a_job_that_is_killed(
    connector: list[Path] | str, tmp_path: Path, when: Any
) -> None:
    """Driver, JVM and workers die while their second batch ends, as the broker has committed it or has not yet."""
    if isinstance(connector, str):
        pytest.skip(connector)
    from minibroker import Minibroker
    from minibroker.cli import main
    from minibroker.faults import Hold

    argv = [sys.executable, str(SUPPORT / "spark_copy.py")]
    with Minibroker(ephemeral=True, topics={"in": 2, "out": 3}) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(120):
            producer.produce("in", key=f"k{number % 7}", value=f"v{number}", partition=number % 2)
        producer.flush()
        argv += [broker.bootstrap_servers, str(tmp_path / "checkpoint"), ",".join(map(str, connector)), "50"]
        with broker.faults.inject("EndTxn", Hold(when=when), transactional_id="copy", nth=2) as held:
            log = (tmp_path / "log").open("w")
            with log, subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True) as running:
                try:
                    held.wait(timeout=SECONDS)
                finally:
                    os.killpg(running.pid, signal.SIGKILL)
            committed = 100 if when == "after" else 50
            assert len(broker.records("out", isolation="read_committed")) == committed
            done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stderr
        # The request that was held has come late, if it has.
        found = [record.value for record in broker.records("out", isolation="read_committed")]
        assert Counter(found) == Counter(f"v{number}".encode() for number in range(120))
        judged = ["audit", "--bootstrap", broker.bootstrap_servers, "--lineage", "in=out", "--quiet"]
        assert main([*judged, "--lineage-key", "position:header:from"]) == 0
