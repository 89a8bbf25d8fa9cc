"""Rules that compare a transaction's partitions with each other and with its coordinator's decision.

All rows of one producer id belong together and no others are needed, so the rows can be judged producer by producer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from minibroker.rules import rows as r
from minibroker.rules.catalogue import NOTICE, finding, finding_at

DEFAULT_TIMEOUT_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms, for a transaction whose own timeout is not known."""
NO_TIMEOUT = (1 << 31) - 1
GRACE_MS = 300_000
"""Kafka too calls a transaction late five minutes after its timeout (PartitionsWithLateTransactionsCount)."""
_COMPLETE = {"CompleteCommit": r.COMMIT, "CompleteAbort": r.ABORT}
_PREPARED = {"PrepareCommit": r.COMMIT, "PrepareAbort": r.ABORT}


class Decision(NamedTuple):
    """What a coordinator decided; its markers have this producer id and epoch. `complete`: all of them were written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    outcome: str
    partitions: tuple[tuple[str, int], ...]
    complete: bool
    leader_epoch: int
    timestamp: int


class TxnLogs(NamedTuple):
    """What the transaction logs say: `whole` when nothing of them was compacted or deleted."""

    decisions: tuple[Decision, ...]
    latest: Mapping[int, r.TxnState]
    whole: bool


def coordinators_whole(facts: Iterable[r.LogFacts]) -> bool:
    """Whether there is a transaction log among these, and none that lost records."""
    logs = [fact for fact in facts if fact.log.topic == r.TRANSACTION_STATE]
    return bool(logs) and all(fact.whole for fact in logs)


def read_coordinators(states: Iterable[r.TxnState], *, whole: bool) -> TxnLogs:
    """Decisions and newest states out of the records of `__transaction_state`, of one replica or several."""
    by_id: dict[str, dict[tuple[int, int], r.TxnState]] = defaultdict(dict)
    for state in states:
        by_id[state.transactional_id][state.log.partition, state.offset] = state
    decisions = []
    latest: dict[int, r.TxnState] = {}
    for history in by_id.values():
        ordered = in_order(history)
        for number, state in enumerate(ordered):
            if state.state in _PREPARED:
                decisions.append(
                    Decision(
                        state.transactional_id,
                        state.producer_id,
                        state.producer_epoch,
                        _PREPARED[state.state],
                        state.partitions,
                        number + 1 < len(ordered),  # nothing else follows before all markers are written
                        state.leader_epoch,
                        state.update_timestamp,
                    )
                )
            if state.state:
                latest[state.producer_id] = state
    return TxnLogs(tuple(decisions), latest, whole)


def in_order(history: Mapping[tuple[int, int], r.TxnState]) -> list[r.TxnState]:
    """The records of one transactional id, by partition and offset, as they were written.

    An id of minibroker 0.1.0 may have moved to the partition where Kafka has it: its last record was
    copied with a new leader epoch, and a tombstone took it away where it was. That is one state, not two, and the id
    goes on.
    """
    if len({partition for partition, _ in history}) == 1:
        return [history[place] for place in sorted(history)]
    found: list[r.TxnState] = []
    for state in sorted(history.values(), key=lambda state: (state.leader_epoch, bool(state.state), state.offset)):
        if found and found[-1].log.partition != state.log.partition:
            if not found[-1].state:
                found.pop()
            if found and _same_state(found[-1], state):
                found.pop()
        found.append(state)
    return found


def _same_state(one: r.TxnState, other: r.TxnState) -> bool:
    fields = ("producer_id", "producer_epoch", "state", "update_timestamp")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def judge_transactions(
    transactions: Iterable[r.Transaction],
    states: Iterable[r.TxnState] = (),
    facts: Iterable[r.LogFacts] = (),
    *,
    commits: Iterable[r.CommittedOffset] = (),
    coordinators: TxnLogs | None = None,
    coordinators_complete: bool = False,
    as_of_ms: int | None = None,
    max_timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> list[r.Finding]:
    """Judges the transactions of any number of producers, all rows of each.

    `facts` of every log in the data; `coordinators_complete`: see `coordinators_whole`. Without `as_of_ms`, the time
    when the data was alive, nothing is called late. `coordinators`: the decoded `states`, if already read.
    """
    if coordinators is None:
        coordinators = read_coordinators(states, whole=coordinators_complete)
    judge = _TxnJudge(coordinators, list(facts), as_of_ms, max_timeout_ms)
    by_place: dict[tuple[r.Log, int], list[r.Transaction]] = defaultdict(list)
    for transaction in transactions:
        by_place[transaction.log, transaction.producer_id].append(transaction)
    judge.run(by_place)
    judge.offsets(by_place, commits)
    return judge.found


class _TxnJudge:
    def __init__(
        self, coordinators: TxnLogs, facts: list[r.LogFacts], as_of_ms: int | None, max_timeout_ms: int
    ) -> None:
        self._known = coordinators
        self._logs: dict[tuple[str, int], list[r.LogFacts]] = defaultdict(list)
        for fact in facts:
            self._logs[fact.log.topic, fact.log.partition].append(fact)
        self._as_of = as_of_ms
        self._max_timeout = max_timeout_ms
        self._decided: dict[tuple[r.Log, int], list[Decision]] = defaultdict(list)
        for decision in coordinators.decisions:
            for place in decision.partitions:
                for fact in self._logs.get(place, ()):
                    self._decided[fact.log, decision.producer_id].append(decision)
        self._facts = {fact.log: fact for fact in facts}
        self._epochs = {(decision.producer_id, decision.producer_epoch) for decision in coordinators.decisions}
        self._torn: set[tuple[r.Log, int, int]] = set()  # log, producer id and epoch of a transaction torn by its log
        self.found: list[r.Finding] = []

    def _report(
        self, rule: str, txn: r.Transaction, message: str, transactional_id: str = "", severity: str | None = None
    ) -> None:
        first = txn.first_offset if txn.first_offset >= 0 else txn.marker_offset
        last = txn.marker_offset if txn.marker_offset >= 0 else txn.last_offset
        place = {"first_offset": first, "last_offset": last, "transactional_id": transactional_id}
        self.found.append(finding_at(rule, txn, message, **place, severity=severity))

    def run(self, by_place: Mapping[tuple[r.Log, int], list[r.Transaction]]) -> None:
        for place in dict.fromkeys((*by_place, *self._decided)):
            found = sorted(by_place.get(place, ()), key=_end)
            torn = self._compare(place, found)
            for txn in found:
                if txn.marker_offset < 0 and not torn:
                    self._open(txn)
            self._last_word(found)

    # -- decisions against markers -----------------------------------------------------------------------------------

    def _compare(self, place: tuple[r.Log, int], found: list[r.Transaction]) -> bool:
        """Lays decisions beside markers, epoch by epoch; True when a transaction was found torn."""
        log, _ = place
        fact = self._facts.get(log)
        whole = fact is not None and fact.whole
        decided = self._decided.get(place, [])
        if not self._known.whole and not decided:
            return False
        missing: list[Decision] = []
        extra: list[r.Transaction] = []
        torn = False
        epochs = sorted({d.producer_epoch for d in decided} | {t.marker_epoch for t in found if t.marker_offset >= 0})
        for epoch in epochs:
            wanted = [d for d in decided if d.producer_epoch == epoch]
            marked = [t for t in found if t.marker_offset >= 0 and t.marker_epoch == epoch]
            if not whole:
                marked = _fitting(wanted, marked)
            left, over, wrong = self._align(wanted, marked, whole)
            missing += left
            extra += over
            torn = torn or wrong
        while missing and extra and missing[0].outcome == extra[0].outcome:
            self._wrong_epoch(missing.pop(0), extra.pop(0))
        for decision in missing:
            if self._missing(decision, log, found, whole):
                torn = True
        for txn in extra:
            self._undecided(txn)
        return torn

    def _align(
        self, wanted: list[Decision], marked: list[r.Transaction], whole: bool
    ) -> tuple[list[Decision], list[r.Transaction], bool]:
        """Pairs decisions and markers of one epoch in order; returns what is left of each, and whether a pair differs.

        What was deleted or compacted is missing at the beginning. A marker may be written twice (KAFKA-19999).
        """
        if not whole and len(wanted) > len(marked):
            newest = [d for d in wanted[-1:] if not marked]
            wanted = newest or wanted[len(wanted) - len(marked) :]
        if not self._known.whole and len(marked) > len(wanted):
            marked = _newest(wanted, marked)
        left: list[Decision] = []
        torn = False
        rest = list(marked)
        for number, decision in enumerate(wanted):
            if not rest:
                left += wanted[number:]
                break
            txn = rest.pop(0)
            if txn.outcome != decision.outcome:
                torn = True
                self._wrong_outcome(decision, txn)
            elif txn.coordinator_epoch < decision.leader_epoch:
                reason = (
                    f"coordinator epoch {txn.coordinator_epoch}, but the coordinator decided in {decision.leader_epoch}"
                )
                self._report("coordinator-epoch", txn, reason, decision.transactional_id)
            following = wanted[number + 1 :]
            while rest and len(rest) > len(following) and _repeats(rest[0], txn):
                if (
                    following
                    and following[0].outcome == rest[0].outcome
                    and following[0].timestamp <= rest[0].end_timestamp
                ):
                    break  # written after the next decision, so it may well be that one's
                rest.pop(0)
        return left, rest, torn

    def _wrong_outcome(self, decision: Decision, txn: r.Transaction) -> None:
        reason = (
            f"the coordinator decided {decision.outcome}, the marker at offset {txn.marker_offset} says {txn.outcome}"
        )
        self._report("torn-transaction", txn, reason, decision.transactional_id)
        self._torn.add((txn.log, txn.producer_id, txn.marker_epoch))

    def _wrong_epoch(self, decision: Decision, txn: r.Transaction) -> None:
        reason = f"the coordinator decided with epoch {decision.producer_epoch}, the marker has {txn.marker_epoch}"
        self._report("marker-epoch", txn, reason, decision.transactional_id)

    def _last_word(self, found: list[r.Transaction]) -> None:
        """The outcome that a coordinator remembers, whose decision compaction took away, against the last marker of it.

        An epoch may have had other transactions before (transaction.version 0 and 1): by the marker's time it is this
        one and, as clocks differ, by the time of its data too.
        """
        marked = [txn for txn in found if txn.marker_offset >= 0]
        state = self._known.latest.get(marked[-1].producer_id) if marked else None
        if state is None or state.state not in _COMPLETE or (state.producer_id, state.producer_epoch) in self._epochs:
            return
        txn = marked[-1]
        own = txn.marker_epoch > txn.producer_epoch or txn.start_timestamp >= state.start_timestamp
        since = 0 < state.start_timestamp <= txn.end_timestamp
        if (
            txn.marker_epoch == state.producer_epoch
            and own
            and since
            and txn.outcome not in (_COMPLETE[state.state], "")
        ):
            reason = (
                f"the coordinator's last word is {state.state}, the marker at {txn.marker_offset} says {txn.outcome}"
            )
            self._report("torn-transaction", txn, reason, state.transactional_id)

    def _missing(self, decision: Decision, log: r.Log, found: list[r.Transaction], whole: bool) -> bool:
        """A decision without a marker: torn if it was called complete and the marker cannot have been deleted."""
        opened = [
            t
            for t in found
            if t.marker_offset < 0 and t.producer_epoch in (decision.producer_epoch, decision.producer_epoch - 1)
        ]
        if not decision.complete or not (whole or opened):
            return False
        reason = f"the coordinator calls it complete ({decision.outcome}), the partition has no marker"
        if opened:
            self._report("torn-transaction", opened[0], reason, decision.transactional_id)
            return True
        self.found.append(
            finding(
                "torn-transaction",
                log,
                reason,
                producer_id=decision.producer_id,
                producer_epoch=decision.producer_epoch,
                transactional_id=decision.transactional_id,
            )
        )
        return True

    def _undecided(self, txn: r.Transaction) -> None:
        if not self._known.whole:
            return
        if txn.first_offset >= 0:
            reason = (
                f"the coordinator knows nothing of this {txn.outcome}: ended by hand, as kafka-transactions.sh does?"
            )
            self._report("marker-without-transaction", txn, reason, severity=NOTICE)
        else:
            reason = f"a {txn.outcome} marker without data, and the coordinator decided nothing of the kind"
            self._report("marker-without-transaction", txn, reason)

    # -- open transactions -------------------------------------------------------------------------------------------

    def _open(self, txn: r.Transaction) -> None:
        state = self._known.latest.get(txn.producer_id)
        if state is None:
            self._late(txn, txn.start_timestamp, self._max_timeout, "")
            return
        transactional_id = state.transactional_id
        if state.producer_epoch > txn.producer_epoch and not state.state.startswith("Prepare"):
            reason = f"the coordinator has gone on to epoch {state.producer_epoch} ({state.state}): no marker will come"
            self._report("hanging-transaction", txn, reason, transactional_id)
        elif state.state == "Ongoing" and (txn.log.topic, txn.log.partition) not in state.partitions:
            reason = "its coordinator does not know that the transaction writes here"
            self._report("outside-transaction", txn, reason, transactional_id)
        elif state.state.startswith("Prepare"):
            self._late(txn, state.update_timestamp, 0, transactional_id)
        elif state.state == "Ongoing":
            self._late(txn, state.start_timestamp, state.timeout_ms, transactional_id)
        else:  # what its coordinator began and ended is another transaction
            self._late(txn, txn.start_timestamp, state.timeout_ms, transactional_id)

    def _late(self, txn: r.Transaction, start: int, timeout: int, transactional_id: str) -> None:
        if self._as_of is None or start < 0 or timeout == NO_TIMEOUT:
            return
        waited = self._as_of - start
        if waited > timeout + GRACE_MS:
            reason = f"open for {waited / 1000:.0f} s, its timeout is {timeout / 1000:.0f} s"
            self._report("hanging-transaction", txn, reason, transactional_id)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def offsets(
        self, by_place: Mapping[tuple[r.Log, int], list[r.Transaction]], commits: Iterable[r.CommittedOffset]
    ) -> None:
        """Offsets committed in transactions whose other partitions, or whose coordinator, say something else."""
        # By both epochs: the marker of a fenced transaction has the epoch that the next transaction writes with.
        outcomes: dict[tuple[int, int, int], dict[r.Log, list[str]]] = defaultdict(lambda: defaultdict(list))
        for txns in by_place.values():
            for txn in txns:
                if txn.marker_offset >= 0:
                    outcomes[txn.producer_id, txn.producer_epoch, txn.marker_epoch][txn.log].append(txn.outcome)
        for commit in commits:
            around = transaction_around(by_place.get((commit.log, commit.producer_id), ()), commit.offset)
            if around is not None and around.marker_offset >= 0:
                epochs = around.producer_epoch, around.marker_epoch
                self._offset(commit, around, outcomes[around.producer_id, *epochs])

    def _offset(self, commit: r.CommittedOffset, txn: r.Transaction, others: Mapping[r.Log, list[str]]) -> None:
        # With transaction.version below 2 an epoch has many transactions, each on partitions of its own, which only the
        # coordinator tells apart; a marker with an epoch above its transaction's belongs to one of them alone.
        single = txn.marker_epoch > txn.producer_epoch and all(len(found) == 1 for found in others.values())
        against = [str(log) for log, found in others.items() if single and found[0] != txn.outcome]
        if (txn.log, txn.producer_id, txn.marker_epoch) in self._torn:
            against.append("the coordinator")
        if against and commit.log.topic == r.CONSUMER_OFFSETS:
            effect = "took effect" if txn.outcome == r.COMMIT else "was dropped"
            reason = (
                f"offset {commit.committed} of group {commit.group} on {commit.topic}-{commit.partition} {effect}, "
                f"against the outcome on {', '.join(sorted(against))}"
            )
            self._report("offset-outcome", txn._replace(first_offset=commit.offset), reason)


def _end(txn: r.Transaction) -> int:
    return txn.marker_offset if txn.marker_offset >= 0 else 1 << 62


def _repeats(later: r.Transaction, txn: r.Transaction) -> bool:
    return later.first_offset < 0 and later.outcome == txn.outcome


def _newest(wanted: Sequence[Decision], marked: Sequence[r.Transaction]) -> list[r.Transaction]:
    """As many of the last markers as there are decisions. An ABORT without a decision, after the marker of a decision,
    was written by an administrator's command, which ends hanging transactions."""
    rest, found = list(marked), []
    for decision in reversed(wanted):
        while (
            len(rest) > 1
            and (rest[-1].outcome, decision.outcome) == (r.ABORT, r.COMMIT)
            and rest[-2].outcome == r.COMMIT
            and rest[-2].end_timestamp >= decision.timestamp
        ):
            rest.pop()
        if rest:
            found.append(rest.pop())
    return found[::-1]


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


def transaction_around(transactions: Iterable[r.Transaction], offset: int) -> r.Transaction | None:
    """The transaction whose data is at this offset."""
    for txn in transactions:
        end = txn.marker_offset if txn.marker_offset >= 0 else txn.last_offset
        if 0 <= txn.first_offset <= offset <= end:
            return txn
    return None
