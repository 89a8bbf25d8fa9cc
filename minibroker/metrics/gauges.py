"""Gauges of one broker's state and of the controller's, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker.metrics.names import Bean, Sample

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.cluster.cluster import Cluster
    from minibroker.partitions.partition import Partition

_RUNNING = 3  # BrokerState.RUNNING
_CLASSIC_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
_OWN = "minibroker"


def samples(cluster: Cluster, broker: Broker) -> Iterator[Sample]:
    """Every gauge of one broker. A log that was not used since the broker's start is not open, and has no figures."""
    yield Sample(Bean("kafka.server", "KafkaServer", "BrokerState"), {}, _RUNNING)
    yield from _replicas(broker)
    yield from _controller(cluster, broker)
    yield from _groups(broker)
    yield from _transactions(broker)
    for name, level in broker.image.features.items():
        first, *others = name.split(".")
        label = first + "".join(word.title() for word in others)
        yield Sample(Bean("kafka.server", "MetadataLoader", "FinalizedLevel"), {"featureName": label}, level)
    sessions = broker.fetch_sessions
    yield Sample(Bean("kafka.server", "FetchSessionCache", "NumIncrementalFetchSessions"), {}, len(sessions))
    yield Sample(
        Bean("kafka.server", "FetchSessionCache", "NumIncrementalFetchPartitionsCached"), {}, sessions.cached_partitions
    )


# -- partitions ----------------------------------------------------------------------------------------------------


def _replicas(broker: Broker) -> Iterator[Sample]:
    counted: Counter[str] = Counter()
    minimums: dict[str, int] = {}
    for partition in broker.partitions():
        if partition.topic not in minimums:
            minimums[partition.topic] = _minimum(broker, partition.topic)
        labels = {"topic": partition.topic, "partition": str(partition.index)}
        image = broker.image.partition(partition.topic, partition.index)
        counted["PartitionCount"] += 1
        if partition.is_leader:
            for name, value in _led(partition, image, minimums[partition.topic]).items():
                yield Sample(Bean("kafka.cluster", "Partition", name), labels, value)
                if name in _SUMMED:
                    counted[_SUMMED[name]] += value
            counted["LeaderCount"] += 1
            counted["ReassigningPartitions"] += image is not None and bool(image.adding or image.removing)
        if partition.is_open:
            yield from tuple(_log(broker, partition, labels, counted))  # at once, or the log may be gone
    for name in REPLICA_MANAGER:
        yield Sample(Bean("kafka.server", "ReplicaManager", name), {}, counted[name])
    replication = broker.replication
    for name, count in (
        ("IsrExpandsPerSec", replication.isr_expands),
        ("IsrShrinksPerSec", replication.isr_shrinks),
        ("FailedIsrUpdatesPerSec", replication.failed_isr_updates),
    ):
        yield Sample(Bean("kafka.server", "ReplicaManager", name, "counter"), {}, count)


_SUMMED: Final = {
    "UnderReplicated": "UnderReplicatedPartitions",
    "UnderMinIsr": "UnderMinIsrPartitionCount",
    "AtMinIsr": "AtMinIsrPartitionCount",
}
REPLICA_MANAGER: Final = (
    "PartitionCount",
    "LeaderCount",
    "ReassigningPartitions",
    "OfflineReplicaCount",
    "ProducerIdCount",
    "PartitionsWithLateTransactionsCount",
    *_SUMMED.values(),
)


def _minimum(broker: Broker, topic: str) -> int:
    image = broker.image.topics.get(topic)
    minimum = broker.settings.topic_value("min.insync.replicas", {} if image is None else image.configs)
    assert isinstance(minimum, int)
    return minimum


def _led(partition: Partition, image: PartitionImage | None, minimum: int) -> dict[str, int]:
    in_sync = len(partition.in_sync.isr if partition.in_sync is not None else partition.isr)
    replicas = len(partition.replicas)
    wanted = replicas - (len(image.adding) if image is not None else 0)
    minimum = min(minimum, replicas)
    return {
        "ReplicasCount": replicas,
        "InSyncReplicasCount": in_sync,
        "UnderReplicated": int(in_sync < wanted),
        "UnderMinIsr": int(in_sync < minimum),
        "AtMinIsr": int(in_sync == minimum),
    }


