"""Every answer that waits × what can happen meanwhile: who waits is answered, and with the code that Kafka has for it.

Codes: DelayedProduce and ReplicaManager.getPartitionOrError for logs, and for the coordinators above them
TransactionStateManager.appendTransactionToLog and CoordinatorRuntime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from many_brokers import ManyBrokers

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.transport import CONTROLLER
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.transactions import WriteTxnMarkersRequest
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.disk import StorageError

T = "t"
GROUPS, TRANSACTIONS = CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "min.insync.replicas": "2",
    "offsets.commit.timeout.ms": "4000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "request.timeout.ms": "15000",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
}
LAG_MS = 30_000
"""replica.lag.time.max.ms: after it a follower that is out of reach holds nobody up."""


class Story:
    """Three brokers with every log on each, a group ``g`` and a producer ``x`` with an open transaction."""

    def __init__(self, *, transaction_timeout_ms: int = 600_000, **config: str) -> None:
        self.transaction_timeout_ms = transaction_timeout_ms
        settings = {**CONFIG, **{name.replace("_", "."): value for name, value in config.items()}}
        self.brokers = ManyBrokers(3, settings, disks={node: FaultyDisk() for node in (1, 2, 3)})
        self.brokers.create(T, [[1, 2, 3], [1, 2, 3]])
        self.brokers.coordinator("g", 0)
        self.brokers.coordinator("x", 1)
        begun = self.call(TRANSACTIONS, self.init_producer_id("x"), 4)
        self.producer = begun.producer_id, begun.producer_epoch
        self.call(TRANSACTIONS, self.add_partitions(0), 3)
        producer_id, epoch = self.producer
        offsets = m.AddOffsetsToTxnRequest(
            transactional_id="x", producer_id=producer_id, producer_epoch=epoch, group_id="g"
        )
        assert self.call(TRANSACTIONS, offsets, 3).error_code == ErrorCode.NONE
        self.brokers.settle(1000)

    def send(self, topic: str, request: Request, version: int) -> Deferred[Any]:
        """To the leader of the topic's one partition."""
        return self.brokers.send(self.brokers.leader(topic), request, version)

    def call(self, topic: str, request: Request, version: int) -> Any:
        answer = self.send(topic, request, version)
        self.brokers.settle(100)
        return answer.result()

    def init_producer_id(self, name: str) -> Request:
        return m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=self.transaction_timeout_ms)

    def add_partitions(self, index: int) -> m.AddPartitionsToTxnRequest:
        kind, (producer_id, epoch) = m.AddPartitionsToTxnRequest, self.producer
        return kind(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=T, partitions=[index])],
        )


# -- what waits: the topic whose log is written, the request, its version, the code in the answer ----------------------


class Waiting(NamedTuple):
    topic: str
    request: Callable[[Story], Request]
    version: int
    code: Callable[[Any], int]


def _produce(story: Story) -> Request:
    request = story.brokers.produce_request(T, build_batch([Record(0, story.brokers.clock.now_ms(), None, b"v")]))
    request.timeout_ms = 5000
    return request


def _markers(_: Story) -> Request:
    kind = WriteTxnMarkersRequest
    marker = kind.WritableTxnMarker(
        producer_id=5,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[kind.WritableTxnMarkerTopic(name=T, partition_indexes=[0])],
    )
    return kind(markers=[marker])


def _offset_commit(_: Story) -> Request:
    kind = m.OffsetCommitRequest
    offset = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
    topic = kind.OffsetCommitRequestTopic(name=T, partitions=[offset])
    return kind(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic])


def _txn_offset_commit(story: Story) -> Request:
    kind, (producer_id, epoch) = m.TxnOffsetCommitRequest, story.producer
    offset = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
    return kind(
        transactional_id="x",
        group_id="g",
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[kind.TxnOffsetCommitRequestTopic(name=T, partitions=[offset])],
    )


def _join(_: Story) -> m.JoinGroupRequest:
    kind = m.JoinGroupRequest
    return kind(
        group_id="j",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )


def _sync(story: Story) -> m.SyncGroupRequest:
    """Of a new member that leads its group."""
    member_id = story.call(GROUPS, _join(story), 5).member_id
    kind = m.SyncGroupRequest
    assignment = kind.SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")
    return kind(group_id="j", generation_id=1, member_id=member_id, group_instance_id="i", assignments=[assignment])


