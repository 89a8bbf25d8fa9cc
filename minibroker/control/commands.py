"""The commands of a running cluster: faults, clock, state, exchanges. One table for Python, HTTP and the command line.

A command takes and gives what JSON can hold. All run on the loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from minibroker.control.read_commands import READS, Readable
from minibroker.faults.engine import BrokerTap, FaultEngine, SetRule
from minibroker.faults.operations import OPERATIONS, check_call, delete_topics, failed_disks, restore, run_operation
from minibroker.faults.rules import rule_from, rule_to
from minibroker.kernel.deferred import Deferred, gather, mapped, spawn
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near
from minibroker.trace.recorder import Recorder
from minibroker.trace.tap import RequestTap

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.kernel.clock import Timers

Command = Callable[..., Any]

_MAX_WAIT_MS = 3_600_000
_MAX_KEPT = 10_000
_MAX_ADVANCE_MS = 366 * 86_400_000
_UNITS_MS = (1, 1000, 60_000, 3_600_000, 86_400_000)


class Commands:
    """The commands of one cluster; costs its requests nothing until a rule is set or exchanges are recorded."""

    def __init__(self, cluster: Cluster, timers: Timers) -> None:
        self._cluster = self.cluster = cluster
        self.timers = timers
        self.engine = FaultEngine(cluster, timers, self._changed)
        self._broker_tap = BrokerTap(self.engine)
        self.tap = RequestTap(
            self.engine.serve,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            monotonic_ms=lambda: time.perf_counter() * 1000,
        )

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a command, or a Deferred of it. Raises FaultError, ApiError."""
        if name.startswith("state.") and name[6:] in OPERATIONS:
            return spawn(run_operation(self._cluster, name[6:], arguments))
        if name in READS:
            check_call(name, READS[name], arguments)
            found = READS[name](Readable(self._cluster, self.timers, self.tap.recorder), **arguments)
            return spawn(found) if iscoroutine(found) else found
        command = _TABLE.get(name)
        if command is None:
            close = f", did you mean {_IN_PYTHON[name]}?" if name in _IN_PYTHON else near(name, all_commands())
            raise FaultError(f"there is no command {name!r}{close}")
        if command is not Commands._add:
            check_call(name, command, arguments)
        return command(self, **arguments)

    def close(self) -> None:
        """Remove every rule, so that no request is held any longer."""
        self.engine.clear()

    def set_recorder(self, recorder: Recorder | None) -> None:
        """Record exchanges from now on, or none."""
        self.tap.recorder = recorder
        if recorder is not None:
            recorder.changed = self._changed
        self._changed()

    def _changed(self) -> None:
        self.tap.acts = self.engine.busy
        recorder = self.tap.recorder
        recording = recorder is not None and not recorder.resting
        self._cluster.set_tap(self.tap if self.tap.acts or recording else None, self.tap.refused)
        self._cluster.set_broker_tap(self._broker_tap if self.engine.between_brokers else None)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _add(self, **rule: Any) -> dict[str, Any]:
        """Set a rule."""
        return _rule(self.engine.add(rule_from(rule)))

    def _list(self) -> list[dict[str, Any]]:
        """The rules that are set."""
        return [_rule(rule) for rule in self.engine.rules.values()]

    def _get(self, *, id: int) -> dict[str, Any]:
        """One rule, with its counts."""
        return _rule(self.engine.get(id))

    def _wait(self, *, id: int, times: int = 1, timeout_ms: int = 10_000) -> Deferred[dict[str, Any]]:
        """One rule, once it has acted `times` times or the timeout (real time) has passed."""
        rule = self.engine.get(id)

        async def waited() -> dict[str, Any]:
            await self.engine.wait(id, times, min(timeout_ms, _MAX_WAIT_MS))
            return _rule(rule)

        return spawn(waited())

    def _release(self, *, id: int, count: int | None = None) -> dict[str, Any]:
        """Release the requests that a rule holds, the oldest first."""
        rule = self.engine.get(id)
        released = rule.release(count)
        return {**_rule(rule), "released": released}

    def _remove(self, *, id: int) -> dict[str, Any]:
        """Remove a rule; connections whose requests it holds are closed."""
        return _rule(self.engine.remove(id))

    def _clear(self) -> list[dict[str, Any]]:
        """Remove all rules; returns them with their counts."""
        rules = [_rule(rule) for rule in self.engine.rules.values()]
        self.engine.clear()
        return rules

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
        """Move the broker clock forward by the sum of these; every timeout and sweep that falls due runs before this
        returns. `sessions`: group sessions and rebalance timeouts that are no longer end then, too, as if no member had
        sent a heartbeat."""
        given = (ms, seconds, minutes, hours, days)
        if all(length is None for length in given):
            raise FaultError("clock.advance needs ms, seconds, minutes, hours or days")
        total = sum((length or 0) * unit for length, unit in zip(given, _UNITS_MS, strict=True))
        if total < 0:
            raise FaultError("the broker clock never goes back")
        if not total <= _MAX_ADVANCE_MS:
            raise FaultError(f"the broker clock moves at most {_MAX_ADVANCE_MS} ms (a year) at a time, not {total:g}")
        self._cluster.clock.advance(round(total))
        for broker in list(self._cluster.brokers.values()) if sessions else ():
            groups = broker.coordinators.groups_if_any
            if groups is not None and broker.node_id not in self._cluster.paused_brokers:
                groups.pass_time(total)
        return self._when_swept()

    def _when_swept(self) -> dict[str, Any] | Deferred[dict[str, Any]]:
        """The clock, once the sweeps of many partitions are over."""
        paused = self._cluster.paused_brokers
        going = [b.maintenance.idle for b in self._cluster.brokers.values() if b.node_id not in paused]
        if all(idle.done for idle in going):
            return self._clock()
        return mapped(gather(going), lambda _: self._clock())

    def _sweep(self) -> dict[str, Any] | Deferred[dict[str, Any]]:
        """Run every periodic sweep now: transaction timeouts, expirations, retention, compaction."""
        for broker in list(self._cluster.brokers.values()):
            if broker.node_id in self._cluster.paused_brokers:
                continue
            broker.coordinators.transactions.abort_timed_out()
            broker.coordinators.transactions.forget_expired()
            broker.maintenance.expire_producers()
            broker.maintenance.apply_retention()
            broker.maintenance.cleaner.clean()
        return self._when_swept()

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

    def _record(self, *, kept: int = 100, frames: bool = False) -> None:
        """Keep the last `kept` exchanges from now on, on request with the bytes of their frames; 0 ends it."""
        if not 0 <= kept <= _MAX_KEPT:
            raise FaultError(f"kept is between 0 and {_MAX_KEPT}, not {kept}")
        recorder = Recorder(kept) if kept else None
        if recorder is not None:
            recorder.keep_bytes = frames
        self.set_recorder(recorder)

    def _last(self, *, count: int = 100, after: int = 0, frames: bool = False) -> list[dict[str, Any]]:
        """The last exchanges that were recorded, the oldest first; only those numbered above `after`, if that is not
        0, and then only those that are over."""
        recorder = self.tap.recorder
        if recorder is None:
            return []
        found = [r for r in recorder.last if not after or r.number > after]
        shown = sorted(found, key=lambda r: r.number) if after else found
        return [{**r.to_json(), **(r.frames() if frames else {})} for r in shown[-max(count, 0) :]]

    def _refusals(self, *, count: int = 100) -> list[dict[str, Any]]:
        """The last refused requests with the reasons, the oldest first."""
        found = [refusal._asdict() for broker in self._cluster.brokers.values() for refusal in broker.refusals]
        return sorted(found, key=lambda refusal: refusal["time_ms"])[-max(count, 0) :]

    def _waits(self) -> list[str]:
        """What the cluster waits for, in lines for a person: held and unanswered requests, open transactions, rules
        that hold, members of groups. Requests are among them while exchanges are recorded."""
        from minibroker.control.waits import waits

        return waits(self._cluster, self.tap.recorder, self.engine, time.time_ns() // 1_000_000)

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
    "fault.add": Commands._add,
    "fault.list": Commands._list,
    "fault.get": Commands._get,
    "fault.wait": Commands._wait,
    "fault.release": Commands._release,
    "fault.remove": Commands._remove,
    "fault.clear": Commands._clear,
    "clock.get": Commands._clock,
    "clock.freeze": Commands._freeze,
    "clock.unfreeze": Commands._unfreeze,
    "clock.advance": Commands._advance,
    "clock.sweep": Commands._sweep,
    "trace.record": Commands._record,
    "trace.last": Commands._last,
    "refusal.last": Commands._refusals,
    "cluster.describe": Commands._describe,
    "cluster.waits": Commands._waits,
    "cluster.reset": Commands._reset,
}

# What Python's methods and properties are called that have another name than their command.
_IN_PYTHON: Mapping[str, str] = {
    "fault.inject": "fault.add",
    "faults.inject": "fault.add",
    "clock.now_ms": "clock.get",
    "clock.frozen": "clock.get",
}


def all_commands() -> dict[str, Command]:
    """Every command by name, the operations on the state among them."""
    return {**_TABLE, **READS, **{f"state.{name}": operation for name, operation in OPERATIONS.items()}}


def _rule(rule: SetRule) -> dict[str, Any]:
    hits = [
        {name: getattr(hit, name) for name in ("api", "version", "client_id", "correlation_id", "broker")}
        for hit in rule.hits
    ]
    return {
        "id": rule.number,
        "rule": rule_to(rule.rule),
        "matched": rule.matched,
        "fired": rule.fired,
        "held": rule.held,
        "hits": hits,
    }
