"""Faults of the small files of a data directory, each by itself and compared with the others, for `check` and the
audit.

Files are read through a `DirectoryReader`, so they may be on any file system. Logs are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from minibroker_protocol.errors import Malformed
from minibroker_storage.check_finding import (
    CHECKPOINT,
    DATA_DIRECTORY,
    ERROR,
    NOTICE,
    OFFSET_INDEX,
    TIME_INDEX,
    TOPIC_ID,
    Finding,
    Report,
)
from minibroker_storage.checkpoints import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LARGEST_OFFSET,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    decode_offsets,
)
from minibroker_storage.directory import (
    CLEAN_FILE,
    CLUSTER_METADATA,
    META_FILE,
    partition_of,
    properties_of,
    wrong_in_meta,
)
from minibroker_storage.disk import join
from minibroker_storage.index_entries import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from minibroker_storage.lost import DIRECTORY, DirectoryReader
from minibroker_storage.partition_metadata import FILE_NAME, decode_partition_metadata, topic_id_text

Offsets = dict[tuple[str, int], int]

OFFSET_FILES = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK, CLEANER_OFFSET)
_UNFINISHED = (".cleaned", ".swap", ".tmp")  # `.deleted` files wait a minute (file.delete.delay.ms), as over an end
_INDEX_RULES = {INDEX_SUFFIX: OFFSET_INDEX, TIME_INDEX_SUFFIX: TIME_INDEX, ".txnindex": "abort-index"}


class RootFiles:
    """The small files at the root of a data directory. `offsets`, after `look`: the offsets in each checkpoint that can
    be read.

    damaged: checkpoints that cannot be read.
    topic_ids: the topic ids found on other brokers of the cluster.
    """

    def __init__(
        self, reader: DirectoryReader, report: Report, topic_ids: dict[str, tuple[bytes, str]] | None = None
    ) -> None:
        self._reader = reader
        self._report = report
        self.entries = reader.sizes("")
        self.clean = CLEAN_FILE in self.entries
        self.offsets: dict[str, Offsets] = {}
        self.damaged: set[str] = set()
        self._topic_ids = {} if topic_ids is None else topic_ids

    def look(self) -> None:
        """Reads the checkpoints; reports faults of them, the identity, the clean-shutdown file and the names."""
        for name in OFFSET_FILES:
            if name in self.entries:
                try:
                    self.offsets[name] = decode_offsets(self._reader.read(name), name)
                except Malformed as error:
                    self.damaged.add(name)
                    self._report(Finding(CHECKPOINT, name, str(error)))
        if META_FILE in self.entries:
            for _, wrong in wrong_in_meta(properties_of(self._reader.read(META_FILE))):
                self._report(Finding(DATA_DIRECTORY, META_FILE, wrong))
        elif RECOVERY_POINT in self.entries or HIGH_WATERMARK in self.entries:
            self._report(Finding(DATA_DIRECTORY, META_FILE, "the file is missing"))
        if self.clean:
            try:
                json.loads(self._reader.read(CLEAN_FILE) or b"{}")
            except ValueError:
                self._report(Finding(DATA_DIRECTORY, CLEAN_FILE, "expected JSON", 0))
        for name, size in sorted(self.entries.items()):
            if size == DIRECTORY and partition_of(name) is None:
                reason = "not the directory of a partition; not checked"
                self._report(Finding(DATA_DIRECTORY, name, reason, severity=NOTICE))

    def partition(self, directory: str, names: Collection[str]) -> bytes | None:
        """Reports faults of the names and the identity of a partition's directory; returns its topic id."""
        topic_id, findings = identity_of(self._reader, directory, names)
        for finding in findings:
            self._report(finding)
        if topic_id is not None:
            self.compare_id(directory, topic_id)
        return topic_id

    def compare_id(self, directory: str, topic_id: bytes) -> None:
        """Reports a topic id that is not that of the topic's other partitions."""
        place = partition_of(directory)
        assert place is not None
        known_id, other = self._topic_ids.setdefault(place[0], (topic_id, directory))
        if known_id != topic_id:
            reason = f"topic id {topic_id_text(topic_id)}, {other} has {topic_id_text(known_id)}"
            self._report(Finding(TOPIC_ID, join(directory, FILE_NAME), reason))

    def without_directory(
        self, existing: Callable[[], Collection[str] | None]
    ) -> Iterator[tuple[tuple[str, int], Finding]]:
        """Partitions that the checkpoints name and that are missing in the directory.

        `existing`: returns the topics in the cluster's metadata; None without metadata. A broker rewrites all
        checkpoints when it is stopped, so that they name existing partitions. A running broker may have just removed a
        partition, or the partition was not copied. High watermarks are rewritten as long as the directory has a
        partition (ReplicaManager.checkpointHighWatermarks): those of the last ones to leave it stay.
        """
        places = (partition_of(name) for name, size in self.entries.items() if size == DIRECTORY)
        kept = any(place is not None and place[0] != CLUSTER_METADATA for place in places)
        for name, offsets in self.offsets.items():
            for topic, partition in offsets if kept or name != HIGH_WATERMARK else ():
                directory = f"{topic}-{partition}"
                if directory in self.entries:
                    continue
                exists = topic in (existing() or ())
                if not (self.clean or exists):
                    continue
                severity = ERROR if self.clean and exists else NOTICE
                yield (topic, partition), Finding(CHECKPOINT, name, f"{directory} has no directory", severity=severity)

    def beyond_its_end(self) -> Iterator[Finding]:
        """Log start offsets above the high watermark, which are allowed only after an unclean shutdown."""
        if not self.clean:
            return
        marks = self.offsets.get(HIGH_WATERMARK, {})
        for (topic, partition), start in self.offsets.get(LOG_START_OFFSET, {}).items():
            mark = marks.get((topic, partition), start)
            if start > mark:
                reason = f"{topic}-{partition} begins at {start}, {HIGH_WATERMARK} says {mark}"
                yield Finding(CHECKPOINT, LOG_START_OFFSET, reason, offset=start)


