"""The audit's steps as Spark runs them: read and collapse by file, judge by log, then by producer.

What is shuffled are runs, markers and transactions, never batches or records (unless records' content is asked for).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple, TypeAlias

from minibroker.rules import rows as r
from minibroker.rules.decisions import Decision, Held, TxnLogs, coordinators_whole, read_coordinators, unbroken
from minibroker.rules.file_rules import is_log_row
from minibroker.rules.log_rules import LogVerdict, group_rows, judge_log
from minibroker.rules.moments import APART_MS, ONE_MOMENT, Moments
from minibroker.rules.offset_rules import judge_committed_offsets, judge_rewinds
from minibroker.rules.rules import judge_verdicts
from minibroker.rules.state_rules import judge_states
from minibroker.rules.txn_rules import judge_transactions
from minibroker_pipeline.chunks import (
    Chunk,
    Extents,
    by_piece,
    chunks_of,
    heads_in,
    judge_chunks,
    lefts_in,
    number_of,
    pieces_of,
)
from minibroker_pipeline.content import content_rows, judge_same
from minibroker_pipeline.files import Files, Part, bins
from minibroker_pipeline.folder import Folder
from minibroker_pipeline.headers import FileRows
from minibroker_pipeline.lineage import Deleted, RowKey, beginnings, consumed, deleted, judge_key, lineage_rows
from minibroker_pipeline.listing import PartitionLook, Spread
from minibroker_pipeline.outcomes import outcomes_of
from minibroker_pipeline.pieces import ROWS_OF_A_PIECE, borders_of, is_last
from minibroker_pipeline.plan import Plan, read_parts, write_table
from minibroker_pipeline.report import SHOWN, Audit, worst
from minibroker_pipeline.statistics import Statistics

Progress: TypeAlias = Callable[[int, int], None]
"""(bytes read, bytes in all)."""
TASKS_TO_A_SHUFFLE = 32
"""Reading tasks for each partition of what is shuffled."""
FIGURES, LOG_ROWS = "figures", "rows of a log"
"""Kinds of what was read: (Statistics, Extents) of a task, and (log, Chunk)."""
DIRECTORIES_OF_A_TASK = 32
"""How many directories of partitions a task lists at least; on S3 each takes tens of milliseconds."""


def spread_on(session: Callable[[], Any]) -> Spread:
    """Many directories of partitions are looked at by the executors of a session, which is opened for it."""

    def spread(look: Callable[[str], PartitionLook], names: Sequence[str]) -> Iterable[PartitionLook]:
        if len(names) < DIRECTORIES_OF_A_TASK * 2:
            return map(look, names)
        context = session().sparkContext
        tasks = min(len(names) // DIRECTORIES_OF_A_TASK, 4 * context.defaultParallelism)
        looks: list[PartitionLook] = context.parallelize(names, tasks).map(look).collect()
        return looks

    return spread


@dataclass(frozen=True)
class SpreadAudit:
    """A judged audit as RDDs: what was read, a verdict a log, transactions, findings.

    as_of_ms: when it was judged.

    What was read and the verdicts are kept by the executors until `release`.
    """

    read: Any
    verdicts: Any
    transactions: Any
    findings: Any
    figures: Statistics
    as_of_ms: int | None

    def release(self) -> None:
        for kept in (self.verdicts, self.read):
            kept.unpersist()


class SparkAudit:
    """One audit on a Spark session."""

    def __init__(
        self,
        spark: Any,
        plan: Plan,
        progress: Progress = lambda *_: None,
        *,
        rows_of_a_piece: int = ROWS_OF_A_PIECE,
    ) -> None:
        self._context = spark.sparkContext
        self._most = rows_of_a_piece
        self._plan = plan
        self._progress = progress
        self._width = 1
        self._moments = ONE_MOMENT
        self._facts: list[r.LogFacts] = []  # as they are once the logs were judged

    def run(self) -> tuple[Statistics, list[r.Finding], int | None]:
        """(figures, the first findings, as of when it was judged)."""
        spread = self.judge()
        findings, figures, out = spread.findings, spread.figures, self._plan.out
        if out is not None:
            findings = findings.persist()
        counted, shown = findings.mapPartitions(_worst_of).treeReduce(_worst_of_both)
        figures.merge(counted)
        if out is not None:
            self._tables(spread.read, spread.transactions, findings)
            findings.unpersist()
        spread.release()
        return figures, sorted(shown, key=worst), spread.as_of_ms

    def judge(self) -> SpreadAudit:
        """Read and judge each log now; findings are computed when they are asked for, by a job of their own.

        Each task costs some milliseconds however little it does, so the small shuffled data goes into few partitions.
        """
        plan = self._plan
        tasks = bins(plan.parts)
        self._width = max(self._context.defaultParallelism, len(tasks) // TASKS_TO_A_SHUFFLE)
        done = self._context.accumulator(0)
        read = (
            self._context.parallelize(list(enumerate(tasks)), len(tasks)).flatMap(partial(_read, plan, done)).persist()
        )
        watch = _Watch(done, plan.bytes, self._progress)
        try:
            figures, extents = of_kind(read, FIGURES).treeReduce(_both_read)
        finally:
            watch.stop()
        figures.logs = len(plan.facts)
        self._moments = Moments(plan.facts, figures.newest_ms, APART_MS, figures.first_marker_ms)
        as_of = plan.as_of_ms if plan.as_of_ms is not None else max(figures.newest_ms.values(), default=0) or None
        verdicts = self._judge_logs(read, extents, as_of)
        summed, ends, facts = verdicts.mapPartitions(_sum_up).treeReduce(_added)
        self._facts = sorted(facts)
        figures.merge(summed)
        transactions = verdicts.flatMap(lambda verdict: verdict.transactions)
        findings = [
            verdicts.flatMap(lambda verdict: verdict.findings),
            self._judge_producers(read, verdicts, transactions, as_of),
        ]
        if any(fact.log.topic == r.TRANSACTION_STATE for fact in plan.facts):
            findings.append(self._by_id(read).flatMap(lambda pair: judge_states(pair[1])))
        if any(fact.log.topic == r.CONSUMER_OFFSETS for fact in plan.facts):
            findings.append(self._judge_offsets(read, transactions, ends))
        findings += self._judge_content(read, transactions)
        if plan.findings:
            findings.append(self._context.parallelize(list(plan.findings), 1))
        return SpreadAudit(read, verdicts, transactions, self._context.union(findings), figures, as_of)

    def _judge_logs(self, read: Any, extents: Extents, as_of: int | None) -> Any:
        borders = {log: offsets for log, chunks in extents.items() if (offsets := borders_of(chunks, self._most))}
        facts = self._context.parallelize([(fact.log, fact) for fact in self._plan.facts], 1)
        rows = facts.union(of_kind(read, LOG_ROWS)).flatMap(partial(by_piece, borders=borders))
        numbers = {piece: number for number, piece in enumerate(pieces_of(borders))}
        where = max(self._width, len(numbers)), partial(number_of, numbers)
        grouped = rows.groupByKey(*where)
        if borders:
            heads = grouped.flatMap(partial(heads_in, borders=borders)).groupByKey(min(self._width, len(borders)))
            lefts = heads.flatMap(partial(lefts_in, borders=borders, as_of_ms=as_of)).partitionBy(*where)
            grouped = grouped.flatMapValues(iter).union(lefts).groupByKey(*where)
        return grouped.map(partial(judge_chunks, as_of_ms=as_of)).persist()

    def _judge_producers(self, read: Any, verdicts: Any, transactions: Any, as_of: int | None) -> Any:
        plan = self._plan
        judge = partial(
            _judge_producer,
            places=self._context.broadcast(_by_place(self._facts)),
            whole=coordinators_whole(self._facts),
            as_of_ms=as_of,
            max_timeout_ms=plan.max_timeout_ms,
            moments=self._moments,
        )
        rows = [transactions, verdicts.flatMap(lambda verdict: verdict.plain)]
        if any(fact.log.topic == r.TRANSACTION_STATE for fact in plan.facts):
            rows.append(self._by_id(read).flatMap(partial(_coordinators, moments=self._moments)))
        if any(fact.log.topic == r.CONSUMER_OFFSETS for fact in plan.facts):
            rows.append(of_kind(read, "CommittedOffset").filter(lambda commit: commit.producer_id >= 0))
        by_producer = self._context.union(rows).keyBy(lambda row: row.producer_id)
        return by_producer.groupByKey(self._width).flatMap(judge)

    def _by_id(self, read: Any) -> Any:
        states = of_kind(read, "TxnState").keyBy(lambda state: state.transactional_id)
        return states.groupByKey(self._width).mapValues(partial(unbroken, facts=self._coordinator_facts()))

    def _coordinator_facts(self) -> list[r.LogFacts]:
        return [fact for fact in self._facts if fact.log.topic == r.TRANSACTION_STATE]

    def _judge_offsets(self, read: Any, transactions: Any, ends: dict[tuple[str, int], int]) -> Any:
        own = transactions.filter(lambda txn: txn.log.topic == r.CONSUMER_OFFSETS)
        rows = self._context.union([of_kind(read, "CommittedOffset"), of_kind(read, "GroupMember"), own])
        rows = rows.keyBy(lambda row: row.log)
        return rows.groupByKey(self._width).flatMap(partial(_judge_offsets, ends=self._context.broadcast(ends)))

    def _judge_content(self, read: Any, transactions: Any) -> list[Any]:
        plan = self._plan
        findings = []
        logs = [part for part in plan.parts if part.is_log]
        if plan.content:
            tasks = bins([part for part in logs if not part.facts.log.topic.startswith("__")])
            outcomes = outcomes_of(transactions.filter(lambda txn: txn.outcome != r.COMMIT).collect())
            rows = self._by_key(tasks, partial(content_rows, plan, outcomes=outcomes))
            findings.append(rows.flatMap(lambda pair: judge_same(*pair)))
        grouped = any(lineage.group is not None for lineage in plan.lineages)
        commits = of_kind(read, "CommittedOffset").collect() if grouped else []
        for number, lineage in enumerate(plan.lineages):
            wanted = {*lineage.topics, r.CONSUMER_OFFSETS}
            of_interest = transactions.filter(lambda txn, wanted=wanted: txn.log.topic in wanted).collect()
            begins = beginnings(self._facts)
            rows_of = partial(
                _lineage_rows,
                plan,
                number,
                outcomes_of(of_interest, lineage.topics),
                consumed(lineage, commits, of_interest),
                begins,
            )
            tasks = bins([part for part in logs if part.facts.log.topic in lineage.topics])
            findings.append(self._by_key(tasks, rows_of).flatMap(partial(_judge_key, gone=deleted(lineage, begins))))
        return findings

    def _by_key(self, tasks: list[list[Part]], rows_of: Callable[[Part], Iterator[Any]]) -> Any:
        """The tasks' records, one row each, mapped and grouped by key."""
        rows = self._context.parallelize(tasks, max(len(tasks), 1)).flatMap(lambda parts: parts).flatMap(rows_of)
        return rows.groupByKey(max(self._width, len(tasks)))

    def _tables(self, read: Any, transactions: Any, findings: Any) -> None:
        from minibroker_pipeline import tables

        out = self._plan.out
        assert out is not None
        runs = of_kind(read, LOG_ROWS).flatMap(runs_of)
        for name, rows, schema in (
            ("runs", runs, tables.RUNS),
            ("transactions", transactions, tables.TRANSACTIONS),
            ("findings", findings, tables.FINDINGS),
        ):
            rows.mapPartitionsWithIndex(partial(_write, out, name, schema)).count()


