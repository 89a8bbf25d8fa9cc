"""Known holes of Kafka's protocol that the simulation finds: named, told apart from new ones, and counted.

Each row says which findings it explains, and when. What no row explains is a broken promise of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minibroker.audit.rows import Finding

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


def _verification_of_late_copy(found: Finding, world: World) -> bool:
    return found.rule == "refusal" and bool(_WAITS.search(found.message))


def _forgotten_window(found: Finding, world: World) -> bool:
    match = _OLDER.search(found.message)
    changed = sum(world.history.counts[event] for event in ("broker started", "leader moved", "broker fenced"))
    if found.rule != "refusal" or match is None or not changed:
        return False
    return int(match[2]) < int(match[1])


def _began_anywhere(found: Finding, world: World) -> bool:
    match = _OLDER.search(found.message)
    # Which of the window was taken may never have been told to the client.
    return found.rule == "refusal" and match is not None and int(match[2]) == 0 and not match[3].startswith("0-")


def _late_end(found: Finding, world: World) -> bool:
    return _of_transaction(found, world, world.history.stale_ends)


def _late_marker(found: Finding, world: World) -> bool:
    return _of_transaction(found, world, world.history.stale_markers)


def _left_behind(found: Finding, world: World) -> bool:
    return found.rule == "refusal" and "behind the controller" in found.message and bool(_BEHIND.search(found.message))


_OF_MARKERS = frozenset({"torn-transaction", "marker-without-transaction", "hanging-transaction", "offset-outcome"})


_BEHIND = re.compile(r"EPOCH|FENCED|INVALID_TXN_STATE|TRANSACTION_ABORTABLE")
_QUOTED = re.compile(r"'([^']+)'")


def _of_transaction(found: Finding, world: World, stale: dict[Hashable, int]) -> bool:
    """The message names the transaction, a record of it, or the client that ran it; or its producer's markers are
    what is wrong; or it copied input."""
    if found.rule in _OF_MARKERS and found.producer_id in stale.values():
        return True
    if found.rule.startswith("lineage") and any(str(name).startswith("c") for name in stale):
        return True
    named = [world.history.records.get(key) for key in _QUOTED.findall(found.message)]
    if any(record is not None and record.transaction in stale for record in named):
        return True
    return any(str(name) in found.message or str(name).partition("/")[0] + "," in found.message for name in stale)


def _late_init(found: Finding, world: World) -> bool:
    ids = world.history.stale_inits
    return found.rule == "refusal" and any(name.partition("#")[0] in ids for name in found.message.split(",")[:1])


def _torn_snapshot(found: Finding, world: World) -> bool:
    torn = "expected a snapshot" in found.message or "expected CRC-32C" in found.message
    return found.rule == "producer-snapshot" and torn and world.history.counts["power lost"] > 0


HOLES = (
    Hole(
        "late EndTxn",
        "KIP-890",
        "Below transaction.version 2 transactions share an epoch, so a commit or abort that arrives late, after its"
        " retry was answered, ends the transaction that runs then.",
        _late_end,
    ),
    Hole(
        "late WriteTxnMarkers",
        "KIP-890",
        "Below transaction.version 2 a marker has its transaction's epoch, so a copy that arrives after its retry was"
        " written ends the next transaction on that partition.",
        _late_marker,
    ),
    Hole(
        "fenced by a coordinator left behind",
        "KafkaApis, AddPartitionsToTxnManager",
        "A leader that is cut off from the controller verifies with a coordinator that is cut off too, which knows the"
        " producer's epoch no more; the producer aborts and goes on elsewhere.",
        _left_behind,
    ),
    Hole(
        "late InitProducerId",
        "KIP-360",
        "An InitProducerId without an epoch that arrives late bumps the epoch once more and fences its own client, or"
        " the instance that came after it.",
        _late_init,
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
        "window forgotten by restart",
        "ProducerStateManager, snapshot format",
        "A producer snapshot has the last batch only, so after a restart, or a truncation, the retry of an older one of"
        " the five in flight is out of order, not a duplicate.",
        _forgotten_window,
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
