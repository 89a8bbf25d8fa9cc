"""Which in-sync sets the controller takes from leaders, and what cancelling a reassignment leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from minibroker.config.settings import Settings
from minibroker.controller.journal import MetadataJournal
from minibroker.controller.reassignments import ReassignmentControl
from minibroker.controller.replication import ReplicationControl
from minibroker.controller.state import ControllerState
from minibroker.metadata.image import BrokerImage, PartitionImage
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import AlterPartitionRequest

TOPIC_ID = bytes(range(16))
PARTITION = PartitionImage(0, (1, 2, 3), (1, 2), 1, leader_epoch=5, partition_epoch=9)
BROKERS = [BrokerImage(node, "localhost", 9000 + node, epoch=100 + node) for node in range(1, 6)]


def state_with(
    partition: PartitionImage,
    brokers: list[BrokerImage] = BROKERS,
    configs: Mapping[str, str | None] = MappingProxyType({}),
) -> ControllerState:
    state = ControllerState(Settings(), MetadataJournal(FaultyDisk()), Random(1), cluster_id="c", controller_id=1)
    state.load()
    for broker in brokers:
        state.register_broker(broker)
    state.take_over_topic("t", TOPIC_ID, [partition], configs)
    return state


def partition_in(state: ControllerState) -> PartitionImage:
    partition = state.image.partition("t", 0)
    assert partition is not None
    return partition


def asked(
    isr: Mapping[int, int], *, sender: int = 1, epoch: int = 101, topic_id: bytes = TOPIC_ID, **fields: Any
) -> AlterPartitionRequest:
    """isr: nodes and their brokers' epochs."""
    members = [AlterPartitionRequest.BrokerState(broker_id=n, broker_epoch=e) for n, e in isr.items()]
    given: dict[str, Any] = {
        "partition_index": 0,
        "leader_epoch": 5,
        "partition_epoch": 9,
        "new_isr_with_epochs": members,
        **fields,
    }
    topic = AlterPartitionRequest.TopicData(
        topic_id=topic_id, partitions=[AlterPartitionRequest.PartitionData(**given)]
    )
    return AlterPartitionRequest(broker_id=sender, broker_epoch=epoch, topics=[topic])


