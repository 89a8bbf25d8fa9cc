"""Applies the exactly-once rules to a world at the end of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.rules.rows import Finding, Log, Seen, TxnState
from minibroker.rules.rules import (
    ERROR,
    RULES,
    RecordPosition,
    judge_history,
    judge_lineage,
    judge_logs,
    judge_marks,
    judge_reload,
)
from minibroker.rules.scan import scan_directory
from minibroker_lab.simulation.client import Client
from minibroker_lab.simulation.holes import explained
from minibroker_lab.simulation.members import INPUT, Member
from minibroker_lab.simulation.readers import Reader

if TYPE_CHECKING:
    from minibroker_lab.simulation.world import World


def judge(world: World) -> list[Finding]:
    """Every broken promise that no known hole of Kafka's protocol explains; the others go to `world.explained`."""
    findings = []
    for finding in judge_all(world):
        hole = explained(finding, world)
        if hole is None:
            findings.append(finding)
        else:
            world.history.counts[f"hole: {hole.name}"] += 1
            world.explained.setdefault(hole.name, []).append(finding)
    return findings


def judge_all(world: World) -> list[Finding]:
    """Every broken promise."""
    history = world.history
    findings = list(history.findings)
    findings += judge_history(
        history.sent(),
        _stored(world),
        outcomes=history.outcomes,
        reads=[seen for client in world.clients for seen in _seen(client)],
    )
    findings += _lineage(world)
    findings += judge_marks(history.marks)
    for broker in world.brokers().values():
        # As every minute: readers of the files need the log start offsets.
        broker.directory.note(p.log for p in broker.partitions() if p.is_open)
        broker.directory.write_checkpoints(sync=False)
    scans = [scan_directory(disk, root=str(node)) for node, disk in world.disks.items()]
    states: dict[tuple[int, int], TxnState] = {}
    for state in (state for scan in scans for state in scan.states):
        states[state.log.partition, state.offset] = state
    if world.coverage is not None:
        world.coverage.transactions(states[place] for place in sorted(states))
    findings += judge_logs(
        [log for scan in scans for log in scan.logs],
        [state for scan in scans for state in scan.states],
        [commit for scan in scans for commit in scan.commits],
        [member for scan in scans for member in scan.members],
        as_of_ms=world.schedule.now_ms(),
        max_timeout_ms=world.plan.transaction_timeout_ms,
    )
    before, after = world.restart()
    for log, live in before.items():
        findings += judge_reload(log, live, after.get(log, {}))
    for finding in findings:
        if RULES[finding.rule].severity != ERROR:
            history.counts[f"notice: {finding.rule}"] += 1
    return [finding for finding in findings if finding.severity == ERROR]


def _seen(client: Client) -> list[Seen]:
    # A member of a group goes back to what was committed, so its reads are in order within a generation only.
    return client.seen if isinstance(client, Reader) and not isinstance(client, Member) else []


def _stored(world: World) -> list[Seen]:
    """All committed records: those read at the end, and those read before they were deleted."""
    deleted = world.janitor.deleted(world.final.starts) if world.janitor is not None else []
    return deleted + world.final.seen


def _lineage(world: World) -> list[Finding]:
    """Each input record is in the committed output once."""
    if not world.plan.copiers:
        return []
    inputs: dict[str, list[RecordPosition]] = {}
    outputs: dict[str, list[RecordPosition]] = {}
    for seen in _stored(world):
        key, place = str(seen.key), RecordPosition(Log("", seen.topic, seen.partition), seen.offset)
        if seen.topic == INPUT:
            inputs.setdefault(key, []).append(place)
        elif "<" in key:
            outputs.setdefault(key.partition("<")[2], []).append(place)
    findings: list[Finding] = []
    for key in {**inputs, **outputs}:
        findings += judge_lineage(key, inputs.get(key, []), outputs.get(key, []))
    return findings
