"""The topics of data directories whose controller journal lacks them: which broker replicates which partition, and what
becomes of partitions that are in none of the directories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from minibroker.config.settings import Settings, validate_topic_config
from minibroker.controller.kraft import KraftMetadata, KraftPartition, KraftTopic
from minibroker.controller.state import PRODUCER_ID_BLOCK_SIZE, ControllerState, PartitionChange, decode_id
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from minibroker_protocol.errors import ApiError
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import join
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot

log = get_logger(__name__)

_NAMED = 3  # partitions in a line


def take_over_topics(state: ControllerState, directories: Sequence[DataDirectory], kafka: KraftMetadata | None) -> None:
    """Add the topics that `directories` hold and those that Kafka's metadata describe, which are None if there are
    none, or they are taken over already. Raises MalformedFile, StorageError."""
    own = any(directory.written_before_by for directory in directories)
    described: Mapping[str, KraftTopic] = kafka.topics if kafka is not None else {}
    if kafka is not None and kafka.damaged is None and not own:
        _set_strays_aside(state, directories, described)
    on_disk: dict[str, _Found] = {}
    highest_producer = -1
    for directory in directories:
        for topic, index in directory.partitions():
            if topic in state.image.topics:
                continue
            topic_id = directory.topic_id(topic, index)
            if topic_id in state.removed_topics:
                _remove(directory, topic, index)
                continue
            here = on_disk.setdefault(topic, _Found())
            here.nodes.setdefault(index, []).append(directory.node_id)
            here.topic_id = topic_id if topic_id is not None else here.topic_id
            here.epoch = max(here.epoch, _latest_epoch(directory, topic, index))
            highest_producer = max(highest_producer, _highest_producer(directory, topic, index))
    behind = 0
    for name in sorted({*on_disk, *described} - {*state.image.topics}):
        here, about = on_disk.get(name, _Found()), described.get(name)
        if about is not None and about.topic_id != (here.topic_id or about.topic_id):
            about = None  # another topic of the same name, whose directory is a leftover
        if not here.nodes and (about is None or not about.partitions):
            continue  # the metadata end before its partitions
        placement = _Placement(directories, here, about, own=own)
        behind += placement.behind
        log.info(
            "taking over topic %s with %d partition(s), %d of them in the data directory",
            name,
            len(placement.partitions),
            len(here.nodes),
        )
        state.take_over_topic(
            name,
            here.topic_id if about is None else about.topic_id,
            placement.partitions,
            _valid_topic_configs(name, about.configs, state.settings) if about is not None else {},
        )
    tiered = [name for name, about in described.items() if about.configs.get("remote.storage.enable") == "true"]
    if tiered:
        log.warning(
            "%d topic(s) have tiered storage (%s%s): records that are only there are not served, each log begins at the"
            " first local one",
            len(tiered),
            ", ".join(tiered[:_NAMED]),
            ", …" if len(tiered) > _NAMED else "",
        )
    if behind:
        log.warning("%d partition(s) were not in sync when Kafka stopped: their last records may be missing", behind)
    if highest_producer >= state.next_producer_id:
        # The last records may have newer ids than any snapshot, at most from the block that follows.
        state.skip_producer_ids((highest_producer // PRODUCER_ID_BLOCK_SIZE + 2) * PRODUCER_ID_BLOCK_SIZE)


def _set_strays_aside(
    state: ControllerState, directories: Sequence[DataDirectory], described: Mapping[str, KraftTopic]
) -> None:
    """Leftovers of topics that Kafka's metadata do not have, or have with another id (LogManager.isStrayKraftReplica).
    What the metadata place elsewhere is no stray here: a directory that was moved is served."""
    strays = []
    for directory in directories:
        for topic, index in directory.partitions():
            topic_id, about = directory.topic_id(topic, index), described.get(topic)
            if topic_id is None or topic in state.image.topics:
                continue
            if about is None or about.topic_id != topic_id or index not in about.partitions:
                strays.append(directory.set_aside(topic, index, state.new_topic_id().hex()))
    if strays:
        log.warning(
            "%d partition(s) in the data directory are not in Kafka's metadata; set aside, as Kafka does: %s%s",
            len(strays),
            ", ".join(strays[:_NAMED]),
            ", …" if len(strays) > _NAMED else "",
        )


@dataclass
class _Found:
    """What directories hold of a topic.

    nodes: by partition, whose directory it is in.
    epoch: the latest leader epoch.
    """

    nodes: dict[int, list[int]] = field(default_factory=dict)
    topic_id: bytes | None = None
    epoch: int = 0


class _Placement:
    """Where the partitions of a topic are.

    behind: how many have no replica here that was in sync.
    """

    def __init__(
        self, directories: Sequence[DataDirectory], here: _Found, about: KraftTopic | None, *, own: bool
    ) -> None:
        """own: the directories are minibroker's, which creates a partition's directory with its first record."""
        self._directories = {directory.node_id: directory for directory in directories}
        self._own = own
        self._epoch = max(here.epoch + 2, about.next_leader_epoch if about is not None else 0)
        self.behind = 0
        known = about.partitions if about is not None else {}
        count = max([*here.nodes, *known]) + 1
        self.partitions = [self._place(index, here.nodes.get(index, []), known.get(index)) for index in range(count)]

    def _place(self, index: int, nodes: list[int], known: KraftPartition | None) -> PartitionImage:
        if not nodes:
            nodes = self._makers(known)
        if not nodes:
            return self._absent(index, known)
        in_sync = nodes
        if known is not None:
            order = {node: place for place, node in enumerate(known.replicas)}
            nodes = sorted(nodes, key=lambda node: order.get(node, len(order)))
            in_sync = [node for node in nodes if node in (*known.isr, *known.elr)]
            if not in_sync:
                in_sync = nodes
                self.behind += bool(known.isr or known.elr)
        return PartitionImage(index, tuple(nodes), tuple(in_sync), in_sync[0], self._epoch)

    def _makers(self, known: KraftPartition | None) -> list[int]:
        """The brokers that create the partition empty, as Kafka does where its directory is missing."""
        if known is None:
            return list(self._directories)[:1] if self._own else []
        ids = ((node, decode_id(directory.directory_id)) for node, directory in self._directories.items())
        return [node for node, directory in ids if known.is_kept_in(node, directory)]

    def _absent(self, index: int, known: KraftPartition | None) -> PartitionImage:
        """A partition of which no replica is here has no leader."""
        if known is None:
            replicas = tuple(self._directories)[:1]
            return PartitionImage(index, replicas, replicas, NO_LEADER, self._epoch, offline=replicas)
        return PartitionImage(
            index, known.replicas, known.isr, NO_LEADER, self._epoch, elr=known.elr, offline=known.replicas
        )


def bring_back(state: ControllerState, directories: Sequence[DataDirectory]) -> None:
    """Partitions that were not here at an earlier start, and now are: whose directory has them, replicates them."""
    there: dict[tuple[str, int], list[int]] = {}
    for directory in directories:
        for key in directory.partitions():
            there.setdefault(key, []).append(directory.node_id)
    changes = []
    for topic, partition in _absent(state.image):
        nodes = tuple(there.get((topic, partition.index), ()))
        if nodes:
            log.info("%s-%d, which was missing before, is in the data directory now", topic, partition.index)
            back = replace(partition, replicas=nodes, isr=nodes, elr=(), offline=())
            changes.append(PartitionChange(topic, replace(back, partition_epoch=partition.partition_epoch + 1)))
    state.change_partitions(changes)


def _absent(image: MetadataImage) -> list[tuple[str, PartitionImage]]:
    return [(topic.name, p) for topic in image.topics.values() for p in topic.partitions if p.offline]


def report_absent(state: ControllerState, directories: Sequence[DataDirectory]) -> None:
    """One warning with the number of partitions that are elsewhere."""
    absent = _absent(state.image)
    if not absent:
        return
    here = {directory.node_id for directory in directories}
    elsewhere = sum(here.isdisjoint(partition.replicas) for _, partition in absent)
    named = ", ".join(f"{topic}-{partition.index}" for topic, partition in absent[:_NAMED])
    log.warning(
        "%d partition(s) have no leader, because they are not in the data directory (%s%s): %d in another log "
        "directory of this broker, %d on other brokers. minibroker opens one directory of a broker: to add "
        "the others, move their partition directories into it while the broker is stopped",
        len(absent),
        named,
        ", …" if len(absent) > _NAMED else "",
        len(absent) - elsewhere,
        elsewhere,
    )


def _remove(directory: DataDirectory, topic: str, index: int) -> None:
    """The broker ended before it had deleted all logs of a topic."""
    log.info("removing %s-%d, whose topic is deleted", topic, index)
    directory.disk.remove_tree(directory.partition_path(topic, index))
    directory.forget(topic, index)


def _valid_topic_configs(topic: str, configs: Mapping[str, str], settings: Settings) -> dict[str, str]:
    valid = {}
    for name, value in configs.items():
        try:
            validate_topic_config({name: value}, settings)
        except ApiError as error:
            log.warning("the config %s of topic %s is not taken over: %s", name, topic, error.message)
        else:
            valid[name] = value
    return valid


def _latest_epoch(directory: DataDirectory, topic: str, index: int) -> int:
    path = join(directory.partition_path(topic, index), LEADER_EPOCH)
    if not directory.disk.exists(path):
        return 0
    try:
        return LeaderEpochCache.decode(directory.disk.read_bytes(path), path).latest_epoch or 0
    except MalformedFile:
        if directory.clean:
            raise
        return 0  # torn by a crash; opening the log makes it again from the batches


def _highest_producer(directory: DataDirectory, topic: str, index: int) -> int:
    """The largest producer id in the newest snapshot, -1 without one."""
    folder = directory.partition_path(topic, index)
    snapshots = [name for name in directory.disk.list(folder) if name.endswith(SNAPSHOT_SUFFIX)]
    if not snapshots:
        return -1
    path = join(folder, snapshots[-1])
    try:
        entries = decode_snapshot(directory.disk.read_bytes(path), path)
    except MalformedFile:
        return -1  # opening the log passes it over as well
    return max((entry.producer_id for entry in entries), default=-1)
