"""The producer state of one partition: duplicates, order, open transactions (Kafka's ProducerStateManager).

For each producer id the log remembers (`producer_entry`): the epoch, the last five batches (KIP-98), the first offset
of its open transaction, and the epoch of the coordinator whose marker came last. From that follow

    a duplicate     the same epoch and sequences as a remembered batch: answered with its offset, not written
    the order       the next sequence follows the last one of its epoch; a new epoch begins with 0
    a zombie        a batch with an older epoch is refused (INVALID_PRODUCER_EPOCH)
    the last stable offset   what is below every open transaction, and every ended one whose marker is not yet below
                    the high watermark: `_open` and `finished`, both in the order of offsets

Who changes it: an append, expiry of idle producers, a new log start, and the high watermark, which drops ended
transactions below it. `prepare` checks a batch without changing producer state, the log writes it, `commit`
applies it. So a batch that is refused or not written does not change producer state. Replaying the log through `replay`
gives the same state, which is how a follower and a recovery have it. In memory only are pending verifications
(KIP-890): proof that the transaction coordinator was asked about this partition after the last marker.

What can go wrong: a producer is forgotten (it is idle for producer.id.expiration.ms by the *timestamps of its batches*,
its records were deleted, a restart found no snapshot), and its next batch counts as that of a new producer; a late
marker ends the next transaction, unless its epoch shows that it is older (transaction.version 2); a clean restart
keeps one batch of five. `ProducerRules` has what differs between releases and the KIPs.
"""

from collections.abc import Iterable, Sequence

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import MARKERS, BatchHeader, ControlRecord, ControlType
from minibroker_storage.origin import Origin
from minibroker_storage.producer_append import ProducerAppend, check_data, check_epoch, check_marker
from minibroker_storage.producer_entry import (
    NO_OFFSET,
    ActiveProducer,
    BatchMetadata,
    CompletedTxn,
    LastRecord,
    ProducerEntry,
)
from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.producer_snapshot import (
    decode_remembered,
    decode_snapshot,
    encode_remembered,
    encode_snapshot,
)
from minibroker_storage.producer_verification import VerificationEntry, VerificationGuard

__all__ = [
    "ActiveProducer",
    "BatchMetadata",
    "CompletedTxn",
    "LastRecord",
    "ProducerAppend",
    "ProducerEntry",
    "ProducerRules",
    "ProducerStateManager",
    "VerificationGuard",
]

LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000


