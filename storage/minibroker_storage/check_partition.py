"""Verifies the files of one partition directory against each other and against the rules of their formats.

One pass over every log: batches and their records, offsets, leader epochs, offset and time index, abort index, producer
snapshots against a replay. Reads only; memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable

from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.records import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    ControlRecord,
    ControlType,
    crc_ok,
    decode_records,
    parse_control,
    walk_batch,
)
from minibroker_storage.check_finding import (
    ABORT_INDEX,
    CHECKSUM,
    EPOCH_CHECKPOINT,
    ERROR,
    NOTICE,
    OFFSET_HOLE,
    PRODUCER_SNAPSHOT,
    RECORD_COUNT,
    TORN_BATCH,
    Finding,
    Report,
)
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.disk import Disk, join
from minibroker_storage.index_entries import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    IndexCheck,
    offset_claims,
    time_claims,
)
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.log_scan import scan
from minibroker_storage.producer_entry import ProducerEntry
from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from minibroker_storage.producer_state import ProducerStateManager
from minibroker_storage.txn_index import AbortedTxn, TxnIndex

MAX_RELATIVE_OFFSET = (1 << 31) - 1
Wrong = Callable[[str, str], None]
"""Reports a batch: the rule, and what is wrong."""
_REFUSED = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "sequence-gap",
    ErrorCode.INVALID_PRODUCER_EPOCH: "epoch-back",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "coordinator-epoch",
}
_OTHERWISE = "outside-transaction"
"""The rules that a replay finds broken."""


Progress = Callable[[str, int, int], None]
"""(partition, bytes of its logs done, bytes in all)."""


class SegmentIndexes:
    """The entries of a segment's three index files, compared with its log batch by batch."""

    def __init__(self, disk: Disk, stem: str, base_offset: int, report: Report) -> None:
        self._stem = stem
        self._report = report
        self._base_offset = base_offset
        files = [stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX]
        data = [disk.read_bytes(path) if disk.exists(path) else b"" for path in files]
        self._claims = IndexCheck(
            offset_claims(files[0], base_offset, data[0]), time_claims(files[1], base_offset, data[1])
        )
        self.aborted = self._txn_index(disk)

    def _txn_index(self, disk: Disk) -> dict[int, AbortedTxn]:
        path = self._stem + ".txnindex"
        try:
            data = disk.read_bytes(path) if disk.exists(path) else b""
            return {txn.last_offset: txn for txn in TxnIndex.decode(data, self._base_offset, path)}
        except Malformed as error:
            self._report(Finding(ABORT_INDEX, path, str(error)))
            return {}

    def batch(self, position: int, header: BatchHeader) -> None:
        """Compares the index entries of a batch with the batch."""
        self._claims.batch(position, header.last_offset, header.max_timestamp)

    def end(self, *, whole: bool) -> None:
        """Reports entries that are wrong; `whole`: also entries for batches that do not exist."""
        for claims, fault in self._claims.faults(whole=whole):
            self._report(Finding(claims.rule, claims.path, fault.message, fault.position, fault.offset))
        for offset, txn in self.aborted.items() if whole else ():
            reason = f"no marker of producer {txn.producer_id} at this offset"
            self._report(Finding(ABORT_INDEX, self._stem + ".txnindex", reason, offset=offset))


