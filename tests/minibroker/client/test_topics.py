"""Reading as a consumer does: what is waited for, and what is gone for good."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, scripted_broker

from minibroker.client.connection import BrokerFailed, Throttled
from minibroker.client.topics import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    READ_COMMITTED,
    Position,
    ReadingClient,
    RecordsGone,
    Span,
    StillWaiting,
    committed,
)
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, end_txn_marker, iter_batches

ID, OTHER = b"\1" * 16, b"\2" * 16
SPAN = Span("t", 0, 0, 4, leader_epoch=5, topic_id=ID)


def batch(offset: int, epoch: int = 5) -> bytes:
    return bytes(build_batch([Record(0, 1, b"k", b"v")], base_offset=offset, leader_epoch=epoch))


class OnePartition:
    """Scripts a broker that leads t-0. `answers`: of each Fetch, the last one for good. `ids`, `leaders`: of each
    Metadata."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.answers: list[Callable[[Any], m.FetchResponse]] = []
        self.ids = [ID]
        self.ports = [broker.port]
        self.offsets = {EARLIEST: 0, EARLIEST_LOCAL: 0, LATEST: 4}
        self.epoch_ends = {5: 4}
        self.fetched: list[int] = []
        self.policy: str | None = "compact"
        broker.handlers[m.MetadataRequest] = lambda request, version: self.metadata()
        broker.handlers[m.FetchRequest] = lambda request, version: self.fetch(request)
        broker.handlers[m.ListOffsetsRequest] = lambda request, version: self.list_offsets(request)
        broker.handlers[m.DescribeConfigsRequest] = lambda request, version: self.configs()
        broker.handlers[m.OffsetForLeaderEpochRequest] = lambda request, version: self.epoch_end(request)

    def metadata(self) -> m.MetadataResponse:
        kind = m.MetadataResponse
        partition = kind.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0]
        )
        topic = kind.MetadataResponseTopic(error_code=0, name="t", topic_id=_next(self.ids), partitions=[partition])
        node = kind.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=_next(self.ports))
        return kind(brokers=[node], topics=[topic])

    def fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        assert request.topics[0].topic_id == ID
        self.fetched.append(request.topics[0].partitions[0].fetch_offset)
        return _next(self.answers)(request)

    def list_offsets(self, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        kind = m.ListOffsetsResponse
        offset = self.offsets[request.topics[0].partitions[0].timestamp]
        entry = kind.ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=offset, leader_epoch=5)
        return kind(topics=[kind.ListOffsetsTopicResponse(name="t", partitions=[entry])])

    def configs(self) -> m.DescribeConfigsResponse:
        kind = m.DescribeConfigsResponse
        config = kind.DescribeConfigsResourceResult(
            name="cleanup.policy", value=self.policy, read_only=False, is_sensitive=False, synonyms=[]
        )
        configs = [] if self.policy is None else [config]
        return kind(
            results=[
                kind.DescribeConfigsResult(
                    error_code=0, error_message=None, resource_type=2, resource_name="t", configs=configs
                )
            ]
        )

    def epoch_end(self, request: m.OffsetForLeaderEpochRequest) -> m.OffsetForLeaderEpochResponse:
        kind = m.OffsetForLeaderEpochResponse
        epoch = request.topics[0].partitions[0].leader_epoch
        entry = kind.EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=self.epoch_ends.get(epoch, -1))
        return kind(topics=[kind.OffsetForLeaderTopicResult(topic="t", partitions=[entry])])

    def offsets_read(self, span: Span = SPAN, isolation: int = 0, patience: float = 30.0) -> list[int]:
        with ReadingClient(self.broker.bootstrap) as client:
            client.leader_patience = patience
            return [
                header.base_offset
                for fetched in client.read(span, isolation)
                for _, header in iter_batches(fetched.data)
            ]


def _next(values: list[Any]) -> Any:
    return values.pop(0) if len(values) > 1 else values[0]


def records(
    *batches: bytes, end: int = 4, code: int = 0, stable: int | None = None
) -> Callable[[Any], m.FetchResponse]:
    kind = m.FetchResponse
    partition = kind.PartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=end,
        last_stable_offset=end if stable is None else stable,
        log_start_offset=0,
        aborted_transactions=[],
        records=b"".join(batches),
    )
    return lambda request: kind(responses=[kind.FetchableTopicResponse(topic_id=ID, partitions=[partition])])


def throttled(ms: int) -> Callable[[Any], m.FetchResponse]:
    """Kafka 4.4.0 over consumer_byte_rate: no topics."""
    return lambda request: m.FetchResponse(throttle_time_ms=ms)


ALL = [batch(0), batch(1), batch(2), batch(3)]


@pytest.fixture
def scripted() -> Iterator[OnePartition]:
    with scripted_broker() as running:
        yield OnePartition(running)


