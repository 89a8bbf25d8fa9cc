"""Import topics from data directories whose controller journal lacks them: a real Kafka's, or after the journal was
lost.

Partitions and topic ids come from their directories; configs, features, broker configs and the next producer id from
Kafka's metadata log, when it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minibroker.config.keys import BROKER_KEYS
from minibroker.config.settings import Settings, validate_topic_config
from minibroker.config.types import ConfigError
from minibroker.controller.kraft import KraftMetadata, KraftTopic, read_kraft_metadata
from minibroker.controller.state import PRODUCER_ID_BLOCK_SIZE, ControllerState, without_steps
from minibroker.kernel.logs import get_logger
from minibroker.releases.features import TRANSACTION_VERSION
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import join
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot

log = get_logger(__name__)


def bootstrap(
    state: ControllerState, directories: Sequence[DataDirectory], *, new: bool, transaction_version: int | None
) -> None:
    """Import everything that `directories` hold into the metadata. new: the journal was empty, so Kafka's metadata log
    is read if there is one. transaction_version: the user's, which overrides the log's; None: unset.

    Raises ApiError KAFKA_STORAGE_ERROR for a metadata log that cannot be read, MalformedFile, StorageError.
    """
    kraft = _kraft(directories) if new else None
    if kraft is not None:
        _take_over(state, kraft, transaction_version)
    _bootstrap_topics(state, directories, kraft.topics if kraft is not None else {})


def _kraft(directories: Iterable[DataDirectory]) -> KraftMetadata | None:
    for directory in directories:
        try:
            found = read_kraft_metadata(directory.disk)
        except Malformed as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"Kafka's metadata log: {error}") from error
        if found is not None:
            return found
    return None


def _take_over(state: ControllerState, kraft: KraftMetadata, transaction_version: int | None) -> None:
    level = kraft.features.get(TRANSACTION_VERSION, 0)
    if transaction_version is None and state.image.feature(TRANSACTION_VERSION) != level:
        state.set_feature(TRANSACTION_VERSION, level)
    state.skip_producer_ids(kraft.next_producer_id)
    for node, configs in kraft.broker_configs.items():
        known = _known_broker_configs(node, configs)
        if known:
            state.set_broker_configs(node, known)
    for (kind, name), configs in kraft.resource_configs.items():
        if configs:
            state.set_resource_configs(kind, name, configs)


def _known_broker_configs(node: str, configs: Mapping[str, str]) -> dict[str, str]:
    known = {}
    for name, value in configs.items():
        try:
            if name not in BROKER_KEYS:
                raise ConfigError(f"{name} is not a config of this broker")
            Settings().altered(cluster={name: value})
        except ConfigError as error:
            log.warning("the config %s of broker %r is not taken over: %s", name, node, error)
        else:
            known[name] = value
    return known


def _bootstrap_topics(
    state: ControllerState, directories: Sequence[DataDirectory], described: Mapping[str, KraftTopic]
) -> None:
    found: dict[str, dict[int, list[int]]] = {}
    ids: dict[str, bytes] = {}
    epochs: dict[str, int] = {}
    highest_producer = -1
    for directory in directories:
        for topic, index in directory.partitions():
            if topic in state.image.topics:
                continue
            if directory.topic_id(topic, index) in state.removed_topics:
                _remove(directory, topic, index)
                continue
            found.setdefault(topic, {}).setdefault(index, []).append(directory.node_id)
            known = directory.topic_id(topic, index)
            if known is not None:
                ids[topic] = known
            epochs[topic] = max(epochs.get(topic, 0), _latest_epoch(directory, topic, index))
            highest_producer = max(highest_producer, _highest_producer(directory, topic, index))
    for topic, partitions in sorted(found.items()):
        about = described.get(topic)
        if about is not None and about.topic_id != ids.get(topic, about.topic_id):
            about = None  # another topic of the same name, whose directory is a leftover
        everywhere = tuple(d.node_id for d in directories)
        count = max([*partitions, *(about.leaders if about is not None else ())]) + 1
        replicas = [tuple(partitions.get(i, everywhere[:1])) for i in range(count)]
        log.info("taking over topic %s with %d partition(s) found in the data directory", topic, count)
        added = state.add_topic(
            topic,
            replicas,
            _valid_topic_configs(topic, about.configs, state.settings) if about is not None else {},
            topic_id=about.topic_id if about is not None else ids.get(topic),
            leader_epoch=max(epochs[topic] + 2, about.next_leader_epoch if about is not None else 0),
        )
        without_steps(added)
    if highest_producer >= state.next_producer_id:
        # Ids that only the last records know, which no snapshot has, are of the block after it at most.
        state.skip_producer_ids((highest_producer // PRODUCER_ID_BLOCK_SIZE + 2) * PRODUCER_ID_BLOCK_SIZE)


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
