"""What the coordinators decided, out of the records of `__transaction_state`, and which transaction each is about.

A coordinator appends PrepareCommit or PrepareAbort, sends the markers, then appends CompleteCommit or CompleteAbort
(TransactionMetadata of Kafka). A decision that its log has not kept, as it was not replicated in time, is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from minibroker.rules import rows as r
from minibroker.rules.moments import ONE_MOMENT, Moments

_PREPARED = {"PrepareCommit": r.COMMIT, "PrepareAbort": r.ABORT}
COMPLETE = {"CompleteCommit": r.COMMIT, "CompleteAbort": r.ABORT}
"""Label of a state → the outcome of the transaction that is over."""


class Decision(NamedTuple):
    """What a coordinator decided; its markers have this producer id and epoch.

    complete: all of them were written, as the coordinator noted at `complete_timestamp`, and `settled`: before any
        partition was read.
    number: how many there were before it in its epoch (NONE: unknown).
    data_epoch: the epoch of the transaction's records (NONE: unknown), one lower than the markers' from
        transaction.version 2 on and after a fence.
    leader_epoch: the lower one of the leader epochs of `__transaction_state` when the transaction began and was
        decided.
    completed: when it was written that all markers are (NONE: unknown).
    place: partition and offset of its record.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    outcome: str
    partitions: tuple[tuple[str, int], ...]
    complete: bool
    leader_epoch: int
    start_timestamp: int
    timestamp: int
    complete_timestamp: int
    settled: bool
    number: int
    data_epoch: int
    completed: int
    place: tuple[int, int] = (r.NONE, r.NONE)


class Held(NamedTuple):
    """A state that a transactional id had until `until_ms` (NONE: it still has it).

    settled: it was written before any partition was read, `passed`: another one after it was too.
    """

    state: r.TxnState
    settled: bool
    until_ms: int
    passed: bool

    @property
    def producer_id(self) -> int:
        return self.state.producer_id


class TxnLogs(NamedTuple):
    """What the transaction logs say: `whole` when nothing of them was compacted or deleted.

    held: the states that each producer id may have had when a partition was read, the newest last.
    """

    decisions: tuple[Decision, ...]
    held: Mapping[int, Sequence[Held]]
    whole: bool


def coordinators_whole(facts: Iterable[r.LogFacts]) -> bool:
    """Whether the transaction log is among these, and has lost no records."""
    logs = [fact for fact in facts if fact.log.topic == r.TRANSACTION_STATE]
    return bool(logs) and all(fact.whole for fact in logs)


def read_coordinators(states: Iterable[r.TxnState], *, whole: bool, moments: Moments = ONE_MOMENT) -> TxnLogs:
    """Decisions and states out of the records of `__transaction_state`, of one replica or several."""
    by_id: dict[str, dict[tuple[int, int], r.TxnState]] = defaultdict(dict)
    for state in states:
        by_id[state.transactional_id][state.log.partition, state.offset] = state
    decisions = []
    held: dict[int, list[Held]] = defaultdict(list)
    for history in by_id.values():
        ordered = in_order(history)
        counted, before = r.NONE, None
        for state, following in zip(ordered, [*ordered[1:], None], strict=True):
            if _begins(before, state):
                counted = 0
            of_data, leader_epoch = r.NONE, state.leader_epoch
            if before is not None and before.state == "Ongoing" and before.producer_id == state.producer_id:
                of_data = before.producer_epoch
                # A leader that is elected again uses its previous epoch for a moment.
                leader_epoch = min(leader_epoch, before.leader_epoch)
            before = state
            repeated = following is not None and _same_state(state, following)
            if state.state in _PREPARED and not repeated and not refused(state, following):
                decisions.append(
                    Decision(
                        state.transactional_id,
                        state.producer_id,
                        state.producer_epoch,
                        _PREPARED[state.state],
                        state.partitions,
                        following is not None,  # nothing else follows before all markers are written
                        leader_epoch,
                        state.start_timestamp,
                        state.update_timestamp,
                        r.NONE if following is None else following.update_timestamp,
                        following is not None and moments.settled(following),
                        counted,
                        of_data,
                        r.NONE if following is None else following.timestamp,
                        (state.log.partition, state.offset),
                    )
                )
                counted += counted >= 0
            if not state.state:
                continue
            until, passed = r.NONE, False
            if following is not None and following.state and following.producer_id == state.producer_id:
                until, passed = following.update_timestamp, moments.settled(following)
            if not passed or until >= moments.oldest_ms:
                held[state.producer_id].append(Held(state, moments.settled(state), until, passed))
    return TxnLogs(tuple(decisions), held, whole)