class _Watch:
    """Reports the progress of reading while Spark works."""

    def __init__(self, done: Any, total: int, progress: Progress) -> None:
        self._done = done
        self._total = total
        self._progress = progress
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.25):
            self._progress(self._done.value, self._total)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._progress(self._done.value, self._total)


# What runs inside tasks.


def _count(figures: Statistics, plan: Plan, part: Part, read: FileRows) -> None:
    """The parts of a topic are ranges of offsets: of no file, and as large as what was read."""
    stored = isinstance(plan.files, Files)
    figures.add_read(
        files=int(stored and part.start == 0),
        size=part.size if stored else read.bytes,
        batches=read.batches,
        records=read.records,
    )


def _read(plan: Plan, done: Any, task: tuple[int, list[Part]]) -> Iterator[tuple[str, Any]]:
    number, parts = task
    figures = Statistics()
    extents: Extents = {}
    for part, read in read_parts(plan, number, parts):
        _count(figures, plan, part, read)
        own = []
        for row in read.rows:
            if isinstance(row, r.Run):
                figures.add_run(row)
            elif isinstance(row, r.Marker):
                figures.add_time(row.log.root, row.timestamp)
                figures.add_marker_time(row.log.topic, row.timestamp)
            elif isinstance(row, r.TxnState):
                figures.add_time(row.log.root, row.update_timestamp)
            if is_log_row(row):
                own.append(row)
            else:
                yield type(row).__name__, row
        for chunk in chunks_of(own):
            yield LOG_ROWS, (part.facts.log, chunk)
            if chunk.first >= 0:
                extents.setdefault(part.facts.log, []).append((chunk.first, chunk.size))
        done.add(part.size)
    yield FIGURES, (figures, extents)


