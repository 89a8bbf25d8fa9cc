"""A data directory: lock, identity, clean-shutdown file, checkpoints and partition directories (Kafka's LogManager
and MetaPropertiesEnsemble)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from minibroker_storage import indexes
from minibroker_storage.checkpoints import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    INT32_MAX,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    decode_offsets,
    encode_offsets,
    whole_number,
)
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import DirLock, Disk, Locked, StorageError, join
from minibroker_storage.file_errors import MalformedFile, shortened
from minibroker_storage.log import PartitionLog
from minibroker_storage.lost import CHECKPOINTS, DiskReader, Lost, lost_of_partition
from minibroker_storage.partition_metadata import FILE_NAME as METADATA_FILE
from minibroker_storage.partition_metadata import NO_TOPIC_ID, decode_partition_metadata
from minibroker_storage.producer_state import ProducerRules

LOCK_FILE = ".lock"
META_FILE = "meta.properties"
# Without a dash: "broker-1" would be partition 1 of a topic called broker.
BROKER_DIR = "broker{}"
CLEAN_FILE = ".kafka_cleanshutdown"
VERSION_FILE = "minibroker.version"
LAYOUT = 1
"""What minibroker keeps in a directory, and how. Another number for what an older version would misread."""
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
LAYOUT_KEY = "minibroker.transaction.state.layout"
KAFKA_LAYOUT = "kafka"
CLUSTER_METADATA = "__cluster_metadata"
"""Kafka's own metadata log, a directory like a partition's but kept by other rules."""

#: Longest directory name; a topic's name is shortened to fit when its directory is renamed for deletion.
MAX_NAME = 255
_PARTITION_DIR = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")
_ASIDE = re.compile(r"\.[0-9a-f]+-(future|delete|stray)$")

Offsets = dict[tuple[str, int], int]


def partition_of(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory's name; None for another name."""
    match = _PARTITION_DIR.fullmatch(name)
    return None if match is None else (match["topic"], int(match["partition"]))


def topic_of(name: str) -> str:
    """The topic of a partition's directory, also of one that moves between log directories, is deleted or is no longer
    the broker's (`NAME-0.ID-future`, `-delete`, `-stray`); empty for another name."""
    place = partition_of(_ASIDE.sub("", name))
    return "" if place is None else place[0]


class DirectoryLocked(Exception):
    """Another process uses the directory; ``pid`` is what it wrote into the lock, empty when unreadable."""

    def __init__(self, pid: str) -> None:
        super().__init__(f"the data directory is in use by process {pid or 'unknown'}")
        self.pid = pid


