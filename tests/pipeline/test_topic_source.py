"""The stream source `kafka-topics` on a broker, without Spark's JVM: what it reads, and what it says is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from minibroker.testing.embedded import Minibroker
from minibroker_pipeline.files import NotReadable
from minibroker_pipeline.topic_source import DataLost, KafkaTopics
from minibroker_pipeline.topics import TopicClient
from minibroker_protocol import messages as m
from minibroker_protocol.records import Record, build_batch

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
        self.client._leaders.clear()

    def write(self, *values: str) -> None:
        kind = m.ProduceRequest
        for value in values:
            data = kind.PartitionProduceData(index=0, records=bytes(build_batch([Record(0, 1, None, value.encode())])))
            request = kind(
                acks=-1,
                timeout_ms=10_000,
                topic_data=[kind.TopicProduceData(name=self.topic, partition_data=[data])],
            )
            answer = self.client.ask(self.client.leader(self.topic, 0), request, m.ProduceResponse, 7)
            assert answer.responses[0].partition_responses[0].error_code == 0

    def stream(self, **options: str) -> Any:
        given = {"bootstrap": self.broker.bootstrap_servers, "topics": self.topic, **options}
        return KafkaTopics(given).streamReader(None)  # type: ignore[arg-type]

    def run(self, start: Any = None, **options: str) -> tuple[Any, list[str]]:
        """One query as Spark runs it from a checkpoint: its last offset, and the values that it read."""
        stream = self.stream(**options)
        start = stream.initialOffset() if start is None else json.loads(json.dumps(start))
        end = json.loads(json.dumps(stream.latestOffset(start)))
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
    start, end = stream.initialOffset(), stream.latestOffset()
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
    with pytest.raises(DataLost, match=f"topic {source.topic}, which was read before, is not in the cluster"):
        source.run(start)
    end, read = source.run(start, failOnDataLoss="false")
    assert (end, read) == ({}, [])
    assert "is not in the cluster: it was deleted" in capsys.readouterr().err
    with pytest.raises(NotReadable, match="is not in the cluster: it was deleted, or never created"):
        source.stream().initialOffset()
    source.create()
    source.write("b")
    assert source.run(end)[1] == ["b"]


def test_records_deleted_past_the_checkpoint(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    source.write(*letters("v", 3))
    start, _ = source.run()
    source.write(*letters("w", 6))
    stream = source.stream()
    end = stream.latestOffset(start)
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
        source.run(end, topics=f"{source.topic}-next")


def test_nothing_new_is_no_new_offset(source: Source) -> None:
    source.write("a")
    end, _ = source.run()
    assert source.run(end) == (end, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxOffsetsPerTrigger": "10"}, "option maxoffsetspertrigger: there are only bootstrap, failondataloss"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss 'no' is none of true, false"),
        ({"startingOffsets": "5"}, "startingOffsets '5' is none of earliest, latest"),
        ({"isolation": "5"}, "isolation '5' is none of read_committed, read_uncommitted"),
        ({"timeoutMs": "0"}, "timeoutMs=0: expected a whole number from 1"),
        ({"topics": ""}, "the options bootstrap and topics are needed"),
    ],
)
def test_options_that_there_are_not(source: Source, options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        source.stream(**options)


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
    pair.client._leaders.clear()
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
    end = stream.latestOffset(start)
    assert pair.batch(stream, start, end) == letters("v", 3)