def _both_read(some: tuple[Statistics, Extents], more: tuple[Statistics, Extents]) -> tuple[Statistics, Extents]:
    for log, chunks in more[1].items():
        some[1].setdefault(log, []).extend(chunks)
    return some[0].merge(more[0]), some[1]


def _lineage_rows(plan: Plan, number: int, outcomes: Any, offsets: Any, begins: Any, part: Part) -> Iterator[Any]:
    return lineage_rows(number, plan.lineages[number], plan.files, part, outcomes, offsets, begins)


def _judge_key(pair: tuple[RowKey, Iterable[Any]], gone: Deleted) -> list[r.Finding]:
    return judge_key(*pair, gone)


def of_kind(read: Any, kind: str) -> Any:
    """The rows of a kind among what was read: the name of their class, FIGURES or LOG_ROWS."""
    return read.filter(lambda pair: pair[0] == kind).map(lambda pair: pair[1])


def runs_of(pair: tuple[r.Log, Chunk]) -> list[r.Run]:
    """The runs among pickled rows of kind LOG_ROWS."""
    return [row for row in pair[1].rows if isinstance(row, r.Run)]


def _ends(pairs: Iterable[tuple[tuple[str, int], int]]) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    for place, end in pairs:
        ends[place] = max(ends.get(place, 0), end)
    return ends


