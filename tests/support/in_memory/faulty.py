"""Faults on a whole broker in memory."""

from __future__ import annotations

from typing import Any

from memory_cluster import MemoryCluster

from minibroker.control.commands import Commands
from minibroker.faults.engine import SetRule
from minibroker.faults.rules import rule_from
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.records import Record, build_batch


class FaultyCluster(MemoryCluster):
    """A `MemoryCluster` whose requests go through the commands' tap."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = Commands(self.cluster, self.timers)

    def inject(self, api: str | None, action: Any, **rule: Any) -> SetRule:
        table = {"action": action, **rule}
        if api is not None:
            table["api"] = api
        return self.commands.engine.add(rule_from(table))


def produce_request(
    topic: str, index: int, *, producer_id: int, epoch: int, sequence: int, count: int = 1
) -> ProduceRequest:
    """A Produce of one idempotent batch."""
    records = [Record(0, 1_700_000_000_000, None, b"%d" % (sequence + i)) for i in range(count)]
    batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic,
                topic_id=NO_ID,
                partition_data=[ProduceRequest.PartitionProduceData(index=index, records=batch)],
            )
        ],
    )
