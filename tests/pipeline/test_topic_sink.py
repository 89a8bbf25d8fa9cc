"""The data sink `kafka-exactly-once` on Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("pyspark")

from pyspark.sql.functions import lit  # noqa: E402

from minibroker.faults import Error  # noqa: E402
from minibroker.testing.embedded import Minibroker  # noqa: E402
from minibroker_pipeline import sink_keeper  # noqa: E402
from minibroker_pipeline.sink import SinkDriver, SinkRefused  # noqa: E402
from minibroker_pipeline.topic_sink import exactly_once  # noqa: E402


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, topics={"streamed": 3, "table": 2}) as running:
        yield running


def values(broker: Minibroker, topic: str) -> list[str]:
    found = broker.records(topic, isolation="read_committed")
    return sorted((record.value or b"").decode() for record in found)


def stream(spark: Any, broker: Minibroker, directory: Path) -> None:
    """Everything that is there in `directory`, a file a batch, from the checkpoint on."""
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(directory / "in"))
    rows = lines.selectExpr("value as key", "value")
    writer = exactly_once(rows, "streamed", bootstrap=broker.bootstrap_servers, sink="job")
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_stream_is_written_once(spark: Any, broker: Minibroker, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.txt").write_text("".join(f"{name}{number}\n" for number in range(10)))
    expected = [f"{name}{number}" for name in "abc" for number in range(10)]
    # The first batch fails as it commits; nothing of it may be seen.
    fault = broker.faults.inject("EndTxn", Error("TRANSACTION_ABORTABLE"), transactional_id="job")
    with fault, pytest.raises(StreamingQueryException):
        stream(spark, broker, tmp_path)
    assert values(broker, "streamed") == []
    assert len(broker.records("streamed")) == 10
    stream(spark, broker, tmp_path)
    assert values(broker, "streamed") == expected
    assert broker.committed("job") == {("streamed", 0): 3}
    written = broker.records("streamed", isolation="read_committed")
    assert len({record.partition for record in written}) == 3
    assert all(record.transactional and record.key == record.value for record in written)
    # Spark loses its note of the last batch, as a driver does that is killed there, and replays it.
    commits = tmp_path / "checkpoint" / "commits"
    for left in (commits / "2", commits / ".2.crc"):
        left.unlink()
    stream(spark, broker, tmp_path)
    assert values(broker, "streamed") == expected
    # A new checkpoint begins with batch 0 again, under the same name.
    (tmp_path / "checkpoint").rename(tmp_path / "old")
    with pytest.raises(StreamingQueryException, match="belongs to query"):
        stream(spark, broker, tmp_path)
    assert values(broker, "streamed") == expected


def test_a_query_without_rows_keeps_its_marker(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    keep = SinkDriver.keep

    def counted(driver: SinkDriver, query: str) -> None:
        keep(driver, query)
        kept.append(query)

    def wait_for(number: int) -> None:
        deadline = time.monotonic() + 60
        while len(kept) < number:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def start(broker: Minibroker) -> Any:
        rows = spark.readStream.text(str(tmp_path / "in"))
        writer = exactly_once(rows, "kept", bootstrap=broker.bootstrap_servers, sink="kept-job")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    monkeypatch.setattr(SinkDriver, "keep", counted)
    monkeypatch.setattr(sink_keeper, "EVERY", 0.0)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    config = {"offsets.retention.minutes": "180"}
    try:
        with Minibroker(ephemeral=True, topics={"kept": 2}, config=config) as broker:
            query = start(broker)
            query.processAllAvailable()
            for _ in range(2):
                broker.clock.advance(hours=2)
                wait_for(len(kept) + 2)
            # Another driver goes on from the checkpoint; nothing is kept between.
            monkeypatch.setattr(sink_keeper, "EVERY", 1e9)
            query.stop()
            broker.clock.advance(hours=2)
            before = len(kept)
            query = start(broker)
            assert query.id in kept[before:]
            broker.clock.advance(hours=2)
            (tmp_path / "in" / "b.txt").write_text("b\n")
            query.processAllAvailable()
            query.stop()
            assert values(broker, "kept") == ["a", "b"]
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        for left in spark.streams.active:
            left.stop()


def test_a_table_is_written_once_a_job(spark: Any, broker: Minibroker) -> None:
    rows = spark.range(100).selectExpr(
        "cast(id as string) value",
        "array(struct('h' as key, cast('x' as binary) as value)) headers",
        "timestamp_millis(1700000000000 + id) timestamp",
    )
    for job in ("monday", "monday"):
        exactly_once(rows, "table", bootstrap=broker.bootstrap_servers, sink="t", jobId=job, compression="zstd").save()
    assert values(broker, "table") == sorted(map(str, range(100)))
    record = min(broker.records("table"), key=lambda one: one.timestamp_ms)
    assert (record.timestamp_ms, record.key, record.headers) == (1_700_000_000_000, None, (("h", b"x"),))
    with pytest.raises(Exception, match="cannot be overwritten"):
        exactly_once(rows, "table", bootstrap=broker.bootstrap_servers, sink="t").mode("overwrite").save()
    # Without repartitioning, two tasks write to the same partition.
    shared = rows.selectExpr("value", "0 as partition").repartition(2)
    with pytest.raises(Exception, match=r"(more than one task|another task or attempt) wrote to partition 0"):
        options = {"bootstrap": broker.bootstrap_servers, "topic": "table", "sink": "t"}
        shared.write.format("kafka-exactly-once").options(**options).mode("append").save()
    assert len(values(broker, "table")) == 100


def test_several_topics_with_the_partitions_of_kafka_s_producer(spark: Any, broker: Minibroker) -> None:
    """From a thread of the user's, whose refusal names its class."""
    for topic, partitions in (("one", 3), ("two", 7)):
        broker.state.create_topic(topic=topic, partitions=partitions)
    rows = spark.range(20).selectExpr("concat('key-', id) key", "'v' value", "if(id = 17, 'two', 'one') topic")
    raised: list[BaseException] = []

    def write(table: Any, job: str) -> None:
        try:
            exactly_once(table, ["one", "two"], bootstrap=broker.bootstrap_servers, sink="both", jobId=job).save()
        except BaseException as error:
            raised.append(error)

    for table, job in ((rows, "first"), (rows, "first"), (rows.withColumn("topic", lit("three")), "second")):
        thread = threading.Thread(target=write, args=(table, job))
        thread.start()
        thread.join()
    assert len(raised) == 1, "\n".join(map(str, raised))
    refused = raised[0]
    assert "SinkRefused: topic three: sink both writes to one, two" in str(refused)
    assert [(record.key, record.partition) for record in broker.records("two")] == [(b"key-17", 956945460 % 7)]
    assert len(broker.records("one", isolation="read_committed")) == 19


def test_speculation_is_refused_at_once(spark: Any, broker: Minibroker, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.conf import RuntimeConfig

    get = RuntimeConfig.get

    def started_with_speculation(self: Any, key: str, *default: Any) -> Any:
        """A setting of the context: a session that runs does not take it."""
        return "true" if key == "spark.speculation" else get(self, key, *default)

    monkeypatch.setattr(RuntimeConfig, "get", started_with_speculation)
    with pytest.raises(SinkRefused, match=r"spark\.speculation is on"):
        exactly_once(spark.range(3).selectExpr("'x' value"), "table", bootstrap=broker.bootstrap_servers, sink="t")


def test_columns_are_checked_before_anything_is_asked_of_spark(spark: Any, broker: Minibroker) -> None:
    with pytest.raises(SinkRefused, match="column id: there are only"):
        exactly_once(
            spark.range(3).selectExpr("id", "'x' value"), "table", bootstrap=broker.bootstrap_servers, sink="t"
        )
