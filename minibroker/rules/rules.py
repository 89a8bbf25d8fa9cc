"""The exactly-once rules, in one place: simulation, `check`, the judging of clients and the Spark audit all call these.

Plain Python over the plain rows of `minibroker.rules.rows`:

* `judge_log`: what one log can break (sequences, epochs, markers, offsets, its index and snapshot files);
* `judge_transactions`: partitions against each other and against their coordinator; `judge_committed_offsets`
  and `judge_rewinds`: offsets of groups;
* `judge_states`: the records of a transactional id against the table of its states;
* `judge_history`, `judge_marks`, `judge_reload`: what clients and brokers know against what is there;
* `judge_lineage`, `judge_content`: by the records' content;
* `judge_logs`: the first two over whole data.

`RULES` names every rule with its severity, source and promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minibroker.rules.catalogue import *
from minibroker.rules.decisions import *
from minibroker.rules.file_rules import *
from minibroker.rules.history_rules import *
from minibroker.rules.log_rules import *
from minibroker.rules.moments import Moments, first_marker_ms, newest_ms
from minibroker.rules.offset_rules import *
from minibroker.rules.rows import CONSUMER_OFFSETS, CommittedOffset, Finding, GroupMember, TxnState
from minibroker.rules.state_rules import *
from minibroker.rules.txn_rules import *


def judge_logs(
    logs: Iterable[LogRows],
    states: Iterable[TxnState] = (),
    commits: Iterable[CommittedOffset] = (),
    members: Iterable[GroupMember] = (),
    *,
    as_of_ms: int | None = None,
    max_timeout_ms: int = DEFAULT_TIMEOUT_MS,
    apart_ms: int = 0,
) -> list[Finding]:
    """Judges all logs of one or several data directories together.

    states, commits, members: the decoded records of `__transaction_state` and `__consumer_offsets`.
    as_of_ms: when the data was alive (None: nothing is late).
    apart_ms: how far apart in time the logs may have been copied.
    """
    verdicts = [judge_log(rows, as_of_ms=as_of_ms) for rows in logs]
    rows = verdicts, states, commits, members
    return judge_verdicts(*rows, as_of_ms=as_of_ms, max_timeout_ms=max_timeout_ms, apart_ms=apart_ms)


def judge_verdicts(
    verdicts: Sequence[LogVerdict],
    states: Iterable[TxnState],
    commits: Iterable[CommittedOffset],
    members: Iterable[GroupMember],
    *,
    as_of_ms: int | None,
    max_timeout_ms: int,
    apart_ms: int,
) -> list[Finding]:
    """`judge_logs` of logs that were judged one by one."""
    facts = [verdict.facts for verdict in verdicts]
    transactions = [txn for verdict in verdicts for txn in verdict.transactions]
    states = unbroken(states, facts)
    moments = Moments(facts, newest_ms(states, transactions), apart_ms, first_marker_ms(transactions))
    ends: dict[tuple[str, int], int] = {}
    for verdict in verdicts:
        place = verdict.facts.log.topic, verdict.facts.log.partition
        ends[place] = max(ends.get(place, 0), verdict.end_offset)
    commits = list(commits)
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    findings += judge_transactions(
        transactions,
        states,
        facts,
        commits=commits,
        plain=[run for verdict in verdicts for run in verdict.plain],
        coordinators_complete=coordinators_whole(facts),
        as_of_ms=as_of_ms,
        max_timeout_ms=max_timeout_ms,
        moments=moments,
    )
    findings += judge_states(states)
    findings += judge_committed_offsets(commits, transactions, ends)
    return findings + judge_rewinds(
        commits, members, [txn for txn in transactions if txn.log.topic == CONSUMER_OFFSETS]
    )