def _coordinators(pair: tuple[str, Iterable[r.TxnState]], moments: Moments) -> Iterator[Any]:
    known = read_coordinators(pair[1], whole=False, moments=moments)
    yield from known.decisions
    for held in known.held.values():
        yield from held


def _judge_producer(
    pair: tuple[int, Iterable[Any]],
    places: Any,
    whole: bool,
    as_of_ms: int | None,
    max_timeout_ms: int,
    moments: Moments,
) -> list[r.Finding]:
    rows = list(pair[1])
    held = sorted((row for row in rows if isinstance(row, Held)), key=_when)
    decisions = tuple(row for row in rows if isinstance(row, Decision))
    transactions = [row for row in rows if isinstance(row, r.Transaction)]
    # Only the facts of logs that the producer may have written to.
    wanted = {(txn.log.topic, txn.log.partition) for txn in transactions}
    wanted |= {place for decision in decisions for place in decision.partitions}
    return judge_transactions(
        transactions,
        facts=[fact for place in sorted(wanted) for fact in places.value.get(place, ())],
        commits=[row for row in rows if isinstance(row, r.CommittedOffset)],
        plain=[row for row in rows if isinstance(row, r.Run)],
        coordinators=TxnLogs(decisions, {pair[0]: held}, whole),
        as_of_ms=as_of_ms,
        max_timeout_ms=max_timeout_ms,
        moments=moments,
    )


def _when(held: Held) -> tuple[int, int, int]:
    return held.state.update_timestamp, held.state.log.partition, held.state.offset


def _judge_offsets(pair: tuple[r.Log, Iterable[Any]], ends: Any) -> list[r.Finding]:
    rows = list(pair[1])
    commits = [row for row in rows if isinstance(row, r.CommittedOffset)]
    members = [row for row in rows if isinstance(row, r.GroupMember)]
    transactions = [row for row in rows if isinstance(row, r.Transaction)]
    return [
        *judge_committed_offsets(commits, transactions, ends.value),
        *judge_rewinds(commits, members, transactions),
    ]


def _by_place(facts: Iterable[r.LogFacts]) -> dict[tuple[str, int], list[r.LogFacts]]:
    places: dict[tuple[str, int], list[r.LogFacts]] = defaultdict(list)
    for fact in facts:
        places[fact.log.topic, fact.log.partition].append(fact)
    return dict(places)


Summary: TypeAlias = tuple[Statistics, dict[tuple[str, int], int], list[r.LogFacts]]


def _sum_up(verdicts: Iterable[LogVerdict]) -> Iterator[Summary]:
    """The figures of the logs' transactions, where the logs end, and their facts."""
    figures = Statistics()
    ends = []
    facts = []
    for verdict in verdicts:
        if is_last(verdict):
            facts.append(verdict.facts)
            ends.append(((verdict.facts.log.topic, verdict.facts.log.partition), verdict.end_offset))
        for txn in verdict.transactions:
            figures.add_transaction(txn)
    yield figures, _ends(ends), facts


def _added(some: Summary, more: Summary) -> Summary:
    return some[0].merge(more[0]), _ends([*some[1].items(), *more[1].items()]), some[2] + more[2]


def _worst_of(rows: Iterable[r.Finding]) -> Iterator[tuple[Statistics, list[r.Finding]]]:
    """The number of findings, and the first of them."""
    figures = Statistics()

    def counted() -> Iterator[r.Finding]:
        for row in rows:
            figures.add_finding(row)
            yield row

    shown = nsmallest(SHOWN, counted(), key=worst)
    yield figures, shown