def _log(broker: Broker, partition: Partition, labels: dict[str, str], counted: Counter[str]) -> Iterator[Sample]:
    log = partition.log
    if partition.is_leader:
        lag = log.high_watermark - log.last_stable_offset
        yield Sample(Bean("kafka.cluster", "Partition", "LastStableOffsetLag"), labels, lag)
    for name, value in (
        ("Size", log.size),
        ("LogStartOffset", log.log_start_offset),
        ("LogEndOffset", log.log_end_offset),
        ("NumLogSegments", len(log.segments)),
    ):
        yield Sample(Bean("kafka.log", "Log", name), labels, value)
    counted["OfflineReplicaCount"] += log.offline is not None
    counted["ProducerIdCount"] += log.producers.count
    longest = broker.settings.get_int("transaction.max.timeout.ms")
    counted["PartitionsWithLateTransactionsCount"] += log.producers.has_late_transaction(broker.clock.now_ms(), longest)


# -- the controller ------------------------------------------------------------------------------------------------


def _controller(cluster: Cluster, broker: Broker) -> Iterator[Sample]:
    """The controller's gauges. Every broker shows those of the active controller, as a Kafka node with both roles
    does."""
    image = cluster.image
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    active = cluster.has_controller and image.controller_id == broker.node_id
    fenced = sum(broker.fenced for broker in image.brokers.values())
    for name, value in (
        ("ActiveControllerCount", int(active)),
        ("ActiveBrokerCount", len(image.brokers) - fenced),
        ("FencedBrokerCount", fenced),
        ("GlobalTopicCount", len(image.topics)),
        ("GlobalPartitionCount", len(partitions)),
        ("OfflinePartitionsCount", sum(partition.leader == NO_LEADER for partition in partitions)),
        ("PreferredReplicaImbalanceCount", sum(partition.leader != partition.replicas[0] for partition in partitions)),
        ("LastAppliedRecordOffset", image.offset),
    ):
        yield Sample(Bean("kafka.controller", "KafkaController", name), {}, value)
    bean = Bean("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec", "counter")
    yield Sample(bean, {}, cluster.unclean_elections)


# -- coordinators --------------------------------------------------------------------------------------------------


def _groups(broker: Broker) -> Iterator[Sample]:
    service = broker.coordinators.groups_if_any
    shards = [] if service is None else [shard for _, shard in service.host.shards()]
    classic: Counter[str] = Counter()
    every: Counter[tuple[str, str]] = Counter()
    for shard in shards:
        for group in shard.groups.values():
            kind = "classic" if isinstance(group, ClassicGroup) else "consumer"
            every[kind, group.state_name] += 1
            if kind == "classic":
                classic[group.state_name] += 1
    bean = Bean("kafka.coordinator.group", "GroupMetadataManager", "NumGroups")
    yield Sample(bean, {}, classic.total())
    for state in _CLASSIC_STATES:
        yield Sample(bean._replace(name=f"NumGroups{state}"), {}, classic[state])
    yield Sample(bean._replace(name="NumOffsets"), {}, sum(shard.offsets.committed_count for shard in shards))
    for (kind, state), count in every.items():
        yield Sample(Bean(_OWN, "coordinator", "groups"), {"protocol": kind, "state": state}, count)


def _transactions(broker: Broker) -> Iterator[Sample]:
    """Kafka has no count of its transactions; this one is ours."""
    states: Counter[str] = Counter()
    service = broker.coordinators.transactions_if_any
    for _, shard in [] if service is None else service.host.shards():
        states.update(entry.metadata.state.label for entry in shard.entries.values() if not entry.nascent)
    for state, count in states.items():
        yield Sample(Bean(_OWN, "coordinator", "transactional_ids"), {"state": state}, count)
    due = 0 if service is None else len(service.markers.active) + len(service.effects.held)
    yield Sample(Bean(_OWN, "coordinator", "transactions_with_markers_due"), {}, due)
