"""Followers copy their leader, the in-sync set follows what they do, and the high watermark follows both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from many_brokers import ManyBrokers

from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker.requests.tapped_request import TappedRequest
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    WriteTxnMarkersRequest,
)
from minibroker_protocol.messages.inter_broker import AlterPartitionRequest, AlterPartitionResponse


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers(3)
    yield many
    many.stop()


def test_followers_have_the_leaders_bytes(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    for number in range(5):
        answer = brokers.produce("t", b"v%d" % number)
        assert (answer.error_code, answer.base_offset) == (0, number)
    brokers.settle(600)
    leader = brokers.log_bytes(1, "t")
    assert leader
    for follower in (2, 3):
        assert brokers.log_bytes(follower, "t") == leader
        assert brokers.partition(follower, "t").high_watermark == 5


@pytest.mark.parametrize("most", [100, 250])
def test_what_one_fetch_has_no_room_for_comes_with_the_next(most: int) -> None:
    """Batches of 170 bytes: the second does not fit in whole, or there is no room left at all."""
    many = ManyBrokers(2, {"replica.fetch.response.max.bytes": f"{most}"})
    many.create("t", [[1, 2]] * 3)
    many.cluster.kill_broker(2)
    for index in range(3):
        assert many.produce("t", bytes(100), acks=1, at=1, index=index).error_code == 0
    many.cluster.start_broker(2)
    many.settle(5000)
    assert [many.partition(2, "t", index).log_end_offset for index in range(3)] == [1, 1, 1]
    many.stop()


@pytest.mark.parametrize("ends", ["stop_broker", "kill_broker"])
def test_a_leader_that_ends_keeps_no_follower_waiting(brokers: ManyBrokers, ends: str) -> None:
    brokers.create("t", [[1, 2, 3]])
    waiting = [session.news() for session in brokers.cluster.brokers[1].replication.sessions._by_node.values()]
    assert [one.done for one in waiting] == [False, False]
    getattr(brokers.cluster, ends)(1)
    assert [one.done for one in waiting] == [True, True]


def test_a_follower_describes_the_producers_it_knows(brokers: ManyBrokers) -> None:
    """As `kafka-transactions find-hanging --broker-id` asks it."""
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"v", producer_id=7, producer_epoch=0, base_sequence=0)
    brokers.settle(600)
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
    request = DescribeProducersRequest(topics=[topic])
    for node, wanted in ((1, (0, [7])), (2, (0, [7])), (3, (ErrorCode.NOT_LEADER_OR_FOLLOWER, []))):
        (found,) = brokers.call(node, request, DescribeProducersResponse, 0).topics[0].partitions
        assert (found.error_code, [one.producer_id for one in found.active_producers]) == wanted


def test_acks_all_waits_for_every_replica_in_sync(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    seen = []
    request_done = brokers.send(1, brokers.produce_request("t", _batch(brokers)), 9)
    seen.append(request_done.done)
    assert brokers.partition(1, "t").log_end_offset == 1
    assert brokers.partition(1, "t").high_watermark == 0
    brokers.settle()
    assert request_done.done
    assert seen == [False]
    assert brokers.partition(1, "t").high_watermark == 1


class Fetches:
    """Who fetches from whom."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def serve(self, tapped: TappedRequest) -> Deferred[Any]:
        if tapped.api.name == "Fetch":
            self.seen.add((tapped.request.replica_state.replica_id, tapped.receiver))
        return tapped.apply()


def test_a_follower_follows_its_partitions_leader_and_nobody_else(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])

    brokers.settle(1000)
    fetches = Fetches()
    brokers.cluster.set_broker_tap(fetches)
    brokers.settle(1000)
    assert fetches.seen == {(2, 1), (3, 1)}
    brokers.cluster.move_leader("t", 0, 2)
    brokers.settle(1000)
    fetches.seen.clear()
    brokers.settle(1000)
    assert fetches.seen == {(1, 2), (3, 2)}


def test_a_consumer_does_not_see_what_only_the_leader_has(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a", acks=1)
    assert brokers.values("t") in ([], [b"a"])
    brokers.settle()
    assert brokers.values("t") == [b"a"]


def test_a_dead_follower_leaves_the_set_and_joins_again(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(3)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2)
    assert brokers.produce("t", b"b").error_code == 0
    brokers.cluster.start_broker(3)
    brokers.settle(2000)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]
    assert brokers.log_bytes(3, "t") == brokers.log_bytes(1, "t")


