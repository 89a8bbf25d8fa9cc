"""Reads a real Kafka's metadata log when its data directory is taken over (KRaft, KIP-631).

Read once, before the controller's own journal has its first entry. The newest snapshot (``.checkpoint``) comes first,
then the log after it. A tail that is torn, as after a crash, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minibroker.kernel.logs import get_logger
from minibroker.metadata.config_resources import ConfigResourceType
from minibroker.metadata.image import NO_LEADER
from minibroker.security.acls import AclBinding
from minibroker.security.credentials import SCRAM_MECHANISMS, ScramCredential
from minibroker_protocol import metadata_records as r
from minibroker_protocol.dsl import Message
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import CorruptBatch, decode_records
from minibroker_storage.directory import CLUSTER_METADATA
from minibroker_storage.disk import Disk, join
from minibroker_storage.log_scan import checked

log = get_logger(__name__)

DIRECTORY = f"{CLUSTER_METADATA}-0"
_SAME = -2  # a leader that did not change
_UNASSIGNED = bytes(16)  # of a log directory that the broker has not chosen yet
_SIZED = 12  # bytes of a batch up to the end of its length


@dataclass(frozen=True, slots=True)
class KraftPartition:
    """replicas, isr, elr: node ids.
    elr: eligible to lead though out of sync (KIP-966).
    directories: the id of each replica's log directory (KIP-858); empty when the records are of a release before
        that.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    leader: int
    leader_epoch: int
    directories: tuple[bytes, ...] = ()

    @property
    def next_leader_epoch(self) -> int:
        """The epoch after the next start: the old leader is fenced, unless it was already, and then elected again."""
        return self.leader_epoch + (1 if self.leader == NO_LEADER else 2)

    def is_kept_in(self, node: int, directory: bytes) -> bool:
        """Whether `node` keeps, or would make, its replica in the log directory of this id."""
        kept = dict(zip(self.replicas, self.directories, strict=False)).get(node)
        return kept in (directory, _UNASSIGNED)


@dataclass
class KraftTopic:
    """A topic, its partitions by index and its own configs."""

    name: str
    topic_id: bytes
    partitions: dict[int, KraftPartition] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def next_leader_epoch(self) -> int:
        """The highest of its partitions."""
        return max((partition.next_leader_epoch for partition in self.partitions.values()), default=0)


Entity = tuple[tuple[str, str | None], ...]
"""Whose quota it is: (type, name), None as the name of the default."""


@dataclass
class KraftMetadata:
    """broker_configs: node id as text, or "" for the cluster-wide default.
    resource_configs: those of groups and of subscriptions to client metrics, by ResourceType and name.
    acls: by their ids.
    scram_credentials: by mechanism and user.
    quotas: the keys of each entity.
    delegation_tokens: their ids.
    end_offset: after the last record.
    damaged: why records may be missing after it; the torn tail that a crash leaves is no such reason.
    """

    topics: dict[str, KraftTopic] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    resource_configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: dict[bytes, AclBinding] = field(default_factory=dict)
    scram_credentials: dict[tuple[str, str], ScramCredential] = field(default_factory=dict)
    quotas: dict[Entity, set[str]] = field(default_factory=dict)
    delegation_tokens: set[str] = field(default_factory=set)
    end_offset: int = 0
    damaged: str | None = None


def read_kraft_metadata(disk: Disk) -> KraftMetadata | None:
    """The metadata in the directory at the disk's root; None when no Kafka left any.

    Raises Malformed for a record that cannot be read and for records that are missing, StorageError.
    """
    if not disk.is_dir(DIRECTORY):
        return None
    replay = _Replay()
    names = disk.list(DIRECTORY)
    snapshots = [name for name in names if name.endswith(".checkpoint") and name[:20].isdecimal()]
    start = int(snapshots[-1][:20]) if snapshots else 0
    try:
        for name in snapshots[-1:]:
            _read(disk, join(DIRECTORY, name), replay, following=None)
    except _Torn as torn:  # Kafka gives it its name when it is whole and synced
        raise Malformed(str(torn)) from None
    following = start
    try:
        for name in names:
            if name.endswith(".log") and name[:20].isdecimal():
                following = _read(disk, join(DIRECTORY, name), replay, following)
    except _Torn as torn:
        log.warning("%s; the metadata end there", torn)
        following = torn.following
        if not torn.at_the_end:
            replay.metadata.damaged = str(torn)
    replay.metadata.end_offset = following
    return replay.metadata


