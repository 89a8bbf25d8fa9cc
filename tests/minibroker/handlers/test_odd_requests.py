"""Requests that hardly a client sends: the answers were measured on a live Apache Kafka 4.4.0."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import Record, build_batch, parse_header, write_crc

TIMED_OUT, NO_TOPIC, UNKNOWN = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
NOW = 1_700_000_000_000


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster(topics={"t": 2}, config={"auto.create.topics.enable": "false"})
    yield made
    made.stop()


def ask(cluster: MemoryCluster, request: Request, version: int) -> Any:
    cluster.broker.refusals.clear()  # the reason of an error is its own, not that of one before
    answer = cluster.send(request, version)
    cluster.timers.advance(1)
    return answer.result()


# -- a deadline of now -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [0, -1, -(1 << 31)])
def test_a_change_whose_deadline_is_over_is_not_begun(cluster: MemoryCluster, timeout_ms: int) -> None:
    creatable = m.CreateTopicsRequest.CreatableTopic
    new = [creatable(name=name, num_partitions=1, replication_factor=1) for name in ("u", "a b", "v", "v")]
    created = ask(cluster, m.CreateTopicsRequest(topics=new, timeout_ms=timeout_ms), 7)
    assert [(one.name, one.error_code, one.topic_id) for one in created.topics] == [
        (name, TIMED_OUT, NO_ID) for name in ("u", "a b", "v", "v")
    ]
    deleted = ask(cluster, m.DeleteTopicsRequest(topic_names=["t", "no"], timeout_ms=timeout_ms), 5)
    assert [(one.name, one.error_code) for one in deleted.responses] == [("t", TIMED_OUT), ("no", TIMED_OUT)]
    growing = m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=5, assignments=None)
    grown = ask(cluster, m.CreatePartitionsRequest(topics=[growing], timeout_ms=timeout_ms, validate_only=False), 3)
    assert [one.error_code for one in grown.results] == [TIMED_OUT]
    move = m.AlterPartitionReassignmentsRequest
    moved = move.ReassignableTopic(name="t", partitions=[move.ReassignablePartition(partition_index=0, replicas=[1])])
    answer = ask(cluster, move(timeout_ms=timeout_ms, topics=[moved]), 0)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (TIMED_OUT, TIMED_OUT)
    assert [(name, len(topic.partitions)) for name, topic in cluster.broker.image.topics.items()] == [("t", 2)]


@pytest.mark.parametrize(("version", "code"), [(0, 0), (2, TIMED_OUT)])
def test_an_election_whose_deadline_is_over(cluster: MemoryCluster, version: int, code: int) -> None:
    kind = m.ElectLeadersRequest
    named = [kind.TopicPartitions(topic="t", partitions=[0, 5])]
    answer = ask(cluster, kind(election_type=0, topic_partitions=named, timeout_ms=0), version)
    told = [(one.topic, p.partition_id, p.error_code) for one in answer.replica_election_results
            for p in one.partition_result]  # fmt: skip
    assert (answer.error_code, told) == (code, [("t", 0, TIMED_OUT), ("t", 5, TIMED_OUT)])


def test_what_is_wrong_with_a_request_itself_is_said_at_any_deadline(cluster: MemoryCluster) -> None:
    creatable = m.CreateTopicsRequest.CreatableTopic
    twice = [creatable(name="v", num_partitions=1, replication_factor=1)] * 2
    created = ask(cluster, m.CreateTopicsRequest(topics=twice, timeout_ms=0), 7)
    assert [(one.name, one.error_code) for one in created.topics] == [("v", ErrorCode.INVALID_REQUEST)]
    state = m.DeleteTopicsRequest.DeleteTopicState
    both = [state(name="t", topic_id=b"i" * 16), state(name=None)]
    deleted = ask(cluster, m.DeleteTopicsRequest(topics=both, timeout_ms=0), 6)
    assert [one.error_code for one in deleted.responses] == [ErrorCode.INVALID_REQUEST] * 2
    also = m.DeleteTopicsRequest(topics=[*both, state(name="t")], timeout_ms=0)
    assert [one.error_code for one in ask(cluster, also, 6).responses] == [TIMED_OUT] * 3
    elect = m.ElectLeadersRequest
    for named, code in (([], 0), (None, TIMED_OUT)):
        assert ask(cluster, elect(election_type=0, topic_partitions=named, timeout_ms=0), 2).error_code == code
    move = m.AlterPartitionReassignmentsRequest
    assert ask(cluster, move(timeout_ms=0, topics=[]), 0).error_code == 0


def test_requests_without_such_a_deadline(cluster: MemoryCluster) -> None:
    answer = ask(cluster, m.ListPartitionReassignmentsRequest(timeout_ms=0, topics=None), 0)
    assert answer.error_code == 0
    kind = m.DeleteRecordsRequest
    topic = kind.DeleteRecordsTopic(name="t", partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=0)])
    (deleted,) = ask(cluster, kind(topics=[topic], timeout_ms=0), 2).topics[0].partitions
    assert (deleted.error_code, deleted.low_watermark) == (0, 0)


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_fetch_session_remembers_the_name_of_a_deleted_topic(cluster: MemoryCluster) -> None:
    kind = m.FetchRequest
    first_id = cluster.broker.image.topics["t"].topic_id

    def fetch(session_id: int, epoch: int, *, named: bool) -> tuple[int, list[tuple[int, Any]]]:
        partition = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [kind.FetchTopic(topic_id=first_id, partitions=[partition])] if named else []
        request = kind(max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=epoch, topics=topics)
        answer = ask(cluster, request, 13)
        told = [(p.error_code, p.aborted_transactions) for one in answer.responses for p in one.partitions]
        return answer.session_id, told

    session, told = fetch(0, 0, named=True)
    assert told == [(0, None)]
    ask(cluster, m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    assert fetch(session, 1, named=False) == (session, [(NO_TOPIC, [])])
    assert fetch(session, 2, named=True) == (session, [(NO_TOPIC, [])])
    assert fetch(0, -1, named=True) == (0, [(ErrorCode.UNKNOWN_TOPIC_ID, [])])
    new = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    ask(cluster, m.CreateTopicsRequest(topics=[new], timeout_ms=1000), 7)
    assert fetch(session, 3, named=False) == (session, [(ErrorCode.INCONSISTENT_TOPIC_ID, None)])
    assert fetch(session, 4, named=True) == (session, [(ErrorCode.INCONSISTENT_TOPIC_ID, None)])
    assert fetch(0, -1, named=True) == (0, [(ErrorCode.UNKNOWN_TOPIC_ID, [])])


def test_a_validated_topic_is_answered_with_an_id(cluster: MemoryCluster) -> None:
    new = m.CreateTopicsRequest.CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    request = m.CreateTopicsRequest(topics=[new], timeout_ms=1000, validate_only=True)
    ids = {ask(cluster, request, 7).topics[0].topic_id for _ in range(2)}
    assert len(ids) == 2
    assert NO_ID not in ids
    assert "u" not in cluster.broker.image.topics


def test_an_election_names_every_topic_of_the_request(cluster: MemoryCluster) -> None:
    kind = m.ElectLeadersRequest
    named = [
        kind.TopicPartitions(topic=topic, partitions=list(partitions))
        for topic, partitions in (("t", ()), ("no", ()), ("t", (0, 0)))
    ]
    answer = ask(cluster, kind(election_type=0, topic_partitions=named, timeout_ms=1000), 2)
    not_needed = ErrorCode.ELECTION_NOT_NEEDED
    assert [(one.topic, [p.error_code for p in one.partition_result]) for one in answer.replica_election_results] == [
        ("t", []), ("no", []), ("t", [not_needed, not_needed]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "code", "own"),
    [(10, ErrorCode.INVALID_REQUEST, 0), (11, ErrorCode.INVALID_REQUEST, 0), (12, UNKNOWN, 0), (13, UNKNOWN, UNKNOWN)],
)
def test_metadata_of_a_topic_without_a_name_and_an_id(
    cluster: MemoryCluster, version: int, code: int, own: int
) -> None:
    kind = m.MetadataRequest.MetadataRequestTopic
    answer = ask(cluster, m.MetadataRequest(topics=[kind(name=None, topic_id=NO_ID)]), version)
    assert [(one.error_code, one.name, one.topic_id) for one in answer.topics] == [(code, "", NO_ID)]
    assert (answer.brokers, answer.controller_id, answer.error_code) == ([], -1, own)


def test_a_broker_shows_where_it_listens(cluster: MemoryCluster) -> None:
    kind = m.DescribeConfigsRequest
    names = ["advertised.listeners", "listeners", "node.id", "broker.id", "log.dirs"]
    resource = kind.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=names)
    (result,) = ask(cluster, kind(resources=[resource], include_synonyms=True), 4).results
    static = 4
    assert {one.name: (one.value, one.config_source, [s.source for s in one.synonyms]) for one in result.configs} == {
        "advertised.listeners": ("PLAINTEXT://127.0.0.1:9092", static, [static]),
        "listeners": ("PLAINTEXT://127.0.0.1:9092", static, [static]),
        "node.id": ("1", static, [static]),
        "broker.id": ("1", static, [static]),
        "log.dirs": ("/memory", static, [static]),
    }


def test_lists_among_the_settings_of_a_broker(cluster: MemoryCluster) -> None:
    kind = m.IncrementalAlterConfigsRequest

    def alter(name: str, operation: int, value: str) -> tuple[int, str | None]:
        config = kind.AlterableConfig(name=name, config_operation=operation, value=value)
        resource = kind.AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
        (answer,) = ask(cluster, kind(resources=[resource], validate_only=False), 1).responses
        return answer.error_code, answer.error_message

    append, subtract = 2, 3
    assert alter("log.cleanup.policy", append, "compact") == (0, None)
    assert cluster.broker.settings.get_list("log.cleanup.policy") == ("delete", "compact")
    assert alter("log.cleanup.policy", subtract, "delete") == (0, None)
    assert cluster.broker.settings.get_list("log.cleanup.policy") == ("compact",)
    assert alter("metric.reporters", append, "x") == (0, None)  # a setting without effect
    code, text = alter("num.io.threads", append, "8")
    assert (code, text) == (
        ErrorCode.INVALID_CONFIG, "Can't APPEND to key num.io.threads because its type is not LIST.",
    )  # fmt: skip


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ([("t", (0,)), ("t", (1, 0))], [("t", [(0, 0)]), ("t", [(1, 0), (0, 0)])]),
        ([("t", (0,)), ("t", (7,))], [("t", [(7, 3), (0, 0)])]),
        ([("t", (0,)), ("no", (0,)), ("t", (1,))], [("no", [(0, 3)]), ("t", [(0, 0), (1, 0)])]),
    ],
    ids=["there", "a missing partition", "a missing topic"],
)
@pytest.mark.parametrize("transactional", [False, True])
def test_a_commit_that_names_a_topic_twice(
    cluster: MemoryCluster,
    topics: list[tuple[str, tuple[int, ...]]],
    told: list[tuple[str, list[tuple[int, int]]]],
    transactional: bool,
) -> None:
    """Merged only where something is missing."""
    for key_type in (0, 1):
        ask(cluster, m.FindCoordinatorRequest(key="g", key_type=key_type), 3)
    if transactional:
        init = m.InitProducerIdRequest(transactional_id="g", transaction_timeout_ms=60_000)
        producer = ask(cluster, init, 4)
        owned = {"transactional_id": "g", "producer_id": producer.producer_id, "producer_epoch": 0}
        ask(cluster, m.AddOffsetsToTxnRequest(group_id="g", **owned), 3)
        kind: Any = m.TxnOffsetCommitRequest
        part, one = kind.TxnOffsetCommitRequestPartition, kind.TxnOffsetCommitRequestTopic
    else:
        owned = {"generation_id_or_member_epoch": -1, "member_id": ""}
        kind = m.OffsetCommitRequest
        part, one = kind.OffsetCommitRequestPartition, kind.OffsetCommitRequestTopic
    named = [
        one(
            name=name,
            partitions=[part(partition_index=index, committed_offset=1, committed_metadata="") for index in indexes],
        )
        for name, indexes in topics
    ]
    answer = ask(cluster, kind(group_id="g", topics=named, **owned), 3)
    assert [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics] == told


@pytest.mark.parametrize(("replica_id", "end"), [(-1, 1), (-2, 3), (-3, 3), (0, 3)])
def test_only_a_client_is_isolated(cluster: MemoryCluster, replica_id: int, end: int) -> None:
    produce(cluster, batch(1))
    ask(cluster, m.FindCoordinatorRequest(key="x", key_type=1), 3)
    producer = ask(cluster, m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    produce(cluster, batch(2, producer_id=producer.producer_id), version=12, transactional_id="x")
    kind = m.ListOffsetsRequest
    latest = kind.ListOffsetsTopic(name="t", partitions=[kind.ListOffsetsPartition(partition_index=0, timestamp=-1)])
    answer = ask(cluster, kind(replica_id=replica_id, isolation_level=1, topics=[latest]), 8)
    assert answer.topics[0].partitions[0].offset == end


def test_the_sequences_of_internal_batches(cluster: MemoryCluster) -> None:
    """As in the segments of Kafka 4.4.0: -1 in the coordinator's of transactions, 0 in that of groups."""
    for key_type in (0, 1):
        ask(cluster, m.FindCoordinatorRequest(key="g", key_type=key_type), 3)
    ask(cluster, m.InitProducerIdRequest(transactional_id="g", transaction_timeout_ms=60_000), 4)
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = kind.OffsetCommitRequestTopic(name="t", partitions=[partition])
    ask(cluster, kind(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]), 8)
    for name, sequence in (("__transaction_state", -1), ("__consumer_offsets", 0)):
        logs = [cluster.broker.partition(name, p.index).log for p in cluster.broker.image.topics[name].partitions]
        batches = [log.read(0, 1 << 20, bound=log.log_end_offset).records for log in logs if log.log_end_offset]
        assert [parse_header(bytes(batch)).base_sequence for batch in batches] == [sequence]


