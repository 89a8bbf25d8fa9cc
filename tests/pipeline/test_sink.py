"""The exactly-once sink without Spark: attempts, markers, and what readers of a broker see of them."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.faults import DropReply, Error, Hold
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline import sink_task
from minibroker_pipeline.sink import (
    Attempt,
    Fenced,
    MicroBatch,
    Sink,
    SinkDriver,
    SinkMarker,
    SinkRefused,
    Written,
    is_new,
)
from minibroker_pipeline.sink_options import check_columns, sink_of
from minibroker_pipeline.sink_records import blocks, by_partition, encode
from minibroker_pipeline.sink_task import Appender
from minibroker_protocol import messages as m
from minibroker_protocol.records import Compression, Record
from minibroker_protocol.records.build import encode_records

QUERY = "6ad5"


@pytest.fixture(scope="module", params=[2, 1])
def broker(request: pytest.FixtureRequest) -> Iterator[Minibroker]:
    """With each protocol of transactions."""
    with Minibroker(ephemeral=True, record=100, transaction_version=request.param) as running:
        yield running


@pytest.fixture
def sink(broker: Minibroker, request: pytest.FixtureRequest) -> Sink:
    """A sink and a topic of its own for each test."""
    name = request.node.name.replace("[", "-").replace("]", "")
    broker.state.create_topic(topic=name, partitions=3)
    return Sink(broker.bootstrap_servers, name, f"sink-{name}", 3)


def rows(first: int, partition: int, count: int = 4) -> Any:
    """An Arrow batch with the values first, first + 1, …"""
    columns = {
        "partition": pa.array([partition] * count, pa.int32()),
        "value": [str(number) for number in range(first, first + count)],
        "timestamp": pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", tz="UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


# Of each sink, so that a test writes the same batches alone and after others.
_ATTEMPTS: Counter[str] = Counter()


def write_task(
    sink: Sink, attempt: Attempt, batch: MicroBatch, number: int, *batches: Any, task: int | None = None
) -> Written:
    if task is None:
        task = _ATTEMPTS[sink.name]
        _ATTEMPTS[sink.name] += 1
    return sink_task.write_task(sink, attempt, batch, number, task, batches)


def tasks(sink: Sink, attempt: Attempt, number: int, *, first: int | None = None) -> list[Written]:
    """Two tasks: one writes to partitions 0 and 2, the other to 1."""
    attempt = pickle.loads(pickle.dumps(attempt))
    first = number * 12 if first is None else first
    one = write_task(sink, attempt, MicroBatch(QUERY, number), 0, rows(first, 0), rows(first + 4, 2))
    two = write_task(sink, attempt, MicroBatch(QUERY, number), 0, rows(first + 8, 1))
    return [one, two]


def run(sink: Sink, number: int) -> list[Written]:
    driver = SinkDriver(sink)
    reports = tasks(sink, driver.begin(), number)
    driver.commit(reports, number)
    return reports


def visible(broker: Minibroker, sink: Sink) -> list[int]:
    found = broker.records(sink.topic, isolation="read_committed")
    return sorted(int(record.value or b"") for record in found)


def test_a_batch_is_visible_once_it_is_committed(broker: Minibroker, sink: Sink) -> None:
    driver = SinkDriver(sink)
    reports = tasks(sink, driver.begin(), 0)
    assert len(broker.records(sink.topic)) == 12
    assert visible(broker, sink) == []
    assert broker.committed(sink.group) == {}
    driver.commit(reports, 0)
    assert visible(broker, sink) == list(range(12))
    assert broker.committed(sink.group) == {(sink.topic, 0): 1}
    assert [report.counts for report in reports] == [{(sink.topic, 0): 4, (sink.topic, 2): 4}, {(sink.topic, 1): 4}]
    run(sink, 1)
    assert visible(broker, sink) == list(range(24))


def test_each_commit_is_noted_with_its_time(
    broker: Minibroker, sink: Sink, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a batch that had been committed, and not one that is refused. A line that cannot be written fails nothing."""
    noted = replace(sink, commit_log=str(tmp_path / "commits"))
    for number in (0, 0, 1):
        run(noted, number)
    driver = SinkDriver(noted)
    reports = tasks(noted, driver.begin(), 2)
    with (
        broker.faults.inject("EndTxn", Error("TRANSACTION_ABORTABLE"), transactional_id=sink.name),
        pytest.raises(SinkRefused),
    ):
        driver.commit(reports, 2)
    driver.abort(reports)
    lines = [json.loads(line) for line in (tmp_path / "commits").read_text().splitlines()]
    assert [line.pop("commit_ms") > 0 for line in lines] == [True, True]
    common = {"sink": sink.name, "query": QUERY, "records": 12, "partitions": 3}
    assert lines == [{**common, "batch": 0}, {**common, "batch": 1}]
    missing = tmp_path / "missing" / "commits"
    run(replace(sink, commit_log=str(missing)), 2)
    assert len(visible(broker, sink)) == 36
    assert capsys.readouterr().err == f"sink {sink.name}: commitLog: {missing}: No such file or directory\n"


