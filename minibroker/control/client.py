"""The commands of a running cluster, for Python: faults, clock and state, wherever the broker runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from minibroker.control.command_group import Caller, CommandGroup, held_loop, in_thread
from minibroker.control.state import State
from minibroker.faults.actions import Action, action_from, action_to
from minibroker.faults.names import ActionName, ApiName
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import counted

__tracebackhide__ = True  # pytest shows the line of the test


P = ParamSpec("P")
R = TypeVar("R")


class NeverFired(AssertionError):
    """A rule was set and never acted, so the test proved nothing about it."""


class Control(CommandGroup):
    """Commands of a cluster, in groups: `faults`, `clock` and `state`; `waits` and `reset` are as in `Controlled`."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self.faults = Faults(caller)
        self.clock = Clock(caller)
        self.state = State(caller)

    def record(self, kept: int = 100, *, frames: bool = False) -> None:
        """Keep the last `kept` exchanges from now on, on request with the bytes of their frames; 0 ends it."""
        self._ask("trace.record", kept=kept, frames=frames)

    def exchanges(self, count: int = 100, *, after: int = 0, frames: bool = False) -> list[dict[str, Any]]:
        """The last recorded exchanges as JSON objects, the oldest first; only those numbered above `after`, if that is
        not 0."""
        exchanges: list[dict[str, Any]] = self._ask("trace.last", count=count, after=after, frames=frames)
        return exchanges

    def refusals(self, count: int = 100) -> list[dict[str, Any]]:
        """The last refused requests with the reasons, the oldest first; times are those of the broker clock."""
        refusals: list[dict[str, Any]] = self._ask("refusal.last", count=count)
        return refusals

    def reset(self, *, topics: bool = False) -> None:
        """Begin anew: remove all rules, undo lasting faults, let the clock run (it never goes back), forget recorded
        exchanges and refusals. topics: delete every topic but the internal ones, too."""
        self._ask("cluster.reset", topics=topics)
        self.faults._set = []

    def waits(self) -> list[str]:
        """What the cluster waits for, in lines for a person: unanswered requests (while exchanges are recorded), open
        transactions, rules that hold, members of groups."""
        lines: list[str] = self._ask("cluster.waits")
        return lines

    def describe(self) -> dict[str, Any]:
        """Brokers, topics with their leaders, and the transactional ids whose markers are held."""
        description: dict[str, Any] = self._ask("cluster.describe")
        return description


class Fault(CommandGroup):
    """One rule that is set. As a context manager it is removed at the end, and must have acted by then."""

    def __init__(self, caller: Caller, state: dict[str, Any]) -> None:
        super().__init__(caller)
        self.id: int = state["id"]
        self.rule: dict[str, Any] = state["rule"]
        self._final: dict[str, Any] | None = None

    def _now(self) -> dict[str, Any]:
        if self._final is not None:
            return self._final
        state: dict[str, Any] = self._ask("fault.get", id=self.id)
        return state

    @property
    def fired(self) -> int:
        """How many requests the rule acted on."""
        return int(self._now()["fired"])

    @property
    def matched(self) -> int:
        """How many requests fitted, acted on or not."""
        return int(self._now()["matched"])

    @property
    def held(self) -> int:
        """How many requests or answers the rule holds now."""
        return int(self._now()["held"])

    @property
    def hits(self) -> list[dict[str, Any]]:
        """The last hundred requests the rule acted on: api, version, client_id, correlation_id, broker."""
        return list(self._now()["hits"])

    def wait(self, times: int = 1, timeout: float = 10.0) -> None:
        """Wait until the rule has acted `times` times; TimeoutError after `timeout` seconds."""
        held = held_loop("wait", depth=3)
        state = self._ask("fault.wait", id=self.id, times=times, timeout_ms=round(timeout * 1000))
        if state["fired"] < times:
            raise TimeoutError(f"{self} acted {state['fired']} times in {timeout} s, not {times}{held}")

    wait_async = in_thread(wait)

    def release(self, count: int | None = None) -> int:
        """Release held requests, the oldest first; how many were released."""
        return int(self._ask("fault.release", id=self.id, count=count)["released"])

    def remove(self) -> None:
        """Remove the rule; no effect when it was removed before. Connections whose requests it holds are closed."""
        if self._final is None:
            self._final = self._ask("fault.remove", id=self.id)

    def check(self) -> None:
        """Raises NeverFired unless it has acted."""
        now = self._now()
        if not now["fired"]:
            raise NeverFired(f"{self} never acted: {now['matched']} requests fitted")

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
        if kind is None:
            self.check()

    def _state(self) -> str:
        return f"{self}, fired {self._now()['fired']} times"

    def __str__(self) -> str:
        wanted = {name: value for name, value in self.rule.items() if name not in ("action", "seed", "probability")}
        conditions = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        return f"fault {self.id} ({self.rule['action']['name']} on {conditions})"


def _naming_unknown_fields(inject: Callable[P, R]) -> Callable[P, R]:
    """An argument that `inject` does not have is a FaultError, as for any other client of the control API."""
    known = {"api", "action", *(inject.__kwdefaults__ or ())}

    @functools.wraps(inject)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if unknown := [name for name in kwargs if name not in known]:
            from minibroker.faults.rules import rule_from

            try:
                rule_from({unknown[0]: None, "action": kwargs.get("action", args[-1])})
            except FaultError as error:
                raise error.with_traceback(None) from None
        return inject(*args, **kwargs)

    return checked


