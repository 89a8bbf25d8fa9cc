"""Heartbeats of KIP-848 members in short, against a broker in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from group_client import GroupClient

from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker_protocol import messages as m

Request = m.ConsumerGroupHeartbeatRequest


class Members(GroupClient):
    """Heartbeats in short; partitions are those of topic "t" (4 of them)."""

    def beat(
        self, member_id: str, epoch: int, owned: Iterable[int] | None = None, *, version: int = 1, **more: Any
    ) -> m.ConsumerGroupHeartbeatResponse:
        if owned is not None:
            topic_id = self.broker.image.topics["t"].topic_id
            more["topic_partitions"] = [Request.TopicPartitions(topic_id=topic_id, partitions=list(owned))]
        request = Request(group_id=more.pop("group_id", "g"), member_id=member_id, member_epoch=epoch, **more)
        return self.call(request, m.ConsumerGroupHeartbeatResponse, version)

    def enter(self, member_id: str, *, version: int = 1, **more: Any) -> m.ConsumerGroupHeartbeatResponse:
        """The first heartbeat of a member."""
        more = {"rebalance_timeout_ms": 5000, "subscribed_topic_names": ["t"], "topic_partitions": [], **more}
        return self.beat(member_id, 0, version=version, **more)

    def group(self) -> ConsumerGroup:
        group = self.shard().groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group


def assigned_partitions(response: m.ConsumerGroupHeartbeatResponse) -> list[int] | None:
    """Partitions of the only topic assigned; None when the response says nothing."""
    if response.assignment is None:
        return None
    return [partition for topic in response.assignment.topic_partitions for partition in topic.partitions]