# -- markers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("producer_id", "epoch", "partitions", "codes"),
    [
        (-1, 0, (0,), [UNKNOWN]),
        (5, -1, (0, 9), [UNKNOWN, UNKNOWN]),
        (-1, 0, (9,), [NO_TOPIC]),
        (5, -1, (9,), [NO_TOPIC]),
        (5, -2, (0, 9), [ErrorCode.INVALID_PRODUCER_EPOCH, NO_TOPIC]),
        (5, -(1 << 15), (0,), [ErrorCode.INVALID_PRODUCER_EPOCH]),
        (-2, 0, (0,), [0]),
    ],
)
def test_markers_below_zero(
    cluster: MemoryCluster, producer_id: int, epoch: int, partitions: tuple[int, ...], codes: list[int]
) -> None:
    """-1 is none, with which no batch can be built; anything else is a number."""
    assert mark(cluster, producer_id, epoch, partitions) == codes


def test_a_marker_of_none_in_the_group_coordinators_topic_fails_alone(cluster: MemoryCluster) -> None:
    ask(cluster, m.FindCoordinatorRequest(key="g", key_type=0), 3)
    kind = m.WriteTxnMarkersRequest
    topics = [kind.WritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in ("no", "__consumer_offsets")]
    marker = kind.WritableTxnMarker(
        producer_id=5, producer_epoch=-1, transaction_result=True, topics=topics, coordinator_epoch=0
    )
    (answer,) = ask(cluster, kind(markers=[marker]), 2).markers
    assert {one.name: one.partitions[0].error_code for one in answer.topics} == {
        "no": NO_TOPIC, "__consumer_offsets": UNKNOWN,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("coordinator_epoch", "transaction_version", "code"),
    [(0, 0, 0), (-1, 0, 0), (-2, 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
     (-(1 << 31), 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED), (0, -1, UNKNOWN), (0, -2, 0), (0, -128, 0),
     (0, 127, 0)],
)  # fmt: skip
def test_epochs_of_the_coordinator_of_a_marker(
    cluster: MemoryCluster, coordinator_epoch: int, transaction_version: int, code: int
) -> None:
    assert mark(cluster, 5, 0, (0,), coordinator_epoch, transaction_version) == [code]


def mark(
    cluster: MemoryCluster,
    producer_id: int,
    epoch: int,
    partitions: tuple[int, ...],
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> list[int]:
    kind = m.WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name="t", partition_indexes=list(partitions))
    marker = kind.WritableTxnMarker(
        producer_id=producer_id, producer_epoch=epoch, transaction_result=True, topics=[topic],
        coordinator_epoch=coordinator_epoch, transaction_version=transaction_version,
    )  # fmt: skip
    (answer,) = ask(cluster, kind(markers=[marker]), 2).markers
    return [p.error_code for p in answer.topics[0].partitions]


# -- Produce -----------------------------------------------------------------------------------------------------------


def batch(
    count: int, timestamp: int = NOW, *, key: bytes | None = b"k", producer_id: int = -1, codec: int = 0
) -> bytes:
    producer = (producer_id, 0, 0) if producer_id >= 0 else (-1, -1, -1)
    return build_batch(
        [Record(key=key, value=b"v", timestamp=timestamp)] * count, producer_id=producer[0],
        producer_epoch=producer[1], base_sequence=producer[2], transactional=producer_id >= 0, compression=codec,
    )  # fmt: skip


def produce(
    cluster: MemoryCluster, records: bytes, version: int = 9, topic: str = "t", transactional_id: str | None = None
) -> Any:
    kind = m.ProduceRequest
    data = kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=0, records=records)])
    if version >= 13:
        data.topic_id = cluster.broker.image.topics[topic].topic_id
    request = kind(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[data])
    return ask(cluster, request, version).responses[0].partition_responses[0]


