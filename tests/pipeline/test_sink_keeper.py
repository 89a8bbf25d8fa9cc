"""The marker of a sink outlives offsets.retention.minutes while its query has nothing to write."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from real_kafka import real_kafka
from toolchain import Unavailable

from minibroker.faults import Error, Hold
from minibroker.testing.embedded import Minibroker
from minibroker_pipeline.sink import Fenced, MicroBatch, Sink, SinkDriver, SinkRefused
from minibroker_pipeline.sink_keeper import Keeper
from minibroker_pipeline.sink_task import write_task

QUERY = "6ad5"


@pytest.fixture(params=[2, 1])
def broker(request: pytest.FixtureRequest) -> Iterator[Minibroker]:
    """Retains offsets for three hours: a day of its clock takes a third of a second. With each protocol of
    transactions."""
    config = {"offsets.retention.minutes": "180"}
    with Minibroker(ephemeral=True, transaction_version=request.param, topics={"t": 2}, config=config) as running:
        yield running


@pytest.fixture
def sink(broker: Minibroker) -> Sink:
    return Sink(broker.bootstrap_servers, "t", "job", 2)


def keeper(broker: Minibroker, sink: Sink) -> Keeper:
    kept = Keeper(lambda: broker.clock.now_ms / 1000)
    kept.add(sink)
    return kept


def run(sink: Sink, number: int) -> None:
    driver = SinkDriver(sink)
    rows = pa.RecordBatch.from_pydict({"partition": pa.array([0], pa.int32()), "value": [str(number)]})
    report = write_task(sink, driver.begin(), MicroBatch(QUERY, number), 0, number, [rows])
    driver.commit([report], number)


def values(broker: Minibroker) -> list[bytes | None]:
    return [record.value for record in broker.records("t", isolation="read_committed")]


@pytest.mark.slow
def test_eight_idle_days_with_the_defaults() -> None:
    with Minibroker(ephemeral=True, topics={"t": 2}, config={"log.retention.ms": "-1"}) as broker:
        sink = Sink(broker.bootstrap_servers, "t", "job", 2)
        run(sink, 0)
        kept = keeper(broker, sink)
        for _ in range(2):
            broker.clock.advance(days=4)
            kept.idle(QUERY)
        assert broker.committed("job") == {("t", 0): 1}
        run(sink, 0)  # Spark lost its note of it
        run(sink, 1)
        assert values(broker) == [b"0", b"1"]


def test_longer_than_the_retention(broker: Minibroker, sink: Sink) -> None:
    run(sink, 0)
    kept = keeper(broker, sink)
    kept.started(QUERY)
    for _ in range(4):
        broker.clock.advance(hours=2)
        kept.idle(QUERY)
    assert broker.committed("job") == {("t", 0): 1}
    run(sink, 0)
    run(sink, 1)
    assert values(broker) == [b"0", b"1"]


def test_nobody_keeps_it(broker: Minibroker, sink: Sink) -> None:
    run(sink, 0)
    broker.clock.advance(hours=4)
    assert broker.committed("job") == {}
    keeper(broker, sink).started(QUERY)
    with pytest.raises(SinkRefused, match=r"has expired or was deleted\. .* go on with firstBatch=1"):
        run(sink, 1)
    assert values(broker) == [b"0"]


def test_a_driver_that_starts_keeps_it_at_once(broker: Minibroker, sink: Sink) -> None:
    run(sink, 0)
    for _ in range(2):
        broker.clock.advance(hours=2)
        keeper(broker, sink).started(QUERY)
    run(sink, 1)
    assert values(broker) == [b"0", b"1"]


def test_only_its_own_and_only_when_it_is_due(broker: Minibroker, sink: Sink) -> None:
    run(sink, 0)
    attempt = SinkDriver(sink).begin()
    kept = keeper(broker, sink)
    kept.started("another query")
    kept.wrote(QUERY)
    kept.idle(QUERY)
    rows = pa.RecordBatch.from_pydict({"partition": pa.array([0], pa.int32()), "value": ["1"]})
    report = write_task(sink, attempt, MicroBatch(QUERY, 1), 0, 0, [rows])
    SinkDriver(sink).commit([report], 1)  # nothing has fenced it
    broker.control.record(1000)
    for minutes in (59, 2, 1):
        broker.clock.advance(minutes=minutes)
        kept.idle(QUERY)
    assert len(broker.requests("InitProducerId")) == 1


def test_it_cannot_bring_back_an_older_marker(broker: Minibroker, sink: Sink) -> None:
    """A batch is written between the keeper's reading of the marker and its commit."""
    run(sink, 0)
    with broker.faults.inject("TxnOffsetCommit", Hold()) as marking, ThreadPoolExecutor(1) as pool:
        kept = pool.submit(SinkDriver(sink).keep, QUERY)
        marking.wait()
        run(sink, 1)
        marking.release()
        with pytest.raises(Fenced):
            kept.result()
    assert broker.committed("job") == {("t", 0): 2}
    run(sink, 1)
    assert values(broker) == [b"0", b"1"]


def test_a_failure_is_told_and_tried_again(broker: Minibroker, sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    run(sink, 0)
    kept = keeper(broker, sink)
    broker.clock.advance(hours=2)
    with broker.faults.inject("OffsetFetch", Error("GROUP_AUTHORIZATION_FAILED")), caplog.at_level(logging.WARNING):
        kept.started(QUERY)
    assert "the marker of query 6ad5 was not kept: sink job: " in caplog.text
    kept.idle(QUERY)
    broker.clock.advance(hours=2)
    assert broker.committed("job") == {("t", 0): 1}


def test_a_keeper_that_is_killed_leaves_the_marker(broker: Minibroker, sink: Sink) -> None:
    """Its transaction stays open; the next batch aborts it."""
    run(sink, 0)
    with broker.faults.inject("EndTxn", Error("TRANSACTION_ABORTABLE")), pytest.raises(SinkRefused):
        SinkDriver(sink).keep(QUERY)
    run(sink, 1)
    assert broker.committed("job") == {("t", 0): 2}
    assert values(broker) == [b"0", b"1"]


@pytest.mark.jvm
@pytest.mark.slow
def test_on_kafka() -> None:
    """A minute's retention: the marker that is kept outlives it, the other does not."""
    admin: Any = pytest.importorskip("confluent_kafka.admin")
    try:
        running = real_kafka("offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n")
        with running as bootstrap:
            client = admin.AdminClient({"bootstrap.servers": bootstrap})
            client.create_topics([admin.NewTopic("t", 2)])["t"].result(30)
            kept, left = (Sink(bootstrap, "t", name, 2) for name in ("kept", "left"))
            for one in (kept, left):
                run(one, 0)
            for _ in range(10):
                time.sleep(10)
                SinkDriver(kept).keep(QUERY)
            run(kept, 1)
            with pytest.raises(SinkRefused, match="go on with firstBatch=1"):
                run(left, 1)
    except Unavailable as missing:
        pytest.skip(str(missing))