def test_an_aborted_batch_is_never_visible(broker: Minibroker, sink: Sink) -> None:
    driver = SinkDriver(sink)
    attempt = driver.begin()
    reports = tasks(sink, attempt, 0)
    driver.abort([None, reports[1]])
    with pytest.raises(SinkRefused, match=r"newer attempt|TRANSACTION_ABORTABLE"):  # a task that goes on after it
        tasks(sink, attempt, 0)
    with pytest.raises(SinkRefused):
        driver.commit(reports, 0)
    assert visible(broker, sink) == []
    assert broker.committed(sink.group) == {}
    run(sink, 0)
    assert visible(broker, sink) == list(range(12))


def test_a_marker_that_stays_unstable_is_told(broker: Minibroker, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Kafka 4.3.1 and 4.4.0 after KAFKA-20734."""
    monkeypatch.setattr(TransactionalClient, "patience", 0.2)
    fault = broker.faults.inject("OffsetFetch", Error("UNSTABLE_OFFSET_COMMIT"), group=sink.group, times=None)
    with fault, pytest.raises(SinkRefused, match="it hangs: minibroker transactions find-hanging --bootstrap 127"):
        SinkDriver(sink).begin()
    run(sink, 0)


def test_abort_without_reports_does_nothing(broker: Minibroker, sink: Sink) -> None:
    driver = SinkDriver(sink)
    reports = tasks(sink, driver.begin(), 0)
    SinkDriver(sink).abort([None, None])
    driver.commit(reports, 0)
    assert visible(broker, sink) == list(range(12))


def test_abort_after_a_commit_leaves_it_alone(broker: Minibroker, sink: Sink) -> None:
    reports = run(sink, 0)
    driver = SinkDriver(sink)
    driver.abort(reports)
    assert visible(broker, sink) == list(range(12))
    later = tasks(sink, driver.begin(), 1)
    driver.abort(reports)  # the next transaction is open now
    driver.commit(later, 1)
    assert visible(broker, sink) == list(range(24))


@contextmanager
def ends_told(broker: Minibroker, sink: Sink, task: Callable[[], Written]) -> Iterator[Future[Written]]:
    """A task under way that was told where its partition ends, and has not heard it before the block is over."""
    with (
        broker.faults.inject("ListOffsets", Hold(when="after"), topic=sink.topic) as told,
        ThreadPoolExecutor(1) as pool,
    ):
        under_way = pool.submit(task)
        told.wait()
        try:
            yield under_way
        finally:
            told.release()


def test_two_tasks_with_one_partition(broker: Minibroker, sink: Sink) -> None:
    driver = SinkDriver(sink)
    attempt = driver.begin()
    batch = MicroBatch(QUERY, 0)
    # At the same time: the broker takes the second for a copy of the first, with the same producer and sequences.
    # Tasks whose first batch holds all four rows; where it holds fewer, the broker refuses the second by its sequences.
    with ends_told(broker, sink, lambda: write_task(sink, attempt, batch, 0, rows(4, 1), task=6)) as second:
        reports = [write_task(sink, attempt, batch, 0, rows(0, 1), task=4)]
    reports.append(second.result())
    for task in (0, 5):
        with pytest.raises(SinkRefused, match="another task or attempt wrote to partition 1"):
            write_task(sink, attempt, batch, 0, rows(4, 1), task=task)
    with pytest.raises(SinkRefused, match="more than one task wrote to partition 1"):
        driver.commit(reports, 0)
    assert visible(broker, sink) == []
    (state,) = broker.transactions(sink.name)
    assert state.state == "CompleteAbort"


@pytest.mark.parametrize("lost", [False, True])
def test_a_batch_that_was_committed_is_skipped(broker: Minibroker, sink: Sink, lost: bool) -> None:
    """Spark did not log the commit, or the driver died before its answer; the batch comes again."""
    if lost:
        driver = SinkDriver(sink)
        reports = tasks(sink, driver.begin(), 0)
        with broker.faults.inject("EndTxn", DropReply(), transactional_id=sink.name):
            driver.commit(reports, 0)
    else:
        run(sink, 0)
    driver = SinkDriver(sink)
    reports = tasks(sink, driver.begin(), 0, first=100)
    assert [report.skipped for report in reports] == [True, True]
    driver.commit(reports, 0)
    before = broker.transactions(sink.name)
    assert [one.state for one in before] != ["Ongoing"]
    driver.abort(reports)
    assert broker.transactions(sink.name) == before
    assert visible(broker, sink) == list(range(12))
    run(sink, 1)
    assert visible(broker, sink) == list(range(24))


def test_a_second_driver_fences_the_first(broker: Minibroker, sink: Sink) -> None:
    first, second = SinkDriver(sink), SinkDriver(sink)
    attempt = first.begin()
    old = tasks(sink, attempt, 0)
    new = tasks(sink, second.begin(), 0)
    with pytest.raises(Fenced):
        tasks(sink, attempt, 0)
    with pytest.raises(Fenced):
        first.commit(old, 0)
    first.abort(old)
    assert visible(broker, sink) == []
    second.commit(new, 0)
    assert visible(broker, sink) == list(range(12))
    # The first comes back for the same batch, and has nothing to do.
    assert {report.skipped for report in run(sink, 0)} == {True}
    assert visible(broker, sink) == list(range(12))


def test_a_second_attempt_of_a_task_fails_the_batch(broker: Minibroker, sink: Sink) -> None:
    driver = SinkDriver(sink)
    attempt = driver.begin()

    def failing() -> Iterator[Any]:
        yield rows(0, 0)
        raise OSError("worker lost")

    with pytest.raises(OSError):
        sink_task.write_task(sink, attempt, MicroBatch(QUERY, 0), 0, 0, failing())
    with pytest.raises(SinkRefused, match="whole batch"):
        write_task(sink, attempt, MicroBatch(QUERY, 0), 1, rows(0, 0))
    run(sink, 0)
    assert visible(broker, sink) == list(range(12))


def test_a_batch_without_tasks_leaves_its_marker(broker: Minibroker, sink: Sink) -> None:
    driver = SinkDriver(sink)
    driver.commit([], 0)
    driver.commit([], 0)
    assert broker.committed(sink.group) == {(sink.topic, 0): 1}
    run(sink, 1)
    assert visible(broker, sink) == list(range(12, 24))


def test_a_broker_that_is_away_is_asked_again(broker: Minibroker, sink: Sink) -> None:
    """Twice in a row: the first lost answer of a connection is the client's to repeat."""
    for api in ("Produce", "TxnOffsetCommit", "EndTxn"):
        broker.faults.inject(api, DropReply(), transactional_id=sink.name, times=2)
    run(sink, 0)
    broker.faults.verify()
    assert visible(broker, sink) == list(range(12))


def test_a_broker_that_goes_while_its_settings_are_asked_for(broker: Minibroker, sink: Sink) -> None:
    """Only below transaction.version 2 the sink has to know them."""
    with TransactionalClient(broker.bootstrap_servers) as client:
        asks = client.transaction_version() < 2
    rule = broker.faults.inject("DescribeConfigs", DropReply(), times=2, expected=False)
    run(sink, 0)
    assert rule.fired == 2 * asks
    rule.remove()
    assert visible(broker, sink) == list(range(12))


@pytest.mark.parametrize(
    ("api", "action"),
    [
        ("Produce", DropReply()),
        ("Produce", Error("NOT_ENOUGH_REPLICAS_AFTER_APPEND")),
        ("Produce", Error("CONCURRENT_TRANSACTIONS")),
        ("TxnOffsetCommit", DropReply()),
        ("InitProducerId", Error("CONCURRENT_TRANSACTIONS")),
        ("OffsetFetch", Error("UNSTABLE_OFFSET_COMMIT")),
        ("EndTxn", Error("COORDINATOR_LOAD_IN_PROGRESS")),
    ],
)
def test_what_passes_is_sent_again(broker: Minibroker, sink: Sink, api: str, action: Any) -> None:
    with broker.faults.inject(api, action):
        run(sink, 0)
    assert visible(broker, sink) == list(range(12))


def test_large_tasks_are_cut_into_batches(broker: Minibroker, sink: Sink) -> None:
    sink = replace(sink, compression=Compression.ZSTD)
    driver = SinkDriver(sink)
    few = [number.to_bytes(sink_task.BATCH_BYTES // 3, "big") for number in range(12)]
    block = pa.RecordBatch.from_pydict({"partition": pa.array([0] * 12, pa.int32()), "value": few})
    driver.commit([write_task(sink, driver.begin(), MicroBatch(QUERY, 0), 0, block)], 0)
    assert [one.value for one in broker.records(sink.topic, isolation="read_committed")] == few
    produced = [one for one in broker.requests("Produce") if sink.topic in str(one)]
    assert len(produced) > 3


def test_jobs_are_done_once_each(broker: Minibroker, sink: Sink) -> None:
    for job, expected in (("monday", 12), ("monday", 12), ("tuesday", 24)):
        run(replace(sink, job=job), 0)
        assert len(visible(broker, sink)) == expected
    for number, expected in ((0, 36), (5, 48)):  # without a marker no batch has to be the first
        run(replace(sink, marked=False), number)
        assert len(visible(broker, sink)) == expected


MARKER = SinkMarker(3, QUERY, 3)


@pytest.mark.parametrize(
    ("marker", "batch", "expected"),
    [
        (None, MicroBatch(QUERY, 0), True),
        (None, MicroBatch(QUERY, 4), "no marker, but batch 4"),
        (MARKER, MicroBatch(QUERY, 2), False),
        (MARKER, MicroBatch(QUERY, 0), False),
        (MARKER, MicroBatch(QUERY, 3), True),
        (MARKER, MicroBatch(QUERY, 4), "the marker awaits 3"),
        (MARKER, MicroBatch("other", 0), "belongs to query 6ad5"),
        (MARKER, MicroBatch("other", 3), "belongs to query 6ad5"),
        (SinkMarker(1, "", 3), MicroBatch(QUERY, 1), True),
    ],
)
def test_which_batch_is_new(marker: SinkMarker | None, batch: MicroBatch, expected: bool | str) -> None:
    settings = Sink("localhost:9092", "t", "s", 3)
    if isinstance(expected, str):
        with pytest.raises(SinkRefused, match=expected):
            is_new(settings, marker, batch)
    else:
        assert is_new(settings, marker, batch) is expected
    if marker is None:
        assert is_new(replace(settings, first_batch=batch.number), None, batch)


def test_a_sink_goes_on_after_its_topic_got_partitions(
    broker: Minibroker, sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sink, 0)
    with pytest.raises(SinkRefused, match="has 3 partitions, not 4"):
        SinkDriver(replace(sink, partitions=4)).begin()
    abandoned = tasks(sink, SinkDriver(sink).begin(), 1)
    kind = m.CreatePartitionsRequest
    request = kind(
        topics=[kind.CreatePartitionsTopic(name=sink.topic, count=4, assignments=None)],
        timeout_ms=10_000,
        validate_only=False,
    )
    with sink.client() as client:
        assert client.ask(client.controller(), request, m.CreatePartitionsResponse, 3).results[0].error_code == 0
    assert capsys.readouterr().err == ""
    wider = replace(sink, partitions=4)
    driver = SinkDriver(wider)
    attempt = driver.begin()
    said = f"sink {sink.name}: batch 1 is the first that is written to 4 partitions of {sink.topic}, 3 before"
    assert said in capsys.readouterr().err
    # The batch that was open when the number changed is laid out anew, and seen once.
    reports = [write_task(wider, attempt, MicroBatch(QUERY, 1), 0, rows(12 + 3 * n, n, 3)) for n in range(4)]
    driver.commit(reports, 1)
    with pytest.raises(SinkRefused):
        SinkDriver(sink).commit(abandoned, 1)
    assert visible(broker, sink) == list(range(24))
    driver.keep(QUERY)
    SinkDriver(wider).begin()
    assert capsys.readouterr().err == ""
    attempt = SinkDriver(sink).begin()
    assert "batch 2 is the first that is written to 3 partitions" in capsys.readouterr().err
    with pytest.raises(SinkRefused, match="there are 3"):
        write_task(sink, attempt, MicroBatch(QUERY, 2), 0, rows(0, 3))


def test_several_topics_in_one_transaction(broker: Minibroker, sink: Sink) -> None:
    more = f"{sink.topic}-more"
    broker.state.create_topic(topic=more, partitions=5)
    both = replace(sink, others=((more, 5),))

    def sent(number: int) -> Any:
        topics = [sink.topic, more, more, sink.topic]
        columns = {
            "topic": topics,
            "partition": pa.array([2, 2, 4, 2], pa.int32()),
            "value": [f"{number}{letter}" for letter in "abcd"],
        }
        return pa.RecordBatch.from_pydict(columns)

    def seen() -> dict[tuple[str, int], list[bytes | None]]:
        records = [
            *broker.records(sink.topic, isolation="read_committed"),
            *broker.records(more, isolation="read_committed"),
        ]
        places: dict[tuple[str, int], list[bytes | None]] = {}
        for record in records:
            places.setdefault((record.topic, record.partition), []).append(record.value)
        return places

    driver = SinkDriver(both)
    for number in range(2):
        report = write_task(both, driver.begin(), MicroBatch(QUERY, number), 0, sent(number))
        assert report.counts == {(sink.topic, 2): 2, (more, 2): 1, (more, 4): 1}
        assert all(len(values) == number * (1 + (place[0] == sink.topic)) for place, values in seen().items())
        driver.commit([report], number)
    place = sink.topic, 2
    assert seen() == {place: [b"0a", b"0d", b"1a", b"1d"], (more, 2): [b"0b", b"1b"], (more, 4): [b"0c", b"1c"]}
    attempt = driver.begin()
    assert attempt.marker == SinkMarker(2, QUERY, 3, ((more, 5),))
    with pytest.raises(SinkRefused, match=f"topic other: sink {sink.name} writes to {sink.topic}, {more}"):
        other = pa.RecordBatch.from_pydict({"topic": ["other"], "partition": pa.array([0], pa.int32()), "value": ["x"]})
        write_task(both, attempt, MicroBatch(QUERY, 2), 0, other)
    two = [Written(attempt, MicroBatch(QUERY, 2), {(more, 4): 1})] * 2
    with pytest.raises(SinkRefused, match=f"more than one task wrote to partition 4 of {more}"):
        driver.commit(two, 2)


def test_rows_of_several_topics() -> None:
    columns = {
        "topic": ["a", "b", "a", "b", "a"],
        "partition": pa.array([1, 1, -1, 0, 1], pa.int32()),
        "value": list("vwxyz"),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    places = {place: those.column("value").to_pylist() for place, those in by_partition(batch, 0, "a", several=True)}
    assert places == {("a", 1): [b"v", b"z"], ("b", 1): [b"w"], ("a", -1): [b"x"], ("b", 0): [b"y"]}
    # With one topic the column has no effect.
    assert {place for place, _ in by_partition(batch, 0, "t")} == {("t", -1), ("t", 0), ("t", 1)}
    nowhere = pa.RecordBatch.from_pydict({**columns, "topic": [None] * 5})
    with pytest.raises(SinkRefused, match="the column topic is null in a row"):
        list(by_partition(nowhere.cast(batch.schema), 0, "a", several=True))


def test_a_refusal_keeps_its_class_where_spark_pickles() -> None:
    """Spark hides other exceptions behind "Could not serialize object"."""
    serializers = pytest.importorskip("pyspark.serializers")

    class Refusing:
        def __getstate__(self) -> object:
            raise Fenced("sink s: a newer attempt has taken it over")

    with pytest.raises(Fenced, match="a newer attempt"):
        serializers.CloudPickleSerializer().dumps(Refusing())


def test_what_is_refused_at_the_start(broker: Minibroker, sink: Sink) -> None:
    with pytest.raises(SinkRefused, match=r"transaction\.max\.timeout\.ms"):
        SinkDriver(replace(sink, timeout_ms=10**9)).begin()
    with pytest.raises(SinkRefused, match="UNKNOWN_TOPIC"):
        SinkDriver(replace(sink, topic="none")).begin()
    with pytest.raises(SinkRefused, match="no producer id"):
        Appender(sink, Producer("t", -1, -1), 0)
    off = {"transaction.partition.verification.enable": "false"}
    with (
        Minibroker(ephemeral=True, transaction_version=1, topics={"t": 3}, config=off) as older,
        pytest.raises(SinkRefused, match=r"broker 1: transaction\.partition\.verification\.enable must"),
    ):
        SinkDriver(replace(sink, bootstrap=older.bootstrap_servers, topic="t")).begin()


def test_an_offset_that_is_no_marker() -> None:
    with pytest.raises(SinkRefused, match="no marker"):
        SinkMarker.read(5, "")
    assert SinkMarker.read(5, SinkMarker(5, "q", 2).metadata) == SinkMarker(5, "q", 2)


def test_rows_of_an_arrow_batch() -> None:
    headers = pa.array([[{"key": "h", "value": b"x"}, {"key": "", "value": None}], None, []])
    times = pa.array([1_700_000_000_123_456, None, -1_500], pa.timestamp("us", tz="UTC"))
    columns = {
        "partition": pa.array([1, 0, 1], pa.int32()),
        "key": [None, "k" * 200, "é"],
        "value": ["a", None, "v" * 70_000],
        "timestamp": times,
        "headers": headers,
    }
    full = [
        Record(0, 1_700_000_000_123, None, b"a", [("h", b"x"), ("", None)]),
        Record(0, -2, "é".encode(), b"v" * 70_000),
    ]
    bare = [Record(0, 5, b"k" * 200, None)]
    found = {place[1]: those for place, those in by_partition(pa.RecordBatch.from_pydict(columns), 5, "t")}
    assert [*found] == [0, 1]
    for partition, expected in ((0, bare), (1, full)):
        base = expected[0].timestamp
        payload = encode_records(expected, base_timestamp=base)
        largest = max(record.timestamp for record in expected)
        assert encode(found[partition]) == (payload, len(expected), base, largest)
    with pytest.raises(SinkRefused, match="partition is null"):
        list(
            by_partition(
                pa.RecordBatch.from_pydict({"partition": pa.array([None], pa.int32()), "value": ["a"]}), 0, "t"
            )
        )


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=300),
            st.none() | st.binary(max_size=300),
            st.integers(-(2**40), 2**40),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        ),
        min_size=1,
        max_size=50,
    ),
    st.integers(0, 49),
    st.integers(1, 2000),
)
def test_columns_give_the_bytes_of_records(found: list[Any], skip: int, most: int) -> None:
    columns = {
        "partition": pa.array([0] * len(found), pa.int32()),
        "key": pa.array([one[0] for one in found], pa.binary()),
        "value": pa.array([one[1] for one in found], pa.binary()),
        "timestamp": pa.array([one[2] * 1000 for one in found], pa.timestamp("us", tz="UTC")),
        "headers": pa.array(
            [[{"key": name, "value": content} for name, content in one[3]] for one in found],
            pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        ),
    }
    skip %= len(found)  # a slice of a larger batch has the same buffers
    ((_, those),) = by_partition(pa.RecordBatch.from_pydict(columns).slice(skip), 0, "t")
    expected = [Record(0, time, key, value, headers) for key, value, time, headers in found[skip:]]
    cut = list(blocks(those, most, 7))
    assert len(cut[0]) <= 7
    for block in cut:
        part, expected = expected[: len(block)], expected[len(block) :]
        assert encode(block).payload == encode_records(part, base_timestamp=part[0].timestamp)
        assert len(block) == 1 or len(encode(block).payload) <= most
    assert not expected


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_stage_that_spark_runs_again(broker: Minibroker, sink: Sink, concurrent: bool) -> None:
    """Its tasks are first attempts once more, and may have their rows in another order."""
    driver = SinkDriver(sink)
    attempt = driver.begin()
    batch = MicroBatch(QUERY, 0)
    if concurrent:  # the end of the log was asked for before the other wrote
        with ends_told(broker, sink, lambda: write_task(sink, attempt, batch, 0, rows(100, 0, 40), task=9)) as again:
            older = write_task(sink, attempt, batch, 0, rows(0, 0, 40), task=7)
        with pytest.raises(SinkRefused, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
            again.result()
    else:
        older = write_task(sink, attempt, batch, 0, rows(0, 0, 40), task=7)
        with pytest.raises(
            SinkRefused, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER|another task or attempt wrote to partition 0"
        ):
            write_task(sink, attempt, batch, 0, rows(100, 0, 40), task=9)
        with pytest.raises(SinkRefused, match="another task or attempt wrote to partition 0"):
            write_task(sink, attempt, batch, 0, rows(100, 0, 40), task=7 + 997)
    driver.abort([older])
    assert visible(broker, sink) == []


COLUMNS = {"value": "string", "partition": "int"}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"value": "string"}, "column partition is missing"),
        ({"partition": "int"}, "column value is missing"),
        ({**COLUMNS, "offset": "bigint"}, "column offset: there are only key, value"),
        ({**COLUMNS, "key": "int"}, "key is int, not string or binary"),
    ],
)
def test_columns_that_are_refused(columns: dict[str, str], reason: str) -> None:
    with pytest.raises(SinkRefused, match=reason):
        check_columns(columns)
    check_columns({**COLUMNS, "key": "binary", "timestamp": "timestamp"})


