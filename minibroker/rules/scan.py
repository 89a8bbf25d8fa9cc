"""Makes the rules' rows out of one log's files, batch by batch, with the readers of `minibroker_storage`.

This is the plain way, for data of any small size; `minibroker_pipeline.headers` reads the same rows out of large files.
Reads only, through the disk seam, so that a simulation's disk is read as a real one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from minibroker.coordinators.transactions.states import BY_LABEL
from minibroker.rules import rows as r
from minibroker.rules.compaction import may_miss
from minibroker.rules.file_rules import LogRow, LogRows, is_log_row
from minibroker.rules.log_rules import group_rows
from minibroker_protocol.coordinator_records import LiteralTransactionLogValue, TransactionLogValue
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import (
    BatchHeader,
    ControlType,
    CorruptBatch,
    crc_ok,
    decode_records,
    parse_control,
    walk_batch,
)
from minibroker_storage import txn_index
from minibroker_storage.checkpoints import (
    CLEANER_OFFSET,
    LEADER_EPOCH,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    decode_offsets,
)
from minibroker_storage.directory import CLEAN_FILE, partition_of
from minibroker_storage.disk import Disk, join
from minibroker_storage.dump_decoders import LITERAL, coordinator_record
from minibroker_storage.index_entries import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    EntryFault,
    IndexCheck,
    IndexClaims,
    offset_claims,
    time_claims,
)
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.log_scan import scan
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot

Row: TypeAlias = LogRow | r.TxnState | r.CommittedOffset | r.GroupMember

HEADERS, CHECKSUMS, RECORDS = "headers", "checksums", "records"
MAX_RELATIVE_OFFSET = (1 << 31) - 1
"""Offsets in indexes are counted from the one in the file's name, in four bytes."""
DEPTHS = (HEADERS, CHECKSUMS, RECORDS)
"""How much of a batch is checked: the header, its checksum too, or every record too."""
_LABELS = {int(state): label for label, state in BY_LABEL.items()}


class Scanned(NamedTuple):
    """The rows of a directory, ready for `judge_logs`."""

    logs: list[LogRows]
    states: list[r.TxnState]
    commits: list[r.CommittedOffset]
    members: list[r.GroupMember]


def scan_directory(disk: Disk, *, root: str = "", depth: str = RECORDS) -> Scanned:
    """All rows of the data directory at the disk's root, of a broker whose cleaner has finished its passes: its
    checkpoint names the logs that were compacted. Raises StorageError when a file cannot be read at all."""
    names = disk.list()
    clean = CLEAN_FILE in names
    offsets = {
        name: decode_offsets(disk.read_bytes(name), "") if name in names else {}
        for name in (LOG_START_OFFSET, CLEANER_OFFSET, RECOVERY_POINT)
    }
    facts: list[r.LogFacts] = []
    rows: list[Row] = []
    for name in names:
        place = partition_of(name)
        if place is None or not disk.is_dir(name):
            continue
        log = r.Log(root, *place)
        files = sorted(disk.list(name))
        facts.append(facts_of(log, files, offsets, {place[0]: place in offsets[CLEANER_OFFSET]}, clean=clean))
        for file in files:
            rows += scan_file(disk, facts[-1], join(name, file), depth=depth)
    logs = group_rows(facts, filter(is_log_row, rows))
    return Scanned(
        logs,
        [row for row in rows if isinstance(row, r.TxnState)],
        [row for row in rows if isinstance(row, r.CommittedOffset)],
        [row for row in rows if isinstance(row, r.GroupMember)],
    )


