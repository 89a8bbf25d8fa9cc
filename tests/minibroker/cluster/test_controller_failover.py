"""Without an active controller what needs one waits and the rest goes on; the next one knows what was decided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from many_brokers import ManyBrokers

from minibroker.broker.controller_channel import RETRY_TIMEOUT_MS
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.produce import ProduceResponse
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.records import Record, build_batch


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers(3)
    many.create("t", [[1, 2, 3]])
    yield many
    many.stop()


def create_request(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=1, replication_factor=3, assignments=[], configs=[]
            )
        ],
        timeout_ms=1000,
        validate_only=False,
    )


def test_records_go_on_without_a_controller(brokers: ManyBrokers) -> None:
    brokers.cluster.stop_controller()
    assert brokers.produce("t", b"a").error_code == 0
    brokers.settle(60_000)
    assert brokers.produce("t", b"b").error_code == 0
    assert brokers.values("t") == [b"a", b"b"]


def test_a_topic_is_created_once_there_is_a_controller_again(brokers: ManyBrokers) -> None:
    brokers.cluster.stop_controller()
    pending = brokers.send(2, create_request("later"), 7)
    brokers.settle(5000)
    assert not pending.done
    assert "later" not in brokers.cluster.image.topics
    brokers.cluster.start_controller()
    brokers.settle(1000)
    answer = pending.result()
    assert isinstance(answer, CreateTopicsResponse)
    assert answer.topics[0].error_code == 0
    assert brokers.produce("later", b"a").error_code == 0


def test_a_request_that_finds_no_controller_times_out(brokers: ManyBrokers) -> None:
    brokers.cluster.stop_controller()
    pending = brokers.send(2, create_request("never"), 7)
    brokers.settle(RETRY_TIMEOUT_MS - 100)
    assert not pending.done
    brokers.settle(200)
    answer = pending.result()
    assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    brokers.cluster.start_controller()
    brokers.settle(1000)
    assert "never" not in brokers.cluster.image.topics


def test_producer_ids_wait_for_a_controller_and_are_given_once(brokers: ManyBrokers) -> None:
    def init(node_id: int, wait_ms: float = 100) -> InitProducerIdResponse:
        return brokers.call(
            node_id,
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
            InitProducerIdResponse,
            4,
            wait_ms=wait_ms,
        )

    first = init(1)
    brokers.cluster.stop_controller()
    assert init(1).error_code == 0  # of the block it has
    pending = brokers.send(2, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4)
    brokers.settle(5000)
    early = pending.result().error_code if pending.done else None
    assert early in (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    brokers.cluster.start_controller()
    brokers.settle(1000)
    answer = init(2)
    assert answer.error_code == 0
    assert answer.producer_id >= first.producer_id + 1000  # the next block, as the journal remembers the one before


def test_a_leader_that_dies_without_a_controller_is_replaced_by_the_next_one(brokers: ManyBrokers) -> None:
    brokers.produce("t", b"a")
    brokers.cluster.stop_controller()
    brokers.cluster.kill_broker(1)
    brokers.settle(20_000)
    assert brokers.leader("t") == 1  # nobody decided anything
    brokers.cluster.start_controller()
    brokers.settle(100)
    assert brokers.leader("t") == 2
    assert brokers.cluster.image.partition("t", 0).isr == (2, 3)
    assert brokers.produce("t", b"b").error_code == 0
    assert brokers.values("t") == [b"a", b"b"]


def test_the_next_controller_has_what_the_one_before_decided(brokers: ManyBrokers) -> None:
    brokers.cluster.kill_broker(3)
    brokers.cluster.elect("t", 0) if brokers.leader("t") != 1 else None
    before = brokers.cluster.image
    brokers.cluster.stop_controller()
    brokers.settle(30_000)
    brokers.cluster.start_controller()
    after = brokers.cluster.image
    assert after.topics == before.topics
    assert after.features == before.features
    assert after.brokers == before.brokers
    assert after.offset > before.offset
    brokers.settle(30_000)
    assert brokers.cluster.image.brokers == before.brokers  # sessions begin anew: nobody is taken for dead
    brokers.cluster.start_broker(3)
    brokers.settle(5000)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]


def test_an_in_sync_set_shrinks_once_there_is_a_controller(brokers: ManyBrokers) -> None:
    brokers.produce("t", b"a")
    brokers.cluster.stop_controller()
    brokers.cluster.cut_link(1, 3)
    brokers.produce("t", b"b", acks=1)
    brokers.settle(60_000)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2, 3)
    assert brokers.partition(1, "t").high_watermark == 1
    brokers.cluster.start_controller()
    brokers.settle(2000)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2)
    assert brokers.partition(1, "t").high_watermark == 2


def test_operations_that_need_a_controller_say_so(brokers: ManyBrokers) -> None:
    cluster = brokers.cluster
    cluster.kill_broker(3)
    cluster.stop_controller()
    for act in (
        lambda: cluster.stop_controller(),
        lambda: cluster.start_broker(3),
        lambda: cluster.move_leader("t", 0, 2),
        lambda: cluster.elect("t", 0),
        lambda: cluster.add_broker(),
        lambda: cluster.remove_broker(3),
    ):
        with pytest.raises(ApiError) as refused:
            act()
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
    cluster.start_controller()
    with pytest.raises(ApiError) as twice:
        cluster.start_controller()
    assert twice.value.code == ErrorCode.INVALID_REQUEST
    cluster.start_broker(3)
    assert cluster.add_broker().result().node_id == 4


def test_a_transaction_survives_a_change_of_controller(brokers: ManyBrokers) -> None:
    coordinator = brokers.coordinator("tx")
    brokers.settle(200)
    pid = brokers.call(
        coordinator,
        InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000),
        InitProducerIdResponse,
        4,
        wait_ms=1000,
    )
    assert pid.error_code == 0
    brokers.cluster.stop_controller()
    ids = {"producer_id": pid.producer_id, "producer_epoch": pid.producer_epoch}
    added = brokers.call(
        coordinator,
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=pid.producer_id,
            v3_and_below_producer_epoch=pid.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ),
        AddPartitionsToTxnResponse,
        3,
        wait_ms=1000,
    )
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    batch = build_batch(
        [Record(0, brokers.clock.now_ms(), None, b"in", [])], base_sequence=0, transactional=True, **ids
    )
    request = brokers.produce_request("t", batch)
    request.transactional_id = "tx"
    sent = brokers.call(brokers.leader("t"), request, ProduceResponse, 9, wait_ms=1000)
    assert sent.responses[0].partition_responses[0].error_code == 0
    brokers.cluster.start_controller()
    brokers.cluster.kill_broker(coordinator)
    brokers.settle(200)
    coordinator = brokers.coordinator("tx")
    ended = brokers.call(
        coordinator,
        EndTxnRequest(transactional_id="tx", committed=True, **ids),
        EndTxnResponse,
        4,
        wait_ms=1000,
    )
    assert ended.error_code == 0
    brokers.settle(1000)
    assert brokers.committed("t") == [b"in"]
