"""The cluster's metadata as an immutable image (Kafka's MetadataImage).

The controller makes a new image for each change and hands it to every broker; images are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibroker.security.acls import AclBinding
    from minibroker.security.credentials import ScramCredentials

NO_LEADER = -1


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """epoch: grows with every registration.
    fenced: not serving.
    shutting_down: it is giving its leaders away.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False
    epoch: int = -1
    shutting_down: bool = False

    @property
    def active(self) -> bool:
        """Whether it may lead and join in-sync sets."""
        return not self.fenced and not self.shutting_down


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """replicas, isr: node ids.
    leader: node id or NO_LEADER. partition_epoch grows with every change.

    adding, removing: what a reassignment under way does.
    elr: eligible to lead though out of sync, because the in-sync set fell below the minimum while they were in it.
    last_known_elr: the last leader, when none is left (KIP-966).
    offline: replicas in log directories of a Kafka that are not here, so that their brokers cannot lead or follow.
    """

    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=_empty)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """offset: number of changes so far; FinalizedFeaturesEpoch is read from it.
    new_topic_offset: at which the newest topic was created.
    resource_configs: by (ConfigResourceType, name), for resources other than topics and brokers.
    """

    cluster_id: str
    controller_id: int
    offset: int = 0
    new_topic_offset: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=_empty)
    topics: Mapping[str, TopicImage] = field(default_factory=_empty)
    topic_names: Mapping[bytes, str] = field(default_factory=_empty)
    features: Mapping[str, int] = field(default_factory=_empty)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=_empty)
    resource_configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=_empty)
    acls: frozenset[AclBinding] = frozenset()
    scram_credentials: ScramCredentials = field(default_factory=_empty)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        image = self.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        return image.partitions[index]

    def leader_of(self, topic: str, index: int) -> int | None:
        """Node id of the leader; None when the partition is unknown or has none."""
        partition = self.partition(topic, index)
        if partition is None or partition.leader == NO_LEADER:
            return None
        return partition.leader

    def feature(self, name: str) -> int:
        """Finalized level of a feature such as ``transaction.version``; 0 when it is not finalized."""
        return self.features.get(name, 0)

    def with_topic(self, topic: TopicImage) -> MetadataImage:
        topics = dict(self.topics)
        topics[topic.name] = topic
        names, offset, newest = self.topic_names, self.offset + 1, self.new_topic_offset
        if names.get(topic.topic_id) != topic.name:
            names, newest = {**names, topic.topic_id: topic.name}, offset
        return replace(self, topics=topics, topic_names=names, offset=offset, new_topic_offset=newest)

    def without_topic(self, name: str) -> MetadataImage:
        topics = dict(self.topics)
        gone = topics.pop(name)
        names = dict(self.topic_names)
        names.pop(gone.topic_id, None)
        return replace(self, topics=topics, topic_names=names, offset=self.offset + 1)

    def with_brokers(self, brokers: Mapping[int, BrokerImage]) -> MetadataImage:
        # Clients send what concerns the controller to the broker named here, and any live one will do.
        live = [node for node, broker in brokers.items() if not broker.fenced]
        controller = self.controller_id if self.controller_id in live or not live else min(live)
        return replace(self, brokers=brokers, controller_id=controller, offset=self.offset + 1)

    def with_partitions(self, changes: Mapping[str, Iterable[PartitionImage]]) -> MetadataImage:
        """Topic name → partitions that replace those of the same index."""
        topics = dict(self.topics)
        for name, changed in changes.items():
            partitions = list(topics[name].partitions)
            for partition in changed:
                partitions[partition.index] = partition
            topics[name] = replace(topics[name], partitions=tuple(partitions))
        return replace(self, topics=topics, offset=self.offset + 1)

    def with_feature(self, name: str, level: int) -> MetadataImage:
        features = dict(self.features)
        if level == 0:
            features.pop(name, None)
        else:
            features[name] = level
        return replace(self, features=features, offset=self.offset + 1)

    def with_broker_configs(self, node: str, configs: Mapping[str, str]) -> MetadataImage:
        """`node`: a node id as text, or "" for the cluster-wide default."""
        return replace(self, broker_configs={**self.broker_configs, node: dict(configs)}, offset=self.offset + 1)

    def configs_of(self, kind: int, name: str) -> Mapping[str, str]:
        """The configs of a group or of a subscription to client metrics."""
        return self.resource_configs.get((kind, name)) or {}

    def with_resource_configs(self, kind: int, name: str, configs: Mapping[str, str]) -> MetadataImage:
        """A resource without configs is removed."""
        others = {key: held for key, held in self.resource_configs.items() if key != (kind, name)}
        if configs:
            others[kind, name] = dict(configs)
        return replace(self, resource_configs=others, offset=self.offset + 1)


TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC, "__share_group_state"})