def changed(records: bytes, at: int, value: bytes) -> bytes:
    data = bytearray(records)
    data[at : at + len(value)] = value
    write_crc(data, 0, len(data))
    return bytes(data)


def old_message(magic: int, timestamp: int) -> bytes:
    """A message of format 0 or 1, as before Kafka 0.11."""
    time = struct.pack(">q", timestamp) if magic else b""
    body = bytes([magic, 0]) + time + struct.pack(">ii", -1, 40) + b"v" * 40
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


CODEC, MAGIC = 22, 16


@pytest.mark.parametrize(
    ("records", "version", "code", "log_start"),
    [
        (batch(1, codec=4), 5, 76, -1),
        (batch(1, codec=4), 7, 0, 0),
        (changed(batch(1), CODEC, b"\7"), 5, UNKNOWN, -1),
        (changed(batch(1), CODEC, b"\7"), 9, UNKNOWN, 0),
        (changed(batch(1), MAGIC, b"\1"), 9, 87, -1),
        (changed(batch(1), MAGIC, b"\0"), 5, 87, -1),
        (old_message(0, 0), 9, 87, -1),
        (old_message(1, 0x1010101010101010), 9, 87, -1),
        (old_message(1, 0x1010101010101010), 3, 87, -1),
        (changed(batch(1), 0, b"\0" * 7 + b"\5"), 9, 87, 0),
    ],
    ids=["zstd 5", "zstd 7", "codec 5", "codec 9", "magic 1", "magic 0", "format 0", "format 1", "format 1 v3", "base"],
)
def test_the_log_start_is_told_by_the_log(
    cluster: MemoryCluster, records: bytes, version: int, code: int, log_start: int
) -> None:
    """-1 where Kafka refuses the bytes of the request; the old formats have no bit for transactions."""
    told = produce(cluster, records, version)
    assert (told.error_code, told.log_start_offset if version >= 5 else -1) == (code, log_start)


