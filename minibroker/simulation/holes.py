"""Known holes of Kafka's protocol that the simulation finds: named, told apart from new ones, and counted.

Each row says which findings it explains, and when. What no row explains is a broken promise of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minibroker.rules.rows import CONSUMER_OFFSETS, Finding
from minibroker.simulation.evidence import Fact, Identity, Place
from minibroker.simulation.history import Record
from minibroker.simulation.odd_clients import CARELESS

if TYPE_CHECKING:
    from minibroker.simulation.world import World


@dataclass(frozen=True, slots=True)
class Hole:
    """`explains(finding, world)`: whether the hole is what the finding shows. source: where it is described."""

    name: str
    source: str
    what: str
    explains: Callable[[Finding, World], bool]


_WAITS = re.compile(r"got sequence \d+ while sequence \d+ still waits for the verification")
_OLDER = re.compile(r"expected sequence (\d+), got (\d+) at epoch -?\d+; known: .*remembered batches (\S+)$")
_OUT_OF_ORDER = re.compile(r"expected sequence (\d+), got (\d+) at epoch")
_FORGOTTEN = re.compile(
    r"producer (\d+): ActiveProducer\(.*\) before, (None|ActiveProducer\(.* last_sequence=-1, .*\)) after the reload$"
)
_QUOTED = re.compile(r"'([^']+)'")
_READ = frozenset({"lost-record", "aborted-read", "torn-transaction", "duplicate-record", "order"})
"""Rules over what clients sent and readers were given; their messages quote a record or a transaction."""
_OF_FILES = frozenset({"offset-hole", "sequence-gap", "duplicate", "producer-snapshot", "abort-index"})
"""Rules over one replica's files."""
_OF_MARKERS = frozenset(
    {
        *("torn-transaction", "marker-without-transaction", "hanging-transaction", "outside-transaction"),
        *("offset-outcome", "marker-epoch", "coordinator-epoch"),
    }
)


def _facts(found: Finding, world: World) -> frozenset[str]:
    """What was true when a client was refused; nothing for other rules."""
    return world.history.evidence.facts.get(found.message, frozenset()) if found.rule == "refusal" else frozenset()


def _record_of(found: Finding, world: World) -> Record | None:
    """The record that a finding over records quotes."""
    records = world.history.records
    return next((records[key] for key in _QUOTED.findall(found.message) if key in records), None)


def _copies_of(found: Finding, world: World) -> list[Record]:
    """The records that were made of the input that a finding on lineage quotes, and the input."""
    keys = _QUOTED.findall(found.message) if found.rule.startswith("lineage") else []
    return [r for r in world.history.records.values() if r.key in keys or r.key.partition("<")[2] in keys]


# -- transactions that something late ended ----------------------------------------------------------------------------


def _late_end(found: Finding, world: World) -> bool:
    return Fact.LATE_END in _facts(found, world) or _of_transaction(found, world, world.history.evidence.ended)


def _late_marker(found: Finding, world: World) -> bool:
    evidence = world.history.evidence
    idle = (found.log.topic, found.log.partition), (found.producer_id, found.producer_epoch)
    if found.rule in _OF_MARKERS and idle in evidence.idle_markers:
        return True  # one marker too many, and the decisions no longer fit those that follow
    return Fact.LATE_MARKER in _facts(found, world) or _of_transaction(found, world, evidence.marked)


def _of_transaction(found: Finding, world: World, hit: Mapping[Hashable, Identity]) -> bool:
    """The finding quotes a transaction that was hit, or a record or copy in it, or its producer's markers are wrong."""
    if not hit:
        return False
    if found.rule in _OF_MARKERS and (found.producer_id, found.producer_epoch) in hit.values():
        return True
    if found.rule.startswith("lineage"):
        return any(record.transaction in hit for record in _copies_of(found, world))
    record = _record_of(found, world)
    return any(name in hit for name in _QUOTED.findall(found.message)) or (
        record is not None and record.transaction in hit
    )


def _late_init(found: Finding, world: World) -> bool:
    return Fact.LATE_INIT in _facts(found, world)


def _late_join(found: Finding, world: World) -> bool:
    return Fact.LATE_JOIN in _facts(found, world)