ALL = {1: 101, 2: 102, 3: 103}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (asked(ALL, epoch=100), ErrorCode.STALE_BROKER_EPOCH),
        (asked(ALL, sender=9), ErrorCode.STALE_BROKER_EPOCH),
        (asked(ALL, topic_id=bytes(16)), ErrorCode.UNKNOWN_TOPIC_ID),
        (asked(ALL, partition_index=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asked(ALL, partition_index=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asked(ALL, leader_epoch=6), ErrorCode.NOT_CONTROLLER),
        (asked(ALL, partition_epoch=10), ErrorCode.NOT_CONTROLLER),
        (asked(ALL, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (asked(ALL, sender=2, epoch=102), ErrorCode.FENCED_LEADER_EPOCH),
        (asked(ALL, partition_epoch=8), ErrorCode.INVALID_UPDATE_VERSION),
        (asked({2: 102, 3: 103}), ErrorCode.INVALID_REQUEST),
        (asked({1: 101, 4: 104}), ErrorCode.INVALID_REQUEST),
        (asked({**ALL, 3: 102}), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_is_no_in_sync_set_changes_nothing(request_: AlterPartitionRequest, code: ErrorCode) -> None:
    state = state_with(PARTITION)
    answer = ReplicationControl(state).alter_partition(request_, 3)
    got = answer.error_code or answer.topics[0].partitions[0].error_code
    assert got == code
    assert partition_in(state) == PARTITION


@pytest.mark.parametrize("third", [{"fenced": True}, {"shutting_down": True}], ids=str)
def test_who_does_not_serve_is_not_in_sync(third: dict[str, Any]) -> None:
    state = state_with(PARTITION, [b if b.node_id != 3 else replace(b, **third) for b in BROKERS])
    answer = ReplicationControl(state).alter_partition(asked(ALL), 3)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert partition_in(state) == PARTITION


@pytest.mark.parametrize("isr", [ALL, {1: 101}, {1: -1, 2: -1, 3: -1}], ids=["grown", "shrunk", "without epochs"])
def test_a_leaders_set_is_taken(isr: dict[int, int]) -> None:
    state = state_with(PARTITION)
    (answer,) = ReplicationControl(state).alter_partition(asked(isr), 3).topics[0].partitions
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (ErrorCode.NONE, list(isr), 10)
    assert partition_in(state).isr == tuple(isr)


def cancelled(**fields: Any) -> PartitionImage:
    """What is left of a reassignment from 1, 2 to 4, 5."""
    state = state_with(replace(PARTITION, replicas=(4, 5, 1, 2), adding=(4, 5), removing=(1, 2), **fields))
    ReassignmentControl(state, ReplicationControl(state)).reassign("t", 0, None)
    return partition_in(state)


@pytest.mark.parametrize("isr", [(1, 2), (1, 4), (4, 1, 5, 2), (2,)], ids=str)
def test_a_cancelled_reassignment_leaves_the_old_replicas(isr: tuple[int, ...]) -> None:
    after = cancelled(isr=isr, leader=isr[0])
    assert (after.replicas, after.adding, after.removing) == ((1, 2), (), ())
    assert after.isr == tuple(n for n in isr if n in (1, 2))
    assert after.leader in after.isr


def test_a_reassignment_whose_old_replicas_are_all_behind_is_not_cancelled() -> None:
    with pytest.raises(ApiError, match="t:0 because it would require an unclean leader election") as refused:
        cancelled(isr=(4,), leader=4)
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# Measured with Apache Kafka 4.4.0, brokers 3 and 4 stopped: replicas of the request, and then leader, leader epoch,
# all replicas, those being added and removed.
_OVER_ONE_UNDER_WAY = [
    [((3,), 1, 0, (3, 1, 2), (3,), (1, 2)), ((1, 2), 1, 0, (1, 2, 3), (3,), (3,)), (None, 1, 1, (1, 2), (), ())],
    [((1, 3), 1, 0, (1, 3, 2), (3,), (2,)), ((2, 1), 1, 0, (2, 1, 3), (3,), (3,)), (None, 1, 1, (2, 1), (), ())],
    [
        ((4, 3), 1, 0, (4, 3, 1, 2), (3, 4), (1, 2)),
        ((4, 1), 1, 0, (4, 1, 2, 3), (3, 4), (2, 3)),
        (None, 1, 1, (1, 2), (), ()),
    ],
    [
        ((2, 1, 3), 1, 0, (2, 1, 3), (3,), ()),
        ((2,), 1, 0, (2, 1, 3), (3,), (1, 3)),
        (None, 1, 1, (2, 1), (), ()),
    ],
]


def with_two_down(
    partition: PartitionImage, configs: Mapping[str, str | None] = MappingProxyType({})
) -> ControllerState:
    return state_with(partition, [replace(b, fenced=b.node_id > 2) for b in BROKERS], configs)


@pytest.mark.parametrize("steps", _OVER_ONE_UNDER_WAY, ids=lambda steps: str([step[0] for step in steps]))
def test_a_second_reassignment_keeps_what_it_does_not_replace(
    steps: list[tuple[tuple[int, ...] | None, int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]],
) -> None:
    state = with_two_down(replace(PARTITION, replicas=(1, 2), leader_epoch=0))
    for replicas, *expected in steps:
        ReassignmentControl(state, ReplicationControl(state)).reassign("t", 0, replicas)
        after = partition_in(state)
        assert [after.leader, after.leader_epoch, after.replicas, after.adding, after.removing] == expected


def test_the_number_of_replicas_is_that_at_the_end_of_the_reassignment_under_way() -> None:
    state = with_two_down(replace(PARTITION, replicas=(1, 2)))
    reassign = ReassignmentControl(state, ReplicationControl(state)).reassign
    reassign("t", 0, (1, 3, 4))
    with pytest.raises(ApiError, match="The replication factor is changed from 3 to 2"):
        reassign("t", 0, (3, 4), same_count=True)
    reassign("t", 0, (2, 4, 3), same_count=True)
    assert partition_in(state).replicas == (2, 4, 3, 1)


def test_a_reassignment_elects_no_leader_uncleanly_and_its_cancelling_keeps_an_old_replica() -> None:
    unclean = {"unclean.leader.election.enable": "true"}
    state = with_two_down(PartitionImage(0, (3, 4), (), -1, 2, 9), unclean)
    reassign = ReassignmentControl(state, ReplicationControl(state)).reassign
    reassign("t", 0, (1, 3))
    assert (partition_in(state).leader, partition_in(state).replicas) == (-1, (1, 3, 4))
    reassign("t", 0, None)
    after = partition_in(state)
    assert (after.leader, after.leader_epoch, after.replicas, after.isr) == (-1, 3, (3, 4), (3,))
    with pytest.raises(ApiError) as refused:
        reassign("t", 0, None)
    assert refused.value.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
