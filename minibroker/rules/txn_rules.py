"""Rules that compare a transaction's partitions with each other and with its coordinator's decision.

All rows of one producer id belong together and no others are needed, so the rows can be judged producer by producer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from minibroker.rules import rows as r
from minibroker.rules.catalogue import NOTICE, finding, finding_at
from minibroker.rules.decisions import (
    COMPLETE,
    Decision,
    Held,
    TxnLogs,
    began_before,
    by_hand,
    decides,
    is_later,
    opened_by,
    read_coordinators,
)
from minibroker.rules.moments import CLOCKS_MS, Moments
from minibroker.rules.pairing import Pairing, after_the_first, marker_written, pair, repaired

DEFAULT_TIMEOUT_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms, for a transaction whose own timeout is not known."""
NO_TIMEOUT = (1 << 31) - 1
GRACE_MS = 300_000
"""Kafka too calls a transaction late five minutes after its timeout (PartitionsWithLateTransactionsCount)."""
_TRIED = 100
"""Number of decisions or markers at the end of a log for which we try whether the other log was read before them."""


def judge_transactions(
    transactions: Iterable[r.Transaction],
    states: Iterable[r.TxnState] = (),
    facts: Iterable[r.LogFacts] = (),
    *,
    commits: Iterable[r.CommittedOffset] = (),
    plain: Iterable[r.Run] = (),
    coordinators: TxnLogs | None = None,
    coordinators_complete: bool = False,
    as_of_ms: int | None = None,
    max_timeout_ms: int = DEFAULT_TIMEOUT_MS,
    moments: Moments | None = None,
    pairs: list[tuple[Decision, r.Transaction]] | None = None,
) -> list[r.Finding]:
    """Judges the transactions of any number of producers, all rows of each, `plain` as of `LogVerdict`.

    `facts` of every log in the data.

    coordinators_complete: see `coordinators_whole`.
    coordinators: the decoded `states`, if already read.
    moments: when the logs were read; without it, at one moment. `pairs` gets which decision each marker was taken for.

    Without `as_of_ms`, the time when the data was alive, nothing is called late.
    """
    facts = list(facts)
    moments = moments or Moments(facts, {}, 0)
    if coordinators is None:
        coordinators = read_coordinators(states, whole=coordinators_complete, moments=moments)
    judge = _TxnJudge(coordinators, facts, as_of_ms, max_timeout_ms, moments)
    by_place: dict[tuple[r.Log, int], list[r.Transaction]] = defaultdict(list)
    for transaction in transactions:
        by_place[transaction.log, transaction.producer_id].append(transaction)
    judge.run(by_place)
    if pairs is not None:
        pairs.extend(judge.pairs)
    judge.offsets(by_place, commits)
    judge.plain(plain, by_place)
    return judge.findings


