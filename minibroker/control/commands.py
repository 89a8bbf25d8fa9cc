"""The commands of a running cluster: faults, clock, state, exchanges. One table for Python, HTTP and the command line.

A command takes and gives what JSON can hold. All run on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from minibroker.control.exchange_commands import EXCHANGE_COMMANDS, Command, ExchangeCommands
from minibroker.control.live_state import LiveState
from minibroker.control.read_commands import READS, Readable
from minibroker.faults.engine import BrokerTap, FaultEngine
from minibroker.faults.operations import OPERATIONS, check_call, delete_topics, failed_disks, restore, run_operation
from minibroker.kernel.addresses import format_address
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker.kernel.deferred import Deferred, gather, mapped, spawn
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.waiting import sleep
from minibroker.kernel.words import near

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.coordinators.transactions.shard import TransactionShard
    from minibroker.kernel.clock import Timers
    from minibroker.trace.tap import RequestTap

DEFAULT_HOST = "127.0.0.1"
_MAX_ADVANCE_MS = 366 * 86_400_000
_LOOKS, _LOOK_MS = 200, 5
"""How often, and how far apart in real time, it is asked whether what the clock began is over."""
_Id = tuple[int, str]
"""A transactional id, after the partition of __transaction_state that it is in."""
_UNITS_MS = (1, 1000, 60_000, 3_600_000, 86_400_000)


class Commands(ExchangeCommands):
    """The commands of one cluster; costs its requests nothing until a rule is set or exchanges are recorded."""

    def __init__(self, cluster: Cluster, timers: Timers) -> None:
        self._cluster = cluster
        super().__init__(FaultEngine(cluster, timers, self._changed), timers)
        self._broker_tap = BrokerTap(self.engine)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a command, or a Deferred of it. Raises FaultError, ApiError."""
        if name.startswith("state.") and name[6:] in OPERATIONS:
            return spawn(run_operation(self._cluster, name[6:], arguments))
        if name in READS:
            check_call(name, READS[name], arguments)
            result = READS[name](Readable(self._cluster, self.timers), **arguments)
            return spawn(result) if iscoroutine(result) else result
        command = _TABLE.get(name)
        if command is None:
            raise FaultError(f"there is no command {name!r}{near(name, all_commands(), _IN_PYTHON)}")
        if name != "fault.add":
            check_call(name, command, arguments)
        return command(self, **arguments)

    def _install(self, tap: RequestTap | None) -> None:
        self._cluster.set_tap(tap, self.tap.refused)
        self._cluster.set_broker_tap(self._broker_tap if self.engine.between_brokers else None)

    def rows(self) -> LiveState:
        return LiveState(self._cluster)

    def overview(self) -> dict[str, Any]:
        cluster = self._cluster
        return {
            "clock": self._clock(),
            "servers": ",".join(format_address(node.host or DEFAULT_HOST, node.port) for node in cluster.nodes),
            "brokers": sorted(cluster.brokers),
            "all_brokers": sorted(node.node_id for node in cluster.nodes),
            "paused_brokers": cluster.paused_brokers,
        }

    # -- clock -------------------------------------------------------------------------------------------------------

    def _clock(self) -> dict[str, Any]:
        """The broker clock."""
        clock = self._cluster.clock
        return {"now_ms": clock.now_ms(), "frozen": clock.frozen}

    def _freeze(self) -> dict[str, Any]:
        """Freeze the broker clock."""
        self._cluster.clock.freeze()
        return self._clock()

    def _unfreeze(self) -> dict[str, Any]:
        """Unfreeze the broker clock: it runs on from its current time."""
        self._cluster.clock.unfreeze()
        return self._clock()

    def _advance(
        self,
        *,
        ms: float | None = None,
        seconds: float | None = None,
        minutes: float | None = None,
        hours: float | None = None,
        days: float | None = None,
        sessions: bool = False,
    ) -> dict[str, Any] | Deferred[dict[str, Any]]:
        """Move the broker clock forward by the sum of these; every timeout and sweep that falls due is over before this
        returns, with the markers that can be written within a second. `sessions`: group sessions and rebalance timeouts
        that are no longer end then, too, as if no member had sent a heartbeat."""
        lengths = (ms, seconds, minutes, hours, days)
        if all(length is None for length in lengths):
            raise FaultError("clock.advance needs ms, seconds, minutes, hours or days")
        total = sum((length or 0) * unit for length, unit in zip(lengths, _UNITS_MS, strict=True))
        if total < 0:
            raise FaultError("the broker clock never goes back")
        if not total <= _MAX_ADVANCE_MS:
            raise FaultError(f"the broker clock moves at most {_MAX_ADVANCE_MS} ms (a year) at a time, not {total:g}")
        before = self._under_way()
        self._cluster.clock.advance(round(total))
        for broker in list(self._cluster.brokers.values()) if sessions else ():
            groups = broker.coordinators.groups_if_any
            if groups is not None and broker.node_id not in self._cluster.paused_brokers:
                groups.pass_time(total)
        return self._when_swept(before)

    def _when_swept(self, before: set[_Id]) -> dict[str, Any] | Deferred[dict[str, Any]]:
        """The clock, once the sweeps of many partitions are over, and the transitions that they began. before: the
        transactional ids that were in one already."""
        paused = self._cluster.paused_brokers
        going: list[Deferred[Any]] = [
            b.maintenance.idle for b in self._cluster.brokers.values() if b.node_id not in paused
        ]
        going.append(spawn(self._transitions_over(before)))
        if all(idle.done for idle in going):
            return self._clock()
        return mapped(gather(going), lambda _: self._clock())

    def _under_way(self) -> set[_Id]:
        """Transactional ids in a transition that ends by itself: what was decided about them is not all written yet."""
        return self._unless_held(
            (index, name)
            for index, shard in self._transaction_shards()
            for name, entry in shard.entries.items()
            if entry.volatile.pending_state is not None
        )

    def _still_under_way(self, begun: set[_Id]) -> set[_Id]:
        """Those of `begun` that are in one yet; looks at no other."""
        names: dict[int, list[str]] = {}
        for index, name in begun:
            names.setdefault(index, []).append(name)
        return self._unless_held(
            (index, name)
            for index, shard in self._transaction_shards()
            for name in names.get(index, ())
            if (entry := shard.entries.get(name)) is not None and entry.volatile.pending_state is not None
        )

    def _transaction_shards(self) -> Iterator[tuple[int, TransactionShard]]:
        for node_id, broker in self._cluster.brokers.items():
            service = broker.coordinators.transactions_if_any
            if service is not None and node_id not in self._cluster.paused_brokers:
                yield from service.host.shards()

    def _unless_held(self, pending: Iterable[_Id]) -> set[_Id]:
        ids = set(pending)
        held = set(OPERATIONS["held_markers"](self._cluster)) if ids else ()
        return {each for each in ids if each[1] not in held}

    async def _transitions_over(self, before: set[_Id]) -> None:
        """A leader that is away keeps a transaction in PrepareAbort for as long as it likes: nobody waits for that."""
        # The sweeps of transactions are over: what goes on in slices is the upkeep of logs, which begins no transition.
        begun = self._under_way() - before
        for _ in range(_LOOKS):
            if not begun:
                return
            await sleep(self.timers, _LOOK_MS)
            begun = self._still_under_way(begun)

    def _sweep(self) -> dict[str, Any] | Deferred[dict[str, Any]]:
        """Run every periodic sweep now: transaction timeouts, expirations, retention, compaction."""
        before = self._under_way()
        for broker in list(self._cluster.brokers.values()):
            if broker.node_id in self._cluster.paused_brokers:
                continue
            if (transactions := broker.coordinators.transactions_if_any) is not None:
                transactions.abort_timed_out()
                transactions.forget_expired()
            broker.maintenance.expire_producers()
            broker.maintenance.apply_retention()
            broker.maintenance.cleaner.clean()
        return self._when_swept(before)

    async def _reset_all(self, topics: bool) -> None:
        self.engine.clear()
        await restore(self._cluster)
        self._cluster.clock.unfreeze()
        if topics:
            await delete_topics(self._cluster)
        if self.tap.recorder is not None:
            self.tap.recorder.last.clear()
        for broker in self._cluster.brokers.values():
            broker.refusals.clear()

    def _reset(self, *, topics: bool = False) -> Deferred[None]:
        """Begin anew: remove all rules, undo lasting faults as `state.restore` does, let the broker clock run (it never
        goes back), forget recorded exchanges and refusals. `topics`: delete every topic but the internal ones, too."""
        return spawn(self._reset_all(topics))

    # -- exchanges and the cluster -----------------------------------------------------------------------------------

    def _refusals(self, *, count: int = 100) -> list[dict[str, Any]]:
        """The last refused requests with the reasons, the oldest first."""
        refusals = [refusal._asdict() for broker in self._cluster.brokers.values() for refusal in broker.refusals]
        return sorted(refusals, key=lambda refusal: refusal["time_ms"])[-max(count, 0) :]

    def _waits(self) -> list[str]:
        """What the cluster waits for, in lines for a person: held and unanswered requests, open transactions, rules
        that hold, members of groups. Requests are among them while exchanges are recorded."""
        from minibroker.control.waits import waits

        return waits(self._cluster, self.tap.recorder, self.engine, wall_ms())

    def _describe(self) -> dict[str, Any]:
        """Running brokers, all brokers, topics with their leaders, and the transactional ids whose markers are held."""
        image = self._cluster.image
        return {
            "brokers": sorted(self._cluster.brokers),
            "paused_brokers": self._cluster.paused_brokers,
            "failed_disks": failed_disks(self._cluster),
            "all_brokers": sorted(node.node_id for node in self._cluster.nodes),
            "topics": {
                topic.name: {str(p.index): {"leader": p.leader, "isr": list(p.isr)} for p in topic.partitions}
                for topic in image.topics.values()
            },
            "held_markers": OPERATIONS["held_markers"](self._cluster),
        }


_TABLE: dict[str, Command] = {
    **EXCHANGE_COMMANDS,
    "clock.get": Commands._clock,
    "clock.freeze": Commands._freeze,
    "clock.unfreeze": Commands._unfreeze,
    "clock.advance": Commands._advance,
    "clock.sweep": Commands._sweep,
    "refusal.last": Commands._refusals,
    "cluster.describe": Commands._describe,
    "cluster.waits": Commands._waits,
    "cluster.reset": Commands._reset,
}

# Python's name for each command whose method or property is named differently.
_IN_PYTHON: Mapping[str, str] = {
    "fault.inject": "fault.add",
    "faults.inject": "fault.add",
    "clock.now_ms": "clock.get",
    "clock.frozen": "clock.get",
    "state.delete_topic": "cluster.reset topics=true",
    "state.records": "read.records",
}


def all_commands() -> dict[str, Command]:
    """Every command by name, the operations on the state among them."""
    return {**_TABLE, **READS, **{f"state.{name}": operation for name, operation in OPERATIONS.items()}}