def _rejoin(story: Story) -> Request:
    """Of a static member of a stable group, whose new member id is written."""
    assert story.call(GROUPS, _sync(story), 3).error_code == ErrorCode.NONE
    return _join(story)


def _create_topic(_: Story) -> Request:
    topic = m.CreateTopicsRequest.CreatableTopic(name="n", num_partitions=1, replication_factor=3)
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=5000)


def _produce_in_transaction(story: Story) -> Request:
    producer_id, epoch = story.producer
    batch = build_batch(
        [Record(0, story.brokers.clock.now_ms(), None, b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    request = story.brokers.produce_request(T, batch, acks=1)
    request.transactional_id = "x"
    return request


def _end(story: Story) -> Request:
    producer_id, epoch = story.producer
    return m.EndTxnRequest(transactional_id="x", producer_id=producer_id, producer_epoch=epoch, committed=True)


def _partition_code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _produced_code(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def _code(answer: Any) -> int:
    return int(answer.error_code)


ANSWERS = {
    "Produce": Waiting(T, _produce, 9, _produced_code),
    "WriteTxnMarkers": Waiting(T, _markers, 1, lambda answer: answer.markers[0].topics[0].partitions[0].error_code),
    "OffsetCommit": Waiting(GROUPS, _offset_commit, 8, _partition_code),
    "TxnOffsetCommit": Waiting(GROUPS, _txn_offset_commit, 3, _partition_code),
    "JoinGroup": Waiting(GROUPS, _rejoin, 5, _code),
    "SyncGroup": Waiting(GROUPS, _sync, 3, _code),
    "InitProducerId": Waiting(TRANSACTIONS, lambda story: story.init_producer_id("y"), 4, _code),
    "AddPartitionsToTxn": Waiting(
        TRANSACTIONS,
        lambda story: story.add_partitions(1),
        3,
        lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
    ),
    "EndTxn": Waiting(TRANSACTIONS, _end, 3, _code),
}

# -- what happens meanwhile: broker `node` leads the log, and one follower is out of its reach -------------------------


def _mended(story: Story, topic: str, node: int) -> None:
    story.brokers.cluster.mend_link(node, _far(node))


def _resigned(story: Story, topic: str, node: int) -> None:
    story.brokers.cluster.move_leader(topic, 0, _near(node))


def _deleted(story: Story, topic: str, node: int) -> None:
    story.brokers.send(node, m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 4)


def _stopped(story: Story, topic: str, node: int) -> None:
    story.brokers.cluster.stop_broker(node)


def _killed(story: Story, topic: str, node: int) -> None:
    story.brokers.cluster.kill_broker(node)


def _fallen_behind(story: Story, topic: str, node: int) -> None:
    story.brokers.settle(2 * LAG_MS)


def _near(node: int) -> int:
    return node % 3 + 1


def _far(node: int) -> int:
    return _near(_near(node))


EVENTS = {
    "the follower is back": _mended,
    "the leader resigns": _resigned,
    "the topic is deleted": _deleted,
    "the broker is stopped": _stopped,
    "the broker is killed": _killed,
    "the follower leaves the in-sync set": _fallen_behind,
}

NONE, MOVED, UNKNOWN = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
NOT_COORDINATOR, UNAVAILABLE = ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE
_LOG, _COORDINATOR = (NONE, MOVED, UNKNOWN, MOVED, MOVED), (NONE, *[NOT_COORDINATOR] * 4)
_TRANSACTION = (NONE, NOT_COORDINATOR, UNAVAILABLE, NOT_COORDINATOR, NOT_COORDINATOR)
# One code for each event, in their order.
CODES: dict[str, tuple[ErrorCode, ...]] = {
    "Produce": (*_LOG, TIMED_OUT),
    "WriteTxnMarkers": (*_LOG, TIMED_OUT),
    "OffsetCommit": (*_COORDINATOR, UNAVAILABLE),
    "TxnOffsetCommit": (*_COORDINATOR, UNAVAILABLE),
    "JoinGroup": (*_COORDINATOR, UNAVAILABLE),
    "SyncGroup": (*_COORDINATOR, UNAVAILABLE),
    "InitProducerId": (*_TRANSACTION, NONE),
    "AddPartitionsToTxn": (*_TRANSACTION, NONE),
    "EndTxn": (*_TRANSACTION, NONE),
}
# The milliseconds after which an answer waits no longer, and its code then.
TRANSACTION_TIMEOUT_MS = 20_000
TIMEOUTS = {
    "Produce": (5000, TIMED_OUT),
    "WriteTxnMarkers": (15_000, TIMED_OUT),
    "OffsetCommit": (4000, UNAVAILABLE),
    "TxnOffsetCommit": (4000, UNAVAILABLE),
    "JoinGroup": (4000, UNAVAILABLE),
    "SyncGroup": (4000, UNAVAILABLE),
    "InitProducerId": (TRANSACTION_TIMEOUT_MS, UNAVAILABLE),
    "AddPartitionsToTxn": (TRANSACTION_TIMEOUT_MS, UNAVAILABLE),
    "EndTxn": (TRANSACTION_TIMEOUT_MS, UNAVAILABLE),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_waits_for_a_follower(answer: str) -> None:
    waiting, told = ANSWERS[answer], {}
    for event, happens in EVENTS.items():
        story = Story()
        request, node = waiting.request(story), story.brokers.leader(waiting.topic)
        story.brokers.cluster.cut_link(node, _far(node))
        pending = story.send(waiting.topic, request, waiting.version)
        story.brokers.settle(50)
        assert not pending.done
        happens(story, waiting.topic, node)
        story.brokers.settle(500)
        told[event] = ErrorCode(waiting.code(pending.result())) if pending.done else None
        story.brokers.stop()
    assert told == dict(zip(EVENTS, CODES[answer], strict=True))


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_waits_too_long(answer: str) -> None:
    """The request's own timeout, request.timeout.ms, offsets.commit.timeout.ms, or that of the transaction."""
    story, waiting = Story(transaction_timeout_ms=TRANSACTION_TIMEOUT_MS), ANSWERS[answer]
    timeout_ms, code = TIMEOUTS[answer]
    request, node = waiting.request(story), story.brokers.leader(waiting.topic)
    story.brokers.cluster.cut_link(node, _far(node))
    pending = story.send(waiting.topic, request, waiting.version)
    story.brokers.settle(timeout_ms - 1)
    assert not pending.done
    story.brokers.settle(1)
    assert waiting.code(pending.result()) == code
    story.brokers.stop()


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_whose_sync_is_refused(answer: str) -> None:
    story, waiting = Story(minibroker_acknowledge_after_sync="true"), ANSWERS[answer]

    def refused(what: str, path: str) -> StorageError | None:
        of_the_topic = what == "sync" and path.startswith(f"{waiting.topic}-0/")
        return StorageError(5, "input/output error", path) if of_the_topic else None

    request = waiting.request(story)
    for disk in story.brokers.disks.values():
        disk.refuses = refused
    pending = story.send(waiting.topic, request, waiting.version)
    story.brokers.settle(500)
    code = ErrorCode.KAFKA_STORAGE_ERROR if waiting.topic == T else NOT_COORDINATOR
    assert waiting.code(pending.result()) == code
    for disk in story.brokers.disks.values():
        disk.refuses = lambda what, path: None
    story.brokers.stop()


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_below_min_insync_replicas(answer: str) -> None:
    """The group coordinator writes, and waits for the others: CoordinatorPartitionWriter appends with acks=1."""
    story, waiting = Story(), ANSWERS[answer]
    request, node = waiting.request(story), story.brokers.leader(waiting.topic)
    for other in {1, 2, 3} - {node}:
        story.brokers.cluster.kill_broker(other)
    story.brokers.settle(LAG_MS)
    assert len(story.brokers.partition(node, waiting.topic).isr) == 1
    log = story.brokers.partition(node, waiting.topic).log
    end = log.log_end_offset
    pending = story.send(waiting.topic, request, waiting.version)
    story.brokers.settle(10)
    grouped = waiting.topic == GROUPS
    assert (pending.done, log.log_end_offset - end) == (not grouped, int(grouped))
    story.brokers.settle(6000)
    assert waiting.code(pending.result()) == (ErrorCode.NOT_ENOUGH_REPLICAS if waiting.topic == T else UNAVAILABLE)
    story.brokers.stop()


def test_a_set_that_shrinks_after_its_partition_was_replicated_refuses_nothing() -> None:
    """Each partition of a request is looked at once, when its high watermark gets there: DelayedProduce.tryComplete
    passes over those that are done while others wait."""
    brokers = ManyBrokers(3, {"min.insync.replicas": "2"})
    brokers.create(T, [[1, 2], [1, 3]])
    brokers.settle(1000)
    batch = build_batch([Record(0, brokers.clock.now_ms(), None, b"v")])
    request = brokers.produce_request(T, batch)
    (topic,) = request.topic_data
    topic.partition_data += brokers.produce_request(T, batch, index=1).topic_data[0].partition_data
    brokers.cluster.cut_link(1, 3)
    pending = brokers.send(1, request, 9)
    brokers.settle(50)
    brokers.cluster.kill_broker(2)
    brokers.settle(50)
    partitions = [brokers.partition(1, T, index) for index in (0, 1)]
    assert [(set(each.isr), each.high_watermark) for each in partitions] == [({1}, 1), ({1, 3}, 0)]
    assert not pending.done
    brokers.cluster.mend_link(1, 3)
    brokers.settle(500)
    (answered,) = pending.result().responses
    assert [each.error_code for each in answered.partition_responses] == [ErrorCode.NONE, ErrorCode.NONE]
    brokers.stop()


# -- what waits for another node: the transaction coordinator that verifies a write, or the controller -----------------

REMOTE = {
    "Produce v9": Waiting(T, _produce_in_transaction, 9, _produced_code),
    "Produce v12": Waiting(T, _produce_in_transaction, 12, _produced_code),
    "TxnOffsetCommit": Waiting(GROUPS, _txn_offset_commit, 3, _partition_code),
    "CreateTopics": Waiting(T, _create_topic, 7, lambda answer: answer.topics[0].error_code),
}
REQUEST_TIMEOUT_MS, FORWARDING_TIMEOUT_MS = 18_000, 78_000
"""request.timeout.ms, and a minute more for the controller; each up to a sixth longer."""


def _reached(story: Story, topic: str, node: int, other: int) -> None:
    story.brokers.cluster.mend_link(node, other)


def _out_of_reach(story: Story, topic: str, node: int, other: int) -> None:
    story.brokers.settle(REQUEST_TIMEOUT_MS if other != CONTROLLER else FORWARDING_TIMEOUT_MS)


def _other_stopped(story: Story, topic: str, node: int, other: int) -> None:
    if other == CONTROLLER:
        story.brokers.cluster.stop_controller()
        story.brokers.settle(FORWARDING_TIMEOUT_MS)
    else:
        story.brokers.cluster.stop_broker(other)


def _led_elsewhere(story: Story, topic: str, node: int, other: int) -> None:
    third = ({1, 2, 3} - {node, other}).pop()
    story.brokers.cluster.move_leader(topic, 0, third)
    story.brokers.settle(50)
    story.brokers.cluster.mend_link(node, other)


def _gone(story: Story, topic: str, node: int, other: int) -> None:
    third = ({1, 2, 3} - {node, other}).pop()
    story.brokers.send(third, m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 4)
    story.brokers.settle(50)
    story.brokers.cluster.mend_link(node, other)


REMOTE_EVENTS = {
    "it is reached": _reached,
    "it is out of reach": _out_of_reach,
    "it stops": _other_stopped,
    "the leader resigns": _led_elsewhere,
    "the topic is deleted": _gone,
}
TOO_FEW, LOADING = ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
# NETWORK_EXCEPTION and the coordinator's own errors: ReplicaManager.handleProduceAppend, CoordinatorRuntime.
REMOTE_CODES = {
    "Produce v9": (NONE, TOO_FEW, TOO_FEW, MOVED, UNKNOWN),
    "Produce v12": (NONE, TOO_FEW, TOO_FEW, MOVED, UNKNOWN),
    "TxnOffsetCommit": (NONE, LOADING, LOADING, NOT_COORDINATOR, UNAVAILABLE),
    "CreateTopics": (NONE, TIMED_OUT, TIMED_OUT),
}


def _asking(story: Story, answer: str) -> tuple[int, int]:
    """The broker that waits, and the node for whose answer."""
    node = story.brokers.leader(REMOTE[answer].topic)
    if answer == "CreateTopics":
        return node, CONTROLLER
    story.brokers.cluster.move_leader(TRANSACTIONS, 0, _near(node))
    story.brokers.settle(50)
    return node, _near(node)


@pytest.mark.parametrize("answer", REMOTE)
def test_an_answer_that_waits_for_another_node(answer: str) -> None:
    waiting = REMOTE[answer]
    for event, code in zip(REMOTE_EVENTS, REMOTE_CODES[answer], strict=False):
        story = Story()
        node, other = _asking(story, answer)
        request = waiting.request(story)
        story.brokers.cluster.cut_link(node, other)
        pending = story.send(waiting.topic, request, waiting.version)
        story.brokers.settle(50)
        assert not pending.done
        REMOTE_EVENTS[event](story, waiting.topic, node, other)
        story.brokers.settle(100)
        assert waiting.code(pending.result()) == code, event
        story.brokers.stop()


@pytest.mark.parametrize("answer", REMOTE)
@pytest.mark.parametrize("end", [_stopped, _killed])
def test_an_answer_of_a_broker_that_ends_while_it_waits_for_another_node(answer: str, end: Any) -> None:
    """Its connections are closed, so nothing is answered; nor does anything go on when the other node is reached, by
    the broker that has ended or by the one that is started in its place."""
    waiting, story = REMOTE[answer], Story()
    node, other = _asking(story, answer)
    request = waiting.request(story)
    story.brokers.cluster.cut_link(node, other)
    pending = story.send(waiting.topic, request, waiting.version)
    story.brokers.settle(50)
    before = story.brokers.partition(node, waiting.topic).log.log_end_offset
    end(story, waiting.topic, node)
    story.brokers.cluster.mend_link(node, other)
    story.brokers.settle(REQUEST_TIMEOUT_MS)
    story.brokers.cluster.start_broker(node)
    story.brokers.settle(1000)
    assert not pending.done
    assert "n" not in story.brokers.cluster.image.topics
    assert {story.brokers.partition(each, waiting.topic).log.log_end_offset for each in (1, 2, 3)} == {before}
    story.brokers.stop()


def test_an_offset_whose_coordinator_moved_away_and_leads_again() -> None:
    """The group is asked as it is after that: the member has left it, elsewhere."""
    story = Story()
    node = story.brokers.leader(GROUPS)
    other, third = _near(node), _far(node)
    story.brokers.cluster.move_leader(TRANSACTIONS, 0, other)
    story.brokers.settle(50)
    waiting, member = REMOTE["TxnOffsetCommit"], _sync(story)
    assert story.call(GROUPS, member, 3).error_code == ErrorCode.NONE
    request: Any = waiting.request(story)
    request.group_id, request.member_id, request.generation_id_or_member_epoch = "j", member.member_id, 1
    story.brokers.cluster.cut_link(node, other)
    pending = story.send(GROUPS, request, waiting.version)
    story.brokers.settle(50)
    story.brokers.cluster.move_leader(GROUPS, 0, third)
    story.brokers.settle(500)
    leaving = m.LeaveGroupRequest.MemberIdentity(member_id=member.member_id, group_instance_id="i")
    assert story.call(GROUPS, m.LeaveGroupRequest(group_id="j", members=[leaving]), 3).error_code == ErrorCode.NONE
    story.brokers.cluster.move_leader(GROUPS, 0, node)
    story.brokers.settle(500)
    assert not pending.done
    story.brokers.cluster.mend_link(node, other)
    story.brokers.settle(500)
    assert waiting.code(pending.result()) == ErrorCode.UNKNOWN_MEMBER_ID
    story.brokers.stop()


def _create_by_metadata(story: Story) -> Request:
    topics = [m.MetadataRequest.MetadataRequestTopic(name="new")]
    return m.MetadataRequest(topics=topics, allow_auto_topic_creation=True)


def _create_by_find_coordinator(story: Story) -> Request:
    story.brokers.send(1, m.DeleteTopicsRequest(topic_names=[GROUPS], timeout_ms=1000), 4)
    story.brokers.settle(50)
    return m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"])


@pytest.mark.parametrize("stopped", [False, True], ids=["out of reach", "stopped"])
@pytest.mark.parametrize(
    ("request_of", "version", "codes_of", "codes"),
    [
        (_create_by_metadata, 12, lambda answer: [topic.error_code for topic in answer.topics], [UNKNOWN]),
        (
            _create_by_find_coordinator,
            4,
            lambda answer: [coordinator.error_code for coordinator in answer.coordinators],
            [UNAVAILABLE] * 2,
        ),
    ],
)
def test_a_topic_that_is_created_on_the_way_while_the_controller_is_away(
    request_of: Callable[[Story], Request],
    version: int,
    codes_of: Callable[[Any], list[int]],
    codes: list[int],
    stopped: bool,
) -> None:
    story = Story()
    request = request_of(story)
    if stopped:
        story.brokers.cluster.stop_controller()
    else:
        story.brokers.cluster.cut_link(1, CONTROLLER)
    pending = story.brokers.send(1, request, version)
    story.brokers.settle(FORWARDING_TIMEOUT_MS + 100)
    assert codes_of(pending.result()) == codes
    story.brokers.stop()
