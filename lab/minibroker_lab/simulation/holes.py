"""Known holes of Kafka's protocol that the simulation finds: named, told apart from new ones, and counted.

Each row says which findings it explains, and when. A finding without a row is a promise that minibroker broke.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minibroker.rules.rows import CONSUMER_OFFSETS, Finding
from minibroker_lab.simulation.evidence import Fact, Identity, TopicPartition
from minibroker_lab.simulation.history import Record
from minibroker_lab.simulation.odd_clients import CARELESS

if TYPE_CHECKING:
    from minibroker_lab.simulation.world import World


@dataclass(frozen=True, slots=True)
class Hole:
    """`explains(finding, world)`: whether the hole is what the finding shows.

    source: where it is described.
    """

    name: str
    source: str
    what: str
    explains: Callable[[Finding, World], bool]


_WAITS = re.compile(r"got sequence \d+ while sequence \d+ still waits for the verification")
_OLDER = re.compile(
    r"expected sequence (\d+), got (\d+) at epoch -?\d+; known: .*remembered batches \S+(, \S+){0,3}$"  # not all five
)
_BEGAN = re.compile(r"expected sequence \d+, got 0 at epoch -?\d+; known: .*remembered batches (\d+)-")
_OUT_OF_ORDER = re.compile(r"expected sequence (\d+), got (\d+) at epoch")
_FORGOTTEN = re.compile(
    r"producer (\d+): ActiveProducer\(.*\) before, (None|ActiveProducer\(.* last_sequence=-1, .*\)) after the reload$"
)
_FOUND_AGAIN = re.compile(r"producer (\d+): None before, ActiveProducer\(.*\) after the reload$")
_QUOTED = re.compile(r"'([^']+)'")
_READ = frozenset({"lost-record", "aborted-read", "torn-transaction", "duplicate-record", "order"})
"""Rules over what clients sent and readers were given; their messages quote a record or a transaction."""
_OF_FILES = frozenset(
    {"offset-hole", "sequence-gap", "duplicate", "producer-snapshot", "abort-index", "epoch-checkpoint"}
)
"""Rules over one replica's files."""
_OF_MARKERS = frozenset(
    {
        *("torn-transaction", "marker-without-transaction", "hanging-transaction", "outside-transaction"),
        *("offset-outcome", "marker-epoch", "coordinator-epoch"),
    }
)


def _facts(finding: Finding, world: World) -> frozenset[str]:
    """What was true when a client was refused; nothing for other rules."""
    return world.history.evidence.facts.get(finding.message, frozenset()) if finding.rule == "refusal" else frozenset()


def _record_of(finding: Finding, world: World) -> Record | None:
    """The record that a finding about records quotes."""
    records = world.history.records
    return next((records[key] for key in _QUOTED.findall(finding.message) if key in records), None)


def _copies_of(finding: Finding, world: World) -> list[Record]:
    """The records that were made of the input that a finding on lineage quotes, and the input."""
    keys = _QUOTED.findall(finding.message) if finding.rule.startswith("lineage") else []
    return [r for r in world.history.records.values() if r.key in keys or r.key.partition("<")[2] in keys]


# -- transactions that something late ended ----------------------------------------------------------------------------


def _late_end(finding: Finding, world: World) -> bool:
    return Fact.LATE_END in _facts(finding, world) or _of_transaction(finding, world, world.history.evidence.ended)


def _late_marker(finding: Finding, world: World) -> bool:
    evidence = world.history.evidence
    idle = (finding.log.topic, finding.log.partition), (finding.producer_id, finding.producer_epoch)
    if finding.rule in _OF_MARKERS and idle in evidence.idle_markers:
        return True  # one marker too many, and the decisions no longer fit those that follow
    return Fact.LATE_MARKER in _facts(finding, world) or _of_transaction(finding, world, evidence.marked)


def _of_transaction(finding: Finding, world: World, hit: Mapping[Hashable, Identity]) -> bool:
    """The finding quotes a transaction that was hit, or a record or copy in it, or its producer's markers are wrong."""
    if not hit:
        return False
    if finding.rule in _OF_MARKERS and (finding.producer_id, finding.producer_epoch) in hit.values():
        return True
    if finding.rule.startswith("lineage"):
        return any(record.transaction in hit for record in _copies_of(finding, world))
    record = _record_of(finding, world)
    return any(name in hit for name in _QUOTED.findall(finding.message)) or (
        record is not None and record.transaction in hit
    )


def _late_init(finding: Finding, world: World) -> bool:
    return Fact.LATE_INIT in _facts(finding, world)


