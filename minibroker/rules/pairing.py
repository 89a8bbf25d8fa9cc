"""Decisions of a coordinator and the markers of one log laid beside each other.

Each decision has one marker in each of its partitions, in the same order: producer by producer and epoch by epoch they
are two lists that must be equal. They lawfully are not where one of them lost its beginning (retention), its middle
(compaction), or has not its end yet (it was read earlier); where a marker was sent twice (KAFKA-19999), decided by a
coordinator that was deposed, or written by an administrator. So several pairings are tried, and the one with the fewest
breaches is taken: what is reported holds in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from minibroker.rules import rows as r
from minibroker.rules.decisions import Decision, by_hand
from minibroker.rules.moments import CLOCKS_MS


class Pairing(NamedTuple):
    """Decisions and markers of a place laid beside each other."""

    pairs: list[tuple[Decision, r.Transaction]]
    missing: list[Decision]
    extra: list[r.Transaction]
    other_epoch: list[tuple[Decision, r.Transaction]]

    @property
    def breaches(self) -> int:
        wrong = sum(
            txn.outcome != decision.outcome or txn.coordinator_epoch < decision.leader_epoch
            for decision, txn in self.pairs
        )
        return wrong + len(self.missing) + len(self.extra) + len(self.other_epoch)


def pair(
    decided: Sequence[Decision],
    marked: Sequence[r.Transaction],
    *,
    known: bool,
    whole: bool,
    compacted: bool,
) -> Pairing:
    """Decisions and markers of a place beside each other, epoch by epoch.

    known: every decision is.
    whole: the log with the markers has lost nothing, or it is `compacted`.
    """
    pairing = Pairing([], [], [], [])
    for epoch in sorted({d.producer_epoch for d in decided} | {t.marker_epoch for t in marked}):
        wanted = [d for d in decided if d.producer_epoch == epoch]
        of_epoch = [t for t in marked if t.marker_epoch == epoch]
        if not whole:
            of_epoch = _fitting(wanted, of_epoch)
        again, stray = _sent_again(of_epoch), _of_nothing(wanted, of_epoch)
        fitting = [txn for txn in of_epoch if txn not in stray]
        once = [txn for txn in fitting if txn not in again]
        by_time = [
            (pairs, whole or len(pairs) < len(markers))
            for markers in ([fitting, once] if again else [fitting])
            if (pairs := _by_time(wanted, markers, known=known)) is not None
        ]
        if compacted and any(pairs for pairs, _ in by_time):
            pairing.pairs.extend(next(pairs for pairs, _ in by_time if pairs))
            pairing.extra.extend(stray)
            continue
        best = _align(wanted, of_epoch, known=known, whole=whole)
        pairings = [best]
        if best.breaches and of_epoch:
            for pairs, from_start in by_time:
                pairings.append(Pairing(pairs, _unpaired(wanted, pairs, from_start=from_start), stray, []))
        best = min(
            pairings,
            key=lambda tried: (tried.breaches, _wrong(tried.pairs, again), _misplaced(tried.pairs, wanted)),
        )
        pairing.pairs.extend(best.pairs)
        pairing.missing.extend(best.missing)
        pairing.extra.extend(best.extra)
    missing, extra = pairing.missing, pairing.extra
    while missing and extra and missing[0].outcome == extra[0].outcome:
        pairing.other_epoch.append((missing.pop(0), extra.pop(0)))
    return pairing


def _align(wanted: list[Decision], marked: list[r.Transaction], *, known: bool, whole: bool) -> Pairing:
    """Pairs decisions and markers of one epoch in order, and adds what is left of each.

    What was deleted or compacted is missing at the beginning. A marker may be written twice (KAFKA-19999).
    """
    pairs, missing = [], []
    if not whole and len(wanted) > len(marked):
        newest = [d for d in wanted[-1:] if not marked]
        wanted = newest or wanted[len(wanted) - len(marked) :]
    if not known and len(marked) > len(wanted):
        marked = _newest(wanted, marked)
    rest = list(marked)
    for number, decision in enumerate(wanted):
        if not rest:
            missing = wanted[number:]
            break
        txn = rest.pop(0)
        pairs.append((decision, txn))
        following = wanted[number + 1 :]
        while rest and len(rest) > len(following) and _repeats(rest[0], txn):
            if (
                following
                and following[0].outcome == rest[0].outcome
                and following[0].timestamp <= rest[0].end_timestamp
            ):
                break  # written after the next decision, so it may well be that one's
            rest.pop(0)
    return Pairing(pairs, missing, rest, [])


def _sent_again(marked: Sequence[r.Transaction]) -> set[r.Transaction]:
    """Markers without records that a later coordinator sent for the decision of the marker before (KAFKA-19999)."""
    return {
        txn
        for before, txn in pairwise(marked)
        if _repeats(txn, before) and txn.coordinator_epoch > before.coordinator_epoch
    }


def _of_nothing(wanted: Sequence[Decision], marked: Sequence[r.Transaction]) -> list[r.Transaction]:
    """Markers of a coordinator that was deposed, and whose decision its successor has not got: none fits their time."""
    following = [*wanted[1:], None]
    return [
        txn
        for txn, later in pairwise(marked)
        if txn.coordinator_epoch < later.coordinator_epoch
        and not any(
            _may_be_of(txn, decision, () if after is None else (after,))
            for decision, after in zip(wanted, following, strict=True)
        )
    ]


def _wrong(pairs: Iterable[tuple[Decision, r.Transaction]], among: set[r.Transaction]) -> int:
    return sum(txn in among and txn.outcome != decision.outcome for decision, txn in pairs)


def _newest(wanted: Sequence[Decision], marked: Sequence[r.Transaction]) -> list[r.Transaction]:
    """As many of the last markers as there are decisions. An ABORT without a decision, after the marker of a decision,
    was written by an administrator's command, which ends hanging transactions."""
    rest, newest = list(marked), []
    for decision in reversed(wanted):
        while (
            len(rest) > 1
            and (rest[-1].outcome, decision.outcome) == (r.ABORT, r.COMMIT)
            and rest[-2].outcome == r.COMMIT
            and rest[-2].end_timestamp >= decision.timestamp
        ):
            rest.pop()
        if rest:
            newest.append(rest.pop())
    return newest[::-1]