def test_a_throttled_fetch_is_asked_again(scripted: OnePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("minibroker.client.cluster.time.sleep", waits.append)
    scripted.answers = [throttled(250), throttled(100), records(*ALL)]
    assert scripted.offsets_read() == [0, 1, 2, 3]
    assert scripted.fetched == [0, 0, 0]
    assert sum(waits) >= 0.35
    assert len(scripted.broker.connections) == 1, "a quota counts the client, and a new connection would not be muted"


def test_a_quota_that_outlasts_the_patience_is_named(scripted: OnePartition) -> None:
    scripted.answers = [throttled(60_000)]
    with pytest.raises(Throttled, match="t-0: a quota throttles minibroker for 60 s, without any data"):
        scripted.offsets_read(patience=5)
    assert scripted.fetched == [0]


def test_every_request_waits_while_its_connection_is_muted(
    scripted: OnePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("minibroker.client.connection.time.sleep", waits.append)
    answer = scripted.metadata()
    answer.throttle_time_ms = 20_000
    scripted.broker.handlers[m.MetadataRequest] = lambda request, version: answer
    with ReadingClient(scripted.broker.bootstrap, timeout=30) as client:
        client.metadata(["t"])
        client.metadata(["t"])
        assert 19 < waits[0] <= 20
        client.timeout = 5
        with pytest.raises(Throttled, match="throttled by a quota for another"):
            client.metadata(["t"])
        client.timeout = 30
        client.metadata(["t"])
    assert len(waits) == 2
    assert len(scripted.broker.connections) == 1, "the quota counts the client: a new connection gains nothing"


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_a_leader_whose_end_lags_is_waited_for(scripted: OnePartition, isolation: int) -> None:
    """A new leader's high watermark, or last stable offset, may be below that of the old one for a while."""
    behind = records(end=2) if isolation == 0 else records(end=4, stable=2)
    scripted.answers = [records(batch(0), batch(1), end=2), *[behind] * 4, records(batch(2), batch(3))]
    assert scripted.offsets_read(isolation=isolation) == [0, 1, 2, 3]
    assert scripted.fetched == [0, 2, 2, 2, 2, 2]


def test_records_that_do_not_come_are_an_error(scripted: OnePartition) -> None:
    scripted.answers = [records(batch(0), batch(1), end=2), records(end=2)]
    with pytest.raises(
        StillWaiting, match=r"t-0: nothing from offset 2 up to 4, .* the leader's end is 2, and 0.1 s have passed"
    ):
        scripted.offsets_read(patience=0.1)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", None])
def test_what_compaction_has_emptied_is_passed_over(scripted: OnePartition, policy: str | None) -> None:
    scripted.policy = policy
    scripted.answers = [records(batch(0)), records()]
    assert scripted.offsets_read() == [0]
    assert scripted.fetched == [0, 1, 1, 1]
    scripted.answers = [records(batch(0), batch(7), end=8)]
    assert scripted.offsets_read() == [0, 7], "the caller cuts the last batches"


def test_an_empty_answer_is_not_the_end_of_a_topic_that_is_not_compacted(scripted: OnePartition) -> None:
    scripted.policy = "delete"
    scripted.answers = [records(batch(0)), *[records()] * 4, records(*ALL[1:])]
    assert scripted.offsets_read() == [0, 1, 2, 3]
    scripted.answers = [records(batch(0)), records()]
    with pytest.raises(StillWaiting, match="t-0: nothing from offset 1 up to 4"):
        scripted.offsets_read(patience=0.5)


def test_what_is_in_remote_storage_may_come_late(scripted: OnePartition) -> None:
    scripted.offsets[EARLIEST_LOCAL] = 2
    scripted.answers = [records(batch(0)), *[records()] * 4, records(batch(1), batch(2), batch(3))]
    assert scripted.offsets_read() == [0, 1, 2, 3]


def test_a_log_truncated_after_it_was_planned(scripted: OnePartition) -> None:
    scripted.epoch_ends = {5: 2}
    scripted.answers = [records(batch(0), batch(1), end=2), records(end=2)]
    with pytest.raises(RecordsGone, match=r"t-0: offsets 2 to 4 .* truncated to offset 2") as gone:
        scripted.offsets_read()
    assert gone.value.resume == 2
    # The end is back where it was, with other records.
    scripted.answers = [records(batch(0), batch(1)), records(batch(2, epoch=6), batch(3, epoch=6))]
    with pytest.raises(RecordsGone, match="truncated to offset 2"):
        scripted.offsets_read()
    # Cut below what was read already.
    scripted.epoch_ends = {5: 1}
    scripted.answers = [records(batch(0), batch(1), end=2), records(code=ErrorCode.OFFSET_OUT_OF_RANGE)]
    with pytest.raises(RecordsGone, match="truncated to offset 1") as gone:
        scripted.offsets_read()
    assert gone.value.resume == 1
    # Cut above what was read already, which is not read again and nothing of it passed over.
    scripted.epoch_ends = {5: 3}
    scripted.answers = [records(batch(0), batch(1), end=2), records(end=3)]
    with pytest.raises(RecordsGone, match=r"offsets 2 to 4 .* truncated to offset 3") as gone:
        scripted.offsets_read()
    assert gone.value.resume == 2


def test_batches_after_the_span_may_have_a_later_epoch(scripted: OnePartition) -> None:
    scripted.answers = [records(*ALL, batch(4, epoch=6), end=5)]
    assert scripted.offsets_read() == [0, 1, 2, 3, 4]


def test_records_that_retention_deleted(scripted: OnePartition) -> None:
    scripted.offsets[EARLIEST] = 3
    scripted.answers = [records(batch(0)), records(code=ErrorCode.OFFSET_OUT_OF_RANGE)]
    with pytest.raises(RecordsGone, match="t-0: offset 1 is to be read, but the log starts at 3: retention") as gone:
        scripted.offsets_read()
    assert gone.value.resume == 3


def test_another_topic_of_the_same_name_is_not_read(scripted: OnePartition) -> None:
    scripted.ids = [ID, OTHER]
    scripted.answers = [records(batch(0)), records(code=ErrorCode.UNKNOWN_TOPIC_ID)]
    with pytest.raises(RecordsGone, match="t-0: offset 1: topic t was deleted and made again") as gone:
        scripted.offsets_read()
    assert gone.value.resume is None
    # Where only the metadata lags, the same topic is asked for again.
    scripted.ids = [ID]
    scripted.answers = [records(code=ErrorCode.UNKNOWN_TOPIC_ID), records(*ALL)]
    assert scripted.offsets_read() == [0, 1, 2, 3]


def test_a_dead_leader_is_asked_until_another_one_leads(scripted: OnePartition) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    scripted.ports = [dead, dead, dead, scripted.broker.port]
    scripted.answers = [records(*ALL)]
    assert scripted.offsets_read() == [0, 1, 2, 3]
    scripted.ports = [dead]
    with pytest.raises(BrokerFailed, match=f"cannot connect to 127.0.0.1:{dead}"):
        scripted.offsets_read(patience=0.2)


def test_a_bootstrap_server_that_has_died_is_replaced_by_a_broker_it_named(scripted: OnePartition) -> None:
    with scripted_broker() as first, ReadingClient(first.bootstrap) as client:
        first.handlers[m.MetadataRequest] = lambda request, version: scripted.metadata()
        client.metadata(["t"])
        first.close()
        client.close()
        assert client.position("t", 0, LATEST) == Position(4, 5)
        client.close()
        assert [topic.name for topic in client.metadata(["t"]).topics] == ["t"], "what is asked of any broker, too"


def transactional(offset: int, producer_id: int, records: int = 1) -> bytes:
    own = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    every = [Record(at, 1, b"k", b"v") for at in range(records)]
    return bytes(build_batch(every, base_offset=offset, transactional=True, **own))


def marker(offset: int, producer_id: int, commit: bool) -> bytes:
    who = {"producer_id": producer_id, "producer_epoch": 0, "coordinator_epoch": 0}
    return bytes(end_txn_marker(**who, commit=commit, timestamp_ms=1, base_offset=offset))


def seen(aborted: list[tuple[int, int]], *batches: bytes) -> list[int]:
    data = memoryview(b"".join(batches))
    return [header.base_offset for header, _ in committed(data, aborted)]


def test_a_reader_gets_what_is_not_aborted() -> None:
    """Two aborted transactions of one producer with a committed one between them, and another producer's within."""
    batches = [
        transactional(0, 7),
        transactional(1, 8),
        marker(2, 7, commit=False),
        transactional(3, 7),
        marker(4, 7, commit=True),
        transactional(5, 7),
        batch(6),
        marker(7, 7, commit=False),
        marker(8, 8, commit=True),
    ]
    assert seen([(7, 0), (7, 5)], *batches) == seen([(7, 5), (7, 0)], *batches) == [1, 3, 6]
    assert seen([], *batches) == [0, 1, 3, 5, 6]


def test_a_transaction_that_was_aborted_may_begin_before_the_answer() -> None:
    assert seen([(7, 0)], transactional(3, 7), marker(4, 7, commit=False), transactional(5, 7)) == [5]
    # Kafka waits for the marker of an abort.
    assert seen([(7, 0)], transactional(3, 7), marker(4, 7, commit=True), transactional(5, 7)) == []


def test_an_aborted_transaction_that_begins_within_a_batch_hides_the_batch() -> None:
    """After compaction its first offset may be of a record that is gone."""
    assert seen([(7, 1)], transactional(0, 7, records=3), transactional(3, 7)) == []
