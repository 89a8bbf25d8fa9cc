"""The stream source `kafka-topics` on a broker, without Spark's JVM: what it reads, and what it says is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

from minibroker.faults import Corrupt, Error
from minibroker.rules.rows import Log
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline.files import NotReadable
from minibroker_pipeline.reading import PlainRecord
from minibroker_pipeline.sink_options import COLUMNS, check_columns
from minibroker_pipeline.source import pruned
from minibroker_pipeline.tables import TOPIC_RECORDS, topic_batch
from minibroker_pipeline.topic_limits import behind
from minibroker_pipeline.topic_source import DataLost, KafkaTopics, ReadAllAvailable
from minibroker_pipeline.topics import TopicClient
from minibroker_protocol import messages as m
from minibroker_protocol.records import MAGIC_OFFSET, Record, build_batch

pytestmark = pytest.mark.filterwarnings("ignore")


class Source:
    """A topic of its own, and streams over it."""

    def __init__(self, broker: Minibroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.client = TopicClient(broker.bootstrap_servers)

    def create(self) -> None:
        self.broker.state.create_topic(topic=self.topic, partitions=1)

    def delete(self) -> None:
        request = m.DeleteTopicsRequest(topic_names=[self.topic], timeout_ms=10_000)
        assert self.client.ask_any(request, m.DeleteTopicsResponse, 3).responses[0].error_code == 0
        self.forget()

    def forget(self) -> None:
        """Go on with a client that knows nothing of the cluster."""
        self.client.close()
        self.client = TopicClient(self.broker.bootstrap_servers)

    def write(self, *values: str, partition: int = 0, timestamp: int = 1, headers: Any = ()) -> None:
        kind = m.ProduceRequest
        for value in values:
            records = bytes(build_batch([Record(0, timestamp, None, value.encode(), headers)]))
            data = kind.PartitionProduceData(index=partition, records=records)
            request = kind(
                acks=-1,
                timeout_ms=10_000,
                topic_data=[kind.TopicProduceData(name=self.topic, partition_data=[data])],
            )
            answer = self.client.ask(self.client.leader(self.topic, partition), request, m.ProduceResponse, 7)
            assert answer.responses[0].partition_responses[0].error_code == 0

    def stream(self, **options: str) -> Any:
        given = {"bootstrap": self.broker.bootstrap_servers, "subscribe": self.topic, **options}
        if given.keys() & {"subscribePattern", "assign"}:
            del given["subscribe"]
        return KafkaTopics(given).streamReader(None)  # type: ignore[arg-type]

    def run(self, start: Any = None, **options: str) -> tuple[Any, list[str]]:
        """One query as Spark runs it from a checkpoint: its last offset, and the values that it read."""
        stream = self.stream(**options)
        start = stream.initialOffset() if start is None else json.loads(json.dumps(start))
        end = json.loads(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))
        return end, self.batch(stream, start, end)

    def batch(self, stream: Any, start: Any, end: Any) -> list[str]:
        made = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        return [bytes(value.as_py()).decode() for batch in made for value in batch.column("value")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True) as running:
        yield running


@pytest.fixture
def source(broker: Minibroker, request: pytest.FixtureRequest) -> Iterator[Source]:
    made = Source(broker, f"t{abs(hash(request.node.name))}")
    made.create()
    yield made
    made.client.close()


def letters(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


@pytest.mark.parametrize("again", [3, 9])
def test_a_topic_made_again(source: Source, again: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Shorter than before, and longer."""
    source.write(*letters("old", 6))
    start, read = source.run()
    assert read == letters("old", 6)
    source.delete()
    source.create()
    source.write(*letters("new", again))
    for _ in range(2):  # the failure does not move the checkpoint
        with pytest.raises(
            DataLost, match=f"topic {source.topic} was deleted and made again.*set failOnDataLoss=false"
        ):
            source.run(start)
    assert capsys.readouterr().err == ""
    end, read = source.run(start, failOnDataLoss="false")
    assert read == letters("new", again)
    assert capsys.readouterr().err.count("was deleted and made again") == 1
    source.write("more")
    assert source.run(end)[1] == ["more"]


