"""Batch headers and a small driver for producer-state tests."""

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import BatchHeader, ControlRecord, ControlType
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import CompletedTxn, ProducerRules, ProducerStateManager, VerificationGuard

KAFKA = ProducerRules()
KIP = ProducerRules(
    unknown_producer_sequence="unknown_producer_id",
    stale_sequence_error=ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    waiting_sequence_check="unless_in_sequence",
    verification_ends="with_its_request",
    snapshot_all_batches=True,
    expire_by="arrival",
    verification_enabled=False,
)
PID = 7
NOW = 1_000_000


def data(
    offset: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    pid: int = PID,
    txn: bool = False,
    timestamp: int = NOW,
) -> BatchHeader:
    """Header of a data batch of `count` records."""
    return BatchHeader(
        offset, 100, 0, 2, 0, 0x10 if txn else 0, count - 1, timestamp, timestamp, pid, epoch, sequence, count
    )


def marker_header(offset: int, *, epoch: int = 0, pid: int = PID, timestamp: int = NOW, count: int = 1) -> BatchHeader:
    return BatchHeader(offset, 66, 0, 2, 0, 0x30, 0, timestamp, timestamp, pid, epoch, -1, count)


def control(commit: bool = True, coordinator_epoch: int = 0) -> ControlRecord:
    return ControlRecord(ControlType.COMMIT if commit else ControlType.ABORT, 0, coordinator_epoch)


class Partition:
    """The producer state under a log that only counts offsets."""

    def __init__(self, rules: ProducerRules = KAFKA) -> None:
        self.producers = ProducerStateManager(rules)
        self.end = 0
        self.now = NOW
        self.log: list[tuple[BatchHeader, ControlRecord | None]] = []

    def append(
        self,
        sequence: int,
        count: int = 1,
        *,
        epoch: int = 0,
        pid: int = PID,
        txn: bool = False,
        timestamp: int | None = None,
        origin: Origin = Origin.CLIENT,
        guard: VerificationGuard | None = None,
        verify: bool = False,
        tv2: bool = False,
    ) -> str:
        """ "@<base offset>" when written, "dup@<offset>" for a duplicate, else the name of the error."""
        try:
            if verify:
                guard = self.producers.start_verification(pid, epoch, sequence, tv2, self.now)
            header = data(
                self.end,
                sequence,
                count,
                epoch=epoch,
                pid=pid,
                txn=txn,
                timestamp=self.now if timestamp is None else timestamp,
            )
            if origin is Origin.CLIENT and (batch := self.producers.find_duplicate(header)):
                return f"dup@{batch.first_offset}"
            append = self.producers.prepare(header, origin=origin, guard=guard)
        except ApiError as error:
            return error.code.name
        assert append is not None
        self.producers.commit(append, self.now)
        return self._written(header, None)

    def mark(
        self,
        *,
        commit: bool = True,
        epoch: int = 0,
        pid: int = PID,
        coordinator_epoch: int = 0,
        tv: int = 0,
        origin: Origin = Origin.COORDINATOR,
    ) -> CompletedTxn | str | None:
        """Write an end marker: the completed transaction, None without one, or the name of the error."""
        header, record = (
            marker_header(self.end, epoch=epoch, pid=pid, timestamp=self.now),
            control(commit, coordinator_epoch),
        )
        try:
            append = self.producers.prepare(header, record, origin=origin, transaction_version=tv)
        except ApiError as error:
            return error.code.name
        assert append is not None
        completed = self.producers.commit(append, self.now)
        self._written(header, record)
        return completed

    def _written(self, header: BatchHeader, record: ControlRecord | None) -> str:
        self.log.append((header, record))
        base, self.end = self.end, header.next_offset
        self.producers.map_end_offset = self.end
        return f"@{base}"
