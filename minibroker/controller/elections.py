"""How one partition's replicas, in-sync set and leader follow from each other (Kafka's PartitionChangeBuilder).

Pure: maps a `PartitionImage` and the requested change to its replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from minibroker.metadata.image import NO_LEADER, PartitionImage


class Election(Enum):
    """PREFERRED: the first replica if eligible; ONLINE: any replica without loss of committed records; UNCLEAN: any."""

    PREFERRED = 0
    UNCLEAN = 1
    ONLINE = 2


class Wanted(NamedTuple):
    """The requested change of a partition; None leaves a field as it is.

    acceptable(node): may it lead now.

    min_isr: effective min.insync.replicas.
    unclean_shutdown: nodes whose disks may have lost acknowledged records, which are no longer eligible because of an
        earlier membership (KIP-966).
    """

    acceptable: Callable[[int], bool]
    min_isr: int
    election: Election = Election.ONLINE
    replicas: Sequence[int] | None = None
    isr: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    unclean_shutdown: frozenset[int] = frozenset()


def changed(partition: PartitionImage, wanted: Wanted) -> PartitionImage:
    """The partition after the change, with its epochs raised; the same object when nothing changes."""
    replicas = tuple(partition.replicas if wanted.replicas is None else wanted.replicas)
    isr = tuple(partition.isr if wanted.isr is None else wanted.isr)
    adding = tuple(partition.adding if wanted.adding is None else wanted.adding)
    removing = tuple(partition.removing if wanted.removing is None else wanted.removing)
    replicas, isr, adding, removing = _completed(replicas, isr, adding, removing)
    isr = tuple(node for node in isr if node in replicas and node not in wanted.unclean_shutdown)
    elr = _eligible(partition, isr, replicas, wanted)
    leader, unclean = _elect(partition, replicas, isr, elr, wanted)
    if leader != NO_LEADER and (unclean or leader not in isr):
        # An unclean leader starts alone in the in-sync set; the other replicas must catch up first.
        isr = (leader,)
        elr = () if wanted.min_isr <= 1 else tuple(node for node in elr if node != leader)
    last_known = _last_known(partition, isr, leader)
    after = replace(
        partition,
        replicas=replicas,
        isr=isr,
        adding=adding,
        removing=removing,
        elr=elr,
        last_known_elr=last_known,
        leader=leader,
    )
    if after == partition:
        return partition
    # A leader that loses replicas begins a new epoch too, so that later requests of the removed ones are refused.
    lost_replica = any(node not in replicas for node in partition.replicas)
    epoch = partition.leader_epoch + (1 if leader != partition.leader or lost_replica else 0)
    return replace(after, leader_epoch=epoch, partition_epoch=partition.partition_epoch + 1)


def _completed(
    replicas: tuple[int, ...], isr: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A reassignment ends once every added replica is in sync and an in-sync replica remains; all have to be in sync
    where fewer remain than there were (PartitionReassignmentReplicas.maybeCompleteReassignment)."""
    if not adding and not removing:
        return replicas, isr, adding, removing
    staying = tuple(node for node in replicas if node not in removing)
    kept_isr = tuple(node for node in isr if node not in removing)
    # One that is added and removed, as by a second reassignment that leads back, is waited for in vain.
    awaited = (*adding, *staying) if len(adding) < len(removing) else adding
    if not staying or not kept_isr or any(node not in kept_isr for node in awaited):
        return replicas, isr, adding, removing
    return staying, kept_isr, (), ()


def _eligible(
    partition: PartitionImage, isr: tuple[int, ...], replicas: tuple[int, ...], wanted: Wanted
) -> tuple[int, ...]:
    if len(isr) >= wanted.min_isr:
        return ()
    before = dict.fromkeys((*partition.elr, *partition.isr))
    return tuple(n for n in before if n not in isr and n in replicas and n not in wanted.unclean_shutdown)


def _elect(
    partition: PartitionImage, replicas: tuple[int, ...], isr: tuple[int, ...], elr: tuple[int, ...], wanted: Wanted
) -> tuple[int, bool]:
    """(leader or NO_LEADER, whether committed records may be lost by it)."""

    def valid(node: int) -> bool:
        return (node in isr or node in elr) and node in replicas and wanted.acceptable(node)

    if wanted.election is Election.PREFERRED and valid(replicas[0]):
        return replicas[0], False
    if valid(partition.leader):
        return partition.leader, False
    for node in replicas:
        if valid(node):
            return node, False
    if not isr and not elr and len(partition.last_known_elr) == 1 and wanted.acceptable(partition.last_known_elr[0]):
        return partition.last_known_elr[0], True
    if wanted.election is Election.UNCLEAN:
        for node in replicas:
            if wanted.acceptable(node):
                return node, True
    return NO_LEADER, False


def _last_known(partition: PartitionImage, isr: tuple[int, ...], leader: int) -> tuple[int, ...]:
    if leader != NO_LEADER:
        return ()
    if not isr and partition.leader != NO_LEADER:
        return (partition.leader,)
    return partition.last_known_elr
