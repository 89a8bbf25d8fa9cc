"""The controller's state: one image, changed only by applying journal entries.

A change is written to the journal first and applied from the written entry, so that a restart, which replays the same
entries, ends at the same image.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, TypeVar

from minibroker.config.settings import Settings
from minibroker.controller.journal import Entry, MetadataJournal
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage, TopicImage
from minibroker.releases.features import METADATA_VERSION
from minibroker.security.acls import AclBinding
from minibroker.security.credentials import ScramCredential
from minibroker_protocol.errors import ApiError, ErrorCode

PRODUCER_ID_BLOCK_SIZE = 1000
"""Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""

Publish = Callable[[MetadataImage, tuple[str, ...]], None]
"""Called with a new image and the topics that changed in it."""


T = TypeVar("T")
Steps = Generator[Deferred[Any] | None, None, T]
"""Work of the controller that yields None at each element of a list, after which others have their turn, and what it
waits for. Its return value is the response."""

_PARTITIONS_A_STEP = 128
"""They take about as long as a topic does."""


def in_steps(items: Iterable[T]) -> Generator[None, None, list[T]]:
    """All items as a list; yields before each 128 of them."""
    made: list[T] = []
    for number, item in enumerate(items, start=1):
        if number % _PARTITIONS_A_STEP == 0:
            yield
        made.append(item)
    return made