class _Torn(Exception):
    """A batch is not whole.

    following: the offset that it should have.
    at_the_end: no other batch can be after it, as when a crash interrupts an append.
    """

    def __init__(self, reason: str, following: int, *, at_the_end: bool) -> None:
        super().__init__(reason)
        self.following = following
        self.at_the_end = at_the_end


def _read(disk: Disk, path: str, replay: _Replay, following: int | None) -> int:
    """Replay the records at offset `following` and after it, None for all; returns the offset after the last batch.
    Raises _Torn, Malformed."""
    file = disk.open(path)
    at = 0
    try:
        for position, header, data in checked(file, file.size):
            at = position + header.size
            if following is not None:
                if header.last_offset < following:
                    continue
                if header.base_offset > following:
                    missing = f"the records from offset {following} to {header.base_offset - 1} are missing"
                    raise Malformed(f"{path}: {missing}")
            if not header.is_control:
                for record in decode_records(data, 0, header):
                    if record.value is not None and (following is None or record.offset >= following):
                        replay.apply_value(bytes(record.value))
            following = None if following is None else header.last_offset + 1
    except CorruptBatch as error:
        raise _Torn(str(error), following or 0, at_the_end=_is_last(file.pread(_SIZED, at), file.size - at)) from None
    finally:
        file.close()
    return following or 0


def _is_last(head: bytes, size: int) -> bool:
    """Whether a batch that begins with `head` reaches the end of the file, `size` bytes further on."""
    length = int.from_bytes(head[_SIZED - 4 : _SIZED], "big", signed=True)
    return len(head) < _SIZED or head == bytes(_SIZED) or (length > 0 and _SIZED + length >= size)