def _forgotten_epoch(found: Finding, world: World) -> bool:
    return world.plan.client_version == 0 and Fact.FORGOTTEN in _facts(found, world)


def _late_offsets(found: Finding, world: World) -> bool:
    rewound = world.history.evidence.rewound
    return found.rule.startswith("lineage") and any(r.transaction in rewound for r in _copies_of(found, world))


# -- sequences ---------------------------------------------------------------------------------------------------------


def _verification_of_late_copy(found: Finding, world: World) -> bool:
    return Fact.LATE_WRITE in _facts(found, world) and bool(_WAITS.search(found.message))


def _forgotten_window(found: Finding, world: World) -> bool:
    match = _OLDER.search(found.message)
    if world.plan.rules.producer.snapshot_all_batches or match is None or int(match[2]) >= int(match[1]):
        return False
    return {Fact.RETRY, Fact.NEW_LEADER} <= _facts(found, world)


def _overrun_window(found: Finding, world: World) -> bool:
    match = _OUT_OF_ORDER.search(found.message)
    if match is None or int(match[2]) >= int(match[1]):
        return False
    return {Fact.RETRY, Fact.OVERRUN} <= _facts(found, world)


def _began_anywhere(found: Finding, world: World) -> bool:
    match = _OLDER.search(found.message)
    if found.rule != "refusal" or world.plan.rules.producer.unknown_producer_sequence != "accept" or match is None:
        return False
    # Which of the window was taken may never have been told to the client.
    return int(match[2]) == 0 and not match[3].startswith("0-")


def _left_behind(found: Finding, world: World) -> bool:
    return bool({Fact.BEHIND, Fact.DEPOSED} & _facts(found, world))


# -- what a machine forgets --------------------------------------------------------------------------------------------


def _torn_snapshot(found: Finding, world: World) -> bool:
    torn = "expected a snapshot" in found.message or "expected CRC-32C" in found.message
    lost = {str(node) for node in world.history.evidence.powerless}
    return found.rule == "producer-snapshot" and torn and found.log.root in lost


def _undone_truncation(found: Finding, world: World) -> bool:
    cut = {(str(node), place) for node, place in world.history.evidence.uncut}
    place = found.log.topic, found.log.partition
    return found.rule in _OF_FILES and (found.log.root, place) in cut


def _own_records(found: Finding, world: World) -> bool:
    """In the files of such a replica, and in the partition, once it leads."""
    kept = world.history.evidence.own_records
    place = found.log.topic, found.log.partition
    if found.rule in _OF_FILES and found.log.root.isdigit():
        return (int(found.log.root), place) in kept
    return _in_places(found, world, {place for _, place in kept})


def _forgotten_with_records(found: Finding, world: World) -> bool:
    match = _FORGOTTEN.match(found.message) if found.rule == "reload" else None
    if match is None or world.plan.rules.producer.rebuild_from != "log_start":
        return False
    replica = int(found.log.root), (found.log.topic, found.log.partition)
    return int(match[1]) in world.history.evidence.deleted.get(replica, ())


# -- what is lost on purpose -------------------------------------------------------------------------------------------


def _dropped_marker(found: Finding, world: World) -> bool:
    """Whatever comes later in such a partition is not stable, and the next end of that producer decides both."""
    evidence = world.history.evidence
    hung = {m.place for m in evidence.dropped if m.producer_id in evidence.hung.get(m.place, ())}
    return (
        _in_places(found, world, evidence.dropped_places())
        or _group_waits(found, hung)
        or (found.rule == "torn-transaction" and _torn_by_drop(found, world))
    )


def _torn_by_drop(found: Finding, world: World) -> bool:
    """The transaction has records where one of its producer's markers was dropped: there another end decided."""
    dropped = {(marker.transactional_id, marker.place) for marker in world.history.evidence.dropped}
    quoted = set(_QUOTED.findall(found.message))
    return any(
        record.transaction in quoted and (record.client.partition("#")[0], (record.topic, record.partition)) in dropped
        for record in world.history.records.values()
    )