def test_a_topic_made_again_between_plan_and_read(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write(*letters("old", 6))
    stream, patient = source.stream(), source.stream(failOnDataLoss="false")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    planned, ranges = stream.partitions(start, end), patient.partitions(start, end)
    source.delete()
    source.create()
    source.write(*letters("new", 9))
    with pytest.raises(DataLost, match="was deleted and made again"):
        list(stream.read(planned[0]))
    with pytest.raises(DataLost, match="is to be read up to offset 0@6, was deleted and made again"):
        stream.partitions(start, end)
    assert [batch.num_rows for batch in patient.read(ranges[0])] == []
    assert patient.partitions(start, end) == []
    assert capsys.readouterr().err.count("going on, as failOnDataLoss=false") == 2
    assert source.run(end, failOnDataLoss="false")[1] == letters("new", 9)


def test_a_topic_that_is_deleted(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write("a")
    start, _ = source.run()
    source.delete()
    with pytest.raises(DataLost, match=f"topic {source.topic}, which was read up to offset 0@1, is not in the cluster"):
        source.run(start)
    end, read = source.run(start, failOnDataLoss="false")
    assert (end, read) == (start, [])
    assert capsys.readouterr().err.count("is not in the cluster: it was deleted") == 1
    with pytest.raises(NotReadable, match="is not in the cluster: it was deleted, or never created"):
        source.stream().initialOffset()
    source.create()
    source.write("b")
    with pytest.raises(DataLost, match="was deleted and made again"):
        source.run(end)
    assert source.run(end, failOnDataLoss="false")[1] == ["b"]


def test_records_deleted_past_the_checkpoint(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write(*letters("v", 3))
    start, _ = source.run()
    source.write(*letters("w", 6))
    stream = source.stream()
    end = stream.latestOffset(start, ReadAllAvailable())
    planned = stream.partitions(start, end)
    source.broker.state.delete_records(topic=source.topic, partition=0, offset=5)
    lost = f"{source.topic}-0 is to be read from offset 3, but its log starts at 5"
    with pytest.raises(DataLost, match=lost):
        source.run(start)
    with pytest.raises(DataLost, match="offset 3 is to be read, but the log starts at 5"):
        list(stream.read(planned[0]))
    assert source.run(start, failOnDataLoss="false")[1] == letters("w", 6)[2:]
    assert capsys.readouterr().err.count(lost) == 1
    lenient = source.stream(failOnDataLoss="false")
    assert sum(batch.num_rows for batch in lenient.read(planned[0])) == 4
    assert "but the log starts at 5" in capsys.readouterr().err


def test_a_checkpoint_of_an_earlier_release(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write(*letters("v", 5))
    end, read = source.run({f"{source.topic}-0": 2})
    assert read == ["v2", "v3", "v4"]
    assert "of an earlier release and has no topic ids" in capsys.readouterr().err
    assert end[f"{source.topic}-0"]["topicId"]
    assert source.run(end)[1] == []
    assert capsys.readouterr().err == ""
    with pytest.raises(DataLost, match="read up to offset 9, but its log ends at 5"):
        source.run({f"{source.topic}-0": 9})


def test_a_topic_that_is_not_asked_for_any_more(source: Source) -> None:
    source.write("a")
    end, _ = source.run()
    source.broker.state.create_topic(topic=f"{source.topic}-next", partitions=1)
    with pytest.raises(DataLost, match=f"topic {source.topic}, which was read up to offset 0@1, is not read any more"):
        source.run(end, subscribe=f"{source.topic}-next")


def test_a_topic_that_is_away_for_a_moment_is_read_on(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """Its offsets stay in the checkpoint, or all of it would be read again."""
    source.write("a")
    start, _ = source.run()
    unknown = Error("UNKNOWN_TOPIC_OR_PARTITION")
    for more in ({}, {"subscribePattern": f"{source.topic}.*"}):
        stream = source.stream(failOnDataLoss="false", **more)
        source.broker.faults.inject("Metadata", unknown, client_id="minibroker-audit", times=2)
        for _ in range(2):
            assert stream.latestOffset(start, ReadAllAvailable()) == start
    # It is there again when it is asked for by itself.
    stream = source.stream()
    source.broker.faults.inject("Metadata", unknown, client_id="minibroker-audit", times=1)
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    source.write("b")
    assert source.run(start, failOnDataLoss="false")[1] == ["b"]
    assert capsys.readouterr().err.count("is not in the cluster") == 2  # once by each stream


def test_partitions_that_are_not_asked_for_any_more(broker: Minibroker, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark must not write the batch into its checkpoint before the query fails."""
    broker.state.create_topic(topic="narrowed", partitions=2)
    source = Source(broker, "narrowed")
    source.write("a")
    source.write("b", partition=1)
    start, _ = source.run(assign='{"narrowed": [0, 1]}')
    source.write("c")
    stream = source.stream(assign='{"narrowed": [0]}')
    with pytest.raises(DataLost, match="narrowed-1, which was read up to offset 1, is not read any more"):
        stream.latestOffset(start, ReadAllAvailable())
    end, values = source.run(start, assign='{"narrowed": [0]}', failOnDataLoss="false")
    assert (end.keys(), values) == ({"narrowed-0"}, ["c"])
    stream = source.stream(subscribePattern="other")
    with pytest.raises(DataLost, match="topic narrowed, which was read up to offset 0@2, is not read any more"):
        stream.latestOffset(end, ReadAllAvailable())
    assert source.run(end, subscribePattern="other", failOnDataLoss="false") == ({}, [])
    assert capsys.readouterr().err.count("is not read any more; going on") == 2
    source.client.close()


def test_nothing_new_is_no_new_offset(source: Source) -> None:
    source.write("a")
    end, _ = source.run()
    assert source.run(end) == (end, [])


def test_latest_is_decided_once(source: Source) -> None:
    """Spark asks twice, and again when it starts a query whose first batch was not committed."""
    source.write("before")
    stream = source.stream(startingOffsets="latest")
    start = stream.initialOffset()
    source.write("a")
    assert stream.initialOffset() == start
    end = stream.latestOffset(start, ReadAllAvailable())
    source.write("b")
    restarted = source.stream(startingOffsets="latest")
    later = restarted.initialOffset()
    assert later != start
    for wrong in (start, later):
        assert source.batch(restarted, wrong, end) == ["a"]
    then = restarted.latestOffset(end, ReadAllAvailable())
    assert source.batch(restarted, end, then) == ["b"]
    assert restarted.latestOffset(then, ReadAllAvailable()) == then


def test_an_empty_first_batch_keeps_where_the_stream_begins(source: Source) -> None:
    stream = source.stream(startingOffsets="latest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert (end, source.batch(stream, start, end)) == (start, [])
    source.write("a")
    restarted = source.stream(startingOffsets="latest")
    assert source.batch(restarted, restarted.initialOffset(), end) == []
    assert source.batch(restarted, end, restarted.latestOffset(end, ReadAllAvailable())) == ["a"]


def test_a_run_that_ends_reads_what_was_there_when_it_began(source: Source) -> None:
    source.write(*letters("v", 5))
    stream = source.stream(maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    stream.prepareForTriggerAvailableNow()
    source.write("later")
    at, batches = stream.initialOffset(), []
    while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        batches.append(source.batch(stream, at, end))
        at = end
    assert batches == [["v0", "v1"], ["v2", "v3"], ["v4"]]
    assert source.run(at)[1] == ["later"]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_run_that_ends_and_begins_at_the_latest_offset(
    source: Source, fail_on_data_loss: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark asks for the target before the begin: a record may come between."""
    source.write(*letters("old", 5))
    stream = source.stream(startingOffsets="latest", failOnDataLoss=fail_on_data_loss)
    stream.prepareForTriggerAvailableNow()
    source.write("between")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert source.batch(stream, start, end) == []
    assert (end, capsys.readouterr().err) == (start, "")
    source.write("later")
    assert source.run(end, failOnDataLoss=fail_on_data_loss)[1] == ["later"]


def test_another_isolation_level_after_a_restart(source: Source) -> None:
    source.write(*letters("v", 5))
    source.broker.state.hang_transaction(topic=source.topic, partition=0, transactional_id=source.topic)
    source.write(*letters("w", 2))
    end, _ = source.run(isolation="read_uncommitted")
    assert end[f"{source.topic}-0"]["offset"] == 8
    assert source.run(end, isolation="read_committed") == (end, [])


def test_a_batch_waits_until_it_is_large_enough(source: Source) -> None:
    source.write("a")
    stream = source.stream(minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    limit = stream.getDefaultReadLimit()
    assert limit.min_rows == 3
    first = stream.latestOffset(stream.initialOffset(), limit)
    assert source.batch(stream, stream.initialOffset(), first) == ["a"]
    source.write("b", "c")
    assert stream.latestOffset(first, limit) == first
    assert behind({"latestOffset": stream.reportLatestOffset(), "endOffset": first}) == (2, 2, 2.0, 2)
    source.write("d")
    end = stream.latestOffset(first, limit)
    assert source.batch(stream, first, end) == ["b", "c", "d"]


def table(source: Source, **options: str) -> list[str]:
    """Values of the finished table."""
    given = {"bootstrap": source.broker.bootstrap_servers, **options}
    if not given.keys() & {"subscribePattern", "assign"}:
        given["subscribe"] = source.topic
    topics = KafkaTopics(given)  # type: ignore[arg-type]
    reader = topics.reader(topics.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [value.as_py().decode() for batch in batches for value in batch.column("value")]


def test_a_table_between_offsets_and_times(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write(*letters("v", 6), timestamp=1000)
    source.write(*letters("w", 2), timestamp=2000)
    topic, everything = source.topic, [*letters("v", 6), "w0", "w1"]

    def each(value: int) -> str:
        return json.dumps({topic: {"0": value}})

    assert table(source) == everything
    assert table(source, startingOffsets=each(4), endingOffsets=each(7)) == ["v4", "v5", "w0"]
    assert table(source, startingOffsets=each(-2), endingOffsets=each(-1)) == everything
    assert table(source, startingTimestamp="1500") == ["w0", "w1"]
    assert table(source, startingOffsetsByTimestamp=each(1500), startingOffsets=each(0)) == ["w0", "w1"]
    assert table(source, endingTimestamp="2000") == letters("v", 6)
    assert table(source, endingOffsetsByTimestamp=each(9000)) == everything
    with pytest.raises(NotReadable, match=f"startingTimestamp: {topic}-0 has no record of 9000 ms"):
        table(source, startingTimestamp="9000")
    assert table(source, startingTimestamp="9000", startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(DataLost, match=f"startingOffsets: {topic}-0 has offsets 0 to 8, and not 9"):
        table(source, startingOffsets=each(9))
    assert table(source, endingOffsets=each(99), failOnDataLoss="false") == everything
    assert f"endingOffsets: {topic}-0 has offsets 0 to 8, and not 99; going on" in capsys.readouterr().err
    with pytest.raises(NotReadable, match="to be read from offset 5 up to 3"):
        table(source, startingOffsets=each(5), endingOffsets=each(3))
    with pytest.raises(NotReadable, match=f"must name every partition: {topic}-0 is missing"):
        table(source, startingOffsets='{"other": {"0": 1}}')


def test_offsets_of_the_options_beside_an_open_transaction(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the log although a consumer with read_committed does not see them yet."""
    source.write(*letters("v", 5), timestamp=1000)
    source.broker.state.hang_transaction(topic=source.topic, partition=0, transactional_id=source.topic)
    source.write("w")

    def each(value: int) -> str:
        return json.dumps({source.topic: {"0": value}})

    assert table(source, startingOffsets=each(6)) == []
    assert table(source, startingOffsets=each(6), isolation="read_uncommitted") == ["w"]
    assert table(source, startingOffsets=each(3), endingOffsets=each(7)) == ["v3", "v4"]
    assert table(source, startingOffsets=each(6), endingOffsets=each(7)) == []
    assert table(source, startingOffsets=each(3), endingTimestamp="1500") == ["v3", "v4"]
    assert table(source, startingTimestamp="1500") == []
    with pytest.raises(NotReadable, match="to be read from offset 7 up to 6"):
        table(source, startingOffsets=each(7), endingOffsets=each(6))
    with pytest.raises(DataLost, match=f"startingOffsets: {source.topic}-0 has offsets 0 to 7, and not 8"):
        table(source, startingOffsets=each(8))
    end, values = source.run(startingOffsets=each(6))
    assert (end[f"{source.topic}-0"]["offset"], values) == (6, [])
    assert source.run(end) == (end, [])
    assert source.run(end, isolation="read_uncommitted")[1] == ["w"]
    assert capsys.readouterr().err == ""


def test_which_topics_and_partitions(broker: Minibroker) -> None:
    source = Source(broker, "chosen-a")
    source.broker.state.create_topic(topic="chosen-a", partitions=2)
    source.broker.state.create_topic(topic="chosen-b", partitions=1)
    source.write("a0")
    source.write("a1", partition=1)
    Source(broker, "chosen-b").write("b")
    assert sorted(table(source, subscribePattern="chosen-.")) == ["a0", "a1", "b"]
    assert table(source, subscribePattern="chosen") == []
    assert table(source, assign='{"chosen-a": [1], "chosen-b": [0]}') == ["a1", "b"]
    with pytest.raises(NotReadable, match="assign: topic chosen-a has no partition 2"):
        table(source, assign='{"chosen-a": [1, 2]}')
    # A topic that the pattern matches later is read from its start, one that is deleted is a loss.
    end, _ = source.run(subscribePattern="chosen-.*")
    broker.state.create_topic(topic="chosen-new", partitions=1)
    new = Source(broker, "chosen-new")
    new.write("n")
    end, values = source.run(end, subscribePattern="chosen-.*")
    assert values == ["n"]
    new.delete()
    with pytest.raises(DataLost, match="topic chosen-new, which was read up to offset 0@1, is not in the cluster"):
        source.run(end, subscribePattern="chosen-.*")
    assert source.run(end, subscribePattern="chosen-.*", failOnDataLoss="false")[1] == []
    for one in (source, new):
        one.client.close()


def test_tasks_of_a_partition(source: Source) -> None:
    source.write(*letters("v", 10))
    for options, tasks in (({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "3"}, 4), ({}, 1)):
        stream = source.stream(**options)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert len(stream.partitions(start, end)) == tasks
        assert source.batch(stream, start, end) == letters("v", 10)


def test_tasks_of_a_partition_that_is_truncated_meanwhile(source: Source) -> None:
    """What comes in the place of lost records is read by one task."""
    source.write(*letters("v", 10))
    stream = source.stream(minPartitions="2", failOnDataLoss="false")
    start = stream.initialOffset()
    planned = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    assert [(part.start, part.stop, part.is_first) for part in planned] == [(0, 5, True), (5, 10, False)]
    source.broker.state.truncate_tail(topic=source.topic, partition=0, offset=3)
    source.write(*letters("new", 9))
    made = [[bytes(v.as_py()).decode() for b in stream.read(part) for v in b.column("value")] for part in planned]
    assert made == [["v0", "v1", "v2", "new0", "new1"], ["new2", "new3", "new4", "new5", "new6"]]


def test_columns_are_those_of_the_connector(source: Source) -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

    source.write("x", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    source.write("y")
    given = {"bootstrap": source.broker.bootstrap_servers, "subscribe": source.topic, "includeHeaders": "true"}
    topics = KafkaTopics(given)  # type: ignore[arg-type]
    chosen = topics.schema()
    assert chosen.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    reader = topics.reader(chosen)
    (batch, *_), *_ = [list(reader.read(part)) for part in reader.partitions()]
    first, second = batch.to_pylist()
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (first["offset"], first["timestampType"], second["offset"], second["headers"]) == (0, 0, 1, None)
    # The sink takes these columns as they are.
    kept = {field.name: field.dataType.simpleString() for field in chosen if field.name in COLUMNS}
    check_columns(kept)
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    plain = KafkaTopics({"bootstrap": "h:1", "subscribe": "t"}).schema()  # type: ignore[arg-type]
    assert [field.name for field in plain] == [field.name for field in chosen][:-1]
    more = StructType().add("producer_id", LongType()).add("fault", StringType()).add("key", BinaryType())
    reader = topics.reader(more)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"producer_id": -1, "fault": None, "key": None}] * 2
    with pytest.raises(ValueError, match="column offset is bigint, not timestamp"):
        topics.reader(StructType().add("offset", TimestampType()))


def test_a_timestamp_that_spark_has_not_is_null() -> None:
    log, at = Log("", "t", 0), (-(1 << 62), -1, 1 << 62)
    rows = [PlainRecord(log, "", 0, time, -1, -1, False, None, None, (), timestamp_type=1) for time in at]
    batch = topic_batch(rows, pruned(TOPIC_RECORDS, ["timestamp", "timestampType"]))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [None, -1000, None]
    assert batch.column("timestampType").to_pylist() == [1, 1, 1]


def test_a_batch_that_cannot_be_read_ends_the_query(source: Source) -> None:
    from pyspark.sql.types import StringType, StructType

    source.write("x")
    source.broker.faults.inject("Fetch", Corrupt(), topic=source.topic, times=2)
    with pytest.raises(NotReadable, match=f"{source.topic}-0: the batch at offset 0: checksum"):
        table(source)
    given = {"bootstrap": source.broker.bootstrap_servers, "subscribe": source.topic}
    reader = KafkaTopics(given).reader(StructType().add("fault", StringType()))  # type: ignore[arg-type]
    (batch,) = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batch.column("fault")[0].as_py().startswith("checksum")


def test_a_marker_that_cannot_be_read_ends_the_query(source: Source) -> None:
    """What it ends is not known then."""
    source.broker.state.append_aborted(topic=source.topic, partition=0)
    # From the end: three bytes of the answer, the marker's headers, its value, and the version in its key.
    source.broker.faults.inject("Fetch", Corrupt(at=-15), topic=source.topic)
    with pytest.raises(NotReadable, match=f"{source.topic}-0: control record: key version -"):
        source.run(isolation="read_uncommitted")


def test_bytes_that_are_no_batch_end_the_query(source: Source) -> None:
    source.write("a", "b")
    last = len(build_batch([Record(0, 1, None, b"b", [])])) + 3  # and the ends of partition, topic and answer
    source.broker.faults.inject("Fetch", Corrupt(at=MAGIC_OFFSET - last), topic=source.topic)
    with pytest.raises(NotReadable, match=f"^{source.topic}-0: the batch at offset 1: record batch v2: magic is -3"):
        source.run()


def test_a_busy_cluster_is_waited_for(source: Source) -> None:
    source.write(*letters("v", 3))
    source.broker.faults.inject("Fetch", {"name": "throttle", "ms": 30}, client_id="minibroker-audit", times=2)
    assert source.run()[1] == letters("v", 3)
    source.broker.faults.inject("Fetch", {"name": "throttle", "ms": 60_000}, client_id="minibroker-audit", times=1)
    with pytest.raises(NotReadable, match="a quota throttles minibroker-audit for 60 s, without any data"):
        source.run(timeoutMs="5000")


@pytest.fixture
def pair() -> Iterator[Source]:
    """A topic on two brokers, which miss each other after half a second."""
    settings = {"default.replication.factor": "2", "broker.session.timeout.ms": "500"}
    with Minibroker(ephemeral=True, brokers=2, config=settings) as running:
        made = Source(running, "t")
        made.create()
        yield made
        made.client.close()


@pytest.mark.parametrize("more", [1, 9])
def test_a_log_truncated_by_an_unclean_election(pair: Source, more: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The new leader's log ends before the checkpoint, or has grown past it again with other records."""
    cluster = pair.broker.cluster
    leader = cluster.leader("t")
    (other,) = set(cluster.broker_ids) - {leader}
    pair.write(*letters("both", 3))
    cluster.stop_broker(other)
    pair.write(*letters("lost", 3))
    start, read = pair.run()
    assert len(read) == 6
    cluster.kill_broker(leader)
    cluster.start_broker(other)
    cluster.elect("t", 0, unclean=True)
    pair.forget()
    pair.write(*letters("new", more))
    with pytest.raises(DataLost, match="t-0 was read up to offset 6, but its log was truncated to offset 3"):
        pair.run(start)
    end, read = pair.run(start, failOnDataLoss="false")
    assert read == letters("new", more)
    assert capsys.readouterr().err.count("was truncated to offset 3") == 1
    pair.write("then")
    assert pair.run(end)[1] == ["then"]


def test_a_leader_that_dies_unnoticed_is_waited_for(pair: Source) -> None:
    pair.write(*letters("v", 3))
    stream = pair.stream()
    start = stream.initialOffset()
    pair.broker.cluster.kill_broker(pair.broker.cluster.leader("t"), unnoticed=True)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert pair.batch(stream, start, end) == letters("v", 3)