def without_steps(work: Steps[T]) -> T:
    """What `work` returns, all of it done now."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            made: T = stop.value
            return made


def outcome_of(work: Callable[[], object]) -> tuple[ErrorCode, str | None]:
    """The code and message of an item of a list: (NONE, None) when `work` is done, else what it has raised."""
    try:
        work()
    except ApiError as error:
        return error.code, error.message
    return ErrorCode.NONE, None


class PartitionChange(NamedTuple):
    """A partition of topic `topic` becomes `partition`."""

    topic: str
    partition: PartitionImage


def encode_id(topic_id: bytes) -> str:
    """A 16-byte id as Kafka prints it: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def decode_id(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class ControllerState:
    """Image, journal and the ids still to give out.

    image: the current MetadataImage.
    random: source of topic ids. publish: called with every new image.
    """

    def __init__(
        self, settings: Settings, journal: MetadataJournal, random: Random, *, cluster_id: str, controller_id: int
    ) -> None:
        self.settings = settings
        self.image = MetadataImage(cluster_id=cluster_id, controller_id=controller_id)
        self.next_producer_id = 0
        #: Whether the ACLs and SCRAM credentials of a Kafka that had the directory before are in the image.
        self.security_taken_over = False
        #: Ids of topics that were deleted before this start. Logs of theirs may be left.
        self.removed_topics: set[bytes] = set()
        #: Leaders of which no replica in sync was left, since this controller's start.
        self.unclean_elections = 0
        self.journal = journal
        self._random = random
        self.publishers: list[Publish] = []
        self._by_metric_name: dict[str, set[str]] = {}

    # -- life cycle --------------------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Replay the journal. True when it is new: its first start has not come to its end, which is the level of
        metadata.version."""
        for line, entry in enumerate(self.journal.replay(), start=1):
            with self._named(line):
                if entry["type"] == "remove-topic":
                    self.removed_topics.add(self.image.topics[entry["name"]].topic_id)
                self._apply(entry)
        if not self.image.feature(METADATA_VERSION):
            return True
        # A node that comes back is fenced and unfenced: two elections, so leader epochs grow by two.
        self._commit({"type": "restart"})
        self.journal.sync()
        return False

    def finalize(self, features: Mapping[str, int]) -> None:
        """The features of a new cluster; its journal is complete, and durable when this returns."""
        for name, level in sorted(features.items(), key=lambda feature: (feature[0] == METADATA_VERSION, feature)):
            self._commit({"type": "feature", "name": name, "level": level})
        self.journal.sync()

    def reload(self) -> None:
        """Reload the journal, as the next active controller does. Registered brokers, which KRaft keeps in the same
        log, stay; offsets continue."""
        before = self.image
        self.image = MetadataImage(cluster_id=before.cluster_id, controller_id=before.controller_id)
        self._by_metric_name.clear()
        self.next_producer_id = 0
        for line, entry in enumerate(self.journal.replay(), start=1):
            with self._named(line):
                self._apply(entry)
        self.image = replace(
            self.image, brokers=before.brokers, controller_id=before.controller_id, offset=before.offset + 1
        )
        self._publish(*self.image.topics)

    @contextmanager
    def _named(self, line: int) -> Iterator[None]:
        """Turns what a damaged entry may raise into one line that says which it is."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"{self.journal.path} line {line}: the entry cannot be applied: {error!r:.100}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error

    def close(self, *, keep: bool = True) -> None:
        self.journal.close(keep=keep)

    # -- changes -----------------------------------------------------------------------------------------------------

    def register_broker(self, broker: BrokerImage) -> None:
        """Brokers register at each start; where they listen is not remembered."""
        self.image = self.image.with_brokers({**self.image.brokers, broker.node_id: broker})
        self._publish()

    def remove_broker(self, node_id: int) -> None:
        self.image = self.image.with_brokers({n: b for n, b in self.image.brokers.items() if n != node_id})
        self._publish()

    def change_partitions(self, changes: Iterable[PartitionChange]) -> None:
        """Put partitions in the place of those they replace, all at once; nothing happens when there are none."""
        changes = tuple(changes)
        self.unclean_elections += sum(self._elects_uncleanly(change) for change in changes)
        entries = [{"topic": change.topic, **_written(change.partition)} for change in changes]
        if not entries:
            return
        topics = dict.fromkeys(entry["topic"] for entry in entries)
        self._change({"type": "partition-changes", "partitions": entries}, *topics)

    def _elects_uncleanly(self, change: PartitionChange) -> bool:
        before, leader = self.image.partition(change.topic, change.partition.index), change.partition.leader
        return before is not None and leader not in (NO_LEADER, before.leader, *before.isr, *before.elr)

    def collides_with(self, name: str) -> str | None:
        """A topic whose name differs only in '.' and '_', which are the same in names of metrics."""
        return next(
            (other for other in sorted(self._by_metric_name.get(_metric_name(name), ())) if other != name), None
        )

    def new_topic_id(self) -> bytes:
        """A random version-4 UUID that no topic has (Kafka never gives one that starts with a dash)."""
        while True:
            raw = bytearray(self._random.randbytes(16))
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            topic_id = bytes(raw)
            if topic_id not in self.image.topic_names and not encode_id(topic_id).startswith("-"):
                return topic_id

    def add_topic(
        self, name: str, assignment: Sequence[tuple[int, ...]], configs: Mapping[str, str]
    ) -> Steps[TopicImage]:
        """Create a topic with one replica list per partition. It is written and published whole, with the last step."""

        def entry(placed: Entry) -> Entry:
            return {
                "type": "topic",
                "name": name,
                "id": encode_id(self.new_topic_id()),
                **placed,
                "configs": dict(configs),
                "epoch": 0,
            }

        yield from self._commit_partitions(assignment, 0, entry)
        self._publish(name)
        return self.image.topics[name]

    def take_over_topic(
        self, name: str, topic_id: bytes | None, partitions: Iterable[PartitionImage], configs: Mapping[str, str]
    ) -> None:
        """Add a topic that a data directory or Kafka's metadata have; None: it gets a new id."""
        entry = {
            "type": "topic",
            "name": name,
            "id": encode_id(topic_id or self.new_topic_id()),
            "partitions": [_written(partition) for partition in partitions],
            "configs": dict(configs),
        }
        self._change(entry, name)

    def add_partitions(self, name: str, assignment: Sequence[tuple[int, ...]]) -> Steps[None]:
        """Grow a topic: as `add_topic`."""
        first = len(self.image.topics[name].partitions)
        yield from self._commit_partitions(
            assignment, first, lambda placed: {"type": "partitions", "name": name, **placed}
        )
        self._publish(name)

    def _commit_partitions(
        self, assignment: Sequence[tuple[int, ...]], first: int, entry: Callable[[Entry], Entry]
    ) -> Steps[None]:
        """Write what `entry` makes of replica lists and in-sync sets, and apply it. Brokers that come or go while the
        partitions are made have them made again."""
        while True:
            brokers = self.image.brokers
            placed = yield from self._placed(assignment)
            partitions = yield from _new_partitions(placed, first, 0)
            if self.image.brokers is brokers:
                break
        written = entry(placed)
        self.journal.append(written)
        if written["type"] == "topic":
            self._take_topic(written, partitions)
        else:
            self._grow_topic(written, partitions)

    def _placed(self, assignment: Sequence[tuple[int, ...]]) -> Steps[Entry]:
        """Replica lists, and the in-sync sets where not every replica is up."""
        down = {node for node, broker in self.image.brokers.items() if not broker.active}
        replicas = yield from in_steps(list(nodes) for nodes in assignment)
        if not any(not down.isdisjoint(nodes) for nodes in replicas):
            return {"replicas": replicas}
        isr = yield from in_steps([node for node in nodes if node not in down] for nodes in replicas)
        return {"replicas": replicas, "isr": isr}

    def remove_topic(self, name: str) -> None:
        self._change({"type": "remove-topic", "name": name}, name)

    def set_topic_configs(self, name: str, configs: Mapping[str, str]) -> None:
        self._change({"type": "topic-configs", "name": name, "configs": dict(configs)}, name)

    def set_broker_configs(self, node: str, configs: Mapping[str, str]) -> None:
        self._change({"type": "broker-configs", "node": node, "configs": dict(configs)})

    def set_resource_configs(self, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Set the configs of a group or of a subscription to client metrics."""
        self._change({"type": "resource-configs", "resource": int(kind), "name": name, "configs": dict(configs)})

    def add_acl(self, entry: AclBinding) -> None:
        self._change({"type": "acl", **entry._asdict()})

    def remove_acls(self, entries: Iterable[AclBinding]) -> None:
        """All at once: no request is judged by a part of them."""
        self._change({"type": "remove-acls", "acls": [entry._asdict() for entry in entries]})

    def take_over_security(self, acls: Iterable[AclBinding], credentials: Iterable[ScramCredential]) -> None:
        """Take over ACLs and credentials of a Kafka that owned the directory before; done once for a directory. Durable
        when it returns."""
        for entry in acls:
            self._commit({"type": "acl", **entry._asdict()})
        for credential in credentials:
            self._commit({"type": "scram-credential", **_written_credential(credential)})
        self._commit({"type": "security-taken-over"})
        self.journal.sync()

    def set_scram_credential(self, credential: ScramCredential) -> None:
        self._change({"type": "scram-credential", **_written_credential(credential)})

    def remove_scram_credential(self, mechanism: str, user: str) -> None:
        self._change({"type": "remove-scram-credential", "mechanism": mechanism, "user": user})

    def set_feature(self, name: str, level: int) -> None:
        self._change({"type": "feature", "name": name, "level": level})

    def allocate_producer_ids(self) -> tuple[int, int]:
        """(first id, count) of a block that is never given out again, also after a restart."""
        first = self.next_producer_id
        if first > (1 << 63) - 1 - PRODUCER_ID_BLOCK_SIZE:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are used up")
        self._commit({"type": "producer-ids", "next": first + PRODUCER_ID_BLOCK_SIZE})
        return first, PRODUCER_ID_BLOCK_SIZE

    def skip_producer_ids(self, following: int) -> None:
        """Never give out ids below `following`: they are in use."""
        if following > self.next_producer_id:
            self._commit({"type": "producer-ids", "next": following})

    # -- application -------------------------------------------------------------------------------------------------

    def _change(self, entry: Entry, *topics: str) -> None:
        self._commit(entry)
        self._publish(*topics)

    def _commit(self, entry: Entry) -> None:
        self.journal.append(entry)
        self._apply(entry)

    def _publish(self, *topics: str) -> None:
        for publish in tuple(self.publishers):
            publish(self.image, topics)

    def _apply(self, entry: Entry) -> None:
        apply: Callable[[Any], None] | None = getattr(self, "_apply_" + str(entry["type"]).replace("-", "_"), None)
        if apply is None:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the metadata journal holds an entry of type {entry['type']!r}, which this version does not know",
            )
        apply(entry)

    def _apply_topic(self, entry: Entry) -> None:
        if "partitions" in entry:
            self._take_topic(entry, map(_read, entry["partitions"]))
        else:
            self._take_topic(entry, without_steps(_new_partitions(entry, 0, int(entry.get("epoch", 0)))))

    def _take_topic(self, entry: Entry, partitions: Iterable[PartitionImage]) -> None:
        topic = TopicImage(entry["name"], decode_id(entry["id"]), tuple(partitions), dict(entry["configs"]))
        self.image = self.image.with_topic(topic)
        self._by_metric_name.setdefault(_metric_name(topic.name), set()).add(topic.name)

    def _apply_partitions(self, entry: Entry) -> None:
        first = len(self.image.topics[entry["name"]].partitions)
        self._grow_topic(entry, without_steps(_new_partitions(entry, first, 0)))

    def _grow_topic(self, entry: Entry, added: Iterable[PartitionImage]) -> None:
        topic = self.image.topics[entry["name"]]
        self.image = self.image.with_topic(replace(topic, partitions=(*topic.partitions, *added)))

    def _apply_partition_changes(self, entry: Entry) -> None:
        changes: dict[str, list[PartitionImage]] = {}
        for written in entry["partitions"]:
            changes.setdefault(written["topic"], []).append(_read(written))
        self.image = self.image.with_partitions(changes)

    def _apply_remove_topic(self, entry: Entry) -> None:
        name = entry["name"]
        self.image = self.image.without_topic(name)
        alike = self._by_metric_name[_metric_name(name)]
        alike.remove(name)
        if not alike:
            del self._by_metric_name[_metric_name(name)]

    def _apply_topic_configs(self, entry: Entry) -> None:
        topic = self.image.topics[entry["name"]]
        self.image = self.image.with_topic(replace(topic, configs=dict(entry["configs"])))

    def _apply_broker_configs(self, entry: Entry) -> None:
        self.image = self.image.with_broker_configs(entry["node"], entry["configs"])

    def _apply_resource_configs(self, entry: Entry) -> None:
        self.image = self.image.with_resource_configs(int(entry["resource"]), entry["name"], entry["configs"])

    def _apply_acl(self, entry: Entry) -> None:
        self._set_acls(self.image.acls | {_acl(entry)})

    def _apply_remove_acl(self, entry: Entry) -> None:
        """One alone, as older journals have it."""
        self._apply_remove_acls({"acls": [entry]})

    def _apply_remove_acls(self, entry: Entry) -> None:
        self._set_acls(self.image.acls.difference(map(_acl, entry["acls"])))

    def _set_acls(self, acls: frozenset[AclBinding]) -> None:
        self.image = replace(self.image, acls=acls, offset=self.image.offset + 1)

    def _apply_scram_credential(self, entry: Entry) -> None:
        credential = _read_credential(entry)
        held = {**self.image.scram_credentials, (credential.mechanism, credential.user): credential}
        self.image = replace(self.image, scram_credentials=held, offset=self.image.offset + 1)

    def _apply_remove_scram_credential(self, entry: Entry) -> None:
        held = dict(self.image.scram_credentials)
        del held[entry["mechanism"], entry["user"]]
        self.image = replace(self.image, scram_credentials=held, offset=self.image.offset + 1)

    def _apply_security_taken_over(self, _: Entry) -> None:
        self.security_taken_over = True

    def _apply_feature(self, entry: Entry) -> None:
        self.image = self.image.with_feature(entry["name"], int(entry["level"]))

    def _apply_producer_ids(self, entry: Entry) -> None:
        self.next_producer_id = int(entry["next"])

    def _apply_restart(self, _: Entry) -> None:
        topics = {
            name: replace(
                topic,
                partitions=tuple(
                    replace(p, leader_epoch=p.leader_epoch + 2, partition_epoch=p.partition_epoch + 2)
                    for p in topic.partitions
                ),
            )
            for name, topic in self.image.topics.items()
        }
        self.image = replace(self.image, topics=topics, offset=self.image.offset + 1)


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _acl(entry: Entry) -> AclBinding:
    return AclBinding(**{name: value for name, value in entry.items() if name != "type"})


_SECRETS = ("salt", "stored_key", "server_key")


def _written_credential(credential: ScramCredential) -> dict[str, Any]:
    written = credential._asdict()
    return written | {name: base64.b64encode(written[name]).decode() for name in _SECRETS}


def _read_credential(entry: Entry) -> ScramCredential:
    fields = {name: entry[name] for name in ScramCredential._fields}
    return ScramCredential(**fields | {name: base64.b64decode(entry[name]) for name in _SECRETS})


def _new_partitions(entry: Entry, first: int, leader_epoch: int) -> Steps[list[PartitionImage]]:
    isr: list[list[int]] = entry["isr"] if "isr" in entry else entry["replicas"]
    pairs = zip(entry["replicas"], isr, strict=True)
    lists = ((tuple(map(int, replicas)), tuple(map(int, live))) for replicas, live in pairs)
    made = yield from in_steps(
        PartitionImage(first + i, replicas, live, live[0] if live else NO_LEADER, leader_epoch)
        for i, (replicas, live) in enumerate(lists)
    )
    return made


_NODE_LISTS = ("replicas", "isr", "adding", "removing", "elr", "last_known_elr", "offline")
_NUMBERS = ("index", "leader", "leader_epoch", "partition_epoch")


def _written(partition: PartitionImage) -> dict[str, Any]:
    written: dict[str, Any] = {name: getattr(partition, name) for name in _NUMBERS}
    written.update((name, list(getattr(partition, name))) for name in _NODE_LISTS if getattr(partition, name))
    return written


def _read(written: Mapping[str, Any]) -> PartitionImage:
    fields: dict[str, Any] = {name: tuple(int(node) for node in written.get(name, ())) for name in _NODE_LISTS}
    fields.update((name, int(written[name])) for name in _NUMBERS)
    return PartitionImage(**fields)