class Faults(CommandGroup):
    """The rules of a cluster; the first that fits a request acts on it."""

    _OTHER_NAMES = {"add": "inject", "set": "inject", "fault": "inject", "rules": "list", "remove": "clear"}

    def _state(self) -> str:
        rules = self.list()
        return f"{counted(len(rules), 'rule')}, {sum(rule['fired'] > 0 for rule in rules)} acted"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._set: list[Fault] = []

    @_naming_unknown_fields
    def inject(
        self,
        api: ApiName | Sequence[ApiName] | None,
        action: Action | ActionName | Mapping[str, Any],
        *,
        nth: int = 1,
        times: int | None = 1,
        probability: float = 1.0,
        seed: int = 0,
        expected: bool = True,
        versions: int | tuple[int, int] | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        sequence: int | tuple[int, int] | None = None,
        broker: int | None = None,
        between_brokers: bool = False,
    ) -> Fault:
        """Set a rule: do `action` to requests of `api` (None: any) that match all other arguments.

        It acts on the `nth` fitting request and the following, `times` in all (None: without end), each with
        `probability`, drawn from `seed`.

        expected: `verify` fails if the rule has not acted.
        versions, sequence: one, or the lowest and the highest.
        client_id, topic, group, transactional_id: ``*`` and ``?`` match.
        broker: node id, -1 for the controller.
        between_brokers: not requests of clients but those that brokers send; their client id is ``broker-N``.

        Raises FaultError for a rule that can never act, or whose values make no sense.
        """
        match = {
            "versions": versions,
            "client_id": client_id,
            "topic": topic,
            "partition": partition,
            "group": group,
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "sequence": sequence,
            "broker": broker,
            "between_brokers": between_brokers,
        }
        # 0 is a partition, and the first of producer ids, epochs and sequences: `False == 0` must not drop it.
        arguments: dict[str, Any] = {
            name: value for name, value in match.items() if value is not None and value is not False
        }
        try:
            arguments |= {"action": action_to(action_from(action)), "nth": nth, "times": times}
        except FaultError as error:
            raise error.with_traceback(None) from None
        arguments |= {"probability": probability, "seed": seed}
        if api is not None:
            arguments["api"] = api if isinstance(api, str) else list(api)
        fault = Fault(self._caller, self._ask("fault.add", **arguments))
        if expected:
            self._set.append(fault)
        return fault

    def list(self) -> list[dict[str, Any]]:
        """Every rule that is set, by any client of the control API."""
        rules: list[dict[str, Any]] = self._ask("fault.list")
        return rules

    def clear(self) -> None:
        """Remove all rules, also those of other clients of the control API."""
        for state in self._ask("fault.clear"):
            for fault in self._set:
                if fault.id == state["id"]:
                    fault._final = state
        self._set = []

    @property
    def expected(self) -> Sequence[Fault]:
        """The rules that were set here and must act, except for those that `verify` has checked."""
        return tuple(self._set)

    def verify(self, rules: Collection[Fault] | None = None) -> None:
        """Remove all rules, or only `rules` that were set here. Raises NeverFired when one that was set here has not
        acted."""
        if rules is None:
            mine = self._set
            self.clear()
        else:
            mine = [fault for fault in self._set if fault in rules]
            self._set = [fault for fault in self._set if fault not in rules]
            for fault in mine:
                fault.remove()
        for fault in mine:
            fault.check()


class Clock(CommandGroup):
    """The broker clock: transaction timeouts, expirations, retention and sweeps follow it; sockets do not."""

    _OTHER_NAMES = {"sleep": "advance", "tick": "advance", "time": "now_ms", "pause": "freeze", "resume": "unfreeze"}

    def _state(self) -> str:
        clock = self._ask("clock.get")
        return f"{clock['now_ms']} ms, {'frozen' if clock['frozen'] else 'running'}"

    @property
    def now_ms(self) -> int:
        """Its time, in ms since 1970."""
        return int(self._ask("clock.get")["now_ms"])

    @property
    def frozen(self) -> bool:
        """Whether the clock is frozen."""
        return bool(self._ask("clock.get")["frozen"])

    def freeze(self) -> int:
        """Freeze the clock; returns its time (ms)."""
        return int(self._ask("clock.freeze")["now_ms"])

    def unfreeze(self) -> None:
        """Unfreeze the clock: it runs on from its current time."""
        self._ask("clock.unfreeze")

    def advance(
        self,
        seconds: float = 0.0,
        *,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        ms: float = 0.0,
        sessions: bool = False,
    ) -> int:
        """Move the clock forward by the sum of these, at most a year, and run the timers that fall due. Returns the new
        time (ms). Group sessions follow real time; with `sessions` those up to the length of the jump end as well, and
        rebalance timeouts: live members have to join again. Raises FaultError for a negative sum and for more than a
        year."""
        moved = self._ask(
            "clock.advance", ms=ms, seconds=seconds, minutes=minutes, hours=hours, days=days, sessions=sessions
        )
        return int(moved["now_ms"])

    def sweep(self) -> None:
        """Run every periodic sweep now."""
        self._ask("clock.sweep")


__all__ = ["Caller", "Clock", "Control", "Fault", "FaultError", "Faults", "NeverFired", "State"]