def _by_time(
    wanted: Sequence[Decision], marked: Sequence[r.Transaction], *, known: bool
) -> list[tuple[Decision, r.Transaction]] | None:
    """Each marker beside the newest decision that it may be of, in order; None if one fits none.

    Kafka drops the marker of a partition that has no leader, and the cleaner takes that of a transaction that has no
    batch left, wherever it lies (CleanedTransactionMetadata): so the decisions beside the markers need not follow one
    another. Of a marker that is written twice (KAFKA-19999) the first stands. Markers before all decisions are left
    out unless every decision is `known`.
    """
    if not wanted:
        return None
    pairs: list[tuple[Decision, r.Transaction]] = []
    rest = len(wanted)
    for txn in reversed(marked):
        number = rest - 1
        while number >= 0 and not _may_be_of(txn, wanted[number], wanted[number + 1 : number + 2]):
            number -= 1
        if number < 0 and pairs and _repeats(pairs[-1][1], txn) and _may_be_of(txn, pairs[-1][0], ()):
            pairs[-1] = pairs[-1][0], txn
            continue
        if number < 0:
            if known or txn.end_timestamp > wanted[0].timestamp + CLOCKS_MS:
                return None
            break
        pairs.append((wanted[number], txn))
        rest = number
    return pairs[::-1]


def _unpaired(
    wanted: Sequence[Decision], pairs: Sequence[tuple[Decision, r.Transaction]], *, from_start: bool
) -> list[Decision]:
    """The decisions without a marker; those before the first marker only where the log goes back as far."""
    paired = {id(decision) for decision, _ in pairs}
    first = 0 if from_start else next(number for number, decision in enumerate(wanted) if id(decision) in paired)
    return [decision for decision in wanted[first:] if id(decision) not in paired]


def _misplaced(pairs: Iterable[tuple[Decision, r.Transaction]], wanted: Sequence[Decision]) -> int:
    """How many markers were, by their clock, written before their decision or after the following one."""
    until = {id(decision): following.timestamp for decision, following in pairwise(wanted)}
    return sum(
        not decision.timestamp <= txn.end_timestamp <= until.get(id(decision), r.EVERYTHING) for decision, txn in pairs
    )


def _may_be_of(txn: r.Transaction, decision: Decision, following: Sequence[Decision]) -> bool:
    """Whether the marker was written after the decision, and before the following one, which waits for it."""
    if txn.outcome != decision.outcome or decision.timestamp > txn.end_timestamp + CLOCKS_MS:
        return False
    return all(txn.end_timestamp <= decision.timestamp + CLOCKS_MS for decision in following)


def _fitting(wanted: Sequence[Decision], marked: list[r.Transaction]) -> list[r.Transaction]:
    """The markers without those that may repeat the one before, where only so they are what was decided last: how many
    there were before the log's first is not known."""
    once = [txn for number, txn in enumerate(marked) if not (number and _repeats(txn, marked[number - 1]))]

    def fits(markers: Sequence[r.Transaction]) -> bool:
        count = min(len(wanted), len(markers))
        return [d.outcome for d in wanted[len(wanted) - count :]] == [
            t.outcome for t in markers[len(markers) - count :]
        ]

    return once if not fits(marked) and fits(once) else marked


def _repeats(later: r.Transaction, txn: r.Transaction) -> bool:
    return later.first_offset < 0 and later.outcome == txn.outcome


def marker_written(decision: Decision, marked: Sequence[r.Transaction]) -> bool:
    """Whether a marker of the decision, or of a later one, is among these."""
    last = marked[-1] if marked else None
    if last is None or last.marker_epoch < decision.producer_epoch:
        return False
    if last.marker_epoch > decision.producer_epoch or last.end_timestamp > decision.timestamp + CLOCKS_MS:
        return True
    return (
        0
        <= decision.number
        < sum(
            txn.marker_epoch == decision.producer_epoch and not (number and _repeats(txn, marked[number - 1]))
            for number, txn in enumerate(marked)
        )
    )


def after_the_first(pairing: Pairing) -> list[Decision]:
    """Decisions without a marker that came after one whose marker is there, so retention did not take theirs."""
    first = min(
        (decision.timestamp for decision, txn in pairing.pairs if txn.end_timestamp >= decision.timestamp), default=None
    )
    return [decision for decision in pairing.missing if first is not None and first < decision.timestamp]


def repaired(pairing: Pairing, transactions: list[r.Transaction]) -> Pairing:
    """The pairing where decisions without a marker have the one that was written by hand."""
    pairs, missing, extra = [*pairing.pairs], [], [*pairing.extra]
    for decision in pairing.missing:
        repairs = by_hand(decision, transactions)
        if not repairs:
            missing.append(decision)
            continue
        pairs.append((decision, repairs[0]))
        extra = [txn for txn in extra if txn != repairs[0]]
    others = [(decision, txn) for decision, txn in pairing.other_epoch if not by_hand(decision, [txn])]
    return Pairing(pairs, missing, extra, others)