def facts_of(
    log: r.Log,
    files: Iterable[str],
    offsets: Mapping[str, Mapping[tuple[str, int], int]],
    policies: Mapping[str, bool | None],
    *,
    clean: bool,
    damaged: Collection[str] = (),
) -> r.LogFacts:
    """What is known of a log before it is read.

    files: names in its directory.
    offsets: checkpoint -> those that can be read in it.
    damaged: checkpoints that cannot.
    policies: topic -> whether cleanup.policy has compact.
    """
    place = log.topic, log.partition
    bases = [int(file[:20]) for file in files if file.endswith(".log") and file[:20].isdecimal()]
    first = min(bases, default=0)
    start, cleaned = offsets.get(LOG_START_OFFSET, {}).get(place, 0), offsets.get(CLEANER_OFFSET, {})
    compaction = may_miss(log.topic, policies, cleaned=cleaned.get(place, 0 if CLEANER_OFFSET in damaged else None))
    return r.LogFacts(
        log,
        max(start, first),
        first,
        clean=clean,
        recovery_point=offsets.get(RECOVERY_POINT, {}).get(place, 0),
        cleaner_offset=cleaned.get(place, 0),
        **compaction,
    )


def scan_file(disk: Disk, facts: r.LogFacts, path: str, *, depth: str = RECORDS) -> Iterator[Row]:
    """The rows of one file of a partition's directory; nothing for a file of another kind."""
    if path.endswith(".log"):
        yield from scan_log(disk, facts, path, depth)
    elif path.endswith(".txnindex"):
        yield from index_rows(facts, path, disk.read_bytes(path))
    elif path.endswith(SNAPSHOT_SUFFIX):
        yield from snapshot_rows(facts, path, disk.read_bytes(path))
    elif path.endswith("/" + LEADER_EPOCH):
        yield from epoch_rows(facts, path, disk.read_bytes(path))


def base_of(path: str) -> int:
    """The offset in a file's name."""
    return int(path.rpartition("/")[2][:20])


def index_rows(facts: r.LogFacts, path: str, data: bytes) -> Iterator[r.AbortedTxn | r.LogFault]:
    """The entries of a `.txnindex` file, or what is wrong with it. Opening a directory that was not closed rebuilds
    those of the segments above the recovery point (LogSegment.recover)."""
    try:
        for entry in txn_index.TxnIndex.decode(data, base_of(path), path):
            yield r.AbortedTxn(
                facts.log, path, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
            )
    except Malformed as error:
        mended = not facts.clean and base_of(path) >= facts.recovery_point
        nowhere = r.NONE, r.NONE, r.NONE
        yield r.LogFault(facts.log, path, *nowhere, "abort-index", str(error), readable=True, mended=mended)


def epoch_rows(facts: r.LogFacts, path: str, data: bytes) -> Iterator[r.EpochStart | r.LogFault]:
    """The entries of a `leader-epoch-checkpoint`, or what is wrong with it."""
    try:
        for epoch, offset in LeaderEpochCache.decode(data, path).entries:
            yield r.EpochStart(facts.log, path, epoch, offset)
    except Malformed as error:
        yield r.LogFault(facts.log, path, r.NONE, r.NONE, r.NONE, "epoch-checkpoint", str(error), readable=True)


def entry_rows(facts: r.LogFacts, faults: Iterable[tuple[IndexClaims, EntryFault]], end: int) -> Iterator[r.LogFault]:
    """Faults in the indexes of a segment, which ends at offset `end`. Above the recovery point of a directory that was
    not closed, opening rebuilds the indexes. A segment that ends there may lack its last time index entry, which
    rolling and closing write without a sync."""
    for claims, fault in faults:
        mended = not facts.clean and end >= facts.recovery_point
        at = r.NONE if fault.offset is None else fault.offset
        yield r.LogFault(
            facts.log, claims.path, fault.position, at, at, claims.rule, fault.message, readable=True, mended=mended
        )