class ProducerStateManager:
    """Producers, open transactions and verifications of one partition.

    `map_end_offset` is the exclusive end of what the state reflects; the log moves it with every append. `rules` may be
    replaced at any time (a changed expiration, a jumped clock).
    """

    __slots__ = ("_open", "_producers", "_verifications", "finished", "map_end_offset", "rules")

    def __init__(self, rules: ProducerRules) -> None:
        self.rules = rules
        self.map_end_offset = 0
        self._producers: dict[int, ProducerEntry] = {}
        # First offset -> producer id, in offset order: transactions open in the order of the log.
        self._open: dict[int, int] = {}
        # First offset -> marker's offset, for transactions whose marker is not below the high watermark.
        self.finished: dict[int, int] = {}
        # Producer id -> proof for its next batch; in memory only, as in Kafka.
        self._verifications: dict[int, VerificationEntry] = {}

    # Appending

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The remembered batch of the same epoch and sequences, if any; bytes are not compared. For CLIENT batches."""
        entry = self._producers.get(header.producer_id)
        if entry is None:
            return None
        return entry.find_batch(header.producer_epoch, header.base_sequence, header.last_sequence)

    def prepare(
        self,
        header: BatchHeader,
        control: ControlRecord | None = None,
        *,
        origin: Origin,
        transaction_version: int = 0,
        guard: VerificationGuard | None = None,
        after: Sequence[ProducerAppend] = (),
    ) -> ProducerAppend | None:
        """Check one batch, whose header has the offset that it will get.

        `control` is the record of a control batch, None when compaction emptied it. `transaction_version` is that of
        the coordinator which sent the marker. `after` has the batches prepared before in the same append. None: nothing
        to commit, because the batch has no producer id, or is a control batch without a marker.

        Raises ApiError INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        OUT_OF_ORDER_SEQUENCE_NUMBER, TRANSACTION_COORDINATOR_FENCED and, by `rules`, UNKNOWN_PRODUCER_ID and
        DUPLICATE_SEQUENCE_NUMBER.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        entry = self._producers.get(producer_id)
        if after:
            entry = _entry_after(entry, producer_id, after)
        append = ProducerAppend(header)
        verification = self._verifications.get(producer_id) if self._verifications else None
        if origin is not Origin.REPLICATION:  # a follower takes what its leader has accepted
            check_epoch(producer_id, append.epoch, entry)
            # Markers come from the coordinator itself, which need not be asked.
            if append.transactional and not append.control and self.rules.verification_enabled:
                self._check_transaction(append, entry, verification, guard)
        if not append.control:
            check_data(append, header.base_sequence, entry, origin=origin, rules=self.rules, verification=verification)
            return append
        if control is None or control.type not in MARKERS:
            return None
        check_marker(append, control, entry, origin=origin, transaction_version=transaction_version)
        append.marker = control.type
        append.coordinator_epoch = control.coordinator_epoch or 0
        return append

    def _check_transaction(
        self,
        append: ProducerAppend,
        entry: ProducerEntry | None,
        verification: VerificationEntry | None,
        guard: VerificationGuard | None,
    ) -> None:
        """A transactional batch joins the open transaction of its epoch, or was verified to open one (KIP-890)."""
        if entry is not None and entry.current_txn_first_offset != NO_OFFSET and entry.epoch == append.epoch:
            return
        if guard is None or verification is None or verification.guard is not guard:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"transactional batch of producer {append.producer_id} is not part of a transaction known here: "
                f"expected an open one or {verification.guard if verification else 'a verification'}, got {guard}",
            )

    def commit(self, append: ProducerAppend, now_ms: int) -> CompletedTxn | None:
        """Apply a prepared batch that is now written; returns the transaction that it ended, if that has data here."""
        producer_id = append.producer_id
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id)
        completed = None
        if append.marker is not None and entry.current_txn_first_offset != NO_OFFSET:
            completed = self._complete(producer_id, entry.current_txn_first_offset, append)
        if append.apply_to(entry, now_ms):
            self._open[entry.current_txn_first_offset] = producer_id
        if append.transactional and self._verifications:
            verification = self._verifications.get(producer_id)
            if verification is not None and not verification.outlives(
                control=append.control, epoch=append.epoch, rules=self.rules
            ):
                del self._verifications[producer_id]
        return completed

    def _complete(self, producer_id: int, first_offset: int, marker: ProducerAppend) -> CompletedTxn:
        others = (first for first, owner in self._open.items() if owner != producer_id)
        # What the abort index stores as last stable offset: a reader need not look further than it for aborted
        # transactions (TransactionIndex.collectAbortedTxns).
        stable = next(others, marker.offset + 1)
        self._open.pop(first_offset, None)
        self.finished[first_offset] = marker.offset
        return CompletedTxn(producer_id, first_offset, marker.offset, marker.marker is ControlType.ABORT, stable)

    def replay(self, header: BatchHeader, control: ControlRecord | None, now_ms: int) -> CompletedTxn | None:
        """Apply a batch that is already in the log (recovery, rebuild, truncation)."""
        append = self.prepare(header, control, origin=Origin.REPLICATION)
        self.map_end_offset = header.base_offset + header.last_offset_delta + 1
        return None if append is None else self.commit(append, now_ms)

    # Verification

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether `epoch` has a transaction with data here. Raises INVALID_PRODUCER_EPOCH for a stale epoch, unless the
        rules leave that to the coordinator."""
        entry = self._producers.get(producer_id)
        if entry is None:  # then it is the coordinator that knows an epoch below -1 to be none
            return False
        if not self.rules.stale_epoch_is_verified:
            check_epoch(producer_id, epoch, entry)
        return entry.epoch == epoch and entry.current_txn_first_offset != NO_OFFSET

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        """The guard that the append must bring once the coordinator has agreed; None: its transaction is open already.

        `sequence` is the first sequence of the batch; `supports_epoch_bump` says the request knows transaction.version
        2 (Produce v12, TxnOffsetCommit v5). An invalid producer id is verified like any other: the coordinator does not
        know it. Raises INVALID_PRODUCER_EPOCH as `has_open_transaction` does.
        """
        if self.has_open_transaction(producer_id, epoch):
            return None
        entry = self._verifications.get(producer_id)
        if entry is None:
            entry = self._verifications[producer_id] = VerificationEntry(now_ms, sequence, epoch, supports_epoch_bump)
        else:
            entry.observe(sequence, epoch)
        return entry.guard

    def end_verification(self, producer_id: int, epoch: int, sequence: int, guard: VerificationGuard) -> None:
        """The request that got `guard` for these from `start_verification` is answered, with or without an error."""
        entry = self._verifications.get(producer_id)
        if entry is None or entry.guard is not guard:
            return
        entry.answered(sequence, epoch, self.rules)
        if not entry.waiting and self.rules.verification_ends == "with_its_request":
            del self._verifications[producer_id]

    # Offsets

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open or whose end is not replicated; None without any.

        The log clamps it to its start offset and takes the last stable offset from it where it is below the high
        watermark.
        """
        if self.finished:
            oldest = min(self.finished)
            return min(oldest, next(iter(self._open))) if self._open else oldest
        return next(iter(self._open)) if self._open else None

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Transactions whose marker is below `high_watermark` no longer hold readers back; True if there was one."""
        if not self.finished:
            return False
        done = [first for first, marker in self.finished.items() if marker < high_watermark]
        for first in done:
            del self.finished[first]
        return bool(done)

    def on_log_start(self, offset: int) -> None:
        """The log now starts at `offset`. Producers stay (KIP-360) unless the rules say otherwise; ended transactions
        below are forgotten."""
        self.on_high_watermark(offset)
        if self.rules.forget_with_records:
            for entry in [e for e in self._producers.values() if e.last_data_offset < offset]:
                self._open.pop(entry.current_txn_first_offset, None)
                del self._producers[entry.producer_id]
        # A follower's log start may pass all that it has fetched.
        self.map_end_offset = max(self.map_end_offset, offset)

    # Expiry and description

    def expire(self, now_ms: int) -> list[int]:
        """Forget idle producers and stale verifications; the producer ids forgotten."""
        limit = self.rules.producer_id_expiration_ms
        expired = [entry.producer_id for entry in self._producers.values() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        # Those whose request was never answered; Kafka has no setting of their own (removeExpiredProducers).
        for producer_id in [p for p, v in self._verifications.items() if now_ms - v.created_ms >= limit]:
            del self._verifications[producer_id]
        return expired

    def forget_idle(self) -> list[int]:
        """Forget every producer without an open transaction, as if it had been idle long enough; their ids."""
        idle = [e.producer_id for e in self._producers.values() if e.current_txn_first_offset == NO_OFFSET]
        for producer_id in idle:
            del self._producers[producer_id]
        return idle

    def forget(self, producer_id: int | None = None) -> list[int]:
        """Lose the state of one producer id, or of all, open transactions included; the ids that had state."""
        gone = [p for p in self._producers if producer_id is None or p == producer_id]
        for known in gone:
            first = self._producers.pop(known).current_txn_first_offset
            self._open.pop(first, None)
        return gone

    def renumber(self, producer_id: int, last_sequence: int) -> None:
        """Make the next expected sequence of a producer the one after `last_sequence`. KeyError if the producer is
        unknown or has no remembered batch."""
        entry = self._producers[producer_id]
        if not entry.batches:
            raise KeyError(producer_id)
        last = entry.batches.pop()
        entry.batches.clear()
        entry.batches.append(BatchMetadata(last_sequence, last.last_offset, last.offset_delta, last.timestamp))

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        # Forgotten, an open transaction would no longer hold back the last stable offset.
        if entry.current_txn_first_offset != NO_OFFSET:
            return False
        # By the batch's time, as in Kafka, which a restart can read from the log; an arrival it could not.
        since = entry.arrival_ms if self.rules.expire_by == "arrival" else entry.last_timestamp
        return now_ms - since >= self.rules.producer_id_expiration_ms

    def active(self) -> list[ActiveProducer]:
        return [entry.active() for entry in self._producers.values()]

    def last_records(self) -> dict[int, LastRecord]:
        """For compaction: what must stay in the log so that each producer can be rebuilt from it."""
        return {e.producer_id: LastRecord(e.last_data_offset, e.epoch) for e in self._producers.values()}

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """A copy of one producer's state."""
        entry = self._producers.get(producer_id)
        return None if entry is None else entry.copy()

    def knows(self, producer_id: int) -> bool:
        """Whether there is any state of the producer."""
        return producer_id in self._producers

    @property
    def count(self) -> int:
        """Producer ids with state."""
        return len(self._producers)

    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id, oldest first."""
        return dict(self._open)

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether the oldest transaction is open longer than any coordinator allows (a metric of Kafka's)."""
        if not self._open:
            return False
        last = self._producers[next(iter(self._open.values()))].last_timestamp
        # Without timestamps nothing can be said (ProducerStateManager.hasLateTransaction).
        return last > 0 and now_ms - last > max_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    # Truncation and snapshots

    def clear(self, offset: int = 0) -> None:
        """Forget producers and transactions, to be rebuilt from `offset`. Verifications stay: they are not in the
        log."""
        self._producers.clear()
        self._open.clear()
        self.finished.clear()
        self.map_end_offset = offset

    def snapshot(self) -> bytes:
        """The bytes of Kafka's `.snapshot` file (version 1) for `map_end_offset`."""
        return encode_snapshot(self._producers.values())

    def remembered(self, snapshot: bytes) -> bytes | None:
        """The side file of `snapshot` with the whole duplicate window; None when the rules keep Kafka's file only."""
        return encode_remembered(self._producers.values(), snapshot) if self.rules.snapshot_all_batches else None

    def load_snapshot(
        self, data: bytes, offset: int, now_ms: int, *, remembered: bytes | None = None, path: str = "snapshot"
    ) -> None:
        """Replace the state by that of a snapshot taken at `offset`; expired producers are left out.

        A side file that is broken or belongs to other bytes is not used: it only widens the duplicate window.
        Raises MalformedFile, with the state unchanged, when the snapshot itself is broken.
        """
        entries = decode_snapshot(data, path)
        if remembered is not None:
            decode_remembered(remembered, data, entries)
        for entry in entries:
            # Kafka writes no arrival time: with `expire_by=arrival` they age from the start on.
            if entry.arrival_ms < 0:
                entry.arrival_ms = now_ms
        self._restore((e for e in entries if not self._is_expired(e, now_ms)), offset)

    def _restore(self, entries: Iterable[ProducerEntry], offset: int) -> None:
        self.clear(offset)
        self._producers.update((entry.producer_id, entry) for entry in entries)
        open_ones = [e for e in self._producers.values() if e.current_txn_first_offset != NO_OFFSET]
        for entry in sorted(open_ones, key=lambda e: e.current_txn_first_offset):
            self._open[entry.current_txn_first_offset] = entry.producer_id


def _entry_after(
    entry: ProducerEntry | None, producer_id: int, after: Sequence[ProducerAppend]
) -> ProducerEntry | None:
    """What `entry` will be once the earlier batches of the same append are committed."""
    for append in after:
        if append.producer_id == producer_id:
            entry = ProducerEntry(producer_id) if entry is None else entry.copy()
            # 0: the copy serves this check alone.
            append.apply_to(entry, 0)
    return entry
