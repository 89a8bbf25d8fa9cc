"""Verifies the files of one partition directory against each other and against the rules of their formats.

One pass over every log: batches and their records, offsets, leader epochs, offset and time index, abort index, producer
snapshots against a replay. Reads only; memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minibroker_protocol.errors import ApiError, Malformed
from minibroker_protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    ControlRecord,
    ControlType,
    crc_ok,
    decode_records,
    parse_control,
)
from minibroker_protocol.records import records_payload as payload_of
from minibroker_protocol.records import validate_records as walk
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.disk import Disk, join
from minibroker_storage.dump import dump
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.log_scan import scan
from minibroker_storage.partition_metadata import FILE_NAME, decode_partition_metadata
from minibroker_storage.producer_entry import ProducerEntry
from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from minibroker_storage.producer_state import ProducerStateManager
from minibroker_storage.txn_index import AbortedTxn, TxnIndex

ERROR = "error"
NOTICE = "notice"
MAX_RELATIVE_OFFSET = (1 << 31) - 1
_FOREVER = ProducerRules(producer_id_expiration_ms=1 << 62)
_UNFINISHED = (".deleted", ".cleaned", ".swap", ".tmp")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong (`error`), or worth knowing (`notice`), in a file: byte `position` and log `offset` where there
    are such."""

    path: str
    message: str
    position: int | None = None
    offset: int | None = None
    severity: str = ERROR

    def __str__(self) -> str:
        where = [self.path]
        if self.position is not None:
            where.append(f"byte {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{self.severity}: {', '.join(where)}: {self.message}"


Report = Callable[[Finding], None]
Progress = Callable[[str, int, int], None]
"""(partition, bytes of its logs done, bytes in all)."""


class SegmentIndexes:
    """What the three index files of a segment claim, ticked off while its log goes by."""

    def __init__(self, disk: Disk, stem: str, base_offset: int, size: int, report: Report) -> None:
        self._stem = stem
        self._report = report
        self._base_offset = base_offset
        self._positions = self._offset_index(disk, size)
        self._timestamps = self._time_index(disk)
        self._largest = -1
        self.aborted = self._txn_index(disk)

    def _rows(self, disk: Disk, suffix: str) -> list[dict[str, int]]:
        path = self._stem + suffix
        if not disk.exists(path):
            return []
        rows = list(dump(disk, path))
        for row in rows:
            if row["kind"] == "error":
                self._report(Finding(path, row["message"], row.get("position")))
        return [row for row in rows if row["kind"] != "error"]

    def _offset_index(self, disk: Disk, size: int) -> dict[int, int]:
        path, rows, last = self._stem + ".index", self._rows(disk, ".index"), (self._base_offset - 1, -1)
        if size and not disk.exists(path):
            self._report(Finding(path, "the file is missing; opening the log rebuilds it", severity=NOTICE))
        for number, row in enumerate(rows):
            entry = row["offset"], row["position"]
            if entry[0] <= last[0] or entry[1] <= last[1]:
                self._report(Finding(path, f"entry {entry} after {last}: entries must rise", number * 8, entry[0]))
                return {}
            last = entry
        return {row["position"]: row["offset"] for row in rows}

    def _time_index(self, disk: Disk) -> dict[int, int]:
        path, last = self._stem + ".timeindex", (-1, self._base_offset - 1)
        rows = self._rows(disk, ".timeindex")
        for number, row in enumerate(rows):
            entry = row["timestamp"], row["offset"]
            if entry[0] <= last[0] or entry[1] < last[1]:
                self._report(Finding(path, f"entry {entry} after {last}: timestamps must rise", number * 12, entry[1]))
                return {}
            last = entry
        return {row["offset"]: row["timestamp"] for row in rows}

    def _txn_index(self, disk: Disk) -> dict[int, AbortedTxn]:
        path = self._stem + ".txnindex"
        try:
            data = disk.read_bytes(path) if disk.exists(path) else b""
            return {txn.last_offset: txn for txn in TxnIndex.decode(data, self._base_offset, path)}
        except Malformed as error:
            self._report(Finding(path, str(error)))
            return {}

    def batch(self, position: int, header: BatchHeader) -> None:
        """Compares what the indexes say of a batch with the batch."""
        last_offset = header.last_offset
        claimed = self._positions.pop(position, last_offset)
        if claimed != last_offset:
            reason = f"entry for offset {claimed}, the batch at byte {position} ends at {last_offset}"
            self._report(Finding(self._stem + ".index", reason, offset=claimed))
        self._largest = max(self._largest, header.max_timestamp)
        timestamp = self._timestamps.pop(last_offset, None)
        if timestamp is not None and timestamp != self._largest:
            reason = f"entry says {timestamp} is the largest timestamp up to here, it is {self._largest}"
            self._report(Finding(self._stem + ".timeindex", reason, offset=last_offset))

    def end(self) -> None:
        """What was claimed of batches that are not there."""
        for position, offset in self._positions.items():
            self._report(Finding(self._stem + ".index", f"no batch begins at byte {position}", offset=offset))
        for offset, timestamp in self._timestamps.items():
            reason = f"no batch ends at this offset (timestamp {timestamp})"
            self._report(Finding(self._stem + ".timeindex", reason, offset=offset))
        for offset, txn in self.aborted.items():
            reason = f"no marker of producer {txn.producer_id} at this offset"
            self._report(Finding(self._stem + ".txnindex", reason, offset=offset))


class PartitionCheck:
    """The check of one directory; `log_start` is what the checkpoint says, 0 where it is silent.

    Afterwards `start` and `end` are the offsets its segments span, `topic_id` what the directory says (None: nothing).
    """

    def __init__(
        self, disk: Disk, directory: str, report: Report, *, clean: bool, progress: Progress, log_start: int = 0
    ) -> None:
        self._disk = disk
        self._dir = directory
        self._report = report
        self._clean = clean
        self._progress = progress
        self._names = {name for name in disk.list(directory) if not disk.is_dir(join(directory, name))}
        self._producers = ProducerStateManager(_FOREVER)
        self._doubtful: set[int] = set()  # producers whose state the log alone does not give
        self._epochs = LeaderEpochCache()
        self._snapshots: list[int] = []
        self._gaps = 0
        self._whole = False  # every record since offset 0 is there
        self._log_start = log_start
        self.topic_id: bytes | None = None
        self.start = self.end = 0

    def run(self) -> None:
        self._small_files()
        bases = sorted(int(name[:20]) for name in self._names if name.endswith(".log") and name[:20].isdecimal())
        if not bases:
            self._report(Finding(self._dir, "no .log file", severity=NOTICE))
            return
        self.start = self.end = bases[0]
        self._log_start = max(self._log_start, self.start)
        self._whole = self.start == 0
        sizes = [self._disk.size(self._stem(base) + ".log") for base in bases]
        done = 0
        for base, size, following in zip(bases, sizes, [*bases[1:], None], strict=True):
            self._segment(base, size, following)
            done += size
            self._progress(self._dir, done, sum(sizes))
        self._compare_snapshots(self.end, inclusive=True)
        for epoch, start in self._epochs.entries:
            if start > self.end:
                self._late(join(self._dir, LEADER_EPOCH), f"epoch {epoch} begins after the log's end {self.end}", start)

    def _late(self, path: str, message: str, offset: int) -> None:
        """Something beyond the end of the log: normal after a crash, when opening the log will remove it."""
        self._report(Finding(path, message, offset=offset, severity=ERROR if self._clean else NOTICE))

    def _stem(self, base: int) -> str:
        return join(self._dir, f"{base:020d}")

    def _small_files(self) -> None:
        for name in sorted(self._names):
            path = join(self._dir, name)
            try:
                if name.endswith(_UNFINISHED):
                    self._report(Finding(path, "left over; opening the log settles it", severity=NOTICE))
                elif name == FILE_NAME:
                    self.topic_id = decode_partition_metadata(self._disk.read_bytes(path), path)
                elif name == LEADER_EPOCH:
                    self._epochs = LeaderEpochCache.decode(self._disk.read_bytes(path), path)
                elif name.endswith(SNAPSHOT_SUFFIX) and name[:20].isdecimal():
                    decode_snapshot(self._disk.read_bytes(path), path)
                    self._snapshots.append(int(name[:20]))
                elif name.endswith((".index", ".timeindex", ".txnindex")) and name[:20] + ".log" not in self._names:
                    self._report(Finding(path, "an index of no log"))
            except Malformed as error:
                self._report(Finding(path, str(error)))

    # Segments

    def _segment(self, base: int, size: int, following: int | None) -> None:
        stem = self._stem(base)
        path = stem + ".log"
        if base < self.end:
            self._report(Finding(path, f"begins at {base}, the segment before it ends at {self.end}", offset=base))
        elif base > self.end:
            self._whole = False
            reason = f"no batch from offset {self.end} to {base}: compaction, or a segment is missing"
            self._report(Finding(path, reason, offset=self.end, severity=NOTICE))
        self.end = max(self.end, base)
        indexes = SegmentIndexes(self._disk, stem, base, size, self._report)
        file = self._disk.open(path)
        position, self._gaps = 0, 0
        try:
            for position, header, data in scan(file, size):
                self._compare_snapshots(header.base_offset)
                self._batch(path, position, header, data, base, following, indexes)
                position += header.size
        except Malformed as error:
            torn = following is None and not self._clean
            self._report(Finding(path, f"{error}", position, self.end, NOTICE if torn else ERROR))
            return
        finally:
            file.close()
        indexes.end()
        if self._gaps:
            self._report(
                Finding(path, f"{self._gaps} gaps between offsets, as compaction leaves them", severity=NOTICE)
            )

    def _batch(
        self,
        path: str,
        position: int,
        header: BatchHeader,
        data: memoryview,
        base: int,
        following: int | None,
        indexes: SegmentIndexes,
    ) -> None:
        def wrong(message: str) -> None:
            self._report(Finding(path, message, position, header.base_offset))

        indexes.batch(position, header)
        if header.base_offset < self.end:
            wrong(f"expected an offset from {self.end} on")
        if header.base_offset > self.end:
            self._gaps += 1
            self._whole = False
        if header.last_offset_delta < 0 or header.last_offset - base > MAX_RELATIVE_OFFSET:
            wrong(f"last offset {header.last_offset} does not fit a segment that begins at {base}")
        if following is not None and header.last_offset >= following:
            wrong(f"last offset {header.last_offset} lies in the next segment, which begins at {following}")
        # The first batch may begin before the log does.
        epoch = self._epochs.epoch_for_offset(max(header.base_offset, min(self._log_start, header.last_offset)))
        deleted = header.last_offset < self._log_start or not self._epochs.entries
        if epoch != header.partition_leader_epoch and not (epoch == -1 and deleted):
            wrong(f"leader epoch {header.partition_leader_epoch}, {LEADER_EPOCH} says {epoch}")
        self.end = max(self.end, header.next_offset)
        if not crc_ok(data, 0, header):
            wrong("wrong checksum")
            return
        try:
            control = self._content(header, data)
        except Malformed as error:
            wrong(str(error))
            return
        self._replay(header, control, wrong, indexes)

    @staticmethod
    def _content(header: BatchHeader, data: memoryview) -> ControlRecord | None:
        """Walks the records; the control record, if it is one. Raises Malformed."""
        if not header.record_count and header.size == HEADER_SIZE:
            return None
        if header.is_control:
            records = decode_records(data, 0, header)
            return parse_control(records[0]) if records else None
        walk(payload_of(data, 0, header), header)
        return None

    def _replay(
        self, header: BatchHeader, control: ControlRecord | None, wrong: Callable[[str], None], indexes: SegmentIndexes
    ) -> None:
        if header.is_control and not header.record_count:
            self._doubtful.add(header.producer_id)
        try:
            completed = self._producers.replay(header, control, 0)
        except ApiError as error:
            wrong(error.message or str(error))
            return
        if control is None or control.type is not ControlType.ABORT:
            return
        listed = indexes.aborted.get(header.base_offset)
        if listed is not None and listed.producer_id != header.producer_id:
            listed = None
        if listed is not None:
            del indexes.aborted[header.base_offset]
        if completed is not None:
            self._compare_aborted(AbortedTxn.of(completed), listed, wrong)

    def _compare_aborted(self, replayed: AbortedTxn, listed: AbortedTxn | None, wrong: Callable[[str], None]) -> None:
        """Where records are gone, compacted or deleted, the replay sees less than the index once did."""
        if listed is None:
            wrong(f"the abort index lacks {replayed}")
        elif self._whole and listed != replayed:
            wrong(f"the abort index says {listed}, the log {replayed}")
        elif listed.first_offset > replayed.first_offset:
            wrong(f"the abort index begins at {listed.first_offset}, the transaction at {replayed.first_offset}")

    # Snapshots

    def _compare_snapshots(self, offset: int, *, inclusive: bool = False) -> None:
        """Compares the snapshots taken up to here with the replay."""
        while self._snapshots and (self._snapshots[0] <= offset if inclusive else self._snapshots[0] < offset + 1):
            taken = self._snapshots.pop(0)
            path = self._stem(taken) + SNAPSHOT_SUFFIX
            if taken < self.start:
                continue
            for entry in decode_snapshot(self._disk.read_bytes(path), path):
                known = self._producers.entry(entry.producer_id)
                if known is not None and known.batches and entry.producer_id not in self._doubtful:
                    self._compare(path, taken, entry, known)

    def _compare(self, path: str, taken: int, entry: ProducerEntry, known: ProducerEntry) -> None:
        said = (entry.epoch, entry.last_sequence, entry.last_data_offset)
        found = (known.epoch, known.last_sequence, known.last_data_offset)
        if said != found:
            reason = (
                f"producer {entry.producer_id}: epoch, last sequence and offset are {found} in the log, {said} here"
            )
            self._report(Finding(path, reason, offset=taken))
