"""The rule on what a coordinator wrote about one transactional id: each state may follow the one before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from minibroker.coordinators.transactions.states import BY_LABEL, EMPTY, EXPIRABLE, is_legal
from minibroker.rules import rows as r
from minibroker.rules.catalogue import NOTICE, finding_at
from minibroker.rules.decisions import in_order, refused


def judge_states(states: Iterable[r.TxnState]) -> list[r.Finding]:
    """Judges the records of any number of transactional ids, all of each.

    Compaction keeps an id's newest record and takes older ones first, so two that follow one another always did. A
    record may be there twice, because a coordinator repeats what it could not replicate in time.
    """
    by_id: dict[tuple[str, str], dict[tuple[int, int], r.TxnState]] = defaultdict(dict)
    for state in states:
        by_id[state.log.root, state.transactional_id][state.log.partition, state.offset] = state
    findings = []
    for history in by_id.values():
        ordered = in_order(history)
        for before, after in zip([None, *ordered], ordered, strict=False):
            reason = _unknown(after) if before is None else _wrong(before, after)
            if reason:
                severity = NOTICE if before is not None and _not_replicated(before, after) else None
                of = {"transactional_id": after.transactional_id, "severity": severity}
                findings.append(finding_at("txn-state", after, reason, **of))
    return findings


def _not_replicated(before: r.TxnState, after: r.TxnState) -> bool:
    """Whether a new instance came after a transaction that never began, or another decision after one that never was:
    the record was appended, and refused as it was not replicated in time, so that the coordinator went on from the
    state before (TransactionStateManager.appendTransactionToLog)."""
    return refused(before, after) or (before.state, after.state, after.producer_id, after.producer_epoch) == (
        "Ongoing",
        EMPTY.label,
        before.producer_id,
        before.producer_epoch + 1,
    )


def _unknown(state: r.TxnState) -> str:
    return f"{state.state} is no state" if state.state and state.state not in BY_LABEL else ""


def _wrong(before: r.TxnState, after: r.TxnState) -> str:
    if after.state and after.state not in BY_LABEL:
        return _unknown(after)
    if before.state and before.state not in BY_LABEL:
        return ""
    place = f"at offset {before.offset}"
    if not before.state:
        return f"{after.state} after a tombstone {place}" if after.state != EMPTY.label and after.state else ""
    if not after.state:
        return "" if BY_LABEL[before.state] in EXPIRABLE else f"a tombstone after {before.state} {place}"
    same_producer = after.producer_id == before.producer_id
    if same_producer and after.producer_epoch < before.producer_epoch:
        return f"epoch {after.producer_epoch} ({after.state}) after {before.producer_epoch} ({before.state}) {place}"
    repeated = same_producer and (after.state, after.producer_epoch) == (before.state, before.producer_epoch)
    if repeated or is_legal(BY_LABEL[before.state], BY_LABEL[after.state]):
        return ""
    return f"{after.state} after {before.state} {place}"
