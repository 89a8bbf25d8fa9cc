"""What a command that moves the broker clock has done when it is over."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from seed_client import ID, OK, SeedClient

from minibroker.control.commands import Commands
from minibroker.coordinator_runtime.transaction_service import TransactionService
from minibroker.coordinators.transactions.effects import Complete, SendMarkers
from minibroker.coordinators.transactions.metadata import TransactionEntry
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, PREPARE_ABORT, TransactionState
from minibroker.kernel.deferred import Deferred
from minibroker.metrics.gauges import samples

MINUTES_LATER = ("clock.advance", {"minutes": 2})


class OneOpen(SeedClient):
    """A broker in memory with an open transaction that times out after a minute. Unlike that of other tests, its clock
    leaves to the loop what a jump brings about."""

    def __init__(self) -> None:
        super().__init__()
        effects_of_a_jump: Any = SimpleNamespace(perform_effects=lambda: None)
        self.cluster.clock.cluster = effects_of_a_jump
        self.commands = Commands(self.cluster.cluster, self.cluster.timers)
        producer = self.new()
        self.add(producer)
        assert self.produce(producer, 0).code == OK

    @property
    def transactions(self) -> TransactionService:
        (broker,) = self.cluster.cluster.brokers.values()
        return broker.coordinators.transactions

    @property
    def state(self) -> TransactionState:
        return self.transactions.describe(ID).metadata.state

    def count_scans(self) -> list[str]:
        """From now on gets the transactional ids of a shard each time that all of them are looked at."""
        scans: list[str] = []

        class Counted(dict[str, TransactionEntry]):
            def items(self) -> Any:
                scans.extend(self)
                return super().items()

        _, shard = self.transactions.host.shard_for(ID)
        shard.entries = Counted(shard.entries)
        return scans

    def pauses_of(self, command: Deferred[object]) -> int:
        """How often 5 ms pass until it is over."""
        pauses = 0
        while not command.done:
            self.cluster.timers.advance(5)
            pauses += 1
        return pauses


def test_a_timed_out_transaction_is_aborted_when_the_clock_has_moved() -> None:
    """Its markers are written a turn of the loop later: an EndTxn that came before them met PrepareAbort."""
    client = OneOpen()
    moved = client.commands.call(*MINUTES_LATER)
    assert (client.state, client.pauses_of(moved)) == (PREPARE_ABORT, 1)
    assert client.state is COMPLETE_ABORT
    client.stop()


def test_markers_that_are_held_are_not_waited_for() -> None:
    client = OneOpen()
    client.commands.call("state.hold_markers", {})
    moved = client.commands.call(*MINUTES_LATER)
    assert isinstance(moved, dict)
    assert client.state is PREPARE_ABORT
    client.stop()


def test_an_end_that_does_not_come_is_waited_for_for_a_second_and_only_once() -> None:
    client = OneOpen()
    client.transactions.effects.hold(lambda effect: isinstance(effect, Complete))
    assert client.pauses_of(client.commands.call(*MINUTES_LATER)) == 200
    assert isinstance(client.commands.call(*MINUTES_LATER), dict)
    assert client.state is PREPARE_ABORT
    client.stop()


def test_a_wait_looks_only_at_the_ids_that_the_sweep_has_begun_with() -> None:
    """All ids of a large cluster, every 5 ms, would take the loop's time from its requests."""
    client = OneOpen()
    client.transactions.effects.hold(lambda effect: isinstance(effect, Complete))
    scans = client.count_scans()
    moved = client.commands.call(*MINUTES_LATER)
    assert scans
    scans.clear()
    assert client.pauses_of(moved) == 200
    assert scans == []
    client.stop()


LOOKS: dict[str, Callable[[Commands, MemoryCluster], object]] = {
    **{
        name: lambda commands, _, name=name, arguments=arguments: commands.call(name, arguments)
        for name, arguments in {
            "clock.advance": {"minutes": 2},
            "clock.sweep": {},
            "cluster.waits": {},
            "read.transactions": {},
            "state.held_markers": {},
            "state.release_markers": {},
        }.items()
    },
    "live state": lambda commands, _: commands.rows().look(),
    "metrics": lambda _, cluster: [*samples(cluster.cluster, cluster.broker)],
}


@pytest.mark.parametrize("look", LOOKS)
def test_no_transaction_coordinator_is_made_where_there_are_no_transactions(look: str) -> None:
    """It would import its modules and start its two sweeps on every broker."""
    cluster = MemoryCluster()
    LOOKS[look](Commands(cluster.cluster, cluster.timers), cluster)
    assert cluster.broker.coordinators.made == ()
    cluster.stop()


def test_markers_can_be_held_before_there_are_transactions() -> None:
    cluster = MemoryCluster()
    commands = Commands(cluster.cluster, cluster.timers)
    commands.call("state.hold_markers", {})
    effects = cluster.broker.coordinators.transactions.effects
    effects.add(None, (SendMarkers(ID),))  # type: ignore[arg-type]
    assert commands.call("state.held_markers", {}).result() == [ID]
    cluster.stop()