class PartitionCheck:
    """The check of one directory. Afterwards `start` and `end` are the offsets its segments span."""

    def __init__(self, disk: Disk, directory: str, report: Report, *, clean: bool, progress: Progress) -> None:
        self._disk = disk
        self._dir = directory
        self._report = report
        self._clean = clean
        self._progress = progress
        self._names = {name for name in disk.list(directory) if not disk.is_dir(join(directory, name))}
        self._producers = ProducerStateManager(ProducerRules())
        self._doubtful: set[int] = set()  # producers whose state the log alone does not give
        self._intact = 0  # from this offset on nothing is missing so far
        self._marked: dict[int, int] = {}  # producer -> offset of its last marker
        self._epochs = LeaderEpochCache()
        self._snapshots: list[int] = []
        self._gaps = 0
        self._whole = False  # every record since offset 0 is there
        self.start = self.end = 0

    def run(self) -> None:
        self._small_files()
        bases = sorted(int(name[:20]) for name in self._names if name.endswith(".log") and name[:20].isdecimal())
        if not bases:
            return
        self.start = self.end = bases[0]
        self._whole = self.start == 0
        sizes = [self._disk.size(self._stem(base) + ".log") for base in bases]
        done = 0
        for base, size, following in zip(bases, sizes, [*bases[1:], None], strict=True):
            self._segment(base, size, following)
            done += size
            self._progress(self._dir, done, sum(sizes))
        self._compare_snapshots(self.end)
        for epoch, start in self._epochs.entries:
            if start > self.end:
                # Normal after a crash, when opening the log will remove it.
                severity, path = ERROR if self._clean else NOTICE, join(self._dir, LEADER_EPOCH)
                reason = f"epoch {epoch} begins after the log's end {self.end}"
                self._report(Finding(EPOCH_CHECKPOINT, path, reason, offset=start, severity=severity))

    def _stem(self, base: int) -> str:
        return join(self._dir, f"{base:020d}")

    def _small_files(self) -> None:
        for name in sorted(self._names):
            path = join(self._dir, name)
            try:
                if name == LEADER_EPOCH:
                    self._epochs = LeaderEpochCache.decode(self._disk.read_bytes(path), path)
                elif name.endswith(SNAPSHOT_SUFFIX) and name[:20].isdecimal():
                    decode_snapshot(self._disk.read_bytes(path), path)
                    self._snapshots.append(int(name[:20]))
            except Malformed as error:
                rule = EPOCH_CHECKPOINT if name == LEADER_EPOCH else PRODUCER_SNAPSHOT
                self._report(Finding(rule, path, str(error)))

    # Segments

    def _segment(self, base: int, size: int, following: int | None) -> None:
        stem = self._stem(base)
        path = stem + ".log"
        if base < self.end:
            reason = f"begins at {base}, the segment before it ends at {self.end}"
            self._report(Finding(OFFSET_HOLE, path, reason, offset=base))
        elif base > self.end:
            self._whole = False
            self._intact = base
            reason = f"no batch from offset {self.end} to {base}: compaction, or a segment is missing"
            self._report(Finding(OFFSET_HOLE, path, reason, offset=self.end, severity=NOTICE))
        self.end = max(self.end, base)
        indexes = SegmentIndexes(self._disk, stem, base, self._report)
        file = self._disk.open(path)
        position, self._gaps = 0, 0
        try:
            for position, header, data in scan(file, size):
                if header.base_offset > self.end:
                    self._intact = header.base_offset
                self._compare_snapshots(header.base_offset)
                self._batch(path, position, header, data, base, following, indexes)
                position += header.size
        except Malformed as error:
            torn = following is None and not self._clean
            self._report(Finding(TORN_BATCH, path, f"{error}", position, self.end, NOTICE if torn else ERROR))
            indexes.end(whole=False)
            return
        finally:
            file.close()
        indexes.end(whole=True)
        if self._gaps:
            reason = f"{self._gaps} gaps between offsets, as compaction leaves them"
            self._report(Finding(OFFSET_HOLE, path, reason, severity=NOTICE))

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
        def wrong(rule: str, message: str) -> None:
            self._report(Finding(rule, path, message, position, header.base_offset))

        indexes.batch(position, header)
        if header.base_offset < self.end:
            wrong(OFFSET_HOLE, f"expected an offset from {self.end} on")
        if header.base_offset > self.end:
            self._gaps += 1
            self._whole = False
        if header.last_offset_delta < 0 or header.last_offset - base > MAX_RELATIVE_OFFSET:
            rule = RECORD_COUNT if header.last_offset_delta < 0 else OFFSET_HOLE
            wrong(rule, f"last offset {header.last_offset} does not fit a segment that begins at {base}")
        if following is not None and header.last_offset >= following:
            reason = f"last offset {header.last_offset} lies in the next segment, which begins at {following}"
            wrong(OFFSET_HOLE, reason)
        epoch = header.partition_leader_epoch
        if header.magic == MAGIC and (
            said := self._epochs.contradiction(header.base_offset, header.last_offset, epoch)
        ):
            wrong(EPOCH_CHECKPOINT, f"leader epoch {epoch}, {said}")
        self.end = max(self.end, header.next_offset)
        if header.record_count <= header.last_offset_delta:
            self._intact = header.next_offset
        control, problem = None, ""
        if not crc_ok(data, 0, header):
            rule, problem = CHECKSUM, "wrong checksum"
        else:
            try:
                control = self._content(header, data)
            except Malformed as error:
                rule, problem = RECORD_COUNT, str(error)
        if problem:
            # It is said once: what the batch would have changed is not missed in snapshots and the abort index.
            wrong(rule, problem)
            self._doubtful.add(header.producer_id)
            indexes.aborted.pop(header.last_offset, None)
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
        walk_batch(data, 0, header)
        return None

    def _replay(
        self, header: BatchHeader, control: ControlRecord | None, wrong: Wrong, indexes: SegmentIndexes
    ) -> None:
        if header.is_control and not header.record_count:
            self._doubtful.add(header.producer_id)
        try:
            completed = self._producers.replay(header, control, 0)
        except ApiError as error:
            wrong(_REFUSED.get(error.code, _OTHERWISE), error.message or str(error))
            return
        if control is None:
            return
        marked_at, self._marked[header.producer_id] = self._marked.get(header.producer_id, -1), header.base_offset
        if control.type is not ControlType.ABORT:
            return
        listed = indexes.aborted.get(header.base_offset)
        if listed is not None and listed.producer_id != header.producer_id:
            listed = None
        if listed is not None:
            del indexes.aborted[header.base_offset]
        if completed is not None:
            self._compare_aborted(AbortedTxn.of(completed), listed, marked_at, wrong)

    def _compare_aborted(self, replayed: AbortedTxn, listed: AbortedTxn | None, marked_at: int, wrong: Wrong) -> None:
        """Where records were compacted or deleted, the replay sees fewer transactions than the index has."""
        if listed is None:
            wrong(ABORT_INDEX, f"the abort index lacks {replayed}")
        elif self._whole and listed != replayed:
            wrong(ABORT_INDEX, f"the abort index says {listed}, the log {replayed}")
        elif listed.first_offset > replayed.first_offset:
            reason = f"the abort index begins at {listed.first_offset}, the transaction at {replayed.first_offset}"
            wrong(ABORT_INDEX, reason)
        elif listed.first_offset <= marked_at:
            reason = f"the abort index begins at {listed.first_offset}, the transaction before it ended at {marked_at}"
            wrong(ABORT_INDEX, reason)

    # Snapshots

    def _compare_snapshots(self, offset: int) -> None:
        """Compares the snapshots taken up to here with the replay."""
        while self._snapshots and self._snapshots[0] <= offset:
            taken = self._snapshots.pop(0)
            path = self._stem(taken) + SNAPSHOT_SUFFIX
            if taken < self.start:
                continue
            for entry in decode_snapshot(self._disk.read_bytes(path), path):
                known = self._producers.entry(entry.producer_id)
                if known is not None and known.batches and entry.producer_id not in self._doubtful:
                    self._compare(path, taken, entry, known)

    def _compare(self, path: str, taken: int, entry: ProducerEntry, known: ProducerEntry) -> None:
        """Where compaction took batches after the producer's last one, the log may be behind a snapshot, not ahead."""
        if known.last_data_offset < self._intact and known.epoch <= entry.epoch:
            same = known.epoch == entry.epoch and entry.last_data_offset >= 0
            if not same or known.last_data_offset <= entry.last_data_offset:
                return
        said = (entry.epoch, entry.last_sequence, entry.last_data_offset)
        found = (known.epoch, known.last_sequence, known.last_data_offset)
        if said != found:
            reason = (
                f"producer {entry.producer_id}: epoch, last sequence and offset are {found} in the log, {said} here"
            )
            self._report(Finding(PRODUCER_SNAPSHOT, path, reason, offset=taken))