@pytest.mark.parametrize(
    ("index", "records"),
    [(0, batch(1, producer_id=5)), (99, batch(1, producer_id=5)), (0, b"short")],
    ids=["a batch", "no partition", "no batch"],
)
def test_what_is_refused_beside_batches_of_two_producers(cluster: MemoryCluster, index: int, records: bytes) -> None:
    """ReplicaManager.handleProduceAppend throws, so ProduceRequest.getErrorResponse answers for every partition of the
    request, refused before or not (seen on 4.4.0)."""
    kind = m.ProduceRequest
    first = kind.PartitionProduceData(index=index, records=records)
    others = [
        kind.TopicProduceData(
            name=name, partition_data=[kind.PartitionProduceData(index=0, records=batch(1, producer_id=producer_id))]
        )
        for name, producer_id in (("u", 6), ("v", 7))
    ]
    topics = m.CreateTopicsRequest.CreatableTopic
    new = [topics(name=name, num_partitions=1, replication_factor=1) for name in "uv"]
    ask(cluster, m.CreateTopicsRequest(topics=new, timeout_ms=1000), 7)
    data = [kind.TopicProduceData(name="t", partition_data=[first]), *others]
    answer = ask(cluster, kind(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=data), 9)
    told = [each.partition_responses[0].error_code for each in answer.responses]
    assert told == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3