def _worst_of_both(
    some: tuple[Statistics, list[r.Finding]], more: tuple[Statistics, list[r.Finding]]
) -> tuple[Statistics, list[r.Finding]]:
    return some[0].merge(more[0]), nsmallest(SHOWN, [*some[1], *more[1]], key=worst)


def _write(out: Folder, name: str, schema: Any, number: int, rows: Iterable[Any]) -> Iterator[int]:
    written = list(rows)
    write_table(out, name, number, written, schema)
    yield len(written)


class Judged(NamedTuple):
    """Of all logs.

    as_of_ms: when the data was alive.
    facts: as they are once the logs were judged.
    """

    findings: list[r.Finding]
    transactions: list[r.Transaction]
    as_of_ms: int | None
    facts: tuple[r.LogFacts, ...]


def judge_rows(plan: Plan, rows: Sequence[Any]) -> Judged:
    """Judges all rows of the plan's logs."""
    states = [row for row in rows if isinstance(row, r.TxnState)]
    commits = [row for row in rows if isinstance(row, r.CommittedOffset)]
    members = [row for row in rows if isinstance(row, r.GroupMember)]
    grouped = group_rows(plan.facts, filter(is_log_row, rows))
    markers = [marker.timestamp for log in grouped for marker in log.markers]
    as_of = plan.as_of_ms or max([*markers, *(state.update_timestamp for state in states)], default=0) or None
    verdicts = [judge_log(log, as_of_ms=as_of) for log in grouped]
    findings = judge_verdicts(
        verdicts,
        states,
        commits,
        members,
        as_of_ms=as_of,
        max_timeout_ms=plan.max_timeout_ms,
        apart_ms=APART_MS,
    )
    transactions = [txn for verdict in verdicts for txn in verdict.transactions]
    return Judged(findings, transactions, as_of, tuple(verdict.facts for verdict in verdicts))


def audit_here(plan: Plan, progress: Progress = lambda *_: None) -> tuple[Statistics, list[r.Finding], int | None]:
    """The same audit in this process, without Spark: for data that fits in its memory."""
    from minibroker_pipeline import tables

    figures = Statistics(logs=len(plan.facts))
    rows: list[Any] = []
    done = 0
    for number, task in enumerate(bins(plan.parts)):
        for part, read in read_parts(plan, number, task):
            _count(figures, plan, part, read)
            rows += read.rows
            done += part.size
            progress(done, plan.bytes)
    findings, transactions, as_of, facts = judge_rows(plan, rows)
    commits = [row for row in rows if isinstance(row, r.CommittedOffset)]
    findings += _content_here(replace(plan, facts=facts), transactions, commits)
    findings += plan.findings
    for row in rows:
        if isinstance(row, r.Run):
            figures.add_run(row)
    for txn in transactions:
        figures.add_transaction(txn)
    for finding in findings:
        figures.add_finding(finding)
    findings.sort(key=worst)
    if plan.out is not None:
        runs = [row for row in rows if isinstance(row, r.Run)]
        write_table(plan.out, "runs", 0, runs, tables.RUNS)
        write_table(plan.out, "transactions", 0, transactions, tables.TRANSACTIONS)
        write_table(plan.out, "findings", 0, findings, tables.FINDINGS)
    return figures, findings[:SHOWN], as_of


def _content_here(
    plan: Plan, transactions: Sequence[r.Transaction], commits: Sequence[r.CommittedOffset]
) -> list[r.Finding]:
    findings: list[r.Finding] = []
    logs = [part for part in plan.parts if part.is_log]
    if plan.content:
        outcomes = outcomes_of(transactions)
        own = [part for part in logs if not part.facts.log.topic.startswith("__")]
        same = _grouped(row for part in own for row in content_rows(plan, part, outcomes))
        findings += [finding for key, rows in same.items() for finding in judge_same(key, rows)]
    for number, lineage in enumerate(plan.lineages):
        outcomes = outcomes_of(transactions, lineage.topics)
        offsets, begins = consumed(lineage, commits, transactions), beginnings(plan.facts)
        gone = deleted(lineage, begins)
        rows = (row for part in logs for row in _lineage_rows(plan, number, outcomes, offsets, begins, part))
        findings += [finding for key, places in _grouped(rows).items() for finding in judge_key(key, places, gone)]
    return findings


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def result(plan: Plan, outcome: tuple[Statistics, list[r.Finding], int | None], seconds: float, engine: str) -> Audit:
    return Audit(plan.source, *outcome, seconds, engine, plan.depth)