def identity_of(reader: DirectoryReader, directory: str, names: Collection[str]) -> tuple[bytes | None, list[Finding]]:
    """The topic id in a partition's directory, and what is wrong with its names and its identity."""
    findings = [*wrong_names(directory, names)]
    if FILE_NAME not in names:
        return None, findings
    path = join(directory, FILE_NAME)
    try:
        return decode_partition_metadata(reader.read(path), path), findings
    except Malformed as error:
        return None, [*findings, Finding(TOPIC_ID, path, str(error))]


def wrong_names(directory: str, names: Iterable[str]) -> Iterator[Finding]:
    """Faults that the names in a partition's directory show: leftover files, indexes without a log, no log."""
    known = set(names)
    for name in sorted(known):
        path = join(directory, name)
        if name.endswith(_UNFINISHED):
            reason = "left over; opening the log settles it"
            yield Finding(DATA_DIRECTORY, path, reason, severity=NOTICE)
        suffix = name[20:]
        if suffix == ".log" and name[:20].isdecimal() and int(name[:20]) > LARGEST_OFFSET:
            yield Finding(DATA_DIRECTORY, path, "its name has an offset that no log reaches")
        if suffix in _INDEX_RULES and name[:20] + ".log" not in known:
            # Of a segment that is deleted, the log is renamed first (LogSegment.changeFileSuffixes).
            if name[:20] + ".log.deleted" in known:
                reason = "its log is deleted; opening the log removes both"
                yield Finding(_INDEX_RULES[suffix], path, reason, severity=NOTICE)
            else:
                yield Finding(_INDEX_RULES[suffix], path, "an index of no log")
    if not any(name.endswith(".log") and name[:20].isdecimal() for name in known):
        yield Finding(DATA_DIRECTORY, directory, "no .log file", severity=NOTICE)


def missing_indexes(directory: str, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Missing offset indexes of logs with batches; a directory may have been copied without any."""
    for name, size in sorted(sizes.items()):
        index = name.removesuffix(".log") + INDEX_SUFFIX
        if name.endswith(".log") and size > 0 and index not in sizes:
            reason = "the file is missing; opening the log rebuilds it"
            yield Finding(OFFSET_INDEX, join(directory, index), reason, severity=NOTICE)