def test_texts_that_javas_producer_puts_into_its_exception() -> None:
    cluster = MemoryCluster()
    creatable = m.CreateTopicsRequest.CreatableTopic
    config = m.CreateTopicsRequest.CreatableTopicConfig
    new = [
        creatable(name=name, num_partitions=1, replication_factor=1, configs=[config(name=key, value=value)])
        for name, key, value in (("c", "cleanup.policy", "compact"), ("s", "message.timestamp.before.max.ms", "1000"))
    ]
    ask(cluster, m.CreateTopicsRequest(topics=new, timeout_ms=1000), 7)
    no_key = "Compacted topic cannot accept message without key in topic partition c-0"
    for codec in (0, 1):
        told = produce(cluster, batch(4, key=None, codec=codec), topic="c")
        assert told.error_code == ErrorCode.INVALID_RECORD
        assert [(one.batch_index, one.batch_index_error_message) for one in told.record_errors] == [
            (index, no_key) for index in range(4)
        ]
        shown = ", ".join(f"RecordError(batchIndex={index}, message='{no_key}')" for index in range(3))
        assert told.error_message == (
            "One or more records have been rejected due to 4 record errors in total, and only showing the first three "
            f"errors at most: [{shown}]"
        )
    now = cluster.clock.now_ms()
    told = produce(cluster, batch(2, now - 5000), topic="s")
    assert told.error_code == ErrorCode.INVALID_TIMESTAMP
    assert told.error_message == "One or more records have been rejected due to invalid timestamp"
    assert [one.batch_index_error_message for one in told.record_errors] == [
        f"Timestamp {now - 5000} of message with offset {index} is out of range. The timestamp should be within "
        f"[{now - 1000}, {now + 3_600_000}]"
        for index in range(2)
    ]
    ask(cluster, m.FindCoordinatorRequest(key="x", key_type=1), 3)
    producer = ask(cluster, m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    told = produce(cluster, batch(1, producer_id=producer.producer_id), topic="c", transactional_id="x")
    assert (told.error_code, told.error_message) == (48, "Partition was not added to the transaction")
    cluster.stop()


@pytest.mark.parametrize("offsets", [(0, 5), (5, 6), (0, 0)])
@pytest.mark.parametrize(
    ("keys", "refused"), [((None, None), [0, 1]), ((None, b"k"), [0]), ((b"k", None), [1]), ((b"k", b"k"), [])]
)
def test_a_compressed_batch_whose_offsets_cannot_be_renumbered(
    keys: tuple[bytes | None, ...], refused: list[int], offsets: tuple[int, ...]
) -> None:
    """Records that are refused by themselves come first, wherever they are."""
    cluster = MemoryCluster()
    config = m.CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
    new = m.CreateTopicsRequest.CreatableTopic(name="c", num_partitions=1, replication_factor=1, configs=[config])
    ask(cluster, m.CreateTopicsRequest(topics=[new], timeout_ms=1000), 7)
    records = [
        Record(key=key, value=b"v", timestamp=NOW, offset=offset) for key, offset in zip(keys, offsets, strict=True)
    ]
    told = produce(cluster, compressed(records), topic="c")
    assert told.error_code == (ErrorCode.INVALID_RECORD if refused else UNKNOWN)
    assert [one.batch_index for one in told.record_errors] == refused
    cluster.stop()


def compressed(records: list[Record]) -> bytes:
    """A gzip batch whose records have the offsets that they say."""
    from minibroker_protocol.records.build import encode_records
    from minibroker_protocol.records.compression import compress

    plain = build_batch(records, compression=1)
    data = bytearray(plain[:61]) + compress(1, encode_records(records, base_timestamp=NOW, base_offset=0))
    struct.pack_into(">i", data, 8, len(data) - 12)
    write_crc(data, 0, len(data))
    return bytes(data)


@pytest.mark.parametrize(
    ("timestamp", "codec", "code"), [(-1, 0, 0), (-2, 0, UNKNOWN), (-5, 0, UNKNOWN), (-5, 1, 0), (0, 0, 0)]
)
def test_a_negative_timestamp_cannot_be_written_anew(timestamp: int, codec: int, code: int) -> None:
    cluster = MemoryCluster()
    config = m.CreateTopicsRequest.CreatableTopicConfig(name="compression.type", value="gzip")
    new = m.CreateTopicsRequest.CreatableTopic(name="z", num_partitions=1, replication_factor=1, configs=[config])
    ask(cluster, m.CreateTopicsRequest(topics=[new], timeout_ms=1000), 7)
    assert produce(cluster, batch(2, timestamp, codec=codec), topic="z").error_code == code
    cluster.stop()


@pytest.mark.parametrize(("timestamp", "told"), [(-5, (-1, -1)), (-2, (-1, -1)), (-1, (-1, 0)), (0, (0, 0))])
@pytest.mark.parametrize("codec", [0, 1])
def test_the_largest_timestamp_below_none(
    cluster: MemoryCluster, timestamp: int, told: tuple[int, int], codec: int
) -> None:
    assert produce(cluster, batch(2, timestamp, codec=codec)).error_code == 0
    part = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetch = m.FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[m.FetchRequest.FetchTopic(topic="t", partitions=[part])]
    )
    records = ask(cluster, fetch, 12).responses[0].partitions[0].records
    assert parse_header(bytes(records)).max_timestamp == max(timestamp, -1)
    kind = m.ListOffsetsRequest
    topic = kind.ListOffsetsTopic(name="t", partitions=[kind.ListOffsetsPartition(partition_index=0, timestamp=-3)])
    (answer,) = ask(cluster, kind(replica_id=-1, topics=[topic]), 8).topics[0].partitions
    assert (answer.timestamp, answer.offset) == told


def test_bytes_after_the_end_of_gzip_are_taken(cluster: MemoryCluster) -> None:
    data = bytearray(batch(2, codec=1)) + b"garbage"
    struct.pack_into(">i", data, 8, len(data) - 12)
    write_crc(data, 0, len(data))
    assert produce(cluster, bytes(data)).error_code == 0
