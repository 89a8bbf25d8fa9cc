"""The commands of a running cluster, for Python: faults, clock and state, wherever the broker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from minibroker.faults.actions import Action, action_from, action_to
from minibroker.faults.errors import FaultError


class Caller(Protocol):
    """Runs a command where the broker is, and returns its result; FaultError for what cannot be."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any: ...


class NeverFired(AssertionError):
    """A rule was set and no request came that it could act on; the test proved nothing about it."""


class Control:
    """faults, clock, state: three groups of commands; `exchanges` what was recorded."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.faults = Faults(caller)
        self.clock = Clock(caller)
        self.state = State(caller)

    def record(self, kept: int = 100, *, frames: bool = False) -> None:
        """Keep the last `kept` exchanges from now on, on request with the bytes of their frames; 0 ends it."""
        self._caller.call("trace.record", {"kept": kept, "frames": frames})

    def exchanges(self, count: int = 100, *, after: int = 0, frames: bool = False) -> list[dict[str, Any]]:
        """The last recorded exchanges as JSON objects, the oldest first; only those numbered above `after`, if that is
        not 0."""
        found: list[dict[str, Any]] = self._caller.call(
            "trace.last", {"count": count, "after": after, "frames": frames}
        )
        return found

    def refusals(self, count: int = 100) -> list[dict[str, Any]]:
        """The last refused requests with the reasons, the oldest first; times are those of the broker clock."""
        found: list[dict[str, Any]] = self._caller.call("refusal.last", {"count": count})
        return found

    def describe(self) -> dict[str, Any]:
        """Brokers, topics with their leaders, and whose transaction markers are held."""
        found: dict[str, Any] = self._caller.call("cluster.describe", {})
        return found


class Fault:
    """One rule that is set. As a context manager it is removed at the end, and must have acted by then."""

    def __init__(self, caller: Caller, given: dict[str, Any]) -> None:
        self._caller = caller
        self.id: int = given["id"]
        self.rule: dict[str, Any] = given["rule"]
        self._final: dict[str, Any] | None = None

    def _now(self) -> dict[str, Any]:
        if self._final is not None:
            return self._final
        found: dict[str, Any] = self._caller.call("fault.get", {"id": self.id})
        return found

    @property
    def fired(self) -> int:
        """How many requests it acted on."""
        return int(self._now()["fired"])

    @property
    def matched(self) -> int:
        """How many requests fitted, acted on or not."""
        return int(self._now()["matched"])

    @property
    def held(self) -> int:
        """How many requests or answers it keeps now."""
        return int(self._now()["held"])

    @property
    def hits(self) -> list[dict[str, Any]]:
        """The last hundred requests it acted on: api, version, client_id, correlation_id, broker."""
        return list(self._now()["hits"])

    def wait(self, times: int = 1, timeout: float = 10.0) -> None:
        """Returns once it has acted `times` times; TimeoutError after `timeout` seconds."""
        arguments = {"id": self.id, "times": times, "timeout_ms": round(timeout * 1000)}
        found = self._caller.call("fault.wait", arguments)
        if found["fired"] < times:
            raise TimeoutError(f"{self} acted {found['fired']} times in {timeout} s, not {times}")

    async def wait_async(self, times: int = 1, timeout: float = 10.0) -> None:  # noqa: ASYNC109  (as `wait` has it)
        """`wait` without holding the event loop up."""
        await asyncio.to_thread(self.wait, times, timeout)

    def release(self, count: int | None = None) -> int:
        """Let what it holds go on, the oldest first; how many there were."""
        return int(self._caller.call("fault.release", {"id": self.id, "count": count})["released"])

    def remove(self) -> None:
        """Take the rule away; harmless when it is gone. Connections whose requests it holds are closed."""
        if self._final is None:
            self._final = self._caller.call("fault.remove", {"id": self.id})

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

    def __str__(self) -> str:
        wanted = {name: value for name, value in self.rule.items() if name not in ("action", "seed", "probability")}
        told = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        return f"fault {self.id} ({self.rule['action']['name']} on {told})"


class Faults:
    """The rules of a cluster; the first that fits a request acts on it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._set: list[Fault] = []

    def inject(
        self,
        api: str | list[str] | None,
        action: Action | str | Mapping[str, Any],
        *,
        nth: int = 1,
        times: int | None = 1,
        probability: float = 1.0,
        seed: int = 0,
        expected: bool = True,
        **match: Any,
    ) -> Fault:
        """Set a rule: do `action` to requests of `api` (None: any) that have all of `match`.

        match: versions, client_id, topic, partition, group, transactional_id, producer_id, producer_epoch, sequence,
        broker; see `faults.rules.Match`. It acts on the `nth` fitting request and the following, `times` in all (None:
        without end), each with `probability`. expected: `verify` insists that it has acted. Raises FaultError for a
        rule that cannot be.
        """
        rule = {"action": action_to(action_from(action)), "nth": nth, "times": times, "probability": probability}
        given = {**rule, "seed": seed, **match}
        if api is not None:
            given["api"] = api
        fault = Fault(self._caller, self._caller.call("fault.add", given))
        if expected:
            self._set.append(fault)
        return fault

    def list(self) -> list[dict[str, Any]]:
        """Every rule that is set, by whomever."""
        found: list[dict[str, Any]] = self._caller.call("fault.list", {})
        return found

    def clear(self) -> None:
        """Take all rules away, by whomever they were set."""
        for given in self._caller.call("fault.clear", {}):
            for fault in self._set:
                if fault.id == given["id"]:
                    fault._final = given
        self._set = []

    def verify(self) -> None:
        """Take all rules away; NeverFired when one that was set here has not acted."""
        mine = self._set
        self.clear()
        for fault in mine:
            fault.check()


class Clock:
    """The broker clock: transaction timeouts, expirations, retention and sweeps follow it; sockets do not."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def now_ms(self) -> int:
        return int(self._caller.call("clock.get", {})["now_ms"])

    @property
    def frozen(self) -> bool:
        return bool(self._caller.call("clock.get", {})["frozen"])

    def freeze(self) -> int:
        """Stop it; the time (ms) it stands at."""
        return int(self._caller.call("clock.freeze", {})["now_ms"])

    def unfreeze(self) -> None:
        """Let it run on from where it stands."""
        self._caller.call("clock.unfreeze", {})

    def advance(self, seconds: float = 0.0, *, hours: float = 0.0, days: float = 0.0, ms: int = 0) -> int:
        """Move it forward; what falls due on the way has run when this returns. The new time (ms)."""
        total = ms + round(1000 * (seconds + 3600 * hours + 86_400 * days))
        return int(self._caller.call("clock.advance", {"ms": total})["now_ms"])

    def sweep(self) -> None:
        """Run every periodic sweep now."""
        self._caller.call("clock.sweep", {})


class State:
    """The operations of `minibroker.faults.operations`, each as a method with its keyword arguments:
    ``state.lose_producer_state(topic="t", partition=0)``."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __getattr__(self, name: str) -> Any:
        from minibroker.faults.operations import OPERATIONS

        if name not in OPERATIONS:
            raise AttributeError(f"there is no operation {name!r}")

        def operate(**arguments: Any) -> Any:
            return self._caller.call(f"state.{name}", arguments)

        operate.__doc__ = OPERATIONS[name].__doc__
        return operate

    def __dir__(self) -> list[str]:
        from minibroker.faults.operations import OPERATIONS

        return [*super().__dir__(), *OPERATIONS]


__all__ = ["Caller", "Clock", "Control", "Fault", "FaultError", "Faults", "NeverFired", "State"]