class _Replay:
    """Applies records in order; those of a metadata transaction once it ended (KIP-868)."""

    def __init__(self) -> None:
        self.metadata = KraftMetadata()
        self._names: dict[bytes, str] = {}
        self._configs: dict[str, dict[str, str]] = {}  # a topic's can come before and stay after it
        self._pending: list[Message] | None = None
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            r.TopicRecord: self._add_topic,
            r.PartitionRecord: self._set_partition,
            r.PartitionChangeRecord: self._change_partition,
            r.RemoveTopicRecord: self._remove_topic,
            r.ConfigRecord: self._config,
            r.FeatureLevelRecord: self._feature,
            r.ProducerIdsRecord: self._producer_ids,
            r.AccessControlEntryRecord: self._add_acl,
            r.RemoveAccessControlEntryRecord: self._remove_acl,
            r.UserScramCredentialRecord: self._set_scram_credential,
            r.RemoveUserScramCredentialRecord: self._remove_scram_credential,
            r.ClientQuotaRecord: self._quota,
            r.DelegationTokenRecord: self._add_token,
            r.RemoveDelegationTokenRecord: self._remove_token,
        }

    def apply_value(self, value: bytes) -> None:
        """Apply an encoded record; one of a type that says nothing here is passed over. Raises Malformed."""
        record = r.decode_metadata_record(value)
        if record is not None:
            self.apply(record)

    def apply(self, record: Message) -> None:
        if isinstance(record, r.BeginTransactionRecord):
            self._pending = []
        elif isinstance(record, r.AbortTransactionRecord):
            self._pending = None
        elif isinstance(record, r.EndTransactionRecord):
            pending, self._pending = self._pending or [], None
            for message in pending:
                self._handlers[type(message)](message)
        elif self._pending is not None:
            self._pending.append(record)
        else:
            self._handlers[type(record)](record)

    # -- topics ------------------------------------------------------------------------------------------------------

    def _add_topic(self, record: r.TopicRecord) -> None:
        self._names[record.topic_id] = record.name
        configs = self._configs.setdefault(record.name, {})
        self.metadata.topics[record.name] = KraftTopic(record.name, record.topic_id, configs=configs)

    def _set_partition(self, record: r.PartitionRecord) -> None:
        self._topic(record.topic_id).partitions[record.partition_id] = KraftPartition(
            tuple(record.replicas),
            tuple(record.isr),
            tuple(record.eligible_leader_replicas or ()),
            record.leader,
            record.leader_epoch,
            tuple(record.directories),
        )

    def _change_partition(self, record: r.PartitionChangeRecord) -> None:
        partitions = self._topic(record.topic_id).partitions
        if record.partition_id not in partitions:
            raise Malformed(f"{DIRECTORY}: a change of partition {record.partition_id}, which no record made")
        before = partitions[record.partition_id]
        changed = replace(
            before,
            replicas=_or(record.replicas, before.replicas),
            isr=_or(record.isr, before.isr),
            elr=_or(record.eligible_leader_replicas, before.elr),
            directories=_or(record.directories, before.directories),
        )
        if record.leader != _SAME:  # a change of the leader is a new epoch (PartitionRegistration.merge)
            changed = replace(changed, leader=record.leader, leader_epoch=before.leader_epoch + 1)
        partitions[record.partition_id] = changed

    def _remove_topic(self, record: r.RemoveTopicRecord) -> None:
        name = self._names.pop(record.topic_id, "")
        self.metadata.topics.pop(name, None)
        self._configs.pop(name, None)

    def _topic(self, topic_id: bytes) -> KraftTopic:
        name = self._names.get(topic_id)
        if name is None:
            raise Malformed(f"{DIRECTORY}: a partition of topic id {topic_id.hex()}, which no record made")
        return self.metadata.topics[name]

    def _config(self, record: r.ConfigRecord) -> None:
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

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _feature(self, record: r.FeatureLevelRecord) -> None:
        self.metadata.features[record.name] = record.feature_level

    def _producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self.metadata.next_producer_id = record.next_producer_id

    def _add_acl(self, record: r.AccessControlEntryRecord) -> None:
        self.metadata.acls[record.id] = AclBinding.of(record)

    def _remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        self.metadata.acls.pop(record.id, None)

    def _set_scram_credential(self, record: r.UserScramCredentialRecord) -> None:
        mechanism = _mechanism(record.mechanism)
        self.metadata.scram_credentials[mechanism, record.name] = ScramCredential(
            record.name, mechanism, record.salt, record.stored_key, record.server_key, record.iterations
        )

    def _remove_scram_credential(self, record: r.RemoveUserScramCredentialRecord) -> None:
        self.metadata.scram_credentials.pop((_mechanism(record.mechanism), record.name), None)

    def _quota(self, record: r.ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        keys = self.metadata.quotas.setdefault(entity, set())
        if record.remove:
            keys.discard(record.key)
        else:
            keys.add(record.key)
        if not keys:
            del self.metadata.quotas[entity]

    def _add_token(self, record: r.DelegationTokenRecord) -> None:
        self.metadata.delegation_tokens.add(record.token_id)

    def _remove_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        self.metadata.delegation_tokens.discard(record.token_id)


def _or(changed: Sequence[Any] | None, before: tuple[Any, ...]) -> tuple[Any, ...]:
    return before if changed is None else tuple(changed)


def _mechanism(number: int) -> str:
    for name, mechanism in SCRAM_MECHANISMS.items():
        if mechanism == number:
            return name
    raise Malformed(f"{DIRECTORY}: SCRAM mechanism {number}, which this version does not know")