OPTIONS = {"bootstrap": "localhost:9092", "topic": "t", "sink": "s", "partitions": "3"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"topic": ""}, "the option topic is needed"),
        ({"sinkk": "x"}, "option sinkk: there are only"),
        ({"jobId": "x"}, "jobId is for tables"),
        ({"partitions": "-1"}, "partitions=-1: expected a whole number"),
        ({"transactionTimeoutMs": "0"}, "expected a whole number from 1"),
        ({"compression": "lzo"}, "'lzo' is none of none, gzip"),
        ({"partitioner": "crc"}, "partitioner 'crc' is none of murmur2, hash"),
        ({"kafka.security.protocol": "SSH"}, "security.protocol=SSH"),
        ({"bootstrap": "nowhere"}, "'nowhere' is not HOST:PORT"),
    ],
)
def test_options_that_are_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(SinkRefused, match=reason):
        sink_of({**OPTIONS, **more}, streaming=True)


def test_what_options_mean(broker: Minibroker, sink: Sink) -> None:
    named = {**OPTIONS, "firstBatch": "4", "transactionTimeoutMs": "9", "compression": "zstd", "queryName": "q"}
    named["partitioner"] = "murmur2"
    expected = Sink("localhost:9092", "t", "s", 3, first_batch=4, timeout_ms=9, compression=Compression.ZSTD)
    expected = replace(expected, partitioner="murmur2")
    assert sink_of(named, streaming=True) == expected
    assert sink_of(OPTIONS, streaming=False).marked is False
    job = sink_of({**OPTIONS, "jobId": "j"}, streaming=False)
    assert (job.marked, job.group) == (True, "s.j")
    assert sink_of({**OPTIONS, "commitLog": "commits"}, streaming=True).commit_log == "commits"
    asked = {"bootstrap": sink.bootstrap, "topic": sink.topic, "sink": "s"}
    assert sink_of(asked, streaming=True).partitions == 3
    broker.state.create_topic(topic=f"{sink.topic}-more", partitions=5)
    several = {**asked, "topic": f"{sink.topic},{sink.topic}-more"}
    for text, counts in (("0,2", [3, 2]), ("2,0", [2, 5]), ("0,0", [3, 5]), ("1,4", [1, 4])):
        assert [*sink_of({**several, "partitions": text}, streaming=True).counts.values()] == counts


