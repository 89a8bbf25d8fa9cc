"""The requests of transactions on the wire: what is refused where, and how it is spread over partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory_cluster import MemoryCluster

from minibroker.coordinator_runtime.transactional_write import Write
from minibroker.coordinators.hashing import partition_for
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.releases.chain import RELEASES
from minibroker.releases.semantics import KIP
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionStateRequest,
    DescribeTransactionStateResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker_protocol.records import Record, build_batch

ID = "tx"
OK = ErrorCode.NONE

Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    running = MemoryCluster(topics={"t": 2, "u": 1})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC]).result()
    yield running
    running.stop()


def _init(cluster: MemoryCluster, version: int = 4, **fields: object) -> InitProducerIdResponse:
    request = InitProducerIdRequest(**{"transactional_id": ID, "transaction_timeout_ms": 60_000, **fields})  # type: ignore[arg-type]
    return cluster.call(request, InitProducerIdResponse, version)


def _add(
    cluster: MemoryCluster, producer: tuple[int, int], topics: list[Topic], version: int = 3, name: str = ID
) -> dict[tuple[str, int], int]:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=topics,
    )
    response = cluster.call(request, AddPartitionsToTxnResponse, version)
    return _codes(response.results_by_topic_v3_and_below)


def _codes(results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_error_code for t in results for p in t.results_by_partition}


def _producer(cluster: MemoryCluster) -> tuple[int, int]:
    answer = _init(cluster)
    assert answer.error_code == OK
    return answer.producer_id, answer.producer_epoch


# -- InitProducerId ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "version", "code"),
    [
        ({"producer_id": 5}, 3, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, 4, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, 0, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, 5, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, 5, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 4711, "producer_epoch": 0}, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"producer_id": 4711, "producer_epoch": 0}, 4, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_init_producer_id_refuses(cluster: MemoryCluster, fields: dict[str, object], version: int, code: int) -> None:
    _producer(cluster)
    answer = _init(cluster, version, **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize("version", range(6))
def test_without_a_transactional_id_every_request_gets_a_new_producer(cluster: MemoryCluster, version: int) -> None:
    answers = [_init(cluster, version, transactional_id=None, transaction_timeout_ms=0) for _ in range(2)]
    assert [a.producer_epoch for a in answers] == [0, 0]
    assert answers[0].producer_id != answers[1].producer_id


def test_two_phase_commit_is_behind_its_switches() -> None:
    running = MemoryCluster({"unstable.api.versions.enable": "true"}, topics={"t": 1})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    code = _init(running, 6, enable2_pc=True).error_code
    assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert _init(running, 6, keep_prepared_txn=True).error_code == ErrorCode.UNSUPPORTED_VERSION
    running.stop()
    allowed = MemoryCluster(
        {"unstable.api.versions.enable": "true", "transaction.two.phase.commit.enable": "true"}, topics={"t": 1}
    )
    allowed.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    assert _init(allowed, 6, enable2_pc=True, transaction_timeout_ms=-1).error_code == OK
    assert allowed.broker.coordinators.transactions.describe(ID).metadata.timeout_ms == 2**31 - 1
    allowed.stop()


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


def test_one_missing_partition_keeps_the_others_out(cluster: MemoryCluster) -> None:
    producer = _producer(cluster)
    topics = [
        Topic(name="t", partitions=[0, 2]),
        Topic(name="nowhere", partitions=[0]),
        Topic(name="u", partitions=[0]),
    ]
    assert _add(cluster, producer, topics) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    assert cluster.broker.coordinators.transactions.describe(ID).metadata.partitions == frozenset()


@pytest.mark.parametrize("version", range(4))
def test_one_code_for_every_partition(cluster: MemoryCluster, version: int) -> None:
    producer = _producer(cluster)
    topics = [Topic(name="t", partitions=[0, 1]), Topic(name="u", partitions=[0])]
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert set(_add(cluster, (producer[0], 7), topics, version).values()) == {fenced}
    assert set(_add(cluster, producer, topics, version, name="").values()) == {ErrorCode.INVALID_REQUEST}
    assert _add(cluster, producer, topics, version) == {("t", 0): OK, ("t", 1): OK, ("u", 0): OK}


@pytest.mark.parametrize(
    ("release", "added", "ended"),
    [("3.9", OK, OK), ("4.4", ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CONCURRENT_TRANSACTIONS)],
)
def test_what_a_leader_adds_at_transaction_version_0(release: str, added: int, ended: int) -> None:
    """Kafka 3.9 keeps no client version in its states. From 4.0 on (measured on 4.4.0) the state cannot be logged, and
    nothing ends the transaction until a reload."""
    running = MemoryCluster(semantics=RELEASES[release].semantics, topics={"t": 1}, transaction_version=0)
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    producer_id, epoch = _producer(running)
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, topics=[Topic(name="t", partitions=[0])]
    )
    answer = running.call(AddPartitionsToTxnRequest(transactions=[transaction]), AddPartitionsToTxnResponse, 4)
    assert answer.error_code == added
    request = EndTxnRequest(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, committed=True)
    assert running.call(request, EndTxnResponse, 4).error_code == ended
    running.stop()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_each_partition_of_a_transactional_produce_is_verified_by_itself(
    cluster: MemoryCluster, order: tuple[int, ...]
) -> None:
    """A refused one has no log start offset: Kafka does not look at its log."""
    producer = _producer(cluster)
    assert set(
        _add(cluster, producer, [Topic(name="t", partitions=[0]), Topic(name="u", partitions=[0])]).values()
    ) == {OK}
    batch = build_batch(
        [Record(0, cluster.clock.now_ms(), None, b"v")],
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True,
    )  # fmt: skip
    wanted = [("t", 0), ("t", 1), ("u", 0)]
    kind = ProduceRequest
    topics = [
        kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=index, records=bytes(batch))])
        for topic, index in (wanted[number] for number in order)
    ]
    request = kind(transactional_id=ID, acks=-1, timeout_ms=1000, topic_data=topics)
    answer = cluster.send(request, 11)
    cluster.timers.advance(100)
    told = {
        (topic.name, one.index): (one.error_code, one.base_offset, one.log_start_offset)
        for topic in answer.result().responses
        for one in topic.partition_responses
    }
    assert told == {
        ("t", 0): (OK, 0, 0),
        ("t", 1): (ErrorCode.TRANSACTION_ABORTABLE, -1, -1),
        ("u", 0): (OK, 0, 0),
    }


@pytest.mark.parametrize(("version", "added"), [(11, []), (12, [("t", [0])])])
def test_a_produce_that_adds_its_partition_does_so_where_none_is_verified(
    version: int, added: list[tuple[str, list[int]]]
) -> None:
    """From version 12 on no AddPartitionsToTxn comes before it, and without it no marker after."""
    running = MemoryCluster({"transaction.partition.verification.enable": "false"}, topics={"t": 1})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    producer_id, epoch = _producer(running)
    batch = build_batch(
        [Record(0, running.clock.now_ms(), None, b"v")],
        producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True,
    )  # fmt: skip
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    request = ProduceRequest(transactional_id=ID, acks=-1, timeout_ms=1000, topic_data=[topic])
    answer = running.send(request, version)
    running.timers.advance(100)
    assert answer.result().responses[0].partition_responses[0].error_code == OK
    (state,) = _describe(running, ID)
    assert [(each.topic, each.partitions) for each in state.topics] == added
    running.stop()


def test_a_batch_of_an_old_epoch_is_refused_without_a_log_start_offset(cluster: MemoryCluster) -> None:
    producer_id, _ = _producer(cluster)
    _producer(cluster)
    for epoch, code in ((1, OK), (0, ErrorCode.INVALID_PRODUCER_EPOCH)):
        _add(cluster, (producer_id, epoch), [Topic(name="t", partitions=[0])])
        batch = build_batch(
            [Record(0, cluster.clock.now_ms(), None, b"v")],
            producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True,
        )  # fmt: skip
        data = ProduceRequest.TopicProduceData(
            name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))]
        )
        answer = cluster.send(ProduceRequest(transactional_id=ID, acks=-1, timeout_ms=1000, topic_data=[data]), 11)
        cluster.timers.advance(100)
        (one,) = answer.result().responses[0].partition_responses
        assert (one.error_code, one.log_start_offset) == (code, 0 if code == OK else -1)


@pytest.mark.parametrize("version", [4, 5])
def test_several_transactions_in_one_request(cluster: MemoryCluster, version: int) -> None:
    producer_id, epoch = _producer(cluster)
    _add(cluster, (producer_id, epoch), [Topic(name="t", partitions=[0])])
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    topics = [Topic(name="t", partitions=[0, 1])]
    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction(
                transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, verify_only=True, topics=topics
            ),
            transaction(transactional_id="nobody", producer_id=1, producer_epoch=0, verify_only=False, topics=topics),
        ]
    )
    response = cluster.call(request, AddPartitionsToTxnResponse, version)
    assert response.error_code == OK
    by_id = {r.transactional_id: _codes(r.topic_results) for r in response.results_by_transaction}
    assert by_id == {
        ID: {("t", 0): OK, ("t", 1): ErrorCode.TRANSACTION_ABORTABLE},
        "nobody": dict.fromkeys([("t", 0), ("t", 1)], ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    }


def test_add_offsets_adds_the_partition_of_the_group(cluster: MemoryCluster) -> None:
    producer_id, epoch = _producer(cluster)
    for group in ("g", ""):
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        assert cluster.call(request, AddOffsetsToTxnResponse, 4).error_code == OK
    wanted = {(CONSUMER_OFFSETS_TOPIC, partition_for(group, 50)) for group in ("g", "")}
    assert cluster.broker.coordinators.transactions.describe(ID).metadata.partitions == wanted


def test_end_txn_answers_the_next_epoch_from_version_5_on(cluster: MemoryCluster) -> None:
    producer_id, epoch = _producer(cluster)
    for version, following in ((4, (-1, -1)), (5, (producer_id, epoch + 1))):
        _add(cluster, (producer_id, epoch), [Topic(name="t", partitions=[0])])
        request = EndTxnRequest(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, committed=True)
        answer = cluster.call(request, EndTxnResponse, version)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (OK, *following)
        assert cluster.broker.coordinators.transactions.describe(ID).epoch == max(epoch, following[1])


def test_the_timed_out_code_is_for_clients_only() -> None:
    """A leader asks with the same request; it gets PRODUCER_FENCED and tells its client INVALID_PRODUCER_EPOCH."""
    running = MemoryCluster(semantics=KIP, topics={"t": 1})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    producer_id = _init(running, transaction_timeout_ms=1000).producer_id
    topics = [Topic(name="t", partitions=[0])]
    _add(running, (producer_id, 0), topics)
    running.clock.advance(20_000)
    assert _add(running, (producer_id, 0), topics, 3) == {("t", 0): ErrorCode.UNKNOWN_PRODUCER_ID}
    told = running.broker.coordinators.verifier.verify(Write(ID, producer_id, 0, [("t", 0)]), 11).result()
    assert told == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    running.stop()


# -- WriteTxnMarkers ---------------------------------------------------------------------------------------------------

Marker = WriteTxnMarkersRequest.WritableTxnMarker


def _marker(producer_id: int, topic: str, *indexes: int, **fields: int) -> Marker:
    return Marker(
        producer_id=producer_id,
        producer_epoch=fields.get("epoch", 0),
        transaction_result=False,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=list(indexes))],
        coordinator_epoch=fields.get("coordinator_epoch", 0),
        transaction_version=fields.get("version", 0),
    )


def _write(cluster: MemoryCluster, *markers: Marker, version: int = 2) -> dict[int, dict[tuple[str, int], int]]:
    response = cluster.call(WriteTxnMarkersRequest(markers=list(markers)), WriteTxnMarkersResponse, version)
    return {
        m.producer_id: {(t.name, p.partition_index): p.error_code for t in m.topics for p in t.partitions}
        for m in response.markers
    }


def test_markers_by_hand(cluster: MemoryCluster) -> None:
    assert _write(cluster, _marker(77, "t", 0, 5), version=1) == {
        77: {("t", 0): OK, ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    }
    assert cluster.broker.partition("t", 0).log.log_end_offset == 1, "even of a producer nobody knows"


def test_two_markers_of_one_producer_are_answered_as_one(cluster: MemoryCluster) -> None:
    answer = _write(cluster, _marker(7, "t", 0), _marker(7, "u", 0), _marker(8, "t", 1))
    assert answer == {7: {("t", 0): OK, ("u", 0): OK}, 8: {("t", 1): OK}}


@pytest.mark.parametrize("field", ["epoch", "version"])
def test_a_marker_without_epoch_or_version(cluster: MemoryCluster, field: str) -> None:
    assert _write(cluster, _marker(7, "t", 0, **{field: -1})) == {7: {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}}
    assert cluster.broker.partition("t", 0).log.log_end_offset == 0


def test_an_older_coordinator_is_refused(cluster: MemoryCluster) -> None:
    _write(cluster, _marker(7, "t", 0, coordinator_epoch=3))
    refused = {7: {("t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}}
    assert _write(cluster, _marker(7, "t", 0, coordinator_epoch=2)) == refused
    assert _write(cluster, _marker(7, "t", 0, coordinator_epoch=3, epoch=1, version=2)) == {7: {("t", 0): OK}}
    assert _write(cluster, _marker(7, "t", 0, coordinator_epoch=3, epoch=0, version=2)) == {
        7: {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    }


def test_a_group_coordinator_that_is_not_ready_takes_no_marker(cluster: MemoryCluster) -> None:
    cluster.broker.coordinators.groups.resigned(4)
    refused = {7: {(CONSUMER_OFFSETS_TOPIC, 4): ErrorCode.NOT_LEADER_OR_FOLLOWER}}
    assert _write(cluster, _marker(7, CONSUMER_OFFSETS_TOPIC, 4)) == refused
    assert cluster.broker.partition(CONSUMER_OFFSETS_TOPIC, 4).log.log_end_offset == 0


# -- describe and list -------------------------------------------------------------------------------------------------


def _describe(cluster: MemoryCluster, *names: str) -> list[DescribeTransactionsResponse.TransactionState]:
    request = DescribeTransactionsRequest(transactional_ids=list(names))
    return cluster.call(request, DescribeTransactionsResponse, 0).transaction_states


def test_describe_transactions(cluster: MemoryCluster) -> None:
    producer_id, epoch = _producer(cluster)
    (empty,) = _describe(cluster, ID)
    assert (empty.transaction_state, empty.transaction_start_time_ms, empty.topics) == ("Empty", -1, [])
    _add(cluster, (producer_id, epoch), [Topic(name="u", partitions=[0]), Topic(name="t", partitions=[1, 0])])
    cluster.broker.coordinators.transactions.effects.hold()
    running, unknown, nameless = _describe(cluster, ID, "nobody", "")
    topic_data = DescribeTransactionsResponse.TopicData
    assert running == DescribeTransactionsResponse.TransactionState(
        transactional_id=ID,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=cluster.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=0,
        topics=[topic_data(topic="t", partitions=[0, 1]), topic_data(topic="u", partitions=[0])],
    )
    assert (unknown.error_code, unknown.transactional_id) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "nobody")
    assert nameless.error_code == ErrorCode.INVALID_REQUEST
    # Of a fence that could not be logged: it stays in memory (KAFKA-9666).
    cluster.broker.coordinators.transactions.describe(ID).volatile.fence_epoch = 4
    assert _describe(cluster, ID)[0].producer_epoch == 4


def test_while_it_ends_only_partitions_without_their_marker_are_named(cluster: MemoryCluster) -> None:
    producer_id, epoch = _producer(cluster)
    _add(cluster, (producer_id, epoch), [Topic(name="t", partitions=[0, 1])])
    cluster.broker.partition("t", 1).leader_id = 99
    request = EndTxnRequest(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, committed=True)
    assert cluster.call(request, EndTxnResponse, 5).error_code == OK
    (ending,) = _describe(cluster, ID)
    assert ending.transaction_state == "PrepareCommit"
    assert [(t.topic, t.partitions) for t in ending.topics] == [("t", [1])]
    cluster.broker.partition("t", 0)
    cluster.timers.advance(100)


def _list(cluster: MemoryCluster, version: int = 2, **fields: object) -> ListTransactionsResponse:
    request = ListTransactionsRequest(**{"state_filters": [], "producer_id_filters": [], **fields})  # type: ignore[arg-type]
    return cluster.call(request, ListTransactionsResponse, version)


def _names(response: ListTransactionsResponse) -> set[str]:
    assert response.error_code == OK
    return {state.transactional_id for state in response.transaction_states}


@pytest.fixture
def populated(cluster: MemoryCluster) -> MemoryCluster:
    for name in ("order-1", "order-2", "billing"):
        answer = _init(cluster, transactional_id=name)
        if name != "billing":
            _add(cluster, (answer.producer_id, 0), [Topic(name="t", partitions=[0])], name=name)
        cluster.timers.advance(1000)
    return cluster


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, {"order-1", "order-2", "billing"}),
        ({"state_filters": ["Ongoing"]}, {"order-1", "order-2"}),
        ({"state_filters": ["Ongoing", "Empty"]}, {"order-1", "order-2", "billing"}),
        ({"state_filters": ["CompleteCommit"]}, set()),
        ({"state_filters": ["Bogus"]}, set()),
        ({"producer_id_filters": [0, 2]}, {"order-1", "billing"}),
        ({"producer_id_filters": [4711]}, set()),
        ({"duration_filter": 2500}, {"order-1", "billing"}),
        ({"duration_filter": 0}, {"order-1", "order-2", "billing"}),
        ({"duration_filter": 3000}, {"billing"}),
        ({"transactional_id_pattern": "order-.*"}, {"order-1", "order-2"}),
        ({"transactional_id_pattern": "order"}, set()),
        ({"transactional_id_pattern": "(?i)ORDER-[^1]"}, {"order-2"}),
        ({"transactional_id_pattern": ""}, {"order-1", "order-2", "billing"}),
        ({"transactional_id_pattern": "order-.*", "producer_id_filters": [0]}, {"order-1"}),
    ],
)
def test_list_transactions(populated: MemoryCluster, fields: dict[str, object], names: set[str]) -> None:
    assert _names(_list(populated, 2, **fields)) == names


def test_unknown_state_names_are_given_back(populated: MemoryCluster) -> None:
    answer = _list(populated, state_filters=["Bogus", "Ongoing", "ongoing"])
    assert answer.unknown_state_filters == ["Bogus", "ongoing"]
    assert _names(answer) == {"order-1", "order-2"}


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?=a)b", "(?!a)b", "(?<=a)b", r"(a)\1", "a++", "(?P<n>a)(?P=n)"])
def test_what_is_no_re2_pattern_is_refused(populated: MemoryCluster, pattern: str) -> None:
    answer = _list(populated, transactional_id_pattern=pattern)
    assert (answer.error_code, answer.transaction_states) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])


@pytest.mark.parametrize("pattern", [r"[*+]order", r"\++", r"a\\1", r"\Qa\E|order.*"])
def test_what_only_looks_like_one_is_not(populated: MemoryCluster, pattern: str) -> None:
    assert _list(populated, transactional_id_pattern=pattern).error_code == OK


# -- DescribeTransactionState ------------------------------------------------------------------------------------------


def test_describe_transaction_state(cluster: MemoryCluster) -> None:
    producer_id, epoch = _producer(cluster)
    _add(cluster, (producer_id, epoch), [Topic(name="t", partitions=[0, 1])])
    request = DescribeTransactionStateRequest(transactional_ids=[ID, "nobody", ""])
    known, unknown, nameless = cluster.call(request, DescribeTransactionStateResponse, 0).transaction_states
    assert (known.error, known.producer_id, known.epoch, known.state) == (
        OK,
        producer_id,
        0,
        "Ongoing",
    )
    assert [(t.topic_name, t.partition_ids) for t in known.partitions] == [("t", [0, 1])]
    for refused in (unknown, nameless):
        assert (refused.error, refused.producer_id, refused.epoch) == (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            -1,
            -1,
        )
    cluster.broker.coordinators.transactions.resigned(partition_for(ID, 50))
    request = DescribeTransactionStateRequest(transactional_ids=[ID])
    (moved,) = cluster.call(request, DescribeTransactionStateResponse, 0).transaction_states
    assert moved.error == ErrorCode.NOT_COORDINATOR
