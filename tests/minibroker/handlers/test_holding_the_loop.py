"""What a client sends does not hold the event loop: long checks are made elsewhere, long requests in turns.

No time is measured here: the executor and the timers of the test say what was given away and when it went on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from held_executor import HeldExecutor
from long_batches import GZIP, NOW, batch_of, equal_deltas, many_headers, without_keys
from memory_cluster import MemoryCluster

from minibroker import Minibroker
from minibroker.client.connection import Connection
from minibroker.kernel.addresses import parse_address
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Abandoned, DiskInline
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.partitions import partition
from minibroker.releases.semantics import KAFKA, KIP, Semantics
from minibroker.requests.context import CloseConnection, ConnectionInfo
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.messages.offsets import ListOffsetsRequest
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.sasl import SaslAuthenticateRequest
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from minibroker_protocol.records import Record, build_batch, native
from minibroker_storage.origin import Origin
from minibroker_storage.validator import check_client_batch


def plain(*values: bytes, timestamp: int = NOW, compression: int = 0) -> bytes:
    return bytes(build_batch([Record(0, timestamp, None, value) for value in values], compression=compression))


def produce(topic: str, *batches: bytes, acks: int = 1) -> ProduceRequest:
    partitions = [ProduceRequest.PartitionProduceData(index=i, records=batch) for i, batch in enumerate(batches)]
    data = [ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)]
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=30_000, topic_data=data)


@dataclass
class Held:
    cluster: MemoryCluster
    computing: HeldExecutor

    def send(self, topic: str, *batches: bytes) -> Deferred[Any]:
        return self.cluster.send(produce(topic, *batches), 9)

    def offset(self, sent: Deferred[Any]) -> int:
        answer = sent.result().responses[0].partition_responses[0]
        assert answer.error_code == 0, answer.error_message
        return int(answer.base_offset)

    def list_offset(self, timestamp: int) -> Deferred[Any]:
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])]
        return self.cluster.send(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics), 7)


@pytest.fixture
def held() -> Iterator[Held]:
    computing = HeldExecutor()
    cluster = MemoryCluster(topics={"t": 1, "wide": 600}, executor=DiskInline(computing))
    yield Held(cluster, computing)
    cluster.stop()


def uneven(count: int) -> bytes:
    """Records of which no two in a row are laid out alike, with a header, so that each is walked by itself."""
    return bytes(build_batch([Record(0, NOW, None, b"v" * (i % 3), [("h", b"")]) for i in range(count)]))


@pytest.mark.parametrize(
    "made",
    [lambda: many_headers(40_000), lambda: plain(bytes(1 << 20), b"x", compression=GZIP), lambda: uneven(40_000)],
    ids=["many headers", "large when decompressed", "many records"],
)
def test_a_long_check_is_made_elsewhere_and_others_append_meanwhile(
    held: Held, made: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_native", None)  # with it only many headers take long
    long = held.send("t", made())
    assert not long.done
    assert held.computing.waiting == 1
    assert held.offset(held.send("t", plain(b"short"))) == 0
    held.computing.run()
    held.cluster.timers.advance(0)
    assert held.offset(long) == 1


def test_an_ordinary_megabyte_is_checked_at_once(held: Held) -> None:
    values = [b"v" * (i * 7919 % 200) for i in range(9000)]
    assert held.offset(held.send("t", plain(*values))) == 0
    assert held.offset(held.send("t", plain(*values, compression=GZIP))) == 9000
    assert held.offset(held.send("t", plain(*[b""] * 40_000, compression=GZIP))) == 18000
    assert held.computing.waiting == 0


def test_a_refusal_comes_from_elsewhere_too(held: Held) -> None:
    sent = held.send("t", many_headers(40_000, b"rest"))
    assert held.computing.waiting == 1
    held.computing.run()
    held.cluster.timers.advance(0)
    assert sent.result().responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD


def test_equal_offset_deltas_are_refused_at_the_second_record(held: Held) -> None:
    """Kafka 4.3.1 answers -1 to this batch of a million records, too."""
    answer = held.send("t", equal_deltas(100_000)).result().responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "record 1: offset delta 0" in answer.error_message
    assert held.computing.waiting == 0


def test_a_batch_that_decompresses_to_too_much_is_refused(held: Held) -> None:
    sent = held.send("t", batch_of(bytes(64 * 1024 * 1024 + 1), 1))
    held.computing.run()
    held.cluster.timers.advance(0)
    answer = sent.result().responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "more than 67108864 bytes" in answer.error_message


@pytest.mark.parametrize(
    ("policy", "base_timestamp", "code", "text"),
    [
        ("compact", NOW, ErrorCode.INVALID_RECORD, "rejected due to 1000 record errors in total"),
        ("delete", NOW * 2, ErrorCode.INVALID_TIMESTAMP, "rejected due to invalid timestamp"),
    ],
)
def test_no_more_than_a_thousand_records_are_named(
    policy: str, base_timestamp: int, code: ErrorCode, text: str
) -> None:
    cluster = MemoryCluster(topics={"t": 1}, config={"log.cleanup.policy": policy})
    batch = without_keys(20_000, base_timestamp=base_timestamp)
    answer = cluster.call(produce("t", batch), ProduceResponse, 9).responses[0].partition_responses[0]
    assert (answer.error_code, len(answer.record_errors)) == (code, 1000)
    assert text in (answer.error_message or "")
    assert len(answer.error_message or "") < 1000
    cluster.stop()


def test_many_partitions_are_written_in_turns(held: Held) -> None:
    """Each has what it was sent, and the loop was given back before the last."""
    sent = held.send("wide", *[plain(b"x")] * 600)
    assert not sent.done
    assert held.offset(held.send("t", plain(b"between"))) == 0
    held.cluster.timers.advance(0)
    answers = sent.result().responses[0].partition_responses
    assert [(a.index, a.error_code, a.base_offset) for a in answers] == [(i, 0, 0) for i in range(600)]


def test_a_search_in_a_large_batch_is_made_elsewhere(held: Held) -> None:
    records = [Record(0, NOW + i, None, b"v" * (i % 3)) for i in range(40_000)]
    sent = held.send("t", bytes(build_batch(records, compression=GZIP)))
    held.computing.run_all()
    held.cluster.timers.advance(0)
    assert held.offset(sent) == 0
    early, late, largest = held.list_offset(NOW + 5), held.list_offset(NOW + 39_000), held.list_offset(-3)
    assert early.done
    assert not late.done
    assert not largest.done
    held.computing.run_all()
    held.cluster.timers.advance(0)
    found = [sent.result().topics[0].partitions[0] for sent in (early, late, largest)]
    assert [(one.error_code, one.offset, one.timestamp) for one in found] == [
        (0, 5, NOW + 5),
        (0, 39_000, NOW + 39_000),
        (0, 39_999, NOW + 39_999),
    ]


@pytest.mark.parametrize(("acks", "end"), [(-1, 0), (1, 0), (0, 1)])
def test_a_long_check_is_dropped_with_its_connection_unless_the_producer_need_not_wait(
    held: Held, acks: int, end: int
) -> None:
    connection = ConnectionInfo()
    sent = held.cluster.send(produce("t", many_headers(40_000), acks=acks), 9, connection=connection)
    assert held.computing.waiting == 1
    connection.gone = True
    held.computing.run()
    held.cluster.timers.advance(0)
    assert sent.done
    if acks:
        with pytest.raises(Abandoned):
            sent.result()
    log = held.cluster.broker.partition("t", 0).log
    assert log.log_end_offset == end
    assert held.offset(held.send("t", plain(b"of another"))) == end


def test_a_search_is_dropped_with_its_connection(held: Held) -> None:
    held.send("t", bytes(build_batch([Record(0, NOW + i, None, b"v" * (i % 3)) for i in range(40_000)])))
    held.computing.run_all()
    held.cluster.timers.advance(0)
    connection = ConnectionInfo()
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=NOW + 39_000)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    sent = held.cluster.send(request, 7, connection=connection)
    connection.gone = True
    held.computing.run()
    with pytest.raises(Abandoned):
        sent.result()


def test_a_long_request_of_a_connection_that_is_gone_is_served_but_not_answered(held: Held) -> None:
    connection = ConnectionInfo()
    answer = held.cluster.dispatcher.dispatch(metadata(1, 0, 100_000), connection)
    assert isinstance(answer, Deferred)
    connection.gone = True
    held.computing.run()
    assert not answer.done
    assert held.computing.waiting == 1  # the answer, which is to be encoded
    held.computing.run()
    with pytest.raises(Abandoned):
        answer.result()


def uvarint(number: int) -> bytes:
    made = b""
    while number >= 0x80:
        made, number = made + bytes([number & 0x7F | 0x80]), number >> 7
    return made + bytes([number])


def tagged(count: int) -> bytes:
    return uvarint(count) + b"".join(uvarint(number) + b"\0" for number in range(count))


def metadata(elements: int, tags_of_each: int, tags: int) -> bytearray:
    """Metadata v12 whose topics have unknown tagged fields, and so has the request."""
    topic = bytes(16) + b"\2t" + tagged(tags_of_each)
    header = bytes.fromhex("0003 000c 00000001 ffff 00")
    return bytearray(header + uvarint(elements + 1) + topic * elements + b"\0\0" + tagged(tags))


@pytest.mark.parametrize(
    ("counts", "elsewhere", "closed"),
    [
        ((3, 100, 1000), False, False),
        ((1, 0, 100_000), True, False),
        ((50, 2000, 0), True, False),
        ((1, 0, 600_000), True, True),
    ],
    ids=["some tags", "many of the request", "many of its elements", "too many"],
)
def test_many_tagged_fields_are_skipped_elsewhere(
    held: Held, counts: tuple[int, int, int], elsewhere: bool, closed: bool
) -> None:
    answer: Any = held.cluster.dispatcher.dispatch(metadata(*counts), ConnectionInfo())
    assert held.computing.waiting == elsewhere
    if not elsewhere:
        return
    parts = 0
    while not answer.done:
        held.computing.run()
        parts += 1
        held.cluster.timers.advance(0)
    if closed:
        with pytest.raises(CloseConnection, match="600000 of them would make the message too large"):
            answer.result()
    else:
        assert answer.result()
        assert parts == 2, "its answer is made elsewhere too"


@pytest.mark.parametrize(("size", "elsewhere", "closed"), [(1000, 0, False), (1 << 20, 1, False), (33 << 20, 1, True)])
def test_bytes_that_are_copied_are_limited(held: Held, size: int, elsewhere: int, closed: bool) -> None:
    request = SaslAuthenticateRequest(auth_bytes=bytes(size))
    answer: Any = held.cluster.dispatcher.dispatch(held.cluster.frame(request, 1), ConnectionInfo())
    assert held.computing.waiting == elsewhere
    held.computing.run_all()
    if closed:
        with pytest.raises(CloseConnection, match="bytes would make the message too large"):
            answer.result()


def create(count: int, prefix: str = "n") -> CreateTopicsRequest:
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"{prefix}{i}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for i in range(count)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=False)


def test_many_topics_are_made_in_turns_and_what_comes_later_waits() -> None:
    """Other requests to the controller keep their order; those to brokers are served in between."""
    cluster = MemoryCluster(topics={"t": 1})
    many = cluster.send(create(100), 5)
    after = cluster.send(create(1, "n9"), 5)  # n90, which the first one makes
    assert not many.done
    assert not after.done
    seen = cluster.call(MetadataRequest(topics=None), MetadataResponse, 9).topics
    assert 1 < len(seen) < 100
    turns = 0
    while not many.done:
        cluster.timers.advance(0)
        turns += 1
    assert [one.error_code for one in many.result().topics] == [0] * 100
    assert isinstance(many.result(), CreateTopicsResponse)
    assert [one.error_code for one in after.result().topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    cluster.stop()


class Room:
    """The link of a connection beside others that do not read."""

    def __init__(self, left: int | None) -> None:
        self.left = left

    def answer_room(self) -> int | None:
        return self.left

    def hold(self, size: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - size)


def fetch(partitions: int) -> FetchRequest:
    """All of topic t, at once."""
    asked = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    topics = [FetchRequest.FetchTopic(topic="t", partitions=asked)]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)


def fetched(cluster: MemoryCluster, raw: Any) -> int:
    """Bytes of records in an answer."""
    answer = cluster.decode(FetchRequest, 11, raw)
    assert isinstance(answer, FetchResponse)
    return sum(len(part.records or b"") for part in answer.responses[0].partitions)


@pytest.mark.parametrize(("left", "batches"), [(None, 5), (1 << 20, 5), (0, 1)])
def test_a_fetch_takes_what_room_is_left_for_answers(left: int | None, batches: int) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    batch = plain(b"v" * 30)
    for _ in range(5):
        cluster.call(produce("t", batch), ProduceResponse, 9)
    info = ConnectionInfo(channel=Room(left))  # type: ignore[arg-type]
    raw = cluster.dispatcher.dispatch(cluster.frame(fetch(1), 11), info)
    assert fetched(cluster, raw) == batches * len(batch)
    cluster.stop()


def test_fetches_that_are_read_in_turns_share_the_room_for_answers() -> None:
    """What one of them has read and not sent yet is room that the other does not have."""
    cluster = MemoryCluster(topics={"t": 100})
    batch = plain(b"v" * 30)
    for index in range(100):
        cluster.broker.partition("t", index).append(batch, origin=Origin.CLIENT, api_version=9)
    info = ConnectionInfo(channel=Room(80 * len(batch)))  # type: ignore[arg-type]
    pending: list[Any] = [cluster.dispatcher.dispatch(cluster.frame(fetch(100), 11), info) for _ in range(2)]
    while not all(one.done for one in pending):
        cluster.timers.advance(0)
    found = [fetched(cluster, one.result()) for one in pending]
    assert 80 * len(batch) <= sum(found) <= 81 * len(batch)
    cluster.stop()


def ask(connection: Connection, request: Request, version: int, seconds: float = 300) -> None:
    """Send, and wait for an answer, whatever it says."""
    header = RequestHeader(
        request_api_key=type(request).__api_key__, request_api_version=version, correlation_id=1, client_id="test"
    )
    connection.send_frame(header.encode(2) + bytes(request.encode(version)))
    assert connection.receive(seconds)[:4] == b"\0\0\0\1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [lambda: equal_deltas(1_000_000), lambda: many_headers(2_000_000), lambda: batch_of(bytes(100 << 20), 1)],
    ids=["equal deltas", "many headers", "a hundred megabytes"],
)
def test_others_are_served_while_a_batch_is_checked(make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of each waits for the answer to another client, which a check in the loop's thread would never get."""
    checks = 0
    with Minibroker(ephemeral=True, topics={"t": 1}) as broker:
        address = parse_address(broker.bootstrap_servers)
        with Connection(address, 60) as other, Connection(address, 300) as connection:

            def check(*args: Any, **named: Any) -> Any:
                nonlocal checks
                ask(other, MetadataRequest(topics=[]), 9, seconds=60)
                checks += 1
                return check_client_batch(*args, **named)

            monkeypatch.setattr(partition, "check_client_batch", check)
            ask(connection, produce("t", make()), 9)
    assert checks == 1


@pytest.mark.parametrize("semantics", [KAFKA, KIP], ids=["kafka", "kip"])
def test_a_verification_holds_until_a_batch_that_is_checked_elsewhere_is_written(semantics: Semantics) -> None:
    """The texts end a verification with its request; the request is over when its records are written."""
    computing = HeldExecutor()
    cluster = MemoryCluster(semantics=semantics, topics={"t": 1}, executor=DiskInline(computing))
    cluster.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    begin = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    producer = cluster.call(begin, InitProducerIdResponse, 5)
    records = [Record(0, NOW, None, bytes(100_000)) for _ in range(20)]
    batch = build_batch(
        records,
        compression=GZIP,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    request = produce("t", bytes(batch))
    request.transactional_id, request.acks = "x", -1
    sent = cluster.send(request, 12)
    assert not sent.done
    computing.run()
    cluster.timers.advance(0)
    answer = sent.result().responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0), answer.error_message
    cluster.stop()