class _TxnJudge:
    def __init__(
        self,
        coordinators: TxnLogs,
        facts: list[r.LogFacts],
        as_of_ms: int | None,
        max_timeout_ms: int,
        moments: Moments,
    ) -> None:
        self._known = coordinators
        self._moments = moments
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
        self._discarded: set[tuple[r.Log, int]] = set()  # log and offset of an ABORT marker of committed records
        self.findings: list[r.Finding] = []
        self.pairs: list[tuple[Decision, r.Transaction]] = []

    def _report(
        self, rule: str, txn: r.Transaction, message: str, transactional_id: str = "", severity: str | None = None
    ) -> None:
        first = txn.first_offset if txn.first_offset >= 0 else txn.marker_offset
        last = txn.marker_offset if txn.marker_offset >= 0 else txn.last_offset
        place = {"first_offset": first, "last_offset": last, "transactional_id": transactional_id}
        self.findings.append(finding_at(rule, txn, message, **place, severity=severity))

    def run(self, by_place: Mapping[tuple[r.Log, int], list[r.Transaction]]) -> None:
        for place in dict.fromkeys((*by_place, *self._decided)):
            transactions = sorted(by_place.get(place, ()), key=_end)
            torn = self._compare(place, transactions)
            for txn in transactions:
                if not txn.outcome and not torn:
                    self._open(txn)
            self._last_word(transactions)

    # -- decisions against markers -----------------------------------------------------------------------------------

    def _compare(self, place: tuple[r.Log, int], transactions: list[r.Transaction]) -> bool:
        """Lays decisions beside markers; True when a transaction was found torn.

        Unknown are whether the other log was read late enough to have the counterparts of the last ones, and what was
        compacted or deleted at the beginning. A finding holds in every one of these cases.
        """
        log, _ = place
        fact = self._facts.get(log)
        decided = self._decided.get(place, [])
        if fact is None or (not self._known.whole and not decided):
            return False
        marked = [txn for txn in transactions if txn.marker_offset >= 0]
        best = self._best(decided, marked, fact, transactions)
        if best.breaches and (earlier := self._of_another_topic(decided, log, transactions)):
            # The last of them may have been open when the topic was deleted: its markers are in the new one.
            tried = {count: self._best(decided[count:], marked, fact, transactions) for count in (earlier, earlier - 1)}
            count = min(tried, key=lambda count: tried[count].breaches)
            if tried[count].breaches < best.breaches:
                best = tried[count]
                self._made_again(decided[:count], log)
        torn = self._tell(best, fact, transactions)
        self.pairs += [*best.pairs, *best.other_epoch]
        for decision, txn in best.pairs:
            if txn.outcome == decision.outcome:
                span = decision.start_timestamp, decision.timestamp
                torn = self._ended_before(marked, txn, *span, decision.transactional_id) or torn
        return torn

    def _best(
        self, decided: list[Decision], marked: list[r.Transaction], fact: r.LogFacts, transactions: list[r.Transaction]
    ) -> Pairing:
        """The pairing with the fewest breaches, over what may be missing at the ends."""
        best, least = Pairing([], [], [], []), -1
        for later_decisions, later_markers, read_later in self._ends(decided, marked, fact):
            pairs = pair(
                decided[: len(decided) - later_decisions],
                marked[: len(marked) - later_markers],
                known=self._known.whole,
                whole=fact.whole,
                compacted=fact.cleaned_offset > 0,
            )
            pairing = self._lawful(pairs, fact, transactions, read_later=read_later)
            if least < 0 or pairing.breaches < least:
                best, least = pairing, pairing.breaches
            if not least:
                break
        return best

    def _of_another_topic(self, decided: list[Decision], log: r.Log, transactions: list[r.Transaction]) -> int:
        """How many of the first decisions may be about a deleted topic of the same name."""
        for number, decision in enumerate(decided):
            if not decision.complete or not self._moments.may_be_of_another_topic(
                decision.complete_timestamp, log.topic
            ):
                return number
            if opened_by(decision, transactions) or began_before(decision, transactions):
                return number
        return len(decided)

    def _made_again(self, decided: Sequence[Decision], log: r.Log) -> None:
        last = decided[-1]
        count = f"{len(decided)} transactions" if len(decided) > 1 else "a transaction"
        reason = (
            f"nothing is left of {count} that ended before the topic's first marker: the topic was deleted and created "
            "again since, or it lost its first records"
        )
        self.findings.append(
            finding(
                "torn-transaction",
                log,
                reason,
                producer_id=last.producer_id,
                producer_epoch=last.producer_epoch,
                transactional_id=last.transactional_id,
                severity=NOTICE,
            )
        )

    def _ended_before(
        self, marked: list[r.Transaction], last: r.Transaction, start: int, end: int, transactional_id: str
    ) -> bool:
        """Records of a transaction to which another marker gave the other outcome between its start and its end, as
        kafka-transactions.sh does; `last` is the coordinator's marker."""
        transactions = [
            txn
            for txn in marked
            if txn.marker_offset < last.marker_offset
            and txn.first_offset >= 0
            and txn.outcome not in (last.outcome, "")
            and 0 <= start < txn.end_timestamp <= end
            and txn.start_timestamp >= start
            and txn.producer_epoch in (last.marker_epoch, last.marker_epoch - 1)
        ]
        for txn in transactions:
            reason = (
                f"the coordinator decided {last.outcome}, but the marker at offset {txn.marker_offset}, "
                f"which is not its own, gave these records {txn.outcome}"
            )
            self._report("torn-transaction", txn, reason, transactional_id)
        return bool(transactions)

    def _ends(
        self, decided: list[Decision], marked: list[r.Transaction], fact: r.LogFacts
    ) -> Iterator[tuple[int, int, bool]]:
        """How many of the last decisions, or of the last markers, may have no counterpart because the other log was
        read before they were written, and whether that log is the coordinator's; the likeliest first."""
        yield 0, 0, False
        if not self._moments.together(fact):
            yield 0, 0, True
        last = marked[-1] if marked else None
        later = 0
        while later < len(decided) and not self._due(decided[-later - 1], fact):
            later += 1
        while later and marker_written(decided[-later], marked):
            later -= 1
        likely = sum(
            last is None or decision.timestamp > last.end_timestamp for decision in decided[len(decided) - later :]
        )
        for number in sorted(range(1, later + 1), key=lambda number: abs(number - likely))[:_TRIED]:
            yield number, 0, False
        known = self._last_known(marked)
        for number in range(1, min(len(marked), _TRIED) + 1):
            txn = marked[-number]
            if self._moments.decided_before(txn, fact, known) or any(decides(decision, txn) for decision in decided):
                break
            yield 0, number, True

    def _due(self, decision: Decision, fact: r.LogFacts) -> bool:
        """Whether the markers of a decision were written before the log was read. A copy with a later marker has all
        that was before it."""
        later = fact.marked_ms > decision.completed + CLOCKS_MS and decision.completed >= 0
        written = later or self._moments.written_before(decision.complete_timestamp, fact)
        return decision.complete and decision.settled and written

    def _last_known(self, transactions: Iterable[r.Transaction]) -> int:
        """The time of the newest state of the transactions' producer, of which all are."""
        for txn in transactions:
            return max(
                (held.state.update_timestamp for held in self._known.held.get(txn.producer_id, ())), default=r.NONE
            )
        return r.NONE

    def _lawful(
        self, pairing: Pairing, fact: r.LogFacts, transactions: list[r.Transaction], *, read_later: bool
    ) -> Pairing:
        """The pairing without decisions and markers that may lawfully have no counterpart.

        read_later: the log was read after the coordinator's, so it has the markers of every complete decision, and may
            have others.
        """
        certain = [] if fact.cleaned_offset else after_the_first(pairing)
        missing = [
            decision
            for decision in pairing.missing
            if (self._due(decision, fact) or (read_later and decision.complete))
            and (
                fact.whole
                or decision in certain
                or opened_by(decision, transactions)
                or by_hand(decision, transactions)
            )
        ]
        extra = pairing.extra if self._known.whole else []
        if read_later:
            known = self._last_known(extra)
            extra = [txn for txn in extra if self._moments.decided_before(txn, fact, known)]
        return repaired(pairing._replace(missing=missing, extra=extra), transactions)

    def _tell(self, pairing: Pairing, fact: r.LogFacts, transactions: list[r.Transaction]) -> bool:
        """Reports what a pairing shows; True when a transaction is torn."""
        torn = bool(pairing.missing)
        for decision, txn in pairing.pairs:
            if txn.outcome == decision.outcome and is_later(decision, txn):
                continue  # an administrator carried the decision out, with the epochs that the tool knew
            if (decision.outcome, txn.outcome) == (r.COMMIT, r.ABORT) and is_later(decision, txn):
                torn = True
                self._discard(decision, txn)
            elif txn.outcome != decision.outcome:
                torn = True
                self._wrong_outcome(decision, txn)
            elif txn.coordinator_epoch < decision.leader_epoch:
                reason = (
                    f"coordinator epoch {txn.coordinator_epoch}, but the coordinator decided in {decision.leader_epoch}"
                )
                self._report("coordinator-epoch", txn, reason, decision.transactional_id)
        for decision, txn in pairing.other_epoch:
            self._wrong_epoch(decision, txn)
        for decision in pairing.missing:
            self._missing(decision, fact.log, transactions)
        for txn in pairing.extra:
            self._undecided(txn)
        return torn

    def _wrong_outcome(self, decision: Decision, txn: r.Transaction) -> None:
        reason = (
            f"the coordinator decided {decision.outcome}, the marker at offset {txn.marker_offset} says {txn.outcome}"
        )
        self._report("torn-transaction", txn, reason, decision.transactional_id)
        self._torn.add((txn.log, txn.producer_id, txn.marker_epoch))

    def _discard(self, decision: Decision, txn: r.Transaction) -> None:
        reason = (
            f"the coordinator decided COMMIT and called it complete; the ABORT marker at offset {txn.marker_offset} "
            f"was written by hand after that: offsets {txn.first_offset}-{txn.last_offset} are discarded"
        )
        self._report("torn-transaction", txn, reason, decision.transactional_id)
        self._discarded.add((txn.log, txn.marker_offset))

    def _wrong_epoch(self, decision: Decision, txn: r.Transaction) -> None:
        reason = f"the coordinator decided with epoch {decision.producer_epoch}, the marker has {txn.marker_epoch}"
        self._report("marker-epoch", txn, reason, decision.transactional_id)

    def _last_word(self, transactions: list[r.Transaction]) -> None:
        """The outcome that a coordinator remembers, whose decision compaction took away, against the last marker of it.

        An epoch may have had other transactions before (transaction.version 0 and 1): by the marker's time it is this
        one and, as clocks differ, by the time of its data too.
        """
        marked = [txn for txn in transactions if txn.marker_offset >= 0]
        held = self._known.held.get(marked[-1].producer_id) if marked else None
        if not held:
            return
        txn, state = marked[-1], held[-1].state
        if state.state not in COMPLETE or (state.producer_id, state.producer_epoch) in self._epochs:
            return
        fact = self._facts.get(txn.log)
        if fact is None or not self._moments.decided_before(txn, fact, state.update_timestamp):
            return
        own = txn.marker_epoch > txn.producer_epoch or txn.start_timestamp >= state.start_timestamp
        since = 0 <= state.start_timestamp <= txn.end_timestamp
        if (
            txn.marker_epoch == state.producer_epoch
            and own
            and since
            and txn.outcome not in (COMPLETE[state.state], "")
        ):
            reason = (
                f"the coordinator's last word is {state.state}, the marker at {txn.marker_offset} says {txn.outcome}"
            )
            self._report("torn-transaction", txn, reason, state.transactional_id)
        elif txn.marker_epoch == state.producer_epoch and since:
            self._ended_before(marked, txn, state.start_timestamp, state.update_timestamp, state.transactional_id)

    def _missing(self, decision: Decision, log: r.Log, transactions: list[r.Transaction]) -> None:
        opened = opened_by(decision, transactions)
        if opened:
            # Without the id: commands with it would end another transaction of the application.
            reason = (
                f"the coordinator of {decision.transactional_id} decided {decision.outcome} and calls it complete, "
                "no marker will come: stop the producer, whose next transaction here decides about these records"
            )
            self._report("hanging-transaction", opened[0], reason)
            return
        reason = f"the coordinator calls it complete ({decision.outcome}), the partition has no marker"
        self.findings.append(
            finding(
                "torn-transaction",
                log,
                reason,
                producer_id=decision.producer_id,
                producer_epoch=decision.producer_epoch,
                transactional_id=decision.transactional_id,
            )
        )

    def _undecided(self, txn: r.Transaction) -> None:
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
        """Judges an open transaction by every state that its coordinator may have had when the log was read."""
        fact = self._facts.get(txn.log)
        known = self._known.held.get(txn.producer_id, ())
        possible = [held for held in known if fact is None or not self._is_past(held, fact)]
        if not known:
            verdicts = [self._late(txn.start_timestamp, self._max_timeout, r.NONE)]
        elif fact is not None and not self._was_written(possible[0], fact):
            return  # an earlier state is not known
        else:
            verdicts = [self._verdict(txn, held) for held in possible]
        if verdicts and all(verdict is not None for verdict in verdicts):
            rule, reason = verdicts[-1]  # type: ignore[misc]
            # Where its coordinator has ended it, commands with the id would end another transaction of the application.
            owned = [held.state for held in possible if _owns(held.state, txn)]
            self._report(rule, txn, reason, owned[-1].transactional_id if owned else "")

    def _was_written(self, held: Held, fact: r.LogFacts) -> bool:
        """Whether the state, or a later one, was there when the log was read."""
        return held.settled and self._moments.written_before(held.state.update_timestamp, fact)

    def _is_past(self, held: Held, fact: r.LogFacts) -> bool:
        """Whether the state was another one already when the log was read."""
        return held.passed and self._moments.written_before(held.until_ms, fact)

    def _verdict(self, txn: r.Transaction, held: Held) -> tuple[str, str] | None:
        """The rule that an open transaction breaks under this state, and how."""
        state, until = held.state, held.until_ms
        if state.producer_epoch > txn.producer_epoch and not state.state.startswith("Prepare"):
            reason = (
                f"the coordinator of {state.transactional_id} has gone on to epoch {state.producer_epoch} "
                f"({state.state}): no marker will come"
            )
            return "hanging-transaction", reason
        if state.state == "Ongoing" and (txn.log.topic, txn.log.partition) not in state.partitions:
            return "outside-transaction", "its coordinator does not know that the transaction writes here"
        if state.state.startswith("Prepare"):
            return self._late(state.update_timestamp, 0, until)
        if state.state == "Ongoing":
            return self._late(state.start_timestamp, state.timeout_ms, until)
        # The transaction that its coordinator began and ended is another one.
        return self._late(txn.start_timestamp, state.timeout_ms, until)

    def _late(self, start: int, timeout: int, until: int) -> tuple[str, str] | None:
        if self._as_of is None or start < 0 or timeout == NO_TIMEOUT:
            return None
        waited = (self._as_of if until < 0 else min(until, self._as_of)) - start
        if waited <= timeout + GRACE_MS:
            return None
        return "hanging-transaction", f"open for {waited / 1000:.0f} s, its timeout is {timeout / 1000:.0f} s"

    def plain(self, runs: Iterable[r.Run], by_place: Mapping[tuple[r.Log, int], Sequence[r.Transaction]]) -> None:
        """Batches without the transactional bit. A transactional id's producer id belongs to no other producer. A
        marker alone says so too, unless all the ids are known."""
        transactional = {
            producer_id
            for (_, producer_id), transactions in by_place.items()
            if not self._known.whole or any(txn.first_offset >= 0 for txn in transactions)
        }
        for run in runs:
            held = self._known.held.get(run.producer_id, ())
            if held or run.producer_id in transactional:
                name = held[-1].state.transactional_id if held else ""
                reason = (
                    f"producer {run.producer_id} has transactions{f' ({name})' if name else ''}, "
                    "and this is in none: readers get it at once, whatever becomes of them"
                )
                self.findings.append(finding_at("not-transactional", run, reason, transactional_id=name))

    # -- offsets -----------------------------------------------------------------------------------------------------

    def offsets(
        self, by_place: Mapping[tuple[r.Log, int], list[r.Transaction]], commits: Iterable[r.CommittedOffset]
    ) -> None:
        """Offsets committed in transactions whose other partitions, or whose coordinator, say something else."""
        # By both epochs: the marker of a fenced transaction has the epoch that the next transaction writes with.
        outcomes: dict[tuple[int, int, int], dict[r.Log, list[str]]] = defaultdict(lambda: defaultdict(list))
        for txns in by_place.values():
            for txn in txns:
                if txn.marker_offset >= 0 and (txn.log, txn.marker_offset) not in self._discarded:
                    outcomes[txn.producer_id, txn.producer_epoch, txn.marker_epoch][txn.log].append(txn.outcome)
        for commit in commits:
            around = transaction_around(by_place.get((commit.log, commit.producer_id), ()), commit.offset)
            if (
                around is not None
                and around.marker_offset >= 0
                and (around.log, around.marker_offset) not in self._discarded
            ):
                epochs = around.producer_epoch, around.marker_epoch
                self._offset(commit, around, outcomes[around.producer_id, *epochs])

    def _offset(self, commit: r.CommittedOffset, txn: r.Transaction, others: Mapping[r.Log, list[str]]) -> None:
        # With transaction.version below 2 an epoch has many transactions, each on partitions of its own, which only the
        # coordinator tells apart; a marker with an epoch above its transaction's belongs to one of them alone.
        single = txn.marker_epoch > txn.producer_epoch and all(len(outcomes) == 1 for outcomes in others.values())
        against = [str(log) for log, outcomes in others.items() if single and outcomes[0] != txn.outcome]
        if (txn.log, txn.producer_id, txn.marker_epoch) in self._torn:
            against.append("the coordinator")
        if against and commit.log.topic == r.CONSUMER_OFFSETS:
            effect = "took effect" if txn.outcome == r.COMMIT else "was dropped"
            reason = (
                f"offset {commit.committed} of group {commit.group} on {commit.topic}-{commit.partition} {effect}, "
                f"against the outcome on {', '.join(sorted(against))}"
            )
            self._report("offset-outcome", txn._replace(first_offset=commit.offset), reason)


def _owns(state: r.TxnState, txn: r.Transaction) -> bool:
    """Whether a coordinator in this state still has to end the transaction, or has its id in the same one."""
    return state.state.startswith("Prepare") or (
        state.state == "Ongoing" and state.producer_epoch == txn.producer_epoch
    )


def _end(txn: r.Transaction) -> int:
    return txn.marker_offset if txn.marker_offset >= 0 else 1 << 62


def transaction_around(transactions: Iterable[r.Transaction], offset: int) -> r.Transaction | None:
    """The transaction whose data is at this offset."""
    for txn in transactions:
        end = txn.marker_offset if txn.marker_offset >= 0 else txn.last_offset
        if 0 <= txn.first_offset <= offset <= end:
            return txn
    return None