def _late_join(finding: Finding, world: World) -> bool:
    return Fact.LATE_JOIN in _facts(finding, world)


def _forgotten_epoch(finding: Finding, world: World) -> bool:
    return world.plan.client_version == 0 and Fact.FORGOTTEN in _facts(finding, world)


def _late_offsets(finding: Finding, world: World) -> bool:
    rewound = world.history.evidence.rewound
    return finding.rule.startswith("lineage") and any(r.transaction in rewound for r in _copies_of(finding, world))


# -- sequences ---------------------------------------------------------------------------------------------------------


def _verification_of_late_copy(finding: Finding, world: World) -> bool:
    return Fact.LATE_WRITE in _facts(finding, world) and bool(_WAITS.search(finding.message))


def _forgotten_window(finding: Finding, world: World) -> bool:
    match = _OLDER.search(finding.message)
    if world.plan.rules.producer.snapshot_all_batches or match is None or int(match[2]) >= int(match[1]):
        return False
    return {Fact.RETRY, Fact.NEW_LEADER} <= _facts(finding, world)


def _overrun_window(finding: Finding, world: World) -> bool:
    match = _OUT_OF_ORDER.search(finding.message)
    if match is None or int(match[2]) >= int(match[1]):
        return False
    return {Fact.RETRY, Fact.OVERRUN} <= _facts(finding, world)


def _began_anywhere(finding: Finding, world: World) -> bool:
    match = _BEGAN.search(finding.message)
    if finding.rule != "refusal" or world.plan.rules.producer.unknown_producer_sequence != "accept" or match is None:
        return False
    # Which of the window was taken may never have been told to the client.
    return match[1] != "0"


def _left_behind(finding: Finding, world: World) -> bool:
    return bool({Fact.BEHIND, Fact.DEPOSED} & _facts(finding, world))


# -- what a machine forgets --------------------------------------------------------------------------------------------


def _torn_snapshot(finding: Finding, world: World) -> bool:
    torn = "expected a snapshot" in finding.message or "expected CRC-32C" in finding.message
    lost = {str(node) for node in world.history.evidence.powerless}
    return finding.rule == "producer-snapshot" and torn and finding.log.root in lost


def _undone_truncation(finding: Finding, world: World) -> bool:
    """In the files of such a machine, and in the partition, once it leads."""
    cut = {(str(node), place) for node, place in world.history.evidence.uncut}
    if finding.rule in _OF_FILES and finding.log.root:
        return (finding.log.root, (finding.log.topic, finding.log.partition)) in cut
    places = {place for _, place in cut}
    if finding.rule == "txn-state":
        return (finding.log.topic, finding.log.partition) in places
    return _in_places(finding, world, places)


def _forgotten_sync(finding: Finding, world: World) -> bool:
    """In the files of such a machine, in the partition, and for whoever goes on writing or reading there."""
    forgotten = {(str(node), place) for node, place in world.history.evidence.forgotten}
    place = finding.log.topic, finding.log.partition
    if finding.rule in _OF_FILES and finding.log.root:
        return (finding.log.root, place) in forgotten
    places = {place for _, place in forgotten}
    return (finding.rule == "refusal" and place in places) or _in_places(finding, world, places)


def _own_records(finding: Finding, world: World) -> bool:
    """In the files of such a replica, and in the partition, once it leads."""
    kept = world.history.evidence.own_records
    place = finding.log.topic, finding.log.partition
    replica = int(finding.log.root) if finding.log.root.isdigit() else -1, place
    if finding.rule in _OF_FILES and finding.log.root.isdigit():
        return replica in kept
    if finding.rule == "reload":
        end, batches_end = world.history.evidence.cut_inside.get(replica, (-1, -1))
        ends = f"log end offset: {end} before, {batches_end} after the reload"
        return replica in kept and finding.message == ends
    return _in_places(finding, world, {place for _, place in kept})


def _forgotten_with_records(finding: Finding, world: World) -> bool:
    return _at_reload(finding, world, _FORGOTTEN, world.history.evidence.deleted)


def _found_again(finding: Finding, world: World) -> bool:
    return _at_reload(finding, world, _FOUND_AGAIN, world.history.evidence.found_again)


def _at_reload(
    finding: Finding, world: World, message: re.Pattern[str], known: Mapping[tuple[int, TopicPartition], Set[int]]
) -> bool:
    match = message.match(finding.message) if finding.rule == "reload" else None
    if match is None or world.plan.rules.producer.rebuild_from != "log_start":
        return False
    replica = int(finding.log.root), (finding.log.topic, finding.log.partition)
    return int(match[1]) in known.get(replica, ())


