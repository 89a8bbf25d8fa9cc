"""The verdict: the rules of the audit over the log, the wire and the client's history, and the exchanges they name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from minibroker.rules.rows import COORDINATOR_TOPICS, Content, Finding, Log, Seen
from minibroker.rules.rules import (
    ERROR,
    RULES,
    RecordPosition,
    finding,
    judge_content,
    judge_history,
    judge_lineage,
    judge_log,
    judge_logs,
)
from minibroker.rules.scan import scan_directory
from minibroker_lab.judge.application import (
    OFFSET_COMMITS,
    Causes,
    KeptOffset,
    Wire,
    kept_offsets,
    mixed_offsets,
    repeated_offsets,
    shared_ids,
    topic_name,
    uncommitted_inputs,
    unfenced_offsets,
)
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.history import History, key_of, text_of
from minibroker_lab.judge.lineage import Lineage
from minibroker_lab.judge.removed import removed_records
from minibroker_lab.judge.stored import Stored, content_of, read_stored
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.disk import Disk

Starts = Mapping[tuple[str, int], int]
"""Where logs begin, by topic and partition; what is missing below was deleted as asked."""

NO_PROGRESS = "no-progress"
EXACTLY_ONCE = ("Produce", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", *OFFSET_COMMITS)


class Evidence(NamedTuple):
    """All that a run left behind.

    as_of_ms: the broker clock at its end.
    complete: no exchange was lost.
    compacted: the topics that compaction may have touched.
    topic_names: by topic id as exchanges have it.
    unapplied: numbers of exchanges that a failure kept from being applied.
    before: in a cluster that others use too, the offset in each partition at which the run's records begin; None: all
        records are the run's.
    gave_up: the command ended with an error, or was ended: started again it would read what has no committed offset.
    """

    disk: Disk
    exchanges: Sequence[Exchange]
    produced: Sequence[Produced]
    history: History | None
    lineage: Sequence[Lineage]
    as_of_ms: int
    complete: bool = True
    compacted: Collection[str] = ()
    topic_names: Mapping[str, str] = {}
    unapplied: Collection[int] = ()
    before: Starts | None = None
    gave_up: bool = False


class BrokenPromise(NamedTuple):
    """A broken promise, and the exchange that broke it; None when nothing on the wire shows it."""

    finding: Finding
    exchange: Exchange | None


class Verdict(NamedTuple):
    """broken: the one whose exchange came first leads.
    noticed: what is lawful and seldom meant, such as offsets of a group that went back.
    """

    broken: list[BrokenPromise]
    noticed: list[Finding]


def judge(evidence: Evidence) -> Verdict:
    """Every broken promise."""
    scanned = scan_directory(evidence.disk)
    transactions = [t for rows in scanned.logs for t in judge_log(rows, as_of_ms=evidence.as_of_ms).transactions]
    stored = read_stored(evidence.disk, transactions)
    commits, members = scanned.commits, scanned.members
    if evidence.before is not None:
        groups = {(exchange["request"] or {}).get("group_id") for exchange in evidence.exchanges}
        commits = [commit for commit in commits if commit.group in groups]
        members = [member for member in members if member.group in groups]
    findings = judge_logs(scanned.logs, scanned.states, commits, members, as_of_ms=evidence.as_of_ms)
    findings = without_new_beginnings(findings, evidence.produced)
    before = evidence.before or {}
    own = [row for row in stored if not _is_earlier(row, before)]
    findings += _content(own)
    places = {(rows.facts.log.topic, rows.facts.log.partition): rows.facts.start_offset for rows in scanned.logs}
    # Where the run itself begins above 0 it has deleted nothing.
    starts = {place: start for place, start in places.items() if start > before.get(place, 0)}
    removed = removed_records(evidence.produced, stored, evidence.exchanges, transactions, evidence.compacted)
    findings += judge_wire(evidence.produced, own, starts, removed, complete=evidence.complete)
    if evidence.history is not None:
        findings += _history(evidence.history, own + removed, starts)
    for lineage in evidence.lineage:
        findings += _lineage(stored + removed, lineage, before)
    if evidence.before is not None:
        findings = _of_the_run(findings, evidence, evidence.before)
    link = _Links(evidence, stored, kept_offsets(commits, transactions))
    for noticed in (unfenced_offsets, repeated_offsets, mixed_offsets, uncommitted_inputs):
        findings += noticed(link.wire)
    broken: dict[tuple[str, Log, int, str], BrokenPromise] = {}
    for breach in findings:
        if breach.severity == ERROR:
            # The wire and the history may both tell of one place.
            message = "" if breach.first_offset >= 0 else breach.message
            broken.setdefault(
                (breach.rule, breach.log._replace(root=""), breach.first_offset, message), link.broken(breach)
            )
    promises = [promise for promise in broken.values() if not (evidence.gave_up and _unread(promise))]
    shared = [BrokenPromise(*pair) for pair in shared_ids(link.wire)]
    last = len(evidence.exchanges) + 1
    ordered = sorted([*promises, *shared], key=lambda b: b.exchange["number"] if b.exchange is not None else last)
    return Verdict(ordered, [finding for finding in findings if RULES[finding.rule].severity != ERROR])


def without_new_beginnings(findings: Sequence[Finding], produced: Sequence[Produced]) -> list[Finding]:
    """Without sequences that come again because the leader had forgotten their producer, and said so: a client without
    KIP-360 begins with 0 again in the same epoch. A record that is there twice breaks other rules."""
    forgotten: dict[tuple[str, int, int, int], list[Exchange]] = defaultdict(list)
    copies: dict[tuple[str, int, int, int], list[Produced]] = defaultdict(list)
    for sent in produced:
        producer = sent.topic, sent.partition, *sent.batch[:2]
        if sent.error_code == ErrorCode.UNKNOWN_PRODUCER_ID:
            forgotten[producer].append(sent.exchange)
        elif sent.error_code == 0:
            copies[producer].append(sent)

    def is_lawful(breach: Finding) -> bool:
        producer = breach.log.topic, breach.log.partition, breach.producer_id, breach.producer_epoch
        if breach.rule != "duplicate" or producer not in forgotten:
            return False
        # The time of arrival is cut to whole milliseconds.
        told_ms = min(int(exchange["time_ms"] + exchange["took_ms"]) for exchange in forgotten[producer])
        answered = [sent for sent in copies[producer] if sent.base_offset == breach.first_offset]
        second = answered or [sent for sent in copies[producer] if sent.base_offset < 0]
        return not second or any(sent.exchange["time_ms"] >= told_ms for sent in second)

    return [breach for breach in findings if not is_lawful(breach)]


def _unread(promise: BrokenPromise) -> bool:
    """An input that is not in the output, and no offset was committed past it."""
    exchange = promise.exchange
    return promise.finding.rule == "lineage-lost" and (exchange is None or exchange["api"] not in OFFSET_COMMITS)


def waited_for(exchanges: Sequence[Exchange]) -> Exchange | None:
    """What a client that made no progress asked for last: its last request of a transaction or of offsets that got no
    answer, else the last of those at all, else its last request. A client that waits goes on with Fetch and Heartbeat.
    """
    own = [exchange for exchange in exchanges if exchange["api"] in EXACTLY_ONCE]
    unanswered = [exchange for exchange in own if exchange["outcome"] != "answered"]
    # A later answer to the same API says that it was asked again.
    open_ends = [exchange for exchange in unanswered[-1:] if not any(_asked_again(exchange, later) for later in own)]
    candidates = open_ends or own or exchanges
    return candidates[-1] if candidates else None


def since(exchanges: Sequence[Exchange], names: Mapping[str, str] = {}) -> str:
    """What came after `waited_for`, to append to a sentence; empty when nothing did. A client in an endless loop is
    seen by it: ``, and sent 28000 Fetch (all of in-0 from offset 5) since then``."""
    last = waited_for(exchanges)
    later = [exchange for exchange in exchanges if last is not None and exchange["number"] > last["number"]]
    earlier = [exchange for exchange in exchanges if last is not None and exchange["number"] < last["number"]]
    positions = _fetched_from(earlier, later, names)
    same = f" (all of {', '.join(positions)})" if positions else ""
    counts = Counter(exchange["api"] for exchange in later).most_common()
    sent = ", ".join(f"{count} {api}{same if api == 'Fetch' else ''}" for api, count in counts)
    return f", and sent {sent} since then" if sent else ""


def _fetched_from(earlier: Sequence[Exchange], later: Sequence[Exchange], names: Mapping[str, str]) -> list[str]:
    """Where each partition was fetched from later, when that never changed. Within a fetch session a request names only
    what changed."""
    positions = {place: {offset} for place, offset in _fetches(earlier, names)}
    moved: dict[str, set[int]] = defaultdict(set)
    for place, offset in _fetches(later, names):
        moved[place].add(offset)
    positions |= moved
    still = all(len(offsets) == 1 for offsets in positions.values())
    return [f"{place} from offset {min(offsets)}" for place, offsets in positions.items()] if still else []


def _fetches(exchanges: Sequence[Exchange], names: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for topic in (topic for e in exchanges if e["api"] == "Fetch" for topic in (e["request"] or {}).get("topics", ())):
        name = topic_name(topic, names) or topic.get("topic_id", "")
        for row in topic["partitions"]:
            yield f"{name}-{row['partition']}", row["fetch_offset"]


def _asked_again(exchange: Exchange, later: Exchange) -> bool:
    return bool(
        later["number"] > exchange["number"]
        and later["api"] == exchange["api"]
        and later["client_id"] == exchange["client_id"]
    )


def judge_wire(
    produced: Sequence[Produced],
    stored: Sequence[Stored],
    starts: Starts,
    removed: Sequence[Stored] = (),
    *,
    complete: bool = True,
) -> list[Finding]:
    """What was sent and answered against what is there.

    `lost-record`: the answer names an offset, and another record lies there. `duplicate-record`: a record is read more
    often than it was sent, where sending it again after an answer that was lost or an error does not count.

    removed: acknowledged records that the broker removed lawfully.
    complete: every Produce there was is among them; otherwise nothing can be said of how often a record was sent.
    """
    # An offset has several contents where a deleted topic was created again.
    contents: dict[tuple[str, int, int], set[tuple[object, ...]]] = defaultdict(set)
    for row in (*stored, *removed):
        contents[row.topic, row.partition, row.record.offset].add(row.content[1:])
    copies: dict[tuple[object, ...], list[Stored]] = defaultdict(list)
    for of_log in stored:
        if of_log.committed:
            copies[of_log.topic, *of_log.content].append(of_log)
    findings = []
    tries: dict[tuple[object, ...], list[Produced]] = defaultdict(list)
    for sent in produced:
        for index, record in enumerate(sent.records):
            tries[sent.topic, *content_of(record)].append(sent)
            at = (sent.topic, sent.partition, sent.base_offset + index)
            kept = sent.base_offset >= 0 and at[2] >= starts.get(at[:2], 0)
            if kept and content_of(record)[1:] not in contents[at]:
                reason = f"the answer says that {text_of(record.value)!r} is at offset {at[2]}, it is not"
                findings.append(_of(sent, "lost-record", at[2], reason))
    for what, every in tries.items():
        same, meant = copies.get(what, []), _meant(every)
        if complete and len(same) > meant:
            offsets = ", ".join(f"{row.topic}-{row.partition}@{row.record.offset}" for row in same)
            times = "once" if len(every) == 1 else f"{len(every)} times"
            reason = f"{text_of(same[0].record.value)!r} was sent {times} and is read at {offsets}"
            findings.append(
                _of(every[min(meant, len(every) - 1)], "duplicate-record", same[meant].record.offset, reason)
            )
    return findings


def _meant(tries: Sequence[Produced]) -> int:
    """How many records were meant by these, which have the same content: a try that failed and the one after it, of the
    same client, are one."""
    clients: dict[str, list[Produced]] = defaultdict(list)
    for produced in tries:
        clients[produced.exchange["client_id"]].append(produced)
    answered = (sum(produced.base_offset >= 0 for produced in own) for own in clients.values())
    first = (sum(produced.exchange is own[0].exchange for produced in own) for own in clients.values())
    return sum(map(max, answered, first))


def _of(sent: Produced, rule: str, offset: int, reason: str) -> Finding:
    log = Log("", sent.topic, sent.partition)
    return finding(rule, log, reason, producer_id=sent.batch[0], producer_epoch=sent.batch[1], first_offset=offset)


def _content(stored: Sequence[Stored]) -> list[Finding]:
    same: dict[tuple[object, ...], list[Content]] = defaultdict(list)
    for row in stored:
        log = Log("", row.topic, row.partition)
        if row.committed:
            same[row.content].append(Content(log, row.record.offset, row.batch[0], row.batch[1], row.content))
    return [finding for key, rows in same.items() for finding in judge_content(key, rows)]


def _history(history: History, stored: Sequence[Stored], starts: Starts) -> list[Finding]:
    topics = {sent.topic for sent in history.sent}
    final = [
        Seen("the log", row.topic, row.partition, row.record.offset, key_of(row.topic, text_of(row.record.value)))
        for row in stored
        if row.committed and row.topic in topics
    ]
    findings = judge_history(history.sent, final, outcomes=history.outcomes, reads=history.reads, start_offsets=starts)
    return [*findings, *(finding(NO_PROGRESS, Log("", "", -1), why) for why in history.given_up)]


def _of_the_run(findings: Sequence[Finding], evidence: Evidence, before: Starts) -> list[Finding]:
    """Without the findings about data from before the run, and about what other clients did during it."""
    ids = {(exchange["request"] or {}).get("transactional_id") for exchange in evidence.exchanges}
    producers = {(exchange["response"] or {}).get("producer_id") for exchange in evidence.exchanges}

    def is_of_the_run(breach: Finding) -> bool:
        if breach.log.topic in COORDINATOR_TOPICS:
            named = breach.transactional_id or breach.producer_id >= 0
            return not named or breach.transactional_id in ids or breach.producer_id in producers
        return breach.first_offset < 0 or breach.first_offset >= before.get((breach.log.topic, breach.log.partition), 0)

    return [breach for breach in findings if is_of_the_run(breach)]


def _is_earlier(row: Stored, before: Starts) -> bool:
    """Whether it was there before the run."""
    return row.record.offset < before.get((row.topic, row.partition), 0)


def _lineage(stored: Sequence[Stored], lineage: Lineage, before: Starts) -> list[Finding]:
    """The rules of lineage for the input that was written during the run. It is not known who reads older input, and
    when: each such record may make one of the run's output."""
    inputs: dict[str, list[RecordPosition]] = defaultdict(list)
    outputs: dict[str, list[RecordPosition]] = defaultdict(list)
    earlier: Counter[str] = Counter()
    for row in stored:
        place = RecordPosition(Log("", row.topic, row.partition), row.record.offset)
        if row.committed and row.topic == lineage.source:
            keys = lineage.of_input(row.topic, row.partition, row.record)
            if _is_earlier(row, before):
                earlier.update(keys)
                continue
            for key in keys:
                inputs[key].append(place)
        if row.committed and row.topic == lineage.target and not _is_earlier(row, before):
            for key in lineage.of_output(row.record):
                outputs[key].append(place)
    return [
        finding
        for key in {**inputs, **outputs}
        for finding in judge_lineage(key, inputs.get(key, []), outputs.get(key, []), unsettled_inputs=earlier[key])
    ]


