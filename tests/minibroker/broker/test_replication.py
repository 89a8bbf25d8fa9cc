"""What a leader makes of the controller's answer about its in-sync set, whatever has happened meanwhile."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from manual_time import ManualTimers
from one_partition import OnePartition

from minibroker.broker.replication import Replication
from minibroker.config.settings import Settings
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import AlterPartitionResponse

NEWEST = 99
"""The partition epoch of the answer."""


@pytest.mark.parametrize(
    ("meanwhile", "answered", "isr", "asked_again"),
    [
        ("nothing", ErrorCode.NONE, (1, 2, 3), False),
        ("nothing", ErrorCode.INELIGIBLE_REPLICA, (1, 2), True),
        ("nothing", None, (1, 2), True),  # no controller
        ("a new epoch", ErrorCode.NONE, (1, 2), False),
        ("a new epoch", None, (1, 2), False),
        ("another leader", ErrorCode.NONE, (1, 2), False),
        ("deleted", ErrorCode.NONE, (1, 2), False),
    ],
)
def test_the_answer_about_an_in_sync_set(
    meanwhile: str, answered: ErrorCode | None, isr: tuple[int, ...], asked_again: bool
) -> None:
    sent: list[Deferred[Any]] = []

    def send(node_id: int, request: Any, api_version: int) -> Deferred[Any]:
        sent.append(Deferred())
        return sent[-1]

    alive = {node: SimpleNamespace(active=True, fenced=False, epoch=1) for node in (1, 2, 3)}
    timers = ManualTimers()
    broker: Any = SimpleNamespace(
        node_id=1, epoch=1, random=Random(1), settings=Settings({}), timers=timers,
        image=SimpleNamespace(brokers=alive), transport=SimpleNamespace(send=send),
    )  # fmt: skip
    story = OnePartition(isr=(1, 2))
    story.partition.replication = Replication(broker)
    story.write()
    story.fetch(b2=10, b3=10)
    (asked,) = sent
    if meanwhile == "a new epoch":
        story.decide(leader_epoch=6)
    elif meanwhile == "another leader":
        story.decide(leader=2, leader_epoch=6)
    elif meanwhile == "deleted":
        story.partition.dropped()
    del sent[:]
    if answered is None:
        asked.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "nobody there"))
    else:
        data = AlterPartitionResponse.PartitionData(
            partition_index=0, error_code=answered, leader_id=1, leader_epoch=5, isr=[1, 2, 3], partition_epoch=NEWEST
        )
        topic = AlterPartitionResponse.TopicData(topic_id=bytes(16), partitions=[data])
        asked.resolve(AlterPartitionResponse(topics=[topic]))
    partition = story.partition
    assert (partition.isr, partition.partition_epoch == NEWEST) == (isr, isr == (1, 2, 3))
    timers.advance(1000)
    assert bool(sent) is asked_again