def snapshot_rows(facts: r.LogFacts, path: str, data: bytes) -> Iterator[r.Snapshot | r.LogFault]:
    """The entries of a `.snapshot` file, or what is wrong with it.

    It is written in place when a segment is rolled, and synced before the recovery point reaches it: a kill or a power
    loss may leave a part of one that lies above. Opening deletes it (ProducerStateManager.loadFromSnapshot).
    """
    log, base = facts.log, base_of(path)
    try:
        entries = decode_snapshot(data, path)
    except Malformed as error:
        mended = not facts.clean and base > facts.recovery_point
        yield r.LogFault(log, path, r.NONE, base, base, "producer-snapshot", str(error), readable=True, mended=mended)
        return
    rows = []
    for entry in entries:
        delta = entry.batches[-1].offset_delta if entry.batches else 0
        rows.append(
            r.SnapshotEntry(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_data_offset,
                delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    yield r.Snapshot(log, path, base, tuple(rows))


def scan_log(disk: Disk, facts: r.LogFacts, path: str, depth: str = RECORDS) -> Iterator[Row]:
    """The rows of one `.log` file, each batch a run of its own."""
    log = facts.log
    file = disk.open(path)
    end = base_of(path)
    position = 0
    span: r.Span | None = None
    indexes = _indexes(disk, path)
    whole = False
    try:
        for position, header, data in scan(file, file.size):
            indexes.batch(position, header.last_offset, header.max_timestamp)
            fault = batch_fault(facts, path, position, header, data, depth)
            if fault is not None:
                yield fault
            if fault is None or fault.readable:
                batch = r.span_of(log, path, position, header)
                if span is not None and batch.first_offset == span.end_offset and batch.epoch == span.epoch:
                    span = span.joined(batch)
                else:
                    if span is not None:
                        yield span
                    span = batch
                end = header.next_offset
                yield from batch_rows(log, path, position, header, data)
            position += header.size
        whole = True
    except CorruptBatch as error:
        yield torn(log, path, position, end, file.pread(file.size - position, position), str(error))
    finally:
        file.close()
    if span is not None:
        yield span
    yield from entry_rows(facts, indexes.faults(whole=whole), end)


def _indexes(disk: Disk, path: str) -> IndexCheck:
    """What the indexes of a log file claim; a missing index claims nothing."""
    stem, base = path.removesuffix(".log"), base_of(path)
    files = [stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX]
    data = [disk.read_bytes(file) if disk.exists(file) else b"" for file in files]
    return IndexCheck(offset_claims(files[0], base, data[0]), time_claims(files[1], base, data[1]))


def torn(log: r.Log, path: str, position: int, end: int, rest: bytes, reason: str) -> r.LogFault:
    """The fault of bytes after the last batch that are no batch; zeros alone are preallocated space, which opening cuts
    off."""
    if not rest.strip(b"\0"):
        reason = f"{len(rest)} zero bytes after the last batch"
    return r.LogFault(log, path, position, end, end, "torn-batch", reason)


def batch_fault(
    facts: r.LogFacts, path: str, position: int, header: BatchHeader, data: memoryview, depth: str
) -> r.LogFault | None:
    """Problems of a single batch."""

    def fault(rule: str, message: str, *, readable: bool = False) -> r.LogFault:
        return r.LogFault(facts.log, path, position, header.base_offset, header.last_offset, rule, message, readable)

    if header.last_offset_delta < 0 or header.record_count < 0:
        reason = f"last offset delta {header.last_offset_delta}, {header.record_count} records"
        return fault("record-count", reason)
    if depth != HEADERS and not crc_ok(data, 0, header):
        return fault("checksum", f"the header names {header.crc:#010x}, the bytes have another CRC-32C")
    if path.endswith(".log") and header.last_offset - base_of(path) > MAX_RELATIVE_OFFSET:
        reason = f"last offset {header.last_offset} does not fit a segment that begins at {base_of(path)}"
        return fault("offset-hole", reason, readable=True)
    if header.record_count > header.last_offset_delta + 1:  # compaction leaves fewer records: `Span.thinned`
        reason = f"{header.record_count} records at {header.last_offset_delta + 1} offsets"
        return fault("record-count", reason, readable=True)
    if depth != RECORDS or not header.record_count or header.is_control:
        return None
    try:
        walked = walk_batch(data, 0, header)
    except Malformed as error:
        return fault("record-count", str(error), readable=True)
    if walked.max_timestamp != header.max_timestamp and not header.has_delete_horizon:
        reason = f"the header says {header.max_timestamp}, the latest record has {walked.max_timestamp}"
        return fault("timestamp", reason, readable=True)
    return None


def batch_rows(log: r.Log, path: str, position: int, header: BatchHeader, data: memoryview) -> Iterator[Row]:
    """The rows of one whole batch."""
    if header.is_control:
        yield from control_rows(log, path, position, header, data)
        return
    if header.has_producer_id or header.is_transactional:
        yield r.run_of(log, path, position, header)
    if log.topic in (r.TRANSACTION_STATE, r.CONSUMER_OFFSETS):
        yield from coordinator_rows(log, header, data)


def control_rows(log: r.Log, path: str, position: int, header: BatchHeader, data: memoryview) -> Iterator[Row]:
    """A marker, or what is wrong with it; other control records are the controller's own."""
    outcome, coordinator_epoch = "", r.NONE
    if header.record_count:
        try:
            control = parse_control(decode_records(data, 0, header)[0])
        except Malformed as error:
            reason = f"control record: {error}"
            yield r.LogFault(log, path, position, header.base_offset, header.last_offset, "record-count", reason)
            return
        if control.coordinator_epoch is None:
            return
        outcome = r.COMMIT if control.type is ControlType.COMMIT else "ABORT"
        coordinator_epoch = control.coordinator_epoch
    yield r.Marker(
        log,
        path,
        position,
        header.base_offset,
        header.producer_id,
        header.producer_epoch,
        outcome,
        coordinator_epoch,
        header.max_timestamp,
    )


def coordinator_rows(
    log: r.Log, header: BatchHeader, data: memoryview
) -> Iterator[r.TxnState | r.CommittedOffset | r.GroupMember]:
    """What a coordinator wrote: states of transactional ids, offsets and members of groups; nothing else."""
    try:
        records = decode_records(data, 0, header)
    except Malformed:
        return  # `batch_fault` reports it
    for record in records:
        key = None if record.key is None else bytes(record.key)
        decoded = coordinator_record(log.topic, key, None if record.value is None else bytes(record.value))
        if decoded is None:
            continue
        kind, named, value = (
            decoded.type,
            cast(Any, decoded.key),
            cast(Any, decoded.value),
        )  # of the classes that the type says
        if kind in ("TransactionLog", LITERAL):
            name, epoch = named.transactional_id, header.partition_leader_epoch
            if value is None:
                yield r.TxnState(log, record.offset, epoch, name, r.NONE, r.NONE, 0, "", (), r.NONE, r.NONE)
            else:
                fields = (_state if kind != LITERAL else _literal)(value)
                yield r.TxnState(log, record.offset, epoch, name, *fields, record.timestamp)
        elif kind.endswith("OffsetCommit"):
            yield r.CommittedOffset(
                log,
                record.offset,
                header.producer_id,
                header.producer_epoch,
                named.group,
                named.topic,
                named.partition,
                r.NONE if value is None else value.offset,
            )
        elif kind == "GroupMetadata":
            yield r.GroupMember(log, record.offset, named.group, "", value is not None and bool(value.members))
        elif kind == "ConsumerGroupMemberMetadata":
            yield r.GroupMember(log, record.offset, named.group_id, named.member_id, value is not None)


_StateFields = tuple[int, int, int, str, tuple[tuple[str, int], ...], int, int]


def _state(value: TransactionLogValue) -> _StateFields:
    return (
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        _named(value.transaction_status),
        _partitions(value.transaction_partitions),
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
    )


def _literal(value: LiteralTransactionLogValue) -> _StateFields:
    """The same in the layout of KIP-360's text."""
    return (
        value.producer_id,
        value.current_epoch,
        value.txn_timeout_duration,
        _named(value.txn_status),
        _partitions(value.txn_partitions),
        value.txn_start_time,
        value.txn_last_update_time,
    )


def _named(number: int) -> str:
    return _LABELS.get(number, str(number))


def _partitions(entries: Sequence[Any] | None) -> tuple[tuple[str, int], ...]:
    return tuple((entry.topic, number) for entry in entries or () for number in entry.partition_ids)
