"""The rules over what clients know and over records' content: nothing lost, nothing twice, nothing aborted read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from minibroker.rules.catalogue import finding
from minibroker.rules.rows import ABORT, COMMIT, NONE, Content, Finding, Log, Marks, Seen, Sent

UNKNOWN = ""
"""Outcome of a transaction whose client never learned it: all of its records may exist, or none."""
_SHOWN = 5


class RecordPosition(NamedTuple):
    """Topic, partition and offset of a record."""

    log: Log
    offset: int


def judge_lineage(
    key: Hashable,
    inputs: Sequence[RecordPosition],
    outputs: Sequence[RecordPosition],
    *,
    unsettled_inputs: int = 0,
    open_outputs: int = 0,
) -> list[Finding]:
    """One key's records among the consumed input and the committed output of an application that makes one output
    record of each input record. Keys repeat in the input as often as they do in the output.

    While the application runs: `unsettled_inputs` may have an output already; `open_outputs` may commit.
    """
    wanted, copies = len(inputs), len(outputs)
    if wanted - open_outputs <= copies <= wanted + unsettled_inputs:
        return []
    if copies < wanted:
        rule, at = "lineage-lost", inputs[copies]
        reason = f"input {key!r} is in the committed output {copies} of {wanted} times"
    elif wanted + unsettled_inputs:
        rule, at = "lineage-duplicate", outputs[wanted + unsettled_inputs]
        reason = f"input {key!r} is in the committed output {copies} times: {_places(outputs)}"
    else:
        rule, at = "lineage-stray", outputs[0]
        reason = f"output {key!r} has no input: {_places(outputs)}"
    return [finding(rule, at.log, reason, first_offset=at.offset)]


def judge_content(key: Hashable, records: Iterable[Content]) -> list[Finding]:
    """The same content from one producer under different epochs: what a client wrote again after a bump."""
    by_producer: dict[tuple[Log, int], list[Content]] = defaultdict(list)
    for record in records:
        by_producer[record.log, record.producer_id].append(record)
    findings = []
    for (log, producer_id), same in by_producer.items():
        same.sort(key=lambda record: record.offset)
        for first, again in pairwise(same):
            if first.producer_epoch != again.producer_epoch and producer_id >= 0:
                reason = f"epoch {again.producer_epoch} repeats the record at offset {first.offset}, of epoch "
                findings.append(
                    finding(
                        "duplicate-content",
                        log,
                        reason + str(first.producer_epoch),
                        producer_id=producer_id,
                        producer_epoch=again.producer_epoch,
                        first_offset=again.offset,
                    )
                )
    return findings


def judge_history(
    sent: Iterable[Sent],
    stored: Iterable[Seen],
    *,
    outcomes: Mapping[Any, str] | None = None,
    reads: Iterable[Seen] = (),
    start_offsets: Mapping[tuple[str, int], int] | None = None,
    idempotent: bool = True,
) -> list[Finding]:
    """Clients' histories against what a read_committed reader finds in the end.

    outcomes: transaction -> COMMIT, ABORT or UNKNOWN.
    stored: the final read.
    reads: the records that read_committed readers got before.
    start_offsets: log start offsets; records below them were deleted by retention or DeleteRecords and are not called
        lost.

    Without idempotence a record may be there twice.
    """
    sent = list(sent)
    by_key = {record.key: record for record in sent}
    places: dict[Hashable, list[Seen]] = defaultdict(list)
    for seen in stored:
        places[seen.key].append(seen)
    judge = _HistoryJudge(by_key, outcomes or {}, start_offsets or {})
    for record in sent:
        judge.sent(record, places.get(record.key, []))
    judge.torn(sent, places)
    for key, copies in places.items():
        judge.stored(key, copies, idempotent)
    judge.reads(reads)
    return judge.findings


class _HistoryJudge:
    def __init__(
        self,
        by_key: Mapping[Hashable, Sent],
        outcomes: Mapping[Any, str],
        start_offsets: Mapping[tuple[str, int], int],
    ) -> None:
        self._by_key = by_key
        self._outcomes = outcomes
        self._starts = start_offsets
        self.findings: list[Finding] = []

    def _report(self, rule: str, topic: str, partition: int, message: str, offset: int = NONE) -> None:
        self.findings.append(finding(rule, Log("", topic, partition), message, first_offset=offset))

    def _outcome(self, record: Sent) -> str:
        return COMMIT if record.transaction is None else self._outcomes.get(record.transaction, UNKNOWN)

    def sent(self, record: Sent, copies: Sequence[Seen]) -> None:
        """Committed records that are lost, and aborted ones that are visible."""
        outcome = self._outcome(record)
        deleted = self._starts.get((record.topic, record.partition), 0) > 0
        if not copies and record.acknowledged and outcome == COMMIT and not deleted:
            reason = f"{record.client} has the acknowledgement of {record.key!r}, the log does not have the record"
            self._report("lost-record", record.topic, record.partition, reason)
        if copies and outcome == ABORT:
            reason = f"{record.key!r} of {record.client}'s aborted transaction {record.transaction!r} is read"
            self._report("aborted-read", record.topic, record.partition, reason, copies[0].offset)

    def torn(self, sent: Iterable[Sent], places: Mapping[Hashable, Sequence[Seen]]) -> None:
        """Transactions of unknown outcome: all acknowledged records are there, or none."""
        by_transaction: dict[Hashable, list[Sent]] = defaultdict(list)
        for record in sent:
            if record.transaction is not None and record.acknowledged and self._outcome(record) == UNKNOWN:
                by_transaction[record.transaction].append(record)
        for transaction, records in by_transaction.items():
            there = [record for record in records if places.get(record.key)]
            gone = [record for record in records if not places.get(record.key)]
            deleted = any(self._starts.get((record.topic, record.partition), 0) > 0 for record in gone)
            if there and gone and not deleted:
                first = gone[0]
                reason = f"of transaction {transaction!r} {len(there)} records are read and {len(gone)} are not"
                self._report("torn-transaction", first.topic, first.partition, reason)

    def stored(self, key: Hashable, copies: Sequence[Seen], idempotent: bool) -> None:
        first = copies[0]
        if key not in self._by_key:
            self._report("stray-record", first.topic, first.partition, f"{key!r} was never sent", first.offset)
        elif idempotent and len({(seen.topic, seen.partition, seen.offset) for seen in copies}) > 1:
            offsets = [seen.offset for seen in copies][:_SHOWN]
            reason = f"{key!r} is there {len(copies)} times, at offsets {offsets}"
            self._report("duplicate-record", first.topic, first.partition, reason, copies[1].offset)

    def reads(self, reads: Iterable[Seen]) -> None:
        """What readers received during the run: no aborted and no unknown records, in order."""
        last: dict[tuple[str, str, int], int] = {}
        for seen in reads:
            record = self._by_key.get(seen.key)
            if record is None:
                self._report("stray-record", seen.topic, seen.partition, f"{seen.key!r} was never sent", seen.offset)
            elif self._outcome(record) == ABORT:
                reason = f"{seen.reader} was given {seen.key!r} of aborted transaction {record.transaction!r}"
                self._report("aborted-read", seen.topic, seen.partition, reason, seen.offset)
            place = seen.reader, seen.topic, seen.partition
            if seen.offset <= last.get(place, NONE):
                reason = f"{seen.reader} was given offset {seen.offset} after {last[place]}"
                self._report("order", seen.topic, seen.partition, reason, seen.offset)
            last[place] = seen.offset


def judge_marks(marks: Iterable[Marks]) -> list[Finding]:
    """Log start, last stable offset and high watermark in the order in which a reader saw them."""
    findings = []
    last: dict[tuple[str, str, int], Marks] = {}
    for now in marks:
        place = now.reader, now.topic, now.partition
        before = last.get(place)
        offsets = (now.log_start_offset, now.last_stable_offset, now.high_watermark)
        wrong = []
        if before is not None:
            names = ("log start offset", "last stable offset", "high watermark")
            earlier = (before.log_start_offset, before.last_stable_offset, before.high_watermark)
            wrong = [f"{n} {b} after {a}" for n, a, b in zip(names, earlier, offsets, strict=True) if b < a]
        # Where records of an open transaction were deleted, the last stable offset may be below the log start.
        if max(offsets[:2]) > offsets[2]:
            wrong.append(f"log start, last stable offset and high watermark are {offsets}")
        if wrong:
            log = Log("", now.topic, now.partition)
            findings.append(finding("offset-back", log, f"{now.reader}: {'; '.join(wrong)}", first_offset=offsets[1]))
        last[place] = now
    return findings


def judge_reload(log: Log, live: Mapping[Hashable, object], reloaded: Mapping[Hashable, object]) -> list[Finding]:
    """Compare a broker's state in memory with its state after a reload, name by name."""
    return [
        finding("reload", log, f"{name}: {live.get(name)!r} before, {reloaded.get(name)!r} after the reload")
        for name in sorted({*live, *reloaded}, key=repr)
        if live.get(name) != reloaded.get(name)
    ]


def _places(places: Sequence[RecordPosition]) -> str:
    shown = ", ".join(f"{place.log}@{place.offset}" for place in places[:_SHOWN])
    return shown + (", …" if len(places) > _SHOWN else "")