class _Links:
    """From a finding to the exchange that made it."""

    def __init__(self, evidence: Evidence, stored: Sequence[Stored], kept: Collection[KeptOffset] = ()) -> None:
        self._evidence = evidence
        self.wire = Wire(evidence.exchanges, evidence.produced, evidence.topic_names, evidence.unapplied, kept)
        self._causes = Causes(self.wire, stored, evidence.lineage)
        self._there = {(row.topic, row.partition, row.record.offset): row for row in stored}

    def broken(self, finding: Finding) -> BrokenPromise:
        exchange = self._exchange(finding)
        cause = self._causes.of(finding, exchange)
        return BrokenPromise(finding._replace(message=f"{finding.message}; {cause}") if cause else finding, exchange)

    def _exchange(self, finding: Finding) -> Exchange | None:
        if finding.rule in ("offset-end", "offset-outcome"):
            commits = [e for e in self._evidence.exchanges if e["api"] in OFFSET_COMMITS and not e["errors"]]
            return commits[-1] if commits else None
        if finding.rule in ("lost-record", "torn-transaction") and finding.first_offset < 0:
            return self._of_value(finding.message)
        if finding.rule == NO_PROGRESS:
            return waited_for(self._evidence.exchanges)
        if finding.rule == "lineage-lost":
            offsets = [row for row in self.wire.offsets() if row[2:4] == finding.log[1:]]
            # From a commit behind it on no member gets it; without such a commit it is not read yet, or not written.
            past = next((row.exchange for row in offsets if row.offset > finding.first_offset), None)
            tried = past or self._causes.last_try(finding)
            if tried is not None or offsets:
                return tried
        at_place = self._there.get((finding.log.topic, finding.log.partition, finding.first_offset))
        batches = self._evidence.produced
        if finding.rule == "lost-record":  # what the answer names is not what lies there
            own = [
                b
                for b in batches
                if (b.topic, b.partition) == (finding.log.topic, finding.log.partition)
                and 0 <= b.base_offset <= finding.first_offset < b.base_offset + len(b.records)
            ]
        elif at_place is not None and at_place.batch[0] >= 0:
            own = [
                b
                for b in batches
                if (b.topic, b.partition, b.batch) == (at_place.topic, at_place.partition, at_place.batch)
            ]
        elif at_place is not None:
            own = [b for b in batches if b.topic == at_place.topic and at_place.content in map(content_of, b.records)]
        else:
            own = [b for b in batches if b.batch[0] == finding.producer_id >= 0]
        if not own:
            return None
        # Copies without producer id cannot be told apart: the second try is where it went wrong.
        return own[
            1 if len(own) > 1 and finding.rule == "duplicate-record" and finding.producer_id < 0 else -1
        ].exchange

    def _of_value(self, message: str) -> Exchange | None:
        # The rules over histories name a record by its key, or its transaction, and only in their words.
        history = self._evidence.history or History()
        meant = {sent.key for sent in history.sent if repr(sent.key) in message or f"{sent.transaction!r} " in message}
        for produced in reversed(self._evidence.produced):
            if any(key_of(produced.topic, text_of(record.value)) in meant for record in produced.records):
                return produced.exchange
        return None