# -- what is lost on purpose -------------------------------------------------------------------------------------------


def _dropped_marker(finding: Finding, world: World) -> bool:
    """Later records in such a partition stay above the last stable offset, and the next end of that producer decides
    both transactions."""
    evidence = world.history.evidence
    hung = {m.place for m in evidence.dropped if m.producer_id in evidence.hung.get(m.place, ())}
    return (
        _in_places(finding, world, {marker.place for marker in evidence.dropped})
        or _group_waits(finding, hung)
        or (finding.rule == "torn-transaction" and _torn_by_drop(finding, world))
    )


def _torn_by_drop(finding: Finding, world: World) -> bool:
    """The transaction has records where one of its producer's markers was dropped: there another end decided."""
    dropped = {(marker.transactional_id, marker.place) for marker in world.history.evidence.dropped}
    quoted = set(_QUOTED.findall(finding.message))
    return any(
        record.transaction in quoted and (record.client.partition("#")[0], (record.topic, record.partition)) in dropped
        for record in world.history.records.values()
    )


def _early(finding: Finding, world: World) -> bool:
    """Its coordinator forgot partitions that it had agreed to: their transaction stays open there."""
    evidence = world.history.evidence
    if Fact.EARLY in _facts(finding, world):
        return True
    if finding.rule in _OF_MARKERS:
        return finding.transactional_id in evidence.early or finding.producer_id in evidence.early_producers
    if finding.rule.startswith("lineage"):
        if any(record.transaction in evidence.early_transactions for record in _copies_of(finding, world)):
            return True
    elif finding.rule in _READ:
        record = _record_of(finding, world)
        named = {record.transaction} if record is not None else set(_QUOTED.findall(finding.message))
        if named & evidence.early_transactions:
            return True
    hung = {place for place, producers in evidence.hung.items() if producers & evidence.early_producers}
    return _in_places(finding, world, hung) or _group_waits(finding, hung)


def _group_waits(finding: Finding, hung: Set[TopicPartition]) -> bool:
    """While a transaction hangs among the offsets of a group, its members are told UNSTABLE_OFFSET_COMMIT, and copy
    nothing any more."""
    if all(topic != CONSUMER_OFFSETS for topic, _ in hung):
        return False
    if finding.rule == "no-progress":
        return "OffsetFetch at" in finding.message
    return finding.rule == "lineage-lost"


def _unclean(finding: Finding, world: World) -> bool:
    if Fact.UNCLEAN in _facts(finding, world):
        return True
    return _in_places(finding, world, world.history.evidence.unclean)


def _in_places(finding: Finding, world: World, places: Set[TopicPartition]) -> bool:
    if not places:
        return False
    if finding.rule.startswith("lineage"):
        return any((record.topic, record.partition) in places for record in _copies_of(finding, world))
    if finding.rule == "offset-outcome" and any(f"{topic}-{index}" in finding.message for topic, index in places):
        return True
    if finding.rule in _OF_MARKERS and world.plan.state_log(finding.transactional_id or "") in places:
        return True  # what the coordinator had decided is not in its log any more
    if finding.rule in _OF_MARKERS or finding.rule in _READ or finding.rule in ("offset-back", "no-progress"):
        return (finding.log.topic, finding.log.partition) in places
    return False


def _no_producer_id(finding: Finding, world: World) -> bool:
    if finding.rule == "no-producer-id":
        return bool(world.plan.careless)
    record = _record_of(finding, world) if finding.rule in _READ else None
    return record is not None and record.client.startswith(CARELESS)


_EXPLAIN: tuple[Callable[[Finding, World], bool], ...] = (
    _late_end, _late_marker, _late_init, _late_join, _late_offsets, _forgotten_epoch, _dropped_marker, _early,
    _no_producer_id, _unclean, _left_behind, _verification_of_late_copy, _began_anywhere, _overrun_window,
    _forgotten_window, _forgotten_with_records, _found_again, _undone_truncation, _forgotten_sync, _own_records,
    _torn_snapshot,
)  # fmt: skip


def _holes() -> tuple[Hole, ...]:
    """The rows of `holes.json`, each under the name of the function that says what it explains."""
    with open(os.path.join(os.path.dirname(__file__), "holes.json"), encoding="utf-8") as file:
        rows = json.load(file)
    return tuple(Hole(**rows[explains.__name__.strip("_")], explains=explains) for explains in _EXPLAIN)


HOLES = _holes()


def explained(finding: Finding, world: World) -> Hole | None:
    """The first hole that explains a finding."""
    return next((hole for hole in HOLES if hole.explains(finding, world)), None)
