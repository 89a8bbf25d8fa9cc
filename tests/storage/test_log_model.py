"""The log against a model that is a plain list of batches: any sequence of operations gives the same answers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from logs import NOW, append, batches, end_transaction, open_log, values
from sampling import search

from minibroker_protocol.records import Record, build_batch, iter_batches
from minibroker_storage.config import LogConfig
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import truncate_to

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1, file_delete_delay_ms=0)


@dataclass
class Entry:
    """A batch of the model: offsets inclusive, (timestamp, key, value) of its records."""

    base: int
    last: int
    records: list[tuple[int, bytes, bytes]]
    pid: int
    txn: bool
    size: int
    outcome: bool | None = None  # of a marker: True commits


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.entries: list[Entry] = []
        self.start = self.end = 0
        self.next_seq: dict[int, int] = {}
        self.log: PartitionLog

    @initialize()
    def open(self) -> None:
        self.log = open_log(self.disk, config=CONFIG)

    # -- changes

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 150),
        pid=st.sampled_from([-1, -1, 1, 2, 3]),
        stamp=st.integers(0, 50),
        txn=st.booleans(),
        codec=st.sampled_from([0, 0, 1, 4]),
    )
    def append(self, count: int, size: int, pid: int, stamp: int, txn: bool, codec: int) -> None:
        txn = (txn and pid >= 0) or pid in self.open_transactions()
        stamps = [NOW + (stamp + 7 * i) % 51 for i in range(count)]
        rows = [(stamps[i], b"%d" % i, b"v" * size) for i in range(count)]
        producer = (
            {"producer_id": pid, "producer_epoch": 0, "base_sequence": self.next_seq.get(pid, 0)} if pid >= 0 else {}
        )
        data = build_batch(
            [Record(i, *row) for i, row in enumerate(rows)], compression=codec, transactional=txn, **producer
        )
        kept = bytes(data)
        info = append(self.log, data)
        assert (info.base_offset, info.last_offset, info.duplicate) == (self.end, self.end + count - 1, False)
        self.entries.append(Entry(info.base_offset, info.last_offset, rows, pid, txn, len(data)))
        self.end += count
        if pid >= 0:
            self.next_seq[pid] = self.next_seq.get(pid, 0) + count
            again = append(self.log, bytearray(kept))
            assert (again.base_offset, again.last_offset, again.duplicate) == (info.base_offset, info.last_offset, True)

    def open_transactions(self, end: int | None = None) -> dict[int, int]:
        """pid -> first offset, as it is where the log ends, or was when it ended at ``end``."""
        found: dict[int, int] = {}
        for entry in self.entries:
            if end is not None and entry.base >= end:
                break
            if entry.outcome is not None:
                found.pop(entry.pid, None)
            elif entry.txn:
                found.setdefault(entry.pid, entry.base)
        return found

    @rule(pid=st.sampled_from([1, 2, 3]), commit=st.booleans())
    def end_transaction(self, pid: int, commit: bool) -> None:
        info = end_transaction(self.log, pid, commit=commit)
        self.entries.append(Entry(self.end, self.end, [], pid, True, 78, commit))
        assert info.base_offset == self.end
        self.end += 1

    @rule(clean=st.booleans(), flushed=st.booleans())
    def reopen(self, clean: bool, flushed: bool) -> None:
        if flushed:
            self.log.flush()
        recovery_point = self.log.recovery_point
        if clean:
            self.log.close()
        else:
            self.log.abandon()
        self.log = open_log(
            self.disk,
            config=CONFIG,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=self.start,
            high_watermark=self.log.high_watermark,
        )
        assert not self.log.warnings
        self.log.update_high_watermark(self.end)
        self.recall_sequences()

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        # Of a transaction that lost its first records a restart knows less than the running log, in Kafka as well.
        limit = max(self.start, min(self.open_transactions().values(), default=self.end))
        self.start = data.draw(st.integers(self.start, limit))
        assert self.log.delete_records(self.start) == self.start

    @rule()
    def remove_dead_segments(self) -> None:
        delete_old_segments(self.log, NOW)

    @precondition(lambda self: len(self.entries) > 0)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        known = [
            entry
            for entry in self.entries
            if entry.base >= self.start
            and min(self.open_transactions(entry.base).values(), default=self.start) >= self.start
        ]
        if not known:
            return
        cut = data.draw(st.sampled_from(known)).base
        truncate_to(self.log, cut, now_ms=NOW)
        self.entries = [entry for entry in self.entries if entry.base < cut]
        self.end = cut
        self.next_seq = {}
        for entry in self.entries:
            if entry.pid >= 0 and entry.outcome is None:
                self.next_seq[entry.pid] = self.next_seq.get(entry.pid, 0) + len(entry.records)
        self.log.update_high_watermark(self.end)
        self.recall_sequences()

    def recall_sequences(self) -> None:
        """What the log remembers after it was read back. It may be less only when records were deleted."""
        entries = {entry.producer_id: entry for entry in self.log.producers.active()}
        found = {pid: entry.last_sequence + 1 for pid, entry in entries.items() if entry.last_sequence >= 0}
        if self.start == 0:
            assert found == self.next_seq
        self.next_seq = found

    # -- what must hold

    def readable(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.last >= self.start]

    @invariant()
    def offsets(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert self.log.high_watermark == self.end
        unstable = min(self.open_transactions().values(), default=self.end)
        if unstable < self.start:
            unstable = next((entry.base for entry in self.readable()), self.start)
        assert self.log.last_stable_offset == min(unstable, self.end)

    @invariant()
    def every_batch_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        found = [
            (header.base_offset, header.last_offset, header.producer_id, len(data))
            for data, header in batches(self.log)
        ]
        assert found == [(entry.base, entry.last, entry.pid, entry.size) for entry in self.readable()]

    @rule(data=st.data(), max_bytes=st.integers(1, 2000), min_one=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, min_one: bool) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        bound = self.log.last_stable_offset if data.draw(st.booleans()) else self.end
        result = self.log.read(offset, max_bytes, bound=bound, min_one_message=min_one)
        wanted = [entry for entry in self.readable() if entry.last >= offset and entry.last < bound]
        if offset >= bound or not wanted or (not min_one and wanted[0].size > max_bytes):
            assert len(result) == 0
            return
        assert len(result) <= max(max_bytes, wanted[0].size if min_one else 0)
        whole = [header.base_offset for _, header in iter_batches(result.records)]
        assert whole == [entry.base for entry in wanted][: len(whole)]
        assert whole or not min_one
        total = sum(entry.size for entry in wanted)
        assert self.log.bytes_between(offset, bound) == total
        if len(whole) < len(wanted):  # cut by the limit or by the segment's end
            assert len(result) >= min(max_bytes, wanted[0].size)

    @rule(stamp=st.integers(-1, 52))
    def by_timestamp(self, stamp: int) -> None:
        wanted = next(
            (
                (entry.base + i, row[0])
                for entry in self.readable()
                for i, row in enumerate(entry.records or [(NOW, b"", b"")])
                if row[0] >= NOW + stamp and entry.base + i >= self.start
            ),
            None,
        )
        found = self.log.offset_for_timestamp(NOW + stamp, self.end)
        assert (None if found is None else (found.offset, found.timestamp)) == wanted

    @rule()
    def consumed(self) -> None:
        """A read_committed consumer gets the records of committed transactions and plain ones up to the first open."""
        stable = self.log.last_stable_offset
        aborted: set[int] = set()
        pending: dict[int, list[int]] = {}
        for entry in self.entries:
            if entry.outcome is None and entry.txn:
                pending.setdefault(entry.pid, []).append(entry.base)
            elif entry.outcome is not None:
                ended = pending.pop(entry.pid, [])
                aborted |= set() if entry.outcome else set(ended)
        wanted = [
            (row[1], row[2])
            for entry in self.readable()
            for i, row in enumerate(entry.records)
            if entry.last < stable and entry.base not in aborted and entry.base + i >= self.start
        ]
        assert values(self.log, committed=True) == wanted


LogMachine.TestCase.settings = search(60, steps=30)
TestLog = LogMachine.TestCase