@pytest.mark.parametrize(
    ("lag_ms", "code"), [(30_000, ErrorCode.REQUEST_TIMED_OUT), (580, ErrorCode.NONE)], ids=["Kafka's", "another"]
)
def test_a_follower_that_stops_fetching_is_dropped_after_the_lag_time(lag_ms: int, code: ErrorCode) -> None:
    """The record of a request that gives up before is in the log all the same."""
    brokers = ManyBrokers(3, {"replica.lag.time.max.ms": str(lag_ms), "broker.session.timeout.ms": "3600000"})
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.settle(600)
    brokers.cluster.pause_broker(3)
    pending = brokers.send(1, brokers.produce_request("t", _batch(brokers)), 9)
    brokers.settle(lag_ms * 0.5)
    assert brokers.partition(1, "t").high_watermark == 1
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]
    brokers.settle(lag_ms * 1.2)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2]
    assert brokers.partition(1, "t").high_watermark == 2
    assert pending.result().responses[0].partition_responses[0].error_code == code
    brokers.stop()


def test_too_few_in_sync_refuse_acks_all_and_freeze_the_high_watermark(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]], {"min.insync.replicas": "2"})
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(2)
    brokers.cluster.kill_broker(3)
    end = brokers.partition(1, "t").log_end_offset
    assert brokers.produce("t", b"b").error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert brokers.partition(1, "t").log_end_offset == end
    assert brokers.produce("t", b"c", acks=1).error_code == 0
    assert brokers.partition(1, "t").high_watermark == 1
    assert brokers.values("t") == [b"a"]
    image = brokers.cluster.image.partition("t", 0)
    assert image.isr == (1,)
    assert sorted(image.elr) == [3]
    brokers.cluster.start_broker(2)
    brokers.settle(2000)
    assert brokers.values("t") == [b"a", b"c"]


def test_the_effective_minimum_is_never_above_the_replica_count(brokers: ManyBrokers) -> None:
    brokers.create("t", [[2]], {"min.insync.replicas": "3"})
    assert brokers.produce("t", b"a").error_code == 0


def test_internal_topics_are_replicated_and_spread(brokers: ManyBrokers) -> None:
    brokers.coordinator("tx")
    partitions = brokers.cluster.image.topics["__transaction_state"].partitions
    assert {p.leader for p in partitions} == {1, 2, 3}
    assert all(len(p.replicas) == 3 for p in partitions)


def _made(brokers: ManyBrokers, factor: int) -> CreateTopicsResponse.CreatableTopicResult:
    topic = CreateTopicsRequest.CreatableTopic(name=f"made-{factor}", num_partitions=4, replication_factor=factor)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    return brokers.call(1, request, CreateTopicsResponse, 7).topics[0]


def test_a_topic_is_made_while_a_broker_is_down(brokers: ManyBrokers) -> None:
    """Measured on Apache Kafka 4.4.0, whose StripedReplicaPlacer takes fenced brokers last."""
    brokers.cluster.kill_broker(2)
    assert _made(brokers, 3).error_code == ErrorCode.NONE
    partitions = brokers.cluster.image.topics["made-3"].partitions
    assert [p.replicas for p in partitions] == [(1, 3, 2), (3, 1, 2), (1, 3, 2), (3, 1, 2)]
    assert {p.isr for p in partitions} == {(1, 3), (3, 1)}
    assert brokers.produce("made-3", b"a").error_code == ErrorCode.NONE
    brokers.coordinator("tx")
    assert {len(p.replicas) for p in brokers.cluster.image.topics["__transaction_state"].partitions} == {3}
    brokers.cluster.start_broker(2)
    brokers.settle(2000)
    assert sorted(brokers.cluster.image.partition("made-3", 0).isr) == [1, 2, 3]
    refused = _made(brokers, 4)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused.error_message is not None
    assert refused.error_message.endswith(
        "only 3 broker(s) are registered or some brokers have all their log directories cordoned."
    )


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (
            [[2, 1], [2]],
            (
                "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent "
                "with previous partitions, which have 2 replica(s)."
            ),
        ),
        (
            [[1, 2], [2, 3]],
            (
                "All brokers specified in the manual partition assignment for partition {} are fenced or in controlled "
                "shutdown."
            ),
        ),
    ],
)
@pytest.mark.parametrize("grown", [False, True])
def test_a_manual_assignment_names_what_is_wrong_with_it(
    brokers: ManyBrokers, grown: bool, lists: list[list[int]], message: str
) -> None:
    """The texts of Kafka 4.4.0 (ReplicationControlManager; the second was seen in kafka-topics)."""
    brokers.create("t", [[1, 2]])
    brokers.cluster.kill_broker(2)
    brokers.cluster.kill_broker(3)
    if grown:
        rows = [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=nodes) for nodes in lists]
        growing = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=rows)
        request = CreatePartitionsRequest(topics=[growing], timeout_ms=1000, validate_only=False)
        result = brokers.call(1, request, CreatePartitionsResponse, 3).results[0]
        refused = (result.error_code, result.error_message)
    else:
        made = CreateTopicsRequest.CreatableTopic(
            name="u",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(partition_index=i, broker_ids=nodes)
                for i, nodes in enumerate(lists)
            ],
        )
        topics = CreateTopicsRequest(topics=[made], timeout_ms=1000, validate_only=False)
        topic = brokers.call(1, topics, CreateTopicsResponse, 7).topics[0]
        refused = (topic.error_code, topic.error_message)
    assert refused == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, message.format(2 if grown else 1))