class WrongDirectory(Exception):
    """The directory belongs to another cluster or node, or has a layout that this broker must not write."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class DataDirectory:
    """Made by :meth:`open`, which locks it.

    clean: the last process closed every log.

    Offsets by (topic, partition): ``recovery_points``, ``log_starts`` (only where the log begins inside its first
    segment), ``high_watermarks``, ``cleaner_offsets`` (first dirty offset). Logs that stay closed keep theirs.
    """

    def __init__(self, disk: Disk, lock: DirLock, meta: Mapping[str, str], *, clean: bool, previous_epoch: int) -> None:
        self.disk = disk
        self.cluster_id = meta["cluster.id"]
        self.node_id = int(meta["node.id"])
        self.directory_id = meta["directory.id"]
        self.clean = clean
        #: Broker epoch of the process that closed the directory cleanly, -1 when unknown (KIP-966).
        self.previous_broker_epoch = previous_epoch
        #: The minibroker version that opened the directory before; empty when it is new, or only Kafka opened it.
        self.written_before_by = ""
        self.warnings: list[str] = []
        self.recovery_points = self._read_or_empty(RECOVERY_POINT)
        self.log_starts = self._read_or_empty(LOG_START_OFFSET)
        self.cleaner_offsets = self._read_or_empty(CLEANER_OFFSET)
        self.high_watermarks = _read_offsets(disk, HIGH_WATERMARK)
        self._offsets: dict[str, Offsets] = {
            RECOVERY_POINT: self.recovery_points,
            LOG_START_OFFSET: self.log_starts,
            HIGH_WATERMARK: self.high_watermarks,
            CLEANER_OFFSET: self.cleaner_offsets,
        }
        #: The content of each checkpoint file; the maps above are the content of its next write.
        self._on_file = {name: dict(offsets) for name, offsets in self._offsets.items()}
        self._writing = threading.Lock()
        self._lock: DirLock | None = lock

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        node_id: int,
        make_id: Callable[[], str],
        cluster_id: str | None = None,
        holder: str = "",
        transaction_state_layout: str = KAFKA_LAYOUT,
    ) -> DataDirectory:
        """Locks the directory, creating it if it is missing. ``make_id`` gives new ids (22 characters); ``holder`` is
        this process's id, for the error of the next process. ``transaction_state_layout`` is noted when the directory
        is created, unless it is Kafka's, and is fixed once there is a record in it.

        Raises DirectoryLocked, WrongDirectory (which leaves the directory as it was when the layout is another one),
        MalformedFile and StorageError.
        """
        disk.make_dir("")
        try:
            lock = disk.lock(LOCK_FILE, holder)
        except Locked as taken:
            raise DirectoryLocked(taken.holder.strip()) from None
        try:
            before = _version_file(disk)
            meta = _identity(disk, node_id, cluster_id, make_id, transaction_state_layout)
            clean, epoch = _take_clean_mark(disk)
            directory = cls(disk, lock, meta, clean=clean, previous_epoch=epoch)
            directory.written_before_by = _version_in(before)
            directory.remove_deleted()
        except BaseException:
            lock.release()
            raise
        return directory

    def _read_or_empty(self, name: str) -> Offsets:
        """Without its checkpoint a log is checked from its start, which costs time and nothing else."""
        try:
            return _read_offsets(self.disk, name)
        except MalformedFile as error:
            self.warnings.append(f"{error}; taken as empty")
            return {}

    def note_version(self, version: str) -> None:
        """Note what writes the directory from now on, before its brokers write anything."""
        self.disk.write_atomic(VERSION_FILE, f"version={version}\nlayout={LAYOUT}\n".encode())

    @property
    def written_by(self) -> str:
        """The version that opened the directory last; empty when only Kafka opened it."""
        return _version_in(_version_file(self.disk))

    # -- partitions ----------------------------------------------------------------------------------------------

    @staticmethod
    def partition_path(topic: str, partition: int) -> str:
        return f"{topic}-{partition}"

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """The topic id in a partition's directory; None without one, or when a crash left half of it.
        Raises MalformedFile in a directory that was closed cleanly."""
        path = join(self.partition_path(topic, partition), METADATA_FILE)
        if not self.disk.exists(path):
            return None
        try:
            return decode_partition_metadata(self.disk.read_bytes(path), path)
        except MalformedFile:
            if self.clean:
                raise
            return None

    def partitions(self) -> list[tuple[str, int]]:
        """(topic, partition) of every directory that holds a partition, without Kafka's metadata log."""
        places = []
        for name in self.disk.list():
            place = partition_of(name)
            if place is not None and place[0] != CLUSTER_METADATA and self.disk.is_dir(name):
                places.append(place)
        return places

    def open_log(
        self,
        topic: str,
        partition: int,
        *,
        config: LogConfig,
        rules: ProducerRules,
        now_ms: int,
        topic_id: bytes = NO_TOPIC_ID,
    ) -> PartitionLog:
        """The partition's log, opened with the offsets of the checkpoint files. Raises ApiError like
        :meth:`PartitionLog.open`."""
        key = (topic, partition)
        opened = PartitionLog.open(
            self.disk,
            self.partition_path(topic, partition),
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            config=config,
            rules=rules,
            now_ms=now_ms,
            clean=self.clean,
            recovery_point=self.recovery_points.get(key, 0),
            log_start_offset=self.log_starts.get(key, 0),
            high_watermark=self.high_watermarks.get(key, 0),
        )
        opened.before_truncation = lambda offset: self._lower(key, offset)
        return opened

    def delete_log(self, log: PartitionLog, unique: str) -> str:
        """Renames a partition's directory for deletion and forgets its offsets; returns the new path, which
        :meth:`remove_deleted` or the caller removes. ``unique`` is 32 hexadecimal digits."""
        path = _renamed(log.topic, log.partition, unique, DELETE_SUFFIX)
        log.rename(path)
        self.forget(log.topic, log.partition)
        return path

    def set_aside(self, topic: str, partition: int, unique: str) -> str:
        """Renames the directory of a partition that is not this topic's, as Kafka's LogManager does with stray logs,
        and forgets its offsets; returns the new path. Nothing reads it again. ``unique`` is 32 hexadecimal digits."""
        path = _renamed(topic, partition, unique, STRAY_SUFFIX)
        self.disk.rename(self.partition_path(topic, partition), path)
        self.disk.sync_dir("")
        self.forget(topic, partition)
        self.begin(topic, partition)
        return path

    def forget(self, topic: str, partition: int) -> None:
        """The partition's directory was removed: the next checkpoints do not name it."""
        for offsets in self._offsets.values():
            offsets.pop((topic, partition), None)

    def begin(self, topic: str, partition: int) -> None:
        """A new partition may have the name of a deleted one and must not get its offsets: checkpoints that still name
        the deleted one are rewritten."""
        key = (topic, partition)
        for name in CHECKPOINTS:
            if key in self._on_file[name] and key not in self._offsets[name]:
                self._write(name, sync=False)

    def _lower(self, key: tuple[str, int], offset: int) -> None:
        """The log is about to end at `offset`: no checkpoint may have a higher offset, because after a crash that would
        look like lost records."""
        for name in CHECKPOINTS:
            offsets = self._offsets[name]
            if offsets.get(key, 0) > offset:
                offsets[key] = offset
            if self._on_file[name].get(key, 0) > offset:
                self._write(name, sync=False)

    def lost(self, held: Iterable[tuple[str, int]], never_compacted: Container[str] = ()) -> list[Lost]:
        """Missing data of the partitions that have a directory, and of those in `held`, which have one after their
        first write.

        never_compacted: topics of whose records compaction takes none.

        Call it before any log is opened, because opening repairs the files.
        """
        reader = DiskReader(self.disk)
        losses = []
        for key in sorted({*self.partitions(), *held}):
            reached = {name: self._on_file[name][key] for name in CHECKPOINTS if key in self._on_file[name]}
            compacted = key[0] not in never_compacted or key in self.cleaner_offsets
            path = self.partition_path(*key)
            losses += lost_of_partition(reader, path, reached, clean=self.clean, compacted=compacted)
        return losses

    def remove_deleted(self) -> None:
        """Removes directories that were renamed for deletion."""
        for name in self.disk.list():
            if name.endswith(DELETE_SUFFIX) and "." in name and self.disk.is_dir(name):
                self.disk.remove_tree(name)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def note(self, logs: Iterable[PartitionLog]) -> None:
        """Takes over the offsets of open logs, for the next write of a checkpoint."""
        for log in logs:
            key = (log.topic, log.partition)
            self.recovery_points[key] = log.recovery_point
            self.high_watermarks[key] = log.high_watermark
            if log.log_start_offset > log.segments[0].base_offset:
                self.log_starts[key] = log.log_start_offset
            else:
                self.log_starts.pop(key, None)

    def write_checkpoints(self, *, sync: bool = True) -> None:
        """Writes recovery points, log starts and high watermarks; slow when synced, may run on another thread."""
        for name in CHECKPOINTS:
            self._write(name, sync=sync)

    def write_recovery_points(self, *, sync: bool = True) -> None:
        self._write(RECOVERY_POINT, sync=sync)

    def write_log_starts(self, *, sync: bool = True) -> None:
        self._write(LOG_START_OFFSET, sync=sync)

    def write_high_watermarks(self, *, sync: bool = True) -> None:
        self._write(HIGH_WATERMARK, sync=sync)

    def write_cleaner_offsets(self, *, sync: bool = True) -> None:
        self._write(CLEANER_OFFSET, sync=sync)

    def _write(self, name: str, *, sync: bool) -> None:
        """Writes one at a time, on any thread: all use the same temporary file, and the last write must have the newest
        values."""
        with self._writing:
            offsets = dict(self._offsets[name])
            try:
                self.disk.write_atomic(name, encode_offsets(offsets), sync=sync)
            except StorageError:
                # The old file may stand, or the new one: what either says is lowered before a truncation.
                before = self._on_file[name]
                self._on_file[name] = {key: max(before.get(key, 0), offsets.get(key, 0)) for key in {*before, *offsets}}
                raise
            self._on_file[name] = offsets

    def close(self, logs: Iterable[PartitionLog] = (), *, broker_epoch: int = -1) -> None:
        """The clean shutdown, after every log was closed: writes the checkpoints and the clean-shutdown file, releases
        the lock. If closing a log failed the file is not written, and the next start checks every log.
        """
        closed = list(logs)
        self.note(closed)
        try:
            self.write_checkpoints()
            if all(log.closed for log in closed):
                self._mark_clean(broker_epoch)
        finally:
            self.release()

    def _mark_clean(self, broker_epoch: int) -> None:
        mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self.disk.write_atomic(CLEAN_FILE, mark.encode())

    def put_back(self) -> None:
        """Releases a directory of which nothing was opened, as it was before :meth:`open`."""
        try:
            if self._lock is not None and self.clean:
                self._mark_clean(self.previous_broker_epoch)
        finally:
            self.release()

    def release(self) -> None:
        """Releases the lock without the clean-shutdown file."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self.disk.close()


def _renamed(topic: str, partition: int, unique: str, suffix: str) -> str:
    ending = f"-{partition}.{unique}{suffix}"
    return topic[: MAX_NAME - len(ending)] + ending


def _version_file(disk: Disk) -> bytes | None:
    """The content of the file about versions, None without one. Raises WrongDirectory for another layout."""
    if not disk.exists(VERSION_FILE):
        return None
    content = disk.read_bytes(VERSION_FILE)
    layout = properties_of(content).get("layout")
    if layout != str(LAYOUT):
        raise WrongDirectory(
            f"{VERSION_FILE}: minibroker {_version_in(content) or 'of an unknown version'} wrote this directory in"
            f" {'no layout' if layout is None else f'layout {layout}'}, this version has layout {LAYOUT}: open it with"
            " that version, or begin a new directory"
        )
    return content


def _version_in(content: bytes | None) -> str:
    return "" if content is None else properties_of(content).get("version", "")


def _read_offsets(disk: Disk, name: str) -> Offsets:
    return decode_offsets(disk.read_bytes(name), name) if disk.exists(name) else {}


def _take_clean_mark(disk: Disk) -> tuple[bool, int]:
    """Whether the directory was closed cleanly, and by which broker epoch. Removes the file before anything is
    written."""
    if not disk.exists(CLEAN_FILE):
        # A start that failed or was killed may have removed it, and not synced that: it would come back.
        disk.sync_dir("")
        return False, -1
    try:
        epoch = int(json.loads(disk.read_bytes(CLEAN_FILE))["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        epoch = -1  # an older Kafka leaves the file empty
    indexes.remove(disk, CLEAN_FILE)
    disk.sync_dir("")
    return True, epoch


def _identity(
    disk: Disk, node_id: int, cluster_id: str | None, make_id: Callable[[], str], layout: str
) -> dict[str, str]:
    """The content of meta.properties, checked against the expected ids; written if it is missing."""
    if not disk.exists(META_FILE):
        meta = {
            "node.id": str(node_id),
            "directory.id": make_id(),
            "version": "1",
            "cluster.id": cluster_id or make_id(),
        }
        if layout != KAFKA_LAYOUT:
            meta[LAYOUT_KEY] = layout
        _write_identity(disk, meta)
        return meta
    meta = properties_of(disk.read_bytes(META_FILE))
    for line, wrong in wrong_in_meta(meta):
        raise MalformedFile(META_FILE, line, wrong, unit="line")
    if int(meta["node.id"]) != node_id:
        raise WrongDirectory(f"{META_FILE} is of node {meta['node.id']}, this is node {node_id}")
    if cluster_id is not None and meta["cluster.id"] != cluster_id:
        raise WrongDirectory(f"{META_FILE} is of cluster {meta['cluster.id']}, this is cluster {cluster_id}")
    stored = meta.get(LAYOUT_KEY, KAFKA_LAYOUT)
    if stored != layout:
        from minibroker_storage.transaction_layout import is_bound

        if is_bound(disk):
            raise WrongDirectory(
                f"{META_FILE}: this directory was made with the transaction state layout {stored!r} and cannot be"
                f" opened with {layout!r}"
            )
        meta[LAYOUT_KEY] = layout
        _write_identity(disk, meta)
    # A Kafka before KIP-858 wrote none.
    if "directory.id" not in meta:
        meta["directory.id"] = make_id()
        _write_identity(disk, meta)
    return meta


def wrong_in_meta(meta: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """(line, reason) of every property for which the directory is not opened."""
    for line, key in enumerate(("version", "node.id", "cluster.id"), start=1):
        if key not in meta:
            yield line, f"expected a line {key}=…"
    if meta.get("version", "1") != "1":
        yield 1, f"expected version=1, got version={meta['version']}"
    node_id = whole_number(meta.get("node.id", "1"))
    if node_id is None or node_id > INT32_MAX:
        yield 1, f"expected a number as node.id, got node.id={meta['node.id']:.40}"


def _write_identity(disk: Disk, meta: Mapping[str, str]) -> None:
    disk.write_atomic(META_FILE, ("#\n" + "".join(f"{key}={value}\n" for key, value in meta.items())).encode())


def properties_of(data: bytes) -> dict[str, str]:
    """The keys and values of a Java properties file in the subset that Kafka writes: no escapes, no continued lines."""
    lines = (line.strip() for line in data.decode("latin-1").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _, value in pairs}