def _early(found: Finding, world: World) -> bool:
    """Its coordinator forgot partitions that it had agreed to: their transaction stays open there."""
    evidence = world.history.evidence
    if Fact.EARLY in _facts(found, world):
        return True
    if found.rule in _OF_MARKERS:
        return found.transactional_id in evidence.early or found.producer_id in evidence.early_producers
    if found.rule.startswith("lineage"):
        if any(record.transaction in evidence.early_transactions for record in _copies_of(found, world)):
            return True
    elif found.rule in _READ:
        record = _record_of(found, world)
        named = {record.transaction} if record is not None else set(_QUOTED.findall(found.message))
        if named & evidence.early_transactions:
            return True
    hung = {place for place, producers in evidence.hung.items() if producers & evidence.early_producers}
    return _in_places(found, world, hung) or _group_waits(found, hung)


def _group_waits(found: Finding, hung: Set[Place]) -> bool:
    """While a transaction hangs among the offsets of a group, its members are told UNSTABLE_OFFSET_COMMIT, and copy
    nothing any more."""
    if all(topic != CONSUMER_OFFSETS for topic, _ in hung):
        return False
    if found.rule == "no-progress":
        return "OffsetFetch at" in found.message
    return found.rule == "lineage-lost"


def _unclean(found: Finding, world: World) -> bool:
    if Fact.UNCLEAN in _facts(found, world):
        return True
    return _in_places(found, world, world.history.evidence.unclean)


def _in_places(found: Finding, world: World, places: Set[Place]) -> bool:
    if not places:
        return False
    if found.rule.startswith("lineage"):
        return any((record.topic, record.partition) in places for record in _copies_of(found, world))
    if found.rule == "offset-outcome" and any(f"{topic}-{index}" in found.message for topic, index in places):
        return True
    if found.rule in _OF_MARKERS or found.rule in _READ or found.rule in ("offset-back", "no-progress"):
        return (found.log.topic, found.log.partition) in places
    return False


def _no_producer_id(found: Finding, world: World) -> bool:
    if found.rule == "no-producer-id":
        return bool(world.plan.careless)
    record = _record_of(found, world) if found.rule in _READ else None
    return record is not None and record.client.startswith(CARELESS)