def test_another_partitioner_is_printed(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys have another partition from that batch on."""
    for partitioner in ("hash", "murmur2", None, "murmur2", "murmur2"):
        driver = SinkDriver(replace(sink, partitioner=partitioner))
        number = 0 if (marker := driver.begin().marker) is None else marker.next_batch
        driver.commit([Written(driver.begin(), MicroBatch(QUERY, number), {})], number)
    said = f"sink {sink.name}: batch %s is the first whose partitions murmur2 chooses, %s before: keys may have"
    lines = list(dict.fromkeys(capsys.readouterr().err.splitlines()))
    assert [line.partition(" another")[0] for line in lines] == [said % (1, "hash"), said % (3, "the query itself")]
    # Earlier releases wrote none, and hashed as Spark does.
    assert SinkMarker.read(5, '{"query": "q", "partitions": 2}').partitioner == "hash"
    for partitioner in ("murmur2", None):
        marker = SinkMarker(5, "q", 2, (), partitioner)
        assert SinkMarker.read(5, marker.metadata) == marker


def test_topics_in_another_order_are_refused(broker: Minibroker, sink: Sink) -> None:
    """The marker is with the first topic: a job would be written again."""
    other = f"{sink.topic}-other"
    broker.state.create_topic(topic=other, partitions=3)
    job = replace(sink, job="j", others=((other, 3),))
    driver = SinkDriver(job)
    driver.commit([], 0)
    assert driver.begin().marker is not None
    reason = f"its marker is with topic {sink.topic}, and not with {other}.*name {sink.topic} first"
    for first in (replace(job, topic=other, others=((sink.topic, 3),)), replace(job, topic=other, others=())):
        with pytest.raises(SinkRefused, match=reason):
            SinkDriver(first).begin()
    assert SinkDriver(replace(job, job="k", topic=other, others=())).begin().marker is None


def test_a_sink_over_tls_with_a_password(tmp_path: Path) -> None:
    authority = str(tmp_path / "ca.pem")
    config = {
        "minibroker.security.protocol": "SASL_SSL",
        "minibroker.ssl.ca.location": authority,
        "minibroker.sasl.users": "alice:secret",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca.location": authority,
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "secret",
    }
    with Minibroker(ephemeral=True, host="localhost", config=config, topics={"secured": 3}) as secured:
        named = {"bootstrap": secured.bootstrap_servers, "topic": "secured", "sink": "s"}
        run(sink_of({**named, **given}, streaming=True), 0)
        assert visible(secured, sink_of({**named, **given}, streaming=True)) == list(range(12))
        with pytest.raises(SinkRefused, match="invalid credentials"):
            sink_of({**named, **given, "kafka.sasl.password": "wrong"}, streaming=True)


@pytest.mark.parametrize("ask", ["begin", "commit", "abort", "keep"])
def test_no_broker_is_one_line(sink: Sink, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    driver = SinkDriver(sink)
    attempt = driver.begin()
    lost = SinkDriver(replace(sink, bootstrap="127.0.0.1:1"))
    monkeypatch.setattr(TransactionalClient, "patience", 0.0)
    reports = [Written(attempt, MicroBatch(QUERY, 0), {0: 1}, False)]
    asked: dict[str, Callable[[], object]] = {
        "begin": lost.begin,
        "commit": lambda: lost.commit(reports, 0),
        "abort": lambda: lost.abort(reports),
        "keep": lambda: lost.keep(QUERY),
    }
    with pytest.raises(SinkRefused, match=rf"^sink {re.escape(sink.name)}: .*127\.0\.0\.1:1"):
        asked[ask]()
