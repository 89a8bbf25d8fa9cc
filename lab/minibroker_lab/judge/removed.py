"""Acknowledged records that the broker removed lawfully: by compaction, or with their topic.

Of a log whose `cleanup.policy` is or was compact, the cleaner removes (Kafka's Cleaner):

* a record with a committed record of the same key above it,
* a record without a key, and a tombstone once `delete.retention.ms` is over,
* every record of an aborted transaction.

A record that is missing for another reason is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from minibroker.rules.rows import ABORT, COMMIT, Transaction
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.stored import Stored


def removed_records(
    produced: Sequence[Produced],
    stored: Sequence[Stored],
    exchanges: Sequence[Exchange],
    transactions: Iterable[Transaction],
    compacted: Collection[str],
) -> list[Stored]:
    """The records that were acknowledged and removed lawfully since, as they lay in the log.

    compacted: the topics that compaction may have touched.
    """
    deleted = _deletions(exchanges)
    offsets = {(record.topic, record.partition, record.record.offset) for record in stored}
    outcomes = _Outcomes(transactions, exchanges)
    acknowledged: list[tuple[Stored, bool]] = []
    for sent in produced:
        topic_deleted = sent.exchange["number"] < deleted.get(sent.topic, 0)
        if sent.base_offset < 0 or not (topic_deleted or sent.topic in compacted):
            continue
        for index, record in enumerate(sent.records):
            offset = sent.base_offset + index
            lies_there = (sent.topic, sent.partition, offset) in offsets
            if topic_deleted or not lies_there:
                committed = outcomes.of(sent, offset) == COMMIT
                row = Stored(sent.topic, sent.partition, sent.batch, replace(record, offset=offset), committed)
                acknowledged.append((row, topic_deleted))
    newest = _newest_of_each_key([row for row, _ in acknowledged] + [r for r in stored if r.topic in compacted])
    return [row for row, topic_deleted in acknowledged if topic_deleted or _cleaned(row, newest)]


def _cleaned(row: Stored, newest: Mapping[tuple[str, int, bytes], int]) -> bool:
    key, value = row.record.key, row.record.value
    if key is None or value is None or not row.committed:
        return True
    return newest[row.topic, row.partition, bytes(key)] > row.record.offset


def _newest_of_each_key(rows: Iterable[Stored]) -> dict[tuple[str, int, bytes], int]:
    """Topic, partition and key -> the highest offset of a committed record."""
    newest: dict[tuple[str, int, bytes], int] = {}
    for row in rows:
        if row.committed and row.record.key is not None:
            at = row.topic, row.partition, bytes(row.record.key)
            newest[at] = max(newest.get(at, -1), row.record.offset)
    return newest


def _deletions(exchanges: Iterable[Exchange]) -> dict[str, int]:
    """Topic -> number of the last exchange that deleted it."""
    numbers: dict[str, int] = {}
    for exchange in exchanges:
        if exchange["api"] == "DeleteTopics" and exchange["response"] is not None:
            for result in exchange["response"]["responses"]:
                if not result["error_code"] and result["name"]:
                    numbers[result["name"]] = exchange["number"]
    return numbers


class _Outcomes:
    """How the transaction of a batch ended: by the log, else, where compaction took the marker too, by the producer's
    next EndTxn."""

    def __init__(self, transactions: Iterable[Transaction], exchanges: Iterable[Exchange]) -> None:
        self._transactions: dict[tuple[str, int, int], list[Transaction]] = {}
        for transaction in transactions:
            at = transaction.log.topic, transaction.log.partition, transaction.producer_id
            self._transactions.setdefault(at, []).append(transaction)
        self._ends = [exchange for exchange in exchanges if exchange["api"] == "EndTxn" and not exchange["errors"]]

    def of(self, sent: Produced, offset: int) -> str:
        """COMMIT, ABORT, or empty where nothing tells."""
        if not sent.transactional:
            return COMMIT
        for transaction in self._transactions.get((sent.topic, sent.partition, sent.batch[0]), ()):
            if transaction.first_offset <= offset <= transaction.last_offset:
                return transaction.outcome
        for end in self._ends:
            request = end["request"]
            if end["number"] > sent.exchange["number"] and request["producer_id"] == sent.batch[0]:
                return COMMIT if request["committed"] else ABORT
        return ""
