"""What must move so that every group and transactional id lies in the partition where Kafka has it.

minibroker 0.1.0 computed another partition for ids with a negative hash (`hashing.counterpart`). These rules are pure:
from what lies in the partitions of the two internal topics to the records to append. How they are appended, and what a
crash in the middle means, is `minibroker.cluster.id_migration`.

* Of each key the record that counts is copied to the id's own partition, and a tombstone is appended where it was.
  0.1.0 wrote in the wrong partition only, so what is copied is newer than what its own partition may hold of the id
  from the time of a Kafka before it.
* Offsets of a transaction that runs are copied as a batch of that transaction, and the transaction names the new
  partition as well: the marker of its end goes to both. Whether or not offsets are there already, as AddOffsetsToTxn
  names a partition before TxnOffsetCommit comes.
* Offsets of a transaction that is decided (PrepareCommit, PrepareAbort) are copied as decided: committed ones as plain
  records, aborted ones not at all. The new partition may have had the marker already, whose epoch refuses older ones.
* Offsets that no transaction knows of (a hanging one) are copied as they are: they hang as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from minibroker.coordinators.groups import records as group_records
from minibroker.coordinators.hashing import counterpart, partition_for
from minibroker.coordinators.transactions import records as transaction_records
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch
from minibroker.coordinators.transactions.states import ONGOING, PREPARE_COMMIT, PREPARED
from minibroker.releases.semantics import TransactionStateLayout
from minibroker_protocol.errors import Malformed


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record of an internal topic. timestamp: ms. value: None is a tombstone. producer: whose transaction it waits
    for; None: it counts."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes | None
    producer: ProducerIdAndEpoch | None = None


class StoredState:
    """What the records of one partition amount to, as the coordinators' replay has it, but by raw keys.

    latest: of each key the record that counts, tombstones included. waiting: of each producer id, what the end of its
    transaction decides about.
    """

    def __init__(self) -> None:
        self.latest: dict[bytes, StoredRecord] = {}
        self.waiting: dict[int, dict[bytes, StoredRecord]] = {}

    def record(self, stored: StoredRecord) -> None:
        """The next record of the log. A tombstone also takes what transactions hold for the key."""
        if stored.value is None:
            for producer_id in list(self.waiting):
                self.waiting[producer_id].pop(stored.key, None)
                if not self.waiting[producer_id]:
                    del self.waiting[producer_id]
        elif stored.producer is not None:
            self.waiting.setdefault(stored.producer.producer_id, {})[stored.key] = stored
            return
        self.latest[stored.key] = replace(stored, producer=None)

    def end(self, producer_id: int, *, committed: bool) -> None:
        """The transaction of a producer ended; what was written after its records stands."""
        for key, stored in self.waiting.pop(producer_id, {}).items():
            existing = self.latest.get(key)
            if committed and (existing is None or stored.offset > existing.offset):
                self.latest[key] = replace(stored, producer=None)

    def has(self, key: bytes) -> bool:
        found = self.latest.get(key)
        return found is not None and found.value is not None


States = Mapping[int, StoredState]
"""By partition of one internal topic."""


@dataclass(slots=True)
class Appends:
    """By partition of one internal topic: what arrives there, in order, and the keys that leave it. ids: how many."""

    arriving: dict[int, list[StoredRecord]] = field(default_factory=dict)
    leaving: dict[int, list[bytes]] = field(default_factory=dict)
    ids: int = 0

    @property
    def partitions(self) -> set[int]:
        return self.arriving.keys() | self.leaving.keys()


@dataclass(slots=True)
class _Transaction:
    partition: int
    stored: StoredRecord
    record: transaction_records.TransactionRecord | None


def migrations(
    transactions: States,
    transaction_partitions: int,
    groups: States,
    offset_partitions: int,
    *,
    offsets_topic: str,
    layout: TransactionStateLayout,
) -> tuple[Appends, Appends]:
    """What to append to ``__transaction_state`` and ``__consumer_offsets``. *_partitions: how many the topics have."""
    known = _known_transactions(transactions, transaction_partitions, layout)
    for known_transaction in known.values():
        _apply_decision(known_transaction, groups, offsets_topic)
    moved = _moved_transactions(known, transactions, transaction_partitions, offset_partitions, offsets_topic)
    return moved, _moved_groups(groups, offset_partitions)


def _home(name: str, index: int, count: int) -> int:
    """Where an id that lies in partition `index` belongs. One that 0.1.0 would not have put there stays: that topic has
    had another number of partitions, and all its ids would move."""
    home = partition_for(name, count)
    return home if home == counterpart(index, count) else index


def _known_transactions(states: States, count: int, layout: TransactionStateLayout) -> dict[str, _Transaction]:
    """Of each id the state that 0.1.0 went by: the misplaced one where there are two."""
    known: dict[str, _Transaction] = {}
    for index, state in states.items():
        for stored in state.latest.values():
            transactional_id = _transactional_id(stored.key)
            if transactional_id is None:
                continue
            home = _home(transactional_id, index, count)
            if transactional_id not in known or index != home:
                known[transactional_id] = _Transaction(index, stored, _decoded(stored, layout))
    return known


def _transactional_id(key: bytes) -> str | None:
    try:
        tombstone = transaction_records.decode(key, None)
    except Malformed:
        return None
    return None if tombstone is None else tombstone.transactional_id


def _decoded(stored: StoredRecord, layout: TransactionStateLayout) -> transaction_records.TransactionRecord | None:
    try:
        return transaction_records.decode(stored.key, stored.value, layout)
    except Malformed:
        return None  # its coordinator says so when it is loaded


def _apply_decision(transaction: _Transaction, groups: States, offsets_topic: str) -> None:
    metadata = None if transaction.record is None else transaction.record.metadata
    if metadata is None or metadata.state not in PREPARED:
        return
    for topic, index in metadata.partitions:
        if topic == offsets_topic and index in groups:
            groups[index].end(metadata.producer_id, committed=metadata.state is PREPARE_COMMIT)


def _moved_transactions(
    known: Mapping[str, _Transaction], states: States, count: int, offset_partitions: int, offsets_topic: str
) -> Appends:
    appends = Appends()
    for transactional_id, transaction in known.items():
        stored, home = transaction.stored, _home(transactional_id, transaction.partition, count)
        extended = _extended(transaction.record, offset_partitions, offsets_topic)
        if extended is not None:
            stored = replace(stored, value=extended)
        if transaction.partition != home:
            _move(appends, states, transaction.partition, home, stored)
            appends.ids += 1
        elif extended is not None:
            appends.arriving.setdefault(home, []).append(stored)
    return appends


def _extended(
    record: transaction_records.TransactionRecord | None, offset_partitions: int, offsets_topic: str
) -> bytes | None:
    """The value of a running transaction that names, for each partition of offsets, its counterpart too; None when that
    is no change."""
    metadata = None if record is None else record.metadata
    if record is None or metadata is None or metadata.state is not ONGOING:
        return None
    named = metadata.partitions
    wanted = named | {(topic, counterpart(i, offset_partitions)) for topic, i in named if topic == offsets_topic}
    return None if wanted == named else transaction_records.with_partitions(record, wanted).value_bytes()


def _moved_groups(states: States, count: int) -> Appends:
    appends, ids = Appends(), set()
    for index, state in states.items():
        found = [*state.latest.values(), *(s for held in state.waiting.values() for s in held.values())]
        for stored in sorted(found, key=lambda stored: stored.offset):
            group_id = _group_id(stored.key)
            if group_id is not None and (home := _home(group_id, index, count)) != index:
                _move(appends, states, index, home, stored)
                if stored.value is not None:  # a group also lives by its offsets alone, until its own tombstone
                    appends.leaving[index].append(group_records.group_tombstone(group_id).key_bytes())
                    ids.add(group_id)
    for keys in appends.leaving.values():
        keys[:] = sorted(dict.fromkeys(keys), key=_removal_order)
    appends.ids = len(ids)
    return appends


def _group_id(key: bytes) -> str | None:
    """None for keys of another coordinator, which only Kafka writes."""
    try:
        record = group_records.decode(key, None)
    except Malformed:
        return None
    if record is None:
        return None
    typed = cast("Any", record.key)
    return cast("str", typed.group_id if hasattr(typed, "group_id") else typed.group)


def _removal_order(key: bytes) -> tuple[bool, int]:
    """Offsets first, then a group from its members' assignments to the group itself (Kafka's createGroupTombstones)."""
    key_type = int.from_bytes(key[:2], "big", signed=True)
    return key_type > group_records.OFFSET_COMMIT, -key_type


def _move(appends: Appends, states: States, index: int, home: int, stored: StoredRecord) -> None:
    if stored.value is not None:
        appends.arriving.setdefault(home, []).append(stored)
        appends.leaving.setdefault(index, []).append(stored.key)
    elif home in states and states[home].has(stored.key):  # deleted since Kafka wrote it there
        appends.arriving.setdefault(home, []).append(stored)


def batches(stored: Iterable[StoredRecord], most_bytes: int) -> Iterable[list[StoredRecord]]:
    """Runs of records that can be one batch: of one transaction or none, and of `most_bytes` unless it is only one."""
    batch: list[StoredRecord] = []
    size = 0
    for one in stored:
        weight = len(one.key) + len(one.value or b"")
        if batch and (one.producer != batch[0].producer or size + weight > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += weight
    if batch:
        yield batch
