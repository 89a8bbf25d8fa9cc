"""One partition's state after a change, as Kafka's PartitionChangeBuilder decides it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.controller.elections import Election, Wanted, changed
from minibroker.metadata.image import NO_LEADER, PartitionImage

PARTITION = PartitionImage(0, (1, 2, 3), (1, 2, 3), 1, 5, 9)


def wanted(*alive: int, min_isr: int = 1, **fields: Any) -> Wanted:
    return Wanted(acceptable=lambda node: node in alive, min_isr=min_isr, **fields)


def test_nothing_changes_without_a_reason() -> None:
    assert changed(PARTITION, wanted(1, 2, 3)) is PARTITION


def test_a_smaller_set_keeps_leader_and_epoch() -> None:
    after = changed(PARTITION, wanted(1, 2, isr=(1, 2)))
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (1, (1, 2), 5, 10)


def test_the_next_in_sync_replica_leads() -> None:
    after = changed(PARTITION, wanted(2, 3, isr=(2, 3)))
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (2, 6, 10)


def test_the_preferred_leader_only_when_asked_for() -> None:
    led = replace(PARTITION, leader=3)
    assert changed(led, wanted(1, 2, 3)).leader == 3
    assert changed(led, wanted(1, 2, 3, election=Election.PREFERRED)).leader == 1
    assert changed(replace(led, isr=(2, 3)), wanted(1, 2, 3, election=Election.PREFERRED)).leader == 3


def test_below_the_minimum_those_who_leave_stay_eligible() -> None:
    first = changed(PARTITION, wanted(1, 2, min_isr=2, isr=(1, 2)))
    assert first.elr == ()
    second = changed(first, wanted(1, min_isr=2, isr=(1,)))
    assert (second.isr, second.elr) == ((1,), (2,))
    gone = changed(second, wanted(min_isr=2, isr=()))
    assert (gone.leader, gone.isr, set(gone.elr), gone.last_known_elr) == (NO_LEADER, (), {1, 2}, (1,))
    back = changed(gone, wanted(2, min_isr=2))
    assert (back.leader, back.isr, back.elr, back.last_known_elr) == (2, (2,), (1,), ())
    enough = changed(back, wanted(1, 2, min_isr=2, isr=(2, 1)))
    assert enough.elr == ()


def test_an_unclean_end_costs_eligibility() -> None:
    gone = replace(PARTITION, isr=(), leader=NO_LEADER, elr=(2,), last_known_elr=(1,))
    after = changed(gone, wanted(2, min_isr=2, unclean_shutdown=frozenset({2})))
    assert (after.leader, after.elr) == (NO_LEADER, ())
    assert changed(after, wanted(1, 2, min_isr=2)).leader == 1


def test_out_of_sync_replicas_lead_only_uncleanly() -> None:
    gone = replace(PARTITION, isr=(1,), leader=NO_LEADER)
    assert changed(gone, wanted(3)).leader == NO_LEADER
    after = changed(gone, wanted(3, election=Election.UNCLEAN))
    assert (after.leader, after.isr) == (3, (3,))


def test_a_reassignment_ends_when_all_new_replicas_are_in_sync() -> None:
    moving = replace(PARTITION, replicas=(4, 5, 1), isr=(1,), adding=(4, 5), removing=(1,))
    half = changed(moving, wanted(1, 4, 5, isr=(1, 4)))
    assert (half.replicas, half.leader, half.adding) == ((4, 5, 1), 1, (4, 5))
    done = changed(half, wanted(1, 4, 5, isr=(1, 4, 5)))
    assert (done.replicas, done.isr, done.adding, done.removing) == ((4, 5), (4, 5), (), ())
    assert (done.leader, done.leader_epoch) == (4, 6)


@pytest.mark.parametrize(
    ("adding", "removing", "isr", "ends"),
    [
        ((), (1,), (1, 2), False),
        ((), (1,), (2, 3), True),
        ((3,), (1, 4), (1, 3, 4), False),
        ((3,), (1, 4), (2, 3, 4), True),
        ((3,), (1,), (1, 3), True),  # as many as before
        ((3,), (), (1, 2), False),
    ],
)
def test_where_fewer_replicas_remain_all_of_them_are_in_sync_at_the_end(
    adding: tuple[int, ...], removing: tuple[int, ...], isr: tuple[int, ...], ends: bool
) -> None:
    replicas = (2, 3, *(removing or (1,)))
    moving = replace(PARTITION, replicas=replicas, isr=isr, adding=adding, removing=removing)
    after = changed(moving, wanted(*isr, isr=isr))
    assert (not after.adding and not after.removing) is ends


def test_losing_a_replica_begins_a_new_epoch_of_the_same_leader() -> None:
    after = changed(PARTITION, wanted(1, 2, 3, replicas=(1, 2), isr=(1, 2)))
    assert (after.leader, after.leader_epoch) == (1, 6)