def test_lists_of_new_partitions_are_as_long_as_those_before(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    rows = [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[1])]
    growing = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=rows)
    request = CreatePartitionsRequest(topics=[growing], timeout_ms=1000, validate_only=False)
    result = brokers.call(1, request, CreatePartitionsResponse, 3).results[0]
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_preferred_leader_that_is_down_is_not_elected(brokers: ManyBrokers) -> None:
    """As kafka-leader-election prints it of Kafka 4.4.0."""
    brokers.create("t", [[2, 1]])
    brokers.cluster.kill_broker(2)
    named = ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])
    request = ElectLeadersRequest(election_type=0, topic_partitions=[named], timeout_ms=1000)
    result = brokers.call(1, request, ElectLeadersResponse, 2).replica_election_results[0].partition_result[0]
    assert (result.error_code, result.error_message) == (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "The preferred leader was not available.",
    )


def _batch(brokers: ManyBrokers) -> bytes:
    from minibroker_protocol.records import Record, build_batch

    return bytes(build_batch([Record(0, brokers.clock.now_ms(), None, b"x", [])]))


def test_followers_that_are_ready_together_all_join(brokers: ManyBrokers) -> None:
    """The second one is ready while the answer about the first is out, and then has no reason to fetch again."""
    brokers.create("t", [[1]])
    brokers.produce("t", b"a")
    moved = brokers.cluster.reassign("t", 0, [1, 2, 3])
    brokers.settle(1500)
    assert moved.done
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]


def test_a_refused_change_of_the_set_is_asked_for_again(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(3)
    controller = brokers.cluster.controller
    served = controller.replication.alter_partition
    refusals = []

    def refuse(request: object, version: int) -> object:
        refusals.append(request)
        raise RuntimeError("not now")

    controller.replication.alter_partition = refuse  # type: ignore[assignment,method-assign]
    brokers.cluster.start_broker(3)
    brokers.settle(2000)
    assert refusals
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2]
    controller.replication.alter_partition = served  # type: ignore[method-assign]
    brokers.settle(40_000)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]


def test_a_restarted_follower_is_proposed_under_its_new_epoch_only(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.settle(600)
    controller = brokers.cluster.controller
    served = controller.replication.alter_partition
    codes = []

    def noted(request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        answer = served(request, version)
        codes.append(answer.topics[0].partitions[0].error_code)
        return answer

    controller.replication.alter_partition = noted  # type: ignore[method-assign]
    brokers.cluster.stop_broker(3)
    brokers.cluster.start_broker(3)
    brokers.partition(1, "t").review_in_sync()  # what the leader knows of broker 3 is from before its end
    brokers.settle(2000)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]
    assert codes == [0]


def test_a_follower_whose_first_fetch_came_before_the_word_that_it_is_back(
    brokers: ManyBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, so it has no reason to name the partition again."""
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(3)
    brokers.settle(600)
    leader = brokers.cluster.brokers[1]
    told, held = leader.on_image, []
    monkeypatch.setattr(leader, "on_image", lambda image, changed: held.append((image, [*changed])))
    brokers.cluster.start_broker(3)
    brokers.settle(1000)
    assert held
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2]
    monkeypatch.undo()
    for image, changed in held:
        told(image, changed)
    brokers.settle(50)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]


@pytest.mark.parametrize(("topic", "written"), [("t", 0), (CONSUMER_OFFSETS_TOPIC, 1)])
def test_below_min_insync_a_marker_of_offsets_is_written_and_waits(topic: str, written: int) -> None:
    """As offsets are, with acks=1 (Kafka's CoordinatorPartitionWriter); other partitions refuse theirs."""
    brokers = ManyBrokers(2)
    brokers.create(topic, [[1, 2]], {"min.insync.replicas": "2"})
    brokers.coordinator("g", key_type=0)
    brokers.cluster.kill_broker(2)
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=7,
        producer_epoch=0,
        transaction_result=True,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    answer = brokers.send(1, WriteTxnMarkersRequest(markers=[marker]), 1)
    brokers.settle(100)
    assert (answer.done, brokers.partition(1, topic).log_end_offset) == (not written, written)
    brokers.cluster.start_broker(2)
    brokers.settle(2000)
    code = answer.result().markers[0].topics[0].partitions[0].error_code
    assert code == (ErrorCode.NONE if written else ErrorCode.NOT_ENOUGH_REPLICAS)
    brokers.stop()
