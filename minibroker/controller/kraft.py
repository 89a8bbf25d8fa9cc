"""Reads a real Kafka's metadata log when its data directory is taken over (KRaft, KIP-631).

Read once, when the controller's own journal is still empty. The newest snapshot (``.checkpoint``) comes first, then the
log after it. A tail that is torn, as after a crash, ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minibroker.kernel.logs import get_logger
from minibroker.metadata.config_resources import ConfigResourceType
from minibroker.metadata.image import NO_LEADER
from minibroker_protocol.dsl import Message
from minibroker_protocol.errors import Malformed
from minibroker_protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_metadata_record,
)
from minibroker_protocol.records import CorruptBatch, decode_records
from minibroker_storage.directory import CLUSTER_METADATA
from minibroker_storage.disk import Disk, join
from minibroker_storage.log_scan import checked

log = get_logger(__name__)

DIRECTORY = f"{CLUSTER_METADATA}-0"
_SAME = -2  # a leader that did not change


@dataclass
class KraftTopic:
    """A topic, its partitions' leaders (index → node id, epoch) and its own configs."""

    name: str
    topic_id: bytes
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def next_leader_epoch(self) -> int:
        """The epoch after the next start: the old leader is fenced, unless it was already, and then elected again."""
        return max((epoch + (1 if leader == NO_LEADER else 2) for leader, epoch in self.leaders.values()), default=0)


@dataclass
class KraftMetadata:
    """broker_configs: node id as text, or "" for the cluster-wide default. resource_configs: those of groups and of
    subscriptions to client metrics, by ResourceType and name."""

    topics: dict[str, KraftTopic] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    resource_configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0


def read_kraft_metadata(disk: Disk) -> KraftMetadata | None:
    """The metadata in the directory at the disk's root; None when no Kafka left any.

    Raises Malformed for a record that cannot be read, StorageError.
    """
    if not disk.is_dir(DIRECTORY):
        return None
    replay = _Replay()
    for record in _records(disk):
        replay.apply(record)
    return replay.metadata


def _records(disk: Disk) -> Iterator[Message]:
    names = disk.list(DIRECTORY)
    snapshots = [name for name in names if name.endswith(".checkpoint") and name[:20].isdecimal()]
    start = int(snapshots[-1][:20]) if snapshots else 0
    logs = [name for name in names if name.endswith(".log") and name[:20].isdecimal()]
    for name in [*snapshots[-1:], *logs]:
        yield from _of_file(disk, join(DIRECTORY, name), 0 if name.endswith(".checkpoint") else start)


def _of_file(disk: Disk, path: str, start: int) -> Iterator[Message]:
    """The records at offset `start` and after it."""
    file = disk.open(path)
    try:
        for _, header, data in checked(file, file.size):
            if header.is_control or header.last_offset < start:
                continue
            for record in decode_records(data, 0, header):
                if record.offset >= start and record.value is not None:
                    found = decode_metadata_record(bytes(record.value))
                    if found is not None:
                        yield found
    except CorruptBatch as error:
        log.warning("%s; the metadata end there", error)
    finally:
        file.close()


class _Replay:
    """Applies records in order; those of a metadata transaction once it ended (KIP-868)."""

    def __init__(self) -> None:
        self.metadata = KraftMetadata()
        self._names: dict[bytes, str] = {}
        self._configs: dict[str, dict[str, str]] = {}  # a topic's can come before and stay after it
        self._pending: list[Message] | None = None

    def apply(self, record: Message) -> None:
        if isinstance(record, BeginTransactionRecord):
            self._pending = []
        elif isinstance(record, AbortTransactionRecord):
            self._pending = None
        elif isinstance(record, EndTransactionRecord):
            pending, self._pending = self._pending or [], None
            for one in pending:
                self._now(one)
        elif self._pending is not None:
            self._pending.append(record)
        else:
            self._now(record)

    def _now(self, record: Message) -> None:
        metadata = self.metadata
        if isinstance(record, TopicRecord):
            self._names[record.topic_id] = record.name
            configs = self._configs.setdefault(record.name, {})
            metadata.topics[record.name] = KraftTopic(record.name, record.topic_id, configs=configs)
        elif isinstance(record, PartitionRecord):
            self._topic(record.topic_id).leaders[record.partition_id] = record.leader, record.leader_epoch
        elif isinstance(record, PartitionChangeRecord):
            if record.leader != _SAME:  # a change of the leader is a new epoch (PartitionRegistration.merge)
                leaders = self._topic(record.topic_id).leaders
                leaders[record.partition_id] = record.leader, leaders[record.partition_id][1] + 1
        elif isinstance(record, RemoveTopicRecord):
            name = self._names.pop(record.topic_id, "")
            metadata.topics.pop(name, None)
            self._configs.pop(name, None)
        elif isinstance(record, ConfigRecord):
            self._config(record)
        elif isinstance(record, FeatureLevelRecord):
            metadata.features[record.name] = record.feature_level
        elif isinstance(record, ProducerIdsRecord):
            metadata.next_producer_id = record.next_producer_id

    def _topic(self, topic_id: bytes) -> KraftTopic:
        name = self._names.get(topic_id)
        if name is None:
            raise Malformed(f"{DIRECTORY}: a partition of topic id {topic_id.hex()}, which no record made")
        return self.metadata.topics[name]

    def _config(self, record: ConfigRecord) -> None:
        if record.resource_type == ConfigResourceType.TOPIC:
            configs = self._configs.setdefault(record.resource_name, {})
        elif record.resource_type == ConfigResourceType.BROKER:
            configs = self.metadata.broker_configs.setdefault(record.resource_name, {})
        elif record.resource_type in (ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS):
            key = record.resource_type, record.resource_name
            configs = self.metadata.resource_configs.setdefault(key, {})
        else:
            return
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
