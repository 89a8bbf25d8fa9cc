"""`minibroker.not.yet.answers`: clients are told to wait as often as an Apache Kafka 4.4.0 tells them, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from memory_cluster import MemoryCluster

from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

ID = "tx"
OK, WAIT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
NO_COORDINATOR, LOADING = ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
GROUP, TRANSACTION = 0, 1
BOTH = pytest.mark.parametrize("told", [False, True])


@contextmanager
def broker(told: bool) -> Iterator[MemoryCluster]:
    cluster = MemoryCluster({"minibroker.not.yet.answers": str(told).lower()} if told else None, topics={"t": 2})
    yield cluster
    cluster.stop()


def find(cluster: MemoryCluster, kind: int, key: str = ID) -> int:
    request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    return cluster.call(request, m.FindCoordinatorResponse, 4).coordinators[0].error_code


def metadata(cluster: MemoryCluster, name: str) -> int:
    request = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=name)])
    return cluster.call(request, m.MetadataResponse, 12).topics[0].error_code


def ask_for_id(cluster: MemoryCluster, name: str | None = ID, timeout_ms: int = 60_000) -> m.InitProducerIdResponse:
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    return cluster.call(request, m.InitProducerIdResponse, 4)


def init(cluster: MemoryCluster) -> tuple[int, int]:
    """As a client asks: until it has its producer."""
    while find(cluster, TRANSACTION):
        pass
    while (answer := ask_for_id(cluster)).error_code in (ErrorCode.NOT_COORDINATOR, LOADING):
        pass
    assert answer.error_code == OK
    return answer.producer_id, answer.producer_epoch


def add(cluster: MemoryCluster, producer: tuple[int, int]) -> int:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[topic],
    )
    answer = cluster.call(request, m.AddPartitionsToTxnResponse, 3)
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def end(cluster: MemoryCluster, producer: tuple[int, int]) -> int:
    request = m.EndTxnRequest(transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=True)
    return cluster.call(request, m.EndTxnResponse, 3).error_code


@BOTH
def test_the_first_coordinator_of_each_kind(told: bool) -> None:
    with broker(told) as cluster:
        assert [find(cluster, GROUP) for _ in range(3)] == [NO_COORDINATOR] * told + [OK] * (3 - told)
        assert find(cluster, GROUP, "another") == OK
        assert [find(cluster, TRANSACTION) for _ in range(3)] == [NO_COORDINATOR] * 2 * told + [OK] * (3 - 2 * told)


@BOTH
def test_the_first_producer_of_a_transactional_id(told: bool) -> None:
    first = [ErrorCode.NOT_COORDINATOR, LOADING] if told else [OK, OK]
    with broker(told) as cluster:
        while find(cluster, TRANSACTION):
            pass
        assert ask_for_id(cluster, timeout_ms=0).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert ask_for_id(cluster, name=None).error_code == OK
        assert [ask_for_id(cluster).error_code for _ in range(3)] == [*first, OK]
        assert ask_for_id(cluster, "another").error_code == OK


@BOTH
def test_a_topic_that_a_request_creates(told: bool) -> None:
    first = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE] if told else [OK, OK]
    with broker(told) as cluster:
        assert [metadata(cluster, "new") for _ in range(3)] == [*first, OK]
        assert metadata(cluster, "t") == OK  # was there before


@BOTH
def test_what_begins_a_transaction_after_the_end_of_one(told: bool) -> None:
    with broker(told) as cluster:
        producer = init(cluster)
        assert add(cluster, producer) == OK  # the first transaction follows no other
        for _ in range(2):
            assert end(cluster, producer) == OK
            assert [add(cluster, producer) for _ in range(2)] == [WAIT if told else OK, OK]


def test_who_has_seen_the_end_is_not_told_to_wait() -> None:
    with broker(told=True) as cluster:
        producer = init(cluster)
        assert (add(cluster, producer), end(cluster, producer)) == (OK, OK)
        request = m.DescribeTransactionsRequest(transactional_ids=[ID])
        described = cluster.call(request, m.DescribeTransactionsResponse, 0).transaction_states[0]
        assert described.transaction_state == "CompleteCommit"
        assert (add(cluster, producer), end(cluster, producer)) == (OK, OK)
        producer = init(cluster)  # a new instance, which in Kafka waits for the markers
        assert add(cluster, producer) == OK


@BOTH
def test_another_producer_is_refused_at_once(told: bool) -> None:
    """Kafka compares producer id and epoch before it looks whether the last transaction is complete."""
    with broker(told) as cluster:
        producer_id, epoch = producer = init(cluster)
        assert (add(cluster, producer), end(cluster, producer)) == (OK, OK)
        assert add(cluster, (producer_id + 1000, epoch)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert add(cluster, (producer_id, epoch + 1)) == ErrorCode.PRODUCER_FENCED
        assert join(cluster, (ID, (producer_id, epoch + 1), False)) == [ErrorCode.PRODUCER_FENCED]
        assert add(cluster, producer) == (WAIT if told else OK)


def join(cluster: MemoryCluster, *asked: tuple[str, tuple[int, int], bool]) -> list[int]:
    """As a partition leader asks: (transactional id, producer, verify only) each. Their codes."""
    kind = m.AddPartitionsToTxnRequest
    topic = kind.AddPartitionsToTxnTopic(name="t", partitions=[0])
    transactions = [
        kind.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], verify_only=only, topics=[topic]
        )
        for name, producer, only in asked
    ]
    answer = cluster.dispatcher.handle(kind(transactions=transactions), 5).result()
    assert isinstance(answer, m.AddPartitionsToTxnResponse)
    codes = {
        one.transactional_id: one.topic_results[0].results_by_partition[0].partition_error_code
        for one in answer.results_by_transaction
    }
    return [codes[name] for name, _, _ in asked]


def test_what_joins_for_a_broker_waits_by_itself() -> None:
    with broker(told=True) as cluster:
        producer = init(cluster)
        assert (add(cluster, producer), end(cluster, producer)) == (OK, OK)
        other = ask_for_id(cluster, "another")
        also = ("another", (other.producer_id, other.producer_epoch), False)
        asks = (ID, producer, True)
        assert join(cluster, asks, also) == [ErrorCode.TRANSACTION_ABORTABLE, OK]  # who asks only is told as ever
        assert join(cluster, (ID, producer, False), also) == [WAIT, OK]
        assert join(cluster, (ID, producer, False), also) == [OK, OK]


@BOTH
def test_what_joins_with_a_group_waits_too(told: bool) -> None:
    with broker(told) as cluster:
        producer = init(cluster)
        assert (add(cluster, producer), end(cluster, producer)) == (OK, OK)
        request = m.AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], group_id="g"
        )
        while find(cluster, GROUP, "g"):
            pass
        codes = [cluster.call(request, m.AddOffsetsToTxnResponse, 3).error_code for _ in range(2)]
        assert codes == [WAIT if told else OK, OK]
