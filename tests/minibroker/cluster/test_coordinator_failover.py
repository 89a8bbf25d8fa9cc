"""A coordinator dies or moves between any two steps of a transaction; the new one goes on from its log."""

from __future__ import annotations

from typing import Any

import pytest
from many_brokers import ManyBrokers
from sampling import thinned

from minibroker.releases.semantics import KAFKA, KIP
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.records import Record, build_batch

TX = "tx"


class Producer:
    """A transactional producer that finds its coordinator again and retries what clients retry."""

    def __init__(self, brokers: ManyBrokers) -> None:
        self.brokers = brokers
        self.id, self.epoch, self.sequence = -1, -1, 0
        brokers.coordinator(TX)

    def ask(self, request: Any, response: Any, version: int) -> Any:
        for _ in range(200):
            node = self.brokers.cluster.coordinator("transaction", TX)
            if node is not None:
                answer = self.brokers.call(node, request, response, version, wait_ms=3000)
                code = answer.error_code if hasattr(answer, "error_code") else 0
                if code not in (
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    ErrorCode.NOT_COORDINATOR,
                    ErrorCode.CONCURRENT_TRANSACTIONS,
                ):
                    return answer
            self.brokers.settle(20)
        raise AssertionError("no answer that ends the retries")

    def init(self, producer_id: int = -1, epoch: int = -1) -> int:
        """Returns the error code; the identity is taken over when there is none."""
        answer = self.ask(
            InitProducerIdRequest(
                transactional_id=TX, transaction_timeout_ms=60_000, producer_id=producer_id, producer_epoch=epoch
            ),
            InitProducerIdResponse,
            4,
        )
        if answer.error_code == 0:
            self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)

    def add(self, topic: str) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TX,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        for _ in range(50):
            answer = self.ask(request, AddPartitionsToTxnResponse, 3)
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR):
                assert code == 0, ErrorCode(code)
                return
            self.brokers.settle(20)
        raise AssertionError("the transaction before does not end")

    def produce(self, topic: str, value: bytes) -> None:
        batch = build_batch(
            [Record(0, self.brokers.clock.now_ms(), None, value, [])],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        data = ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=TX,
            acks=-1,
            timeout_ms=1000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        for _ in range(100):
            leader = self.brokers.cluster.image.leader_of(topic, 0)
            code = -1
            if leader is not None:
                answer = self.brokers.call(leader, request, ProduceResponse, 10, wait_ms=3000)
                code = answer.responses[0].partition_responses[0].error_code
            if code == 0:
                self.sequence += 1
                return
            assert code in (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode(code)
            self.brokers.settle(20)
        raise AssertionError("the record was not taken")

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(transactional_id=TX, producer_id=self.id, producer_epoch=self.epoch, committed=commit)
        answer = self.ask(request, EndTxnResponse, 4)
        assert answer.error_code == 0, ErrorCode(answer.error_code)


STEPS = ("init", "add", "produce", "end")
EVENTS = ("kill coordinator", "stop coordinator", "move coordinator", "kill leader", "kill both")


def happen(brokers: ManyBrokers, event: str) -> None:
    """Afterwards every broker is up again, though not as leader of what it led."""
    cluster = brokers.cluster
    coordinator = cluster.coordinator("transaction", TX)
    leader = cluster.image.leader_of("t", 0)
    assert coordinator is not None
    assert leader is not None
    if event == "move coordinator":
        cluster.move_coordinator("transaction", TX, coordinator % 3 + 1)
        brokers.settle(200)
        return
    if event == "stop coordinator":
        cluster.stop_broker(coordinator)
        down = {coordinator}
    else:
        down = {"kill coordinator": {coordinator}, "kill leader": {leader}}.get(event, {coordinator, leader})
        for node in down:
            cluster.kill_broker(node)
    brokers.settle(200)
    for node in down:
        cluster.start_broker(node)
    brokers.settle(3000)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("after", STEPS)
@pytest.mark.parametrize("commit", thinned([True, False], 2), ids=["commit", "abort"])
def test_a_transaction_survives_the_event(event: str, after: str, commit: bool) -> None:
    brokers = ManyBrokers(3)
    brokers.create("t", [[2, 3, 1]], {"min.insync.replicas": "1"})
    producer = Producer(brokers)
    steps = {
        "init": lambda: producer.init(),
        "add": lambda: producer.add("t"),
        "produce": lambda: producer.produce("t", b"one"),
        "end": lambda: producer.end(commit=commit),
    }
    for name, step in steps.items():
        step()
        if name == after:
            happen(brokers, event)
    brokers.settle(2000)
    # The next transaction of the same producer shows that nothing is left open.
    producer.add("t")
    producer.produce("t", b"two")
    producer.end(commit=True)
    brokers.settle(3000)
    assert brokers.committed("t") == ([b"one", b"two"] if commit else [b"two"])
    logs = {brokers.log_bytes(node, "t") for node in brokers.cluster.brokers}
    assert len(logs) == 1
    brokers.stop()


def test_markers_of_the_coordinator_before_are_fenced() -> None:
    brokers = ManyBrokers(3)
    brokers.create("t", [[2, 3, 1]])
    producer = Producer(brokers)
    producer.init()
    producer.add("t")
    producer.produce("t", b"one")
    coordinator = brokers.cluster.coordinator("transaction", TX)
    assert coordinator is not None
    # The markers are decided and not sent when the coordinator dies; the new one sends them with its own epoch.
    brokers.cluster.brokers[coordinator].coordinators.transactions.effects.hold()
    producer.end(commit=True)
    assert brokers.committed("t") == []
    brokers.cluster.kill_broker(coordinator)
    brokers.settle(3000)
    assert brokers.committed("t") == [b"one"]
    leader = brokers.leader("t")
    states = brokers.partition(leader, "t").log.producers.active()
    assert [p.coordinator_epoch for p in states] == [1]
    brokers.stop()


@pytest.mark.parametrize(("semantics", "kept"), [(KAFKA, True), (KIP, True)], ids=["kafka", "kip"])
def test_a_bump_is_retried_across_a_failover(semantics: Any, kept: bool) -> None:
    """KIP-360: the answer to a bump is lost with the coordinator; the producer asks again with the epoch it had."""
    brokers = ManyBrokers(3, semantics=semantics)
    brokers.create("t", [[2, 3, 1]])
    producer = Producer(brokers)
    producer.init()
    producer.add("t")
    producer.produce("t", b"one")
    producer.end(commit=True)
    brokers.settle(200)
    held = (producer.id, producer.epoch)
    assert producer.init(*held) == 0
    bumped = (producer.id, producer.epoch)
    assert bumped == (held[0], held[1] + 1)
    happen(brokers, "kill coordinator")
    assert (producer.init(*held) == 0) is kept
    assert (producer.id, producer.epoch) == bumped
    brokers.stop()


def use_up_epochs(brokers: ManyBrokers) -> None:
    node = brokers.cluster.coordinator("transaction", TX)
    assert node is not None
    service = brokers.cluster.brokers[node].coordinators.transactions
    index, shard = service.host.shard_for(TX)
    entry = shard.entries[TX]
    service.host.execute(index, shard.write(entry, entry.metadata._replace(producer_epoch=32766), None))
    brokers.settle(200)


@pytest.mark.parametrize("semantics", [KAFKA, KIP], ids=["kafka", "kip"])
@pytest.mark.seed("360-15", semantics="kafka kip")
def test_a_rotation_is_retried_across_a_failover(semantics: Any) -> None:
    """The epochs are used up, and the answer with the new producer id is lost with the coordinator."""
    brokers = ManyBrokers(3, semantics=semantics)
    brokers.create("t", [[2, 3, 1]])
    producer = Producer(brokers)
    producer.init()
    use_up_epochs(brokers)
    held = (producer.id, 32766)
    assert producer.init(*held) == 0
    rotated = (producer.id, producer.epoch)
    assert rotated[0] != held[0]
    assert rotated[1] == 0
    happen(brokers, "kill coordinator")
    assert producer.init(*held) == 0
    assert (producer.id, producer.epoch) == rotated
    brokers.stop()


@pytest.mark.parametrize(("semantics", "second"), [(KAFKA, ErrorCode.PRODUCER_FENCED), (KIP, ErrorCode.NONE)])
@pytest.mark.seed("360-15", semantics="kafka kip")
def test_the_second_retry_of_a_rotation(semantics: Any, second: ErrorCode) -> None:
    """Kafka remembers the producer id that was held before the last transition, which the first retry is."""
    brokers = ManyBrokers(1, semantics=semantics)
    producer = Producer(brokers)
    producer.init()
    use_up_epochs(brokers)
    held = (producer.id, 32766)
    assert producer.init(*held) == 0
    rotated = (producer.id, producer.epoch)
    assert [producer.init(*held) for _ in range(3)] == [0, second, second]
    assert (producer.id, producer.epoch) == rotated
    brokers.stop()


def test_without_the_last_epoch_in_the_log_the_retry_is_fenced() -> None:
    """Apache Kafka 4.3.1 as released: the last epoch does not outlive the coordinator."""
    from dataclasses import replace

    brokers = ManyBrokers(3, semantics=replace(KAFKA, persist_last_epoch=False))
    brokers.create("t", [[2, 3, 1]])
    producer = Producer(brokers)
    producer.init()
    held = (producer.id, producer.epoch)
    assert producer.init(*held) == 0
    assert producer.init(*held) == 0
    happen(brokers, "kill coordinator")
    assert producer.init(*held) == ErrorCode.PRODUCER_FENCED
    brokers.stop()


def test_a_long_log_is_loaded_over_several_turns_and_answers_that_it_is() -> None:
    brokers = ManyBrokers(3)
    for broker in brokers.cluster.brokers.values():
        broker.coordinators.transactions.host.load_chunk_bytes = 100
    brokers.create("t", [[2, 3, 1]])
    producer = Producer(brokers)
    for _ in range(20):
        assert producer.init() == 0
    coordinator = brokers.cluster.coordinator("transaction", TX)
    assert coordinator is not None
    brokers.cluster.kill_broker(coordinator)
    now = brokers.cluster.coordinator("transaction", TX)
    assert now is not None
    request = InitProducerIdRequest(transactional_id=TX, transaction_timeout_ms=60_000)
    answer = brokers.send(now, request, 4)
    assert answer.result().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    other = 6 - now - coordinator
    assert brokers.send(other, request, 4).result().error_code == ErrorCode.NOT_COORDINATOR
    epoch = producer.epoch
    brokers.settle(200)
    assert producer.init() == 0
    assert producer.epoch == epoch + 1
    brokers.stop()


def test_a_coordinator_that_was_deposed_says_so() -> None:
    brokers = ManyBrokers(3)
    producer = Producer(brokers)
    assert producer.init() == 0
    before = brokers.cluster.coordinator("transaction", TX)
    assert before is not None
    brokers.cluster.move_coordinator("transaction", TX, before % 3 + 1)
    request = InitProducerIdRequest(transactional_id=TX, transaction_timeout_ms=60_000)
    assert brokers.send(before, request, 4).result().error_code == ErrorCode.NOT_COORDINATOR
    described = brokers.send(before, DescribeTransactionsRequest(transactional_ids=[TX]), 0).result()
    assert described.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
    brokers.stop()


@pytest.mark.parametrize("semantics", [KAFKA, KIP], ids=["kafka", "kip"])
def test_replicas_that_disagree(semantics: Any) -> None:
    """KIP-360: a replica made by a reassignment knows only producers whose records are still there."""
    from minibroker_protocol.messages.offsets import DeleteRecordsRequest, DeleteRecordsResponse

    brokers = ManyBrokers(3, semantics=semantics)
    brokers.create("t", [[1]])
    fields = {"producer_id": 77, "producer_epoch": 0}
    brokers.produce("t", b"a", base_sequence=0, **fields)
    wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=1000
    )
    brokers.call(1, request, DeleteRecordsResponse, 2)
    brokers.cluster.reassign("t", 0, [2])
    brokers.settle(3000)
    answer = brokers.produce("t", b"b", base_sequence=1, **fields)
    if semantics is KAFKA:
        assert (answer.error_code, answer.base_offset) == (0, 1)
    else:
        assert answer.error_code == ErrorCode.UNKNOWN_PRODUCER_ID
        assert answer.log_start_offset == 1
        # The client bumps its epoch and goes on from sequence 0.
        bumped = brokers.produce("t", b"b", producer_id=77, producer_epoch=1, base_sequence=0)
        assert (bumped.error_code, bumped.base_offset) == (0, 1)
    stale = brokers.produce("t", b"c", producer_id=77, producer_epoch=0, base_sequence=0)
    if semantics is KIP:
        assert stale.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    brokers.stop()


@pytest.mark.parametrize("end", ["commit", "timeout"])
@pytest.mark.parametrize(("semantics", "marked"), [(KAFKA, False), (KIP, True)], ids=["kafka", "kip"])
def test_a_marker_for_a_partition_that_nobody_leads(semantics: Any, marked: bool, end: str) -> None:
    """Kafka 4.3.1 takes it for deleted: complete for the coordinator, open in the partition for ever."""
    brokers = ManyBrokers(3, semantics=semantics)
    brokers.create("t", [[1]])
    producer = Producer(brokers)
    producer.init()
    coordinator = brokers.cluster.coordinator("transaction", TX)
    assert coordinator is not None
    if coordinator == 1:
        brokers.cluster.move_coordinator("transaction", TX, 2)
        brokers.settle(1000)
    producer.add("t")
    producer.produce("t", b"one")
    brokers.cluster.kill_broker(1)
    if end == "commit":
        producer.end(commit=True)
        brokers.settle(1000)
    else:
        brokers.settle(75_000)  # past the timeout, and the next look at it
    brokers.cluster.start_broker(1)
    brokers.settle(3000)
    assert brokers.committed("t") == ([b"one"] if marked and end == "commit" else [])
    log = brokers.partition(1, "t").log
    assert log.high_watermark == (2 if marked else 1)
    assert (log.last_stable_offset == log.high_watermark) is marked
    brokers.stop()
