"""What the partition leader learns from the transaction coordinator, and what it makes of it (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory_cluster import MemoryCluster

from minibroker.coordinator_runtime.transaction_verifier import SupportedOperation
from minibroker.coordinator_runtime.transactional_write import Write
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ID = "tx"
T0, T1 = ("t", 0), ("t", 1)
OK = ErrorCode.NONE
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
RETRY = ErrorCode.NOT_ENOUGH_REPLICAS
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.fixture(params=["here", "by request"])
def cluster(request: pytest.FixtureRequest) -> Iterator[MemoryCluster]:
    """A broker asks the coordinator that it is itself at once, or as it asks those on other brokers."""
    running = MemoryCluster(topics={"t": 2})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC]).result()
    if request.param == "by request":
        running.ask_itself_as_others()
    yield running
    running.stop()


def _begin(cluster: MemoryCluster, *partitions: tuple[str, int]) -> ProducerIdAndEpoch:
    service = cluster.broker.coordinators.transactions
    producer = service.init_producer_id(ID, 60_000, None).result()
    if partitions:
        service.add_partitions(ID, producer, partitions, transaction_version=0).result()
    return producer


def _verify(
    cluster: MemoryCluster, producer: tuple[int, int], version: int, *partitions: tuple[str, int], name: str = ID
) -> Deferred[dict[tuple[str, int], ErrorCode]]:
    return cluster.broker.coordinators.verifier.verify(Write(name, *producer, partitions or [T0]), version)


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_partition_that_was_not_added(cluster: MemoryCluster, version: int, code: ErrorCode) -> None:
    producer = _begin(cluster, T1)
    assert _verify(cluster, producer, version, T0, T1).result() == {T0: code, T1: OK}
    assert cluster.broker.coordinators.transactions.describe(ID).metadata.partitions == {T1}


@pytest.mark.parametrize("version", [12, 13])
def test_from_version_12_on_it_joins(cluster: MemoryCluster, version: int) -> None:
    producer = _begin(cluster)
    assert _verify(cluster, producer, version, T0, T1).result() == {T0: OK, T1: OK}
    metadata = cluster.broker.coordinators.transactions.describe(ID).metadata
    assert metadata.partitions == {T0, T1}
    assert metadata.client_transaction_version == 2


@pytest.mark.parametrize("version", [9, 11, 12])
def test_epochs_and_ids(cluster: MemoryCluster, version: int) -> None:
    producer = _begin(cluster, T0)
    assert _verify(cluster, (producer.producer_id, 7), version).result() == {T0: EPOCH}
    mapping = {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert _verify(cluster, (4711, 0), version).result() == mapping
    assert _verify(cluster, producer, version, name="nobody").result() == mapping


@pytest.mark.parametrize("version", [9, 11])
def test_a_transaction_that_is_ending_below_version_12(cluster: MemoryCluster, version: int) -> None:
    producer = _begin(cluster, T0)
    cluster.broker.coordinators.transactions.effects.hold()
    cluster.broker.coordinators.transactions.end_txn(ID, producer, commit=True, transaction_version=0)
    assert _verify(cluster, producer, version).result() == {T0: RETRY}


def test_version_12_waits_for_the_transaction_before(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    service = cluster.broker.coordinators.transactions
    service.effects.hold()
    following = service.end_txn(ID, producer, commit=True, transaction_version=2).result()
    patient = _verify(cluster, following, 12)
    assert not patient.done
    cluster.timers.advance(30)
    assert not patient.done
    service.effects.release()
    cluster.timers.advance(20)
    assert patient.result() == {T0: OK}


def test_version_12_gives_up_after_100_ms(cluster: MemoryCluster) -> None:
    producer = _begin(cluster, T0)
    service = cluster.broker.coordinators.transactions
    service.effects.hold()
    following = service.end_txn(ID, producer, commit=True, transaction_version=2).result()
    patient = _verify(cluster, following, 12)
    cluster.timers.advance(99)
    assert not patient.done
    cluster.timers.advance(1)
    assert patient.result() == {T0: BUSY}


@pytest.mark.parametrize(
    ("backoff_ms", "max_ms", "requests"), [(1, 100, 1 + 100), (30, 100, 1 + 4), (200, 100, 1 + 1), (30, 60, 1 + 2)]
)
def test_how_often_version_12_asks(backoff_ms: int, max_ms: int, requests: int) -> None:
    """Once, and every backoff until they add up to the longest wait."""
    prefix = "add.partitions.to.txn.retry.backoff"
    running = MemoryCluster({f"{prefix}.ms": str(backoff_ms), f"{prefix}.max.ms": str(max_ms)}, topics={"t": 1})
    running.broker.create_topics([TRANSACTION_STATE_TOPIC]).result()
    slow, real = SlowWire(), running.broker.transport
    running.broker.transport = slow
    patient, asked = _verify(running, (1, 0), 12), 0
    while slow.sent:
        asked += 1
        assert asked <= 200
        slow.answer(BUSY)
        running.timers.advance(backoff_ms)
    assert (asked, patient.result()) == (requests, {T0: BUSY})
    running.broker.transport = real
    running.stop()


def test_closing_ends_the_asking_again(cluster: MemoryCluster, wire: SlowWire) -> None:
    patient = _verify(cluster, (1, 0), 12)
    wire.answer(BUSY)
    cluster.broker.coordinators.verifier.close()
    cluster.timers.advance(20)
    assert patient.result() == {T0: RETRY}
    assert wire.sent == []


@pytest.mark.parametrize(
    ("version", "code"), [(0, ErrorCode.INVALID_TXN_STATE), (3, ErrorCode.INVALID_TXN_STATE), (4, 120), (5, OK)]
)
def test_offset_commits(cluster: MemoryCluster, version: int, code: ErrorCode) -> None:
    producer = _begin(cluster)
    group_partition = (CONSUMER_OFFSETS_TOPIC, 3)
    answer = cluster.broker.coordinators.verifier.verify_offset_commit(Write(ID, *producer, [group_partition]), version)
    assert answer.result() == code


@pytest.mark.parametrize("version", [3, 4, 5])
def test_offset_commits_are_told_at_once_that_a_transaction_is_ending(cluster: MemoryCluster, version: int) -> None:
    producer = _begin(cluster, T0)
    cluster.broker.coordinators.transactions.effects.hold()
    cluster.broker.coordinators.transactions.end_txn(ID, producer, commit=True, transaction_version=0)
    answer = cluster.broker.coordinators.verifier.verify_offset_commit(
        Write(ID, *producer, [(CONSUMER_OFFSETS_TOPIC, 3)]), version
    )
    assert answer.result() is BUSY


# -- a coordinator that is slow, wrong or gone -------------------------------------------------------------------------


class SlowWire:
    """Keeps requests until the test answers them."""

    direct = False

    def __init__(self) -> None:
        self.sent: list[tuple[AddPartitionsToTxnRequest, Deferred[Response]]] = []

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        assert (node_id, api_version) == (1, 5)
        assert isinstance(request, AddPartitionsToTxnRequest)
        answer: Deferred[Response] = Deferred()
        self.sent.append((request, answer))
        return answer

    def answer(self, code: ErrorCode = OK) -> None:
        request, answer = self.sent.pop(0)
        answer.resolve(
            AddPartitionsToTxnResponse(
                results_by_transaction=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                        transactional_id=transaction.transactional_id,
                        topic_results=[
                            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                                name=topic.name,
                                results_by_partition=[
                                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                                        partition_index=index, partition_error_code=code
                                    )
                                    for index in topic.partitions
                                ],
                            )
                            for topic in transaction.topics
                        ],
                    )
                    for transaction in request.transactions
                ]
            )
        )


@pytest.fixture
def wire(cluster: MemoryCluster) -> Iterator[SlowWire]:
    slow, real = SlowWire(), cluster.broker.transport
    cluster.broker.transport = slow
    yield slow
    cluster.broker.transport = real


def test_one_request_at_a_time_and_the_rest_together(cluster: MemoryCluster, wire: SlowWire) -> None:
    answers = [_verify(cluster, (1, 0), 11, name=f"tx{i}") for i in range(4)]
    assert len(wire.sent) == 1
    wire.answer()
    assert answers[0].result() == {T0: OK}
    assert [t.transactional_id for t in wire.sent[0][0].transactions] == ["tx1", "tx2", "tx3"]
    wire.answer()
    assert all(answer.result() == {T0: OK} for answer in answers)


def test_who_waits_for_the_same_id(cluster: MemoryCluster, wire: SlowWire) -> None:
    _verify(cluster, (9, 0), 11, name="other")
    first = _verify(cluster, (1, 1), 11)
    second = _verify(cluster, (1, 1), 11)
    assert first.result() == {T0: RETRY}, "displaced by a newer request of the same epoch"
    assert _verify(cluster, (1, 0), 11).result() == {T0: EPOCH}
    third = _verify(cluster, (1, 2), 11)
    assert second.result() == {T0: EPOCH}
    wire.answer()
    wire.answer()
    assert third.result() == {T0: OK}


@pytest.mark.parametrize("version", [9, 11, 12])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ],
)
def test_clients_retry_while_the_coordinator_is_out_of_reach(
    cluster: MemoryCluster, wire: SlowWire, version: int, code: ErrorCode
) -> None:
    told, failed = _verify(cluster, (1, 0), version), _verify(cluster, (1, 0), version, name="other")
    wire.answer(code)
    assert told.result() == {T0: RETRY}
    wire.sent.pop()[1].fail(ApiError(code, "no answer"))
    assert failed.result() == {T0: RETRY}


def test_a_coordinator_that_refuses_the_whole_call(cluster: MemoryCluster, wire: SlowWire) -> None:
    answer = _verify(cluster, (1, 0), 11)
    wire.sent.pop()[1].resolve(AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert answer.result() == {T0: ErrorCode.INVALID_TXN_STATE}
    answer = _verify(cluster, (1, 0), 11)
    wire.sent.pop()[1].resolve(AddPartitionsToTxnResponse())
    assert answer.result() == {T0: ErrorCode.UNKNOWN_SERVER_ERROR}, "an answer that forgets the transaction"
    answer = _verify(cluster, (1, 0), 11)
    wire.sent.pop()[1].fail(RuntimeError("a bug"))
    assert answer.result() == {T0: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_closing_answers_who_waits(cluster: MemoryCluster, wire: SlowWire) -> None:
    _verify(cluster, (1, 0), 11)
    waiting = _verify(cluster, (1, 0), 11)
    cluster.broker.coordinators.verifier.close()
    assert waiting.result() == {T0: RETRY}
    assert _verify(cluster, (1, 0), 11).result() == {T0: RETRY}
    assert len(wire.sent) == 1


def test_without_a_coordinator() -> None:
    running = MemoryCluster(topics={"t": 1})
    assert _verify(running, (1, 0), 11).result() == {T0: RETRY}
    asked = running.broker.coordinators.verifier.ask(Write(ID, 1, 0, [T0]), SupportedOperation.GENERIC_ERROR)
    assert asked.result() == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    running.stop()
