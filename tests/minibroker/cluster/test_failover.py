"""Leaders change, brokers stop, die and come back, replicas move: what was acknowledged stays, what was not may go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from many_brokers import ManyBrokers

from minibroker.faults.operations import truncate_tail
from minibroker.metadata.image import NO_LEADER
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.origin import Origin


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers(3)
    yield many
    many.stop()


def test_a_killed_leader_is_followed_by_a_replica_with_everything(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    for value in (b"a", b"b"):
        brokers.produce("t", value)
    brokers.cluster.kill_broker(1)
    image = brokers.cluster.image.partition("t", 0)
    assert (image.leader, image.leader_epoch, image.isr) == (2, 1, (2, 3))
    brokers.settle(600)
    assert brokers.values("t") == [b"a", b"b"]
    assert brokers.produce("t", b"c").base_offset == 2
    brokers.cluster.start_broker(1)
    brokers.settle(2000)
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")


def test_a_broker_that_stops_gives_its_leaders_away_first(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3], [2, 3, 1]])
    brokers.produce("t", b"a")
    brokers.cluster.stop_broker(1)
    assert brokers.leader("t", 0) == 2
    assert brokers.leader("t", 1) == 2
    assert brokers.cluster.image.partition("t", 1).leader_epoch == 0
    brokers.settle(600)
    assert brokers.values("t") == [b"a"]
    brokers.cluster.start_broker(1)
    brokers.settle(2000)
    brokers.cluster.elect("t", 0)
    brokers.settle(600)
    assert brokers.leader("t", 0) == 1
    assert brokers.values("t") == [b"a"]


def test_the_only_replica_comes_back_with_what_it_had(brokers: ManyBrokers) -> None:
    brokers.create("t", [[2]])
    brokers.produce("t", b"a")
    for stop in (brokers.cluster.stop_broker, brokers.cluster.kill_broker):
        stop(2)
        assert brokers.cluster.image.partition("t", 0).leader == NO_LEADER
        brokers.cluster.start_broker(2)
        brokers.settle()
        assert brokers.values("t") == [b"a"]


def test_a_producers_retry_reaches_a_new_leader_that_remembers_it(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    fields = {"producer_id": 77, "producer_epoch": 0}
    assert brokers.produce("t", b"a", base_sequence=0, **fields).base_offset == 0
    assert brokers.produce("t", b"b", base_sequence=1, **fields).base_offset == 1
    brokers.cluster.kill_broker(1)
    again = brokers.produce("t", b"b", base_sequence=1, **fields)
    assert (again.error_code, again.base_offset) == (0, 1)
    assert brokers.produce("t", b"d", base_sequence=3, **fields).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert brokers.produce("t", b"c", base_sequence=2, **fields).base_offset == 2


def test_a_record_only_the_dead_leader_had_is_lost_and_cut_when_it_returns(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    fields = {"producer_id": 77, "producer_epoch": 0}
    brokers.produce("t", b"a", base_sequence=0, **fields)
    _append_unreplicated(brokers, b"lost", base_sequence=1, **fields)
    brokers.cluster.kill_broker(1)
    # The new leader never saw sequence 1: a producer that goes on leaves a gap, one that retries does not.
    gap = brokers.produce("t", b"c", base_sequence=2, **fields)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert brokers.produce("t", b"b", base_sequence=1, **fields).base_offset == 1
    brokers.cluster.start_broker(1)
    brokers.settle(3000)
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2]
    assert brokers.partition(1, "t").log.producers.entry(77).last_sequence == 1


def test_a_fetch_too_old_for_the_new_leaders_address_is_told_to_look_for_it(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    assert brokers.fetch("t", at=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # v12


def test_no_replica_out_of_sync_leads_unless_asked_to(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(2)
    brokers.produce("t", b"b")
    brokers.cluster.kill_broker(1)
    brokers.cluster.start_broker(2)
    brokers.settle(100)
    assert brokers.cluster.image.partition("t", 0).leader == NO_LEADER
    assert brokers.produce("t", b"x", at=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    brokers.cluster.elect("t", 0, unclean=True)
    brokers.settle()
    assert brokers.leader("t") == 2
    assert brokers.produce("t", b"c").base_offset == 1
    brokers.cluster.start_broker(1)
    brokers.settle(3000)
    assert brokers.values("t") == [b"a", b"c"]
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")


def test_a_lost_tail_begins_an_epoch_that_followers_truncate_to(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    for value in (b"a", b"b", b"c"):
        brokers.produce("t", value)
    brokers.settle(1000)
    assert truncate_tail(brokers.cluster, topic="t", partition=0, offset=1) == 1
    assert brokers.cluster.image.partition("t", 0).isr == (1,)
    brokers.produce("t", b"d")
    brokers.settle(3000)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2)
    assert brokers.values("t") == [b"a", b"d"]
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")


def test_a_write_that_waits_for_followers_fails_when_its_record_is_truncated(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    brokers.settle(1000)
    brokers.cluster.pause_broker(2)
    waiting = brokers.partition(1, "t").append(bytearray(build_batch([Record(0, 0, None, b"b")])), origin=Origin.CLIENT)
    replicated = brokers.partition(1, "t").when_high_watermark(waiting.last_offset + 1)
    assert not replicated.done
    truncate_tail(brokers.cluster, topic="t", partition=0, offset=1)
    with pytest.raises(ApiError, match="truncated to offset 1"):
        replicated.result()


def test_no_tail_is_lost_without_a_controller_to_begin_the_epoch(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    brokers.cluster.stop_controller()
    with pytest.raises(ApiError, match="no controller"):
        truncate_tail(brokers.cluster, topic="t", partition=0, offset=0)
    assert brokers.partition(1, "t").log_end_offset == 1


@pytest.mark.parametrize("allows", ["the topic", "the broker"])
def test_unclean_elections_may_be_allowed(allows: str) -> None:
    allowed = {"unclean.leader.election.enable": "true"}
    brokers = ManyBrokers(3, allowed if allows == "the broker" else {})
    brokers.create("t", [[1, 2]], allowed if allows == "the topic" else {})
    brokers.cluster.kill_broker(2)
    brokers.produce("t", b"b")
    brokers.cluster.kill_broker(1)
    brokers.cluster.start_broker(2)
    brokers.settle(100)
    assert brokers.leader("t") == 2
    assert brokers.values("t") == []
    brokers.stop()


def test_diverging_epochs_are_told_apart(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    _append_unreplicated(brokers, b"lost")
    brokers.cluster.kill_broker(1)
    brokers.produce("t", b"b")
    brokers.produce("t", b"c")
    diverging = brokers.fetch("t", 2, last_fetched_epoch=0)
    assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (0, 1)
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[wanted])]
    )
    answer = brokers.call(2, request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0]
    assert (answer.leader_epoch, answer.end_offset) == (0, 1)
    wanted.current_leader_epoch = 0
    answer = brokers.call(2, request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_new_leader_knows_no_end_until_its_followers_confirm_it(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.settle(600)
    brokers.produce("t", b"b")  # answered once both followers have it; they learn of that with the next answer only
    follower = brokers.partition(2, "t")
    assert (follower.log_end_offset, follower.high_watermark) == (2, 1)
    brokers.cluster.kill_broker(1)
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t", partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ],
    )
    answer = brokers.call(2, request, ListOffsetsResponse, 5).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    request.replica_id = 3  # a follower has to find the end of the log
    answer = brokers.call(2, request, ListOffsetsResponse, 5).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (0, 2)
    request.replica_id = -1
    brokers.settle()
    answer = brokers.call(2, request, ListOffsetsResponse, 5).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (0, 2)


def test_a_reassignment_to_an_empty_replica_brings_only_what_is_left_in_the_log(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1]])
    brokers.produce("t", b"a", producer_id=77, producer_epoch=0, base_sequence=0)
    brokers.produce("t", b"b", producer_id=88, producer_epoch=0, base_sequence=0)
    wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=1000
    )
    brokers.call(1, request, DeleteRecordsResponse, 2)
    assert {p.producer_id for p in brokers.partition(1, "t").log.producers.active()} == {77, 88}
    moved = brokers.cluster.reassign("t", 0, [2])
    image = brokers.cluster.image.partition("t", 0)
    assert (image.replicas, image.adding, image.removing) == ((2, 1), (2,), (1,))
    brokers.settle(2000)
    assert moved.done
    image = brokers.cluster.image.partition("t", 0)
    assert (image.replicas, image.isr, image.leader, image.adding) == ((2,), (2,), 2, ())
    assert brokers.values("t", offset=1) == [b"b"]
    assert {p.producer_id for p in brokers.partition(2, "t").log.producers.active()} == {88}
    assert ("t", 0) not in [(held.topic, held.index) for held in brokers.cluster.brokers[1].partitions()]
    assert not any(name.startswith("t-0") for name in brokers.disks[1].list())


def test_leaders_move_where_they_are_told(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    brokers.settle(600)
    brokers.cluster.move_leader("t", 0, 2)
    assert brokers.leader("t") == 2
    moved = brokers.cluster.move_leader("t", 0, 3)
    brokers.settle(3000)
    assert moved.done
    assert brokers.leader("t") == 3
    assert sorted(brokers.cluster.image.partition("t", 0).replicas) == [1, 3]
    assert brokers.values("t") == [b"a"]
    with pytest.raises(ApiError) as refused:
        brokers.cluster.move_leader("t", 9, 3)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_brokers_join_and_leave(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    added = brokers.cluster.add_broker().result()
    assert added.node_id == 4
    brokers.cluster.reassign("t", 0, [4])
    brokers.settle(3000)
    assert brokers.leader("t") == 4
    brokers.cluster.remove_broker(1)
    brokers.settle()
    assert sorted(brokers.cluster.image.brokers) == [2, 3, 4]
    assert brokers.values("t") == [b"a"]
    with pytest.raises(ApiError):
        brokers.cluster.start_broker(1)


def test_a_cluster_that_was_stopped_starts_again_with_its_leaders_and_in_sync_sets(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(1)
    brokers.produce("t", b"b")
    before = brokers.cluster.image.partition("t", 0)
    brokers.cluster.stop()
    again = ManyBrokers(3, disks=brokers.disks, journal=brokers.journal)
    after = again.cluster.image.partition("t", 0)
    assert after.leader == before.leader == 2
    assert after.leader_epoch == before.leader_epoch + 2
    again.settle(3000)
    assert again.values("t") == [b"a", b"b"]
    assert again.log_bytes(1, "t") == again.log_bytes(2, "t")
    assert sorted(again.cluster.image.partition("t", 0).isr) == [1, 2, 3]
    again.stop()


def _append_unreplicated(brokers: ManyBrokers, value: bytes, **fields: int) -> None:
    """Broker 1 appends and dies before a follower asks: time does not move in between."""
    from minibroker_protocol.records import Record, build_batch

    batch = build_batch([Record(0, brokers.clock.now_ms(), None, value, [])], **fields)
    before = brokers.partition(2, "t").log_end_offset
    brokers.send(1, brokers.produce_request("t", batch, acks=1), 9)
    assert brokers.partition(1, "t").log_end_offset == before + 1
    assert brokers.partition(2, "t").log_end_offset == before


def test_a_leader_deposed_before_its_first_append_follows_again(brokers: ManyBrokers) -> None:
    """Its epoch at the end of its log is known to nobody else, and must not keep it from finding common ground."""
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"a")
    brokers.settle(600)
    brokers.cluster.move_leader("t", 0, 2)
    brokers.cluster.move_leader("t", 0, 1)
    brokers.cluster.move_leader("t", 0, 2)
    brokers.cluster.move_leader("t", 0, 1)
    assert brokers.partition(2, "t").latest_epoch == 3
    assert brokers.produce("t", b"b").error_code == 0
    assert brokers.log_bytes(2, "t") == brokers.log_bytes(1, "t")


def test_who_was_in_sync_when_too_few_were_left_may_lead_after_a_clean_stop(brokers: ManyBrokers) -> None:
    """KIP-966: below the minimum nothing is acknowledged, so whoever was in the set until then has everything."""
    brokers.create("t", [[1, 2]], {"min.insync.replicas": "2"})
    brokers.produce("t", b"a")
    brokers.cluster.stop_broker(2)
    assert brokers.cluster.image.partition("t", 0).elr == (2,)
    brokers.cluster.kill_broker(1)
    brokers.cluster.start_broker(2)
    brokers.settle()
    image = brokers.cluster.image.partition("t", 0)
    assert (image.leader, image.isr) == (2, (2,))


def test_who_was_killed_is_not_eligible_but_the_last_leader_may_come_back(brokers: ManyBrokers) -> None:
    brokers.create("t", [[1, 2]], {"min.insync.replicas": "2"})
    brokers.produce("t", b"a")
    brokers.cluster.kill_broker(2)
    brokers.cluster.kill_broker(1)
    brokers.cluster.start_broker(2)
    brokers.settle()
    assert brokers.cluster.image.partition("t", 0).leader == NO_LEADER
    brokers.cluster.start_broker(1)
    brokers.settle(2000)
    image = brokers.cluster.image.partition("t", 0)
    assert (image.leader, sorted(image.isr)) == (1, [1, 2])
    assert brokers.values("t") == [b"a"]


@pytest.mark.parametrize(("enabled", "seconds"), [("true", 300), ("true", 10), ("false", 10)])
def test_preferred_leaders_come_back_by_themselves(enabled: str, seconds: int) -> None:
    interval = {"leader.imbalance.check.interval.seconds": str(seconds)}
    many = ManyBrokers(3, {"auto.leader.rebalance.enable": enabled, **interval})
    many.create("t", [[1, 2, 3]])
    many.cluster.stop_broker(1)
    many.cluster.start_broker(1)
    many.settle(2000)
    assert many.leader("t") == 2
    many.settle(seconds * 1000)
    assert many.leader("t") == (1 if enabled == "true" else 2)
    many.stop()


def test_an_unregistered_broker_leads_nothing_even_while_it_serves(brokers: ManyBrokers) -> None:
    """Kafka 4.4.0 takes its leaders away (ReplicationControlManager.handleBrokerUnregistered): Metadata of a topic that
    only it has says LEADER_NOT_AVAILABLE."""
    brokers.create("alone", [[1]])
    brokers.create("shared", [[1, 2, 3]])
    brokers.produce("alone", b"a")
    unregistered = brokers.call(2, UnregisterBrokerRequest(broker_id=1), UnregisterBrokerResponse, 0)
    assert unregistered.error_code == ErrorCode.NONE
    brokers.settle(600)
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in ("alone", "shared")])
    topics = brokers.call(2, asked, MetadataResponse, 12).topics
    rows = {t.name: (t.partitions[0].error_code, t.partitions[0].leader_id, t.partitions[0].isr_nodes) for t in topics}
    assert rows == {"alone": (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, []), "shared": (ErrorCode.NONE, 2, [2, 3])}