HOLES = (
    Hole(
        "late EndTxn",
        "KAFKA-17754, KIP-890",
        "Below transaction.version 2 transactions share an epoch, so a commit or abort that arrives late, after its"
        " retry was answered, ends the transaction that runs then.",
        _late_end,
    ),
    Hole(
        "late WriteTxnMarkers",
        "KIP-890, ProducerAppendInfo.checkCoordinatorEpoch",
        "Below transaction.version 2 a marker has its transaction's epoch, so a copy that arrives after its retry was"
        " written, or one of a coordinator that was deposed meanwhile, ends the next transaction on that partition,"
        " unless a later coordinator has written one for that producer there.",
        _late_marker,
    ),
    Hole(
        "late InitProducerId",
        "KIP-360",
        "An InitProducerId without an epoch that arrives late bumps the epoch once more and fences its own client, or"
        " the instance that came after it.",
        _late_init,
    ),
    Hole(
        "late AddPartitionsToTxn",
        "KIP-890",
        "Below transaction.version 2 an AddPartitionsToTxn or AddOffsetsToTxn that arrives after its transaction's end"
        " begins another, which nobody runs; the client's next bump fences itself with it.",
        _late_join,
    ),
    Hole(
        "late TxnOffsetCommit",
        "KIP-890, GroupCoordinatorService.commitTransactionalOffsets",
        "Below transaction.version 2 offsets that arrive late, in the next transaction of their producer, take the"
        " place of that one's: transactions share an epoch, and offsets have no sequence. The group goes back, or too"
        " far.",
        _late_offsets,
    ),
    Hole(
        "last epoch forgotten by failover",
        "KIP-360, KAFKA-20357",
        "Version 0 of the transaction state message has no last epoch, so a bump that is asked for again after a"
        " failover of the coordinator is fenced.",
        _forgotten_epoch,
    ),
    Hole(
        "marker dropped without a leader",
        "TransactionMarkerChannelManager.addTxnMarkersToBrokerQueue, KRaftMetadataCache",
        "A transaction that ends, or times out, while nobody leads one of its partitions is complete for its"
        " coordinator and has no marker there: the partition hangs, and the producer's next end decides both.",
        _dropped_marker,
    ),
    Hole(
        "coordinator loads what is not committed",
        "TransactionStateManager.loadTransactionMetadata, TransactionCoordinator.handleAddPartitionsToTransaction",
        "A new coordinator reads its log to the end, and answers and sends markers for what it finds there; when"
        " another takes over that has not got it, partitions and decisions are forgotten: a transaction stays open, or"
        " is ended in two ways.",
        _early,
    ),
    Hole(
        "transactional batch without a producer id",
        "ProducerAppendInfo, ProducerStateManager",
        "A transactional batch without a producer id is taken, belongs to no transaction, and is read at once.",
        _no_producer_id,
    ),
    Hole(
        "unclean election",
        "unclean.leader.election.enable, KIP-966",
        "A replica that is out of sync and has to lead has not got what was acknowledged since.",
        _unclean,
    ),
    Hole(
        "fenced by a coordinator left behind",
        "KafkaApis, AddPartitionsToTxnManager, TransactionStateManager.getTransactionState",
        "A coordinator that is cut off from the controller does not know that another was elected, and answers from"
        " what it remembers: a leader that is cut off too is told that the producer's epoch is not the current one, a"
        " client that has not noticed either that its transaction has ended. The producer aborts, or is at its end.",
        _left_behind,
    ),
    Hole(
        "late copy awaits verification",
        "KIP-890, ProducerAppendInfo.checkSequence",
        "A late copy of a written batch begins a verification that only a written batch ends; the next transaction's"
        " first batch on the partition is out of order then, and the transaction is aborted.",
        _verification_of_late_copy,
    ),
    Hole(
        "unknown producer begins anywhere",
        "ProducerAppendInfo.checkSequence, KAFKA-5793",
        "A partition that does not know a producer takes any first sequence; when the first of a window is refused for"
        " a moment and the second is not, the first is out of order for ever.",
        _began_anywhere,
    ),
    Hole(
        "window overrun",
        "Sender, ProducerStateEntry.NUM_BATCHES_TO_RETAIN",
        "A batch that timed out but was written is sent again together with new ones, after later ones were"
        " acknowledged; when those push it out of the five batches remembered and its answer is lost, the next retry is"
        " out of order.",
        _overrun_window,
    ),
    Hole(
        "window forgotten by restart",
        "ProducerStateManager, snapshot format",
        "A producer snapshot has the last batch only, so after a restart, or a truncation, the retry of an older one of"
        " the five in flight is out of order, not a duplicate.",
        _forgotten_window,
    ),
    Hole(
        "producers forgotten with their records",
        "ProducerStateManager.truncateAndReload",
        "Producers outlive the records that DeleteRecords removes, but not the next start when nothing is left in the"
        " log, or when there was no orderly stop: it takes no snapshot at or below the log start, and there is no batch"
        " to rebuild them from.",
        _forgotten_with_records,
    ),
    Hole(
        "truncation undone by a lost machine",
        "LocalLog.truncateTo, LocalLog.flush, FileRecords.truncateTo",
        "A truncated segment is not synced at once, and the sync after the next roll leaves it out when the new segment"
        " begins where it ends; a machine that loses power may have the old end again, under the offsets of the new"
        " segment.",
        _undone_truncation,
    ),
    Hole(
        "own records below the log start",
        "LeaderEpochFileCache.endOffsetFor, ProducerStateManager.onLogStartOffsetIncremented",
        "A deposed leader has records that the next one has not. When DeleteRecords moves the next one's log start past"
        " them before it fetches, epochs no longer part above the log start: it keeps them below, and with them a"
        " transaction whose marker it lacks. When it leads again, readers of committed records stay at the log start.",
        _own_records,
    ),
    Hole(
        "torn snapshot of a lost machine",
        "ProducerStateManager.loadFromSnapshot",
        "Snapshots are not synced at once, so a machine that lost power may keep torn ones; a broker that needs such a"
        " one removes it and takes the one before.",
        _torn_snapshot,
    ),
)


def explained(found: Finding, world: World) -> Hole | None:
    """The first hole that explains a finding."""
    return next((hole for hole in HOLES if hole.explains(found, world)), None)
