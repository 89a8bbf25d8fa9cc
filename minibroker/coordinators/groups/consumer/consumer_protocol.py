"""The consumer protocol inside the classic one: what JoinGroup and SyncGroup carry for consumers (ConsumerProtocol)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibroker.coordinators.groups.consumer.member import Target
from minibroker.metadata.image import MetadataImage
from minibroker_protocol.coordinator_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from minibroker_protocol.errors import Malformed

_HIGHEST = ConsumerProtocolSubscription.__versions__[1]


def version_of(blob: bytes) -> int:
    """The version a blob is written in, or the highest known; later ones have known ones as prefix."""
    if len(blob) < 2:
        raise Malformed("a consumer's blob starts with an int16")
    version = int.from_bytes(blob[:2], "big", signed=True)
    if version < 0:
        raise Malformed(f"consumer protocol version {version}")
    return min(version, _HIGHEST)


def read_subscription(blob: bytes) -> ConsumerProtocolSubscription:
    """Raises Malformed."""
    return ConsumerProtocolSubscription.decode(blob, version_of(blob), 2)


class CustomAssignor(Exception):
    """An assignment carries data of its assignor's own, which would be lost."""


def read_assignment(blob: bytes, image: MetadataImage) -> dict[bytes, frozenset[int]]:
    """Partitions by topic id; an empty blob and deleted topics assign nothing. Raises Malformed, CustomAssignor."""
    if not blob:
        return {}
    assignment = ConsumerProtocolAssignment.decode(blob, version_of(blob), 2)
    if assignment.user_data:
        raise CustomAssignor
    return by_id({topic.topic: topic.partitions for topic in assignment.assigned_partitions}, image)


def by_id(topics: Mapping[str, Any], image: MetadataImage) -> dict[bytes, frozenset[int]]:
    return {
        image.topics[name].topic_id: frozenset(partitions)
        for name, partitions in topics.items()
        if name in image.topics
    }


def write_assignment(target: Mapping[bytes, Any] | Target, version: int, image: MetadataImage) -> bytes:
    """The blob in `version`, without deleted topics."""
    topics = []
    for topic_id, partitions in target.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(ConsumerProtocolAssignment.TopicPartition(topic=topic.name, partitions=sorted(partitions)))
    message = ConsumerProtocolAssignment(assigned_partitions=topics)
    return version.to_bytes(2, "big") + message.encode(version)
