"""Partitions of a transaction: added, kept, confirmed, and gone with the next claim."""

from __future__ import annotations

import pytest
from transaction_coordinator import ID, CoordinatorDouble

from minibroker.coordinators.transactions import queries
from minibroker.coordinators.transactions.effects import Complete
from minibroker.coordinators.transactions.end_txn import marker_written
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import COMPLETE_COMMIT, EMPTY, ONGOING
from minibroker.releases.chain import RELEASES
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker_protocol.errors import ApiError

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


def test_partitions_add_up_and_known_ones_are_not_logged_again() -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init()
    coordinator.add(producer, [T0])
    started = coordinator.metadata.start_ms
    coordinator.now_ms += 10
    coordinator.add(producer, [T1, U0])
    assert coordinator.metadata.partitions == {T0, T1, U0}
    assert (coordinator.metadata.start_ms, coordinator.metadata.last_update_ms) == (started, started + 10)
    logged = len(coordinator.log)
    coordinator.add(producer, [T0, U0])
    assert len(coordinator.log) == logged
    assert coordinator.metadata.state is ONGOING


def test_a_finished_transaction_leaves_no_partitions_and_keeps_its_start() -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init()
    coordinator.add(producer, [T0])
    started = coordinator.metadata.start_ms
    coordinator.now_ms += 10
    coordinator.end(producer, commit=True)
    assert coordinator.metadata.state is COMPLETE_COMMIT
    assert (coordinator.metadata.partitions, coordinator.metadata.start_ms) == (frozenset(), started)
    coordinator.init(producer)
    assert coordinator.metadata.state is EMPTY
    assert coordinator.metadata.start_ms == -1
    coordinator.add((producer.producer_id, 1), [T0])
    assert coordinator.metadata.start_ms == coordinator.now_ms, "the next transaction has a start of its own"


def test_an_end_waits_for_every_marker() -> None:
    coordinator = CoordinatorDouble(hold_markers=True)
    producer = coordinator.init()
    coordinator.add(producer, [T0, T1, U0])
    coordinator.end(producer, commit=True)
    assert queries.partitions_of(coordinator.entry) == [("t", [0, 1]), ("u", [0])]
    assert not marker_written(coordinator.shard, ID, T0)
    assert not marker_written(coordinator.shard, ID, T0), "the same one again"
    assert not marker_written(coordinator.shard, ID, U0)
    assert queries.partitions_of(coordinator.entry) == [("t", [1])]
    assert coordinator.metadata.partitions == {T0, T1, U0}, "the log still has all of them"
    assert marker_written(coordinator.shard, ID, T1) == (Complete(ID),)
    assert not marker_written(coordinator.shard, ID, T1), "it is completed once"
    assert not marker_written(coordinator.shard, "nobody", T1)


@pytest.mark.parametrize(
    ("semantics", "other_id", "old_epoch"),
    [(KAFKA, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS")]
    + [(RELEASES[name].semantics, "INVALID_PRODUCER_ID_MAPPING", "PRODUCER_FENCED") for name in ("3.9", "2.8", "2.3")],
)
def test_who_joins_while_a_transaction_ends(semantics: Semantics, other_id: str, old_epoch: str) -> None:
    """As Kafka 4.3.1 and 3.9.1 answered while a marker could not be written."""
    coordinator = CoordinatorDouble(TransactionConfig(semantics=semantics), hold_markers=True)
    producer = coordinator.init(coordinator.init())
    coordinator.add(producer, [T0])
    coordinator.end(producer, commit=True)
    told = []
    for joining in ((producer.producer_id + 1, 1), (producer.producer_id, 0), producer):
        with pytest.raises(ApiError) as refused:
            coordinator.add(joining, [T1])
        told.append(refused.value.code.name)
    assert told == [other_id, old_epoch, "CONCURRENT_TRANSACTIONS"]