def _begins(before: r.TxnState | None, state: r.TxnState) -> bool:
    """Whether an epoch begins with this record: none of its decisions is unknown."""
    if before is None or before.producer_id != state.producer_id:
        return state.state == "Empty"
    return state.producer_epoch > before.producer_epoch


def unbroken(states: Iterable[r.TxnState], facts: Iterable[r.LogFacts]) -> list[r.TxnState]:
    """The states of any number of transactional ids without those after which others may be missing.

    Compaction keeps an id's newest record and takes older ones first, so two that follow one another always did, but in
    a replica that fell behind: it fetches on where the leader's log was compacted since, and keeps its own older
    records before that hole. Two records of one transaction have nothing between them.
    """
    holes = {fact.log: fact.hole_end for fact in facts if fact.hole_end}
    kept = []
    of_log: dict[tuple[r.Log, str], dict[tuple[int, int], r.TxnState]] = defaultdict(dict)
    for state in states:
        if state.log in holes:
            of_log[state.log, state.transactional_id][state.log.partition, state.offset] = state
        else:
            kept.append(state)
    for (log, _), history in of_log.items():
        following: r.TxnState | None = None
        for state in reversed(in_order(history)):
            if following is not None and state.offset < holes[log] and not _same_transaction(state, following):
                break
            kept.append(state)
            following = state
    return kept


def _same_transaction(state: r.TxnState, other: r.TxnState) -> bool:
    return (state.producer_id, state.start_timestamp) == (other.producer_id, other.start_timestamp) and (
        state.start_timestamp >= 0
    )


def in_order(history: Mapping[tuple[int, int], r.TxnState]) -> list[r.TxnState]:
    """The records of one transactional id, by partition and offset, as they were written."""
    return [history[place] for place in sorted(history)]


def refused(state: r.TxnState, following: r.TxnState | None) -> bool:
    """Whether a decision was appended and refused, as it was not replicated in time: no marker was sent, and the
    coordinator went on from the open transaction (TransactionStateManager.appendTransactionToLog). Its producer asked
    again, or it was ended at the next epoch because it timed out or a new instance came. From transaction.version 2 on
    every end bumps the epoch, so that all of these have the same, and the transaction may go on below it."""
    if following is None or state.state not in _PREPARED:
        return False
    bumps = {"Ongoing": (-1,)} | dict.fromkeys(_PREPARED, (0, 1))
    return (
        following.producer_epoch - state.producer_epoch in bumps.get(following.state, ())
        and following.producer_id == state.producer_id
        and following.start_timestamp == state.start_timestamp
    )


def _same_state(first: r.TxnState, other: r.TxnState) -> bool:
    fields = ("producer_id", "producer_epoch", "state", "update_timestamp")
    return all(getattr(first, field) == getattr(other, field) for field in fields)


def opened_by(decision: Decision, transactions: Iterable[r.Transaction]) -> list[r.Transaction]:
    """The open transactions that the decision may be about."""

    def ended(txn: r.Transaction) -> bool:
        if decision.data_epoch != r.NONE:
            return txn.producer_epoch == decision.data_epoch and txn.start_timestamp <= decision.timestamp
        if txn.producer_epoch == decision.producer_epoch:
            return decision.number != 0 and txn.start_timestamp <= decision.timestamp
        return txn.producer_epoch == decision.producer_epoch - 1

    return [txn for txn in transactions if not txn.outcome and ended(txn)]


def began_before(decision: Decision, transactions: Iterable[r.Transaction]) -> bool:
    """Whether records of the decision's transaction are there, under whatever marker."""
    return decision.data_epoch != r.NONE and any(
        txn.first_offset >= 0
        and txn.producer_epoch == decision.data_epoch
        and txn.start_timestamp <= decision.timestamp
        for txn in transactions
    )


def is_later(decision: Decision, txn: r.Transaction) -> bool:
    """Whether the marker was written after the coordinator called the transaction complete: so it is not its own."""
    return txn.first_offset >= 0 and txn.end_timestamp > decision.completed >= 0


def by_hand(decision: Decision, transactions: Iterable[r.Transaction]) -> list[r.Transaction]:
    """The transactions that the decision may be about, ended by a marker with their own epoch where the decision's is
    higher (Admin.abortTransaction knows no other)."""
    return [
        txn
        for txn in transactions
        if txn.marker_offset >= 0
        and txn.producer_epoch == txn.marker_epoch == decision.data_epoch < decision.producer_epoch
        and is_later(decision, txn)
    ]


def decides(decision: Decision, txn: r.Transaction) -> bool:
    """Whether the marker is the decision's, or that of an earlier one."""
    if txn.marker_epoch != decision.producer_epoch:
        return txn.marker_epoch < decision.producer_epoch
    return txn.producer_epoch < txn.marker_epoch
