"""Commands about what passes over the wire: rules and recorded exchanges, of our cluster or behind a proxy."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from minibroker.control.live_state import LiveRows
from minibroker.faults.engine import FaultEngine, SetRule
from minibroker.faults.rules import rule_from, rule_to
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker.kernel.deferred import Deferred, spawn
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near
from minibroker.trace.recorder import Listener, Recorder
from minibroker.trace.tap import RequestTap

if TYPE_CHECKING:
    from minibroker.kernel.clock import Timers

Command = Callable[..., Any]

_MAX_WAIT_MS = 3_600_000
_MAX_KEPT = 10_000


class ExchangeCommands:
    """What both have. The subclass puts the tap before requests, and has the page's view of the brokers."""

    def __init__(self, engine: FaultEngine, timers: Timers) -> None:
        self.timers = timers
        self.engine = engine
        self._listener: Listener | None = None
        self.tap = RequestTap(engine.serve, wall_ms=wall_ms, monotonic_ms=lambda: time.perf_counter() * 1000)

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a command, or a Deferred of it. Raises FaultError, ApiError."""

    @abstractmethod
    def _install(self, tap: RequestTap | None) -> None:
        """Have requests pass the tap from now on; None: none."""

    @abstractmethod
    def rows(self) -> LiveRows:
        """What the live page shows of the brokers."""

    @abstractmethod
    def overview(self) -> dict[str, Any]:
        """What the live page says of the whole: servers, brokers, all_brokers, paused_brokers, clock."""

    def concerned(self, api: str) -> bool:
        """Whether requests of this kind have to be decoded, for a rule or for what is recorded."""
        recorder = self.tap.recorder
        return (recorder is not None and not recorder.resting) or self.engine.concerns(api)

    def close(self) -> None:
        """Remove every rule, so that no request is held any longer."""
        self.engine.clear()

    def listen(self, listener: Listener) -> None:
        """Hand every exchange, with its frames, to `listener`, whatever else is recorded."""
        self._listener = listener
        self.set_recorder(self.tap.recorder)

    def set_recorder(self, recorder: Recorder | None) -> None:
        """Record exchanges from now on, or none."""
        if self._listener is not None:
            recorder = recorder or Recorder(1)
            recorder.hand_bytes = True  # they are not kept besides, unless a caller asks for them
            recorder.listeners.append(self._listener)
        self.tap.recorder = recorder
        if recorder is not None:
            recorder.changed = self._changed
        self._changed()

    def _changed(self) -> None:
        self.tap.acts = self.engine.busy
        recorder = self.tap.recorder
        recording = recorder is not None and not recorder.resting
        self._install(self.tap if self.tap.acts or recording else None)

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

    # -- exchanges ---------------------------------------------------------------------------------------------------

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
        newer = [r for r in recorder.last if not after or r.number > after]
        shown = sorted(newer, key=lambda r: r.number) if after else newer
        return [{**r.to_json(), **(r.frames() if frames else {})} for r in shown[-max(count, 0) :]]

    def _requests(self, *, api: str | None = None, client_id: str | None = None) -> list[dict[str, Any]]:
        """Exchanges with clients that were recorded, of one API, of client ids that match (``*`` and ``?``); the oldest
        first."""
        known = {each.name for each in self.engine.known.values()}
        if api is not None and api not in known:
            raise FaultError(f"there is no API {api!r}{near(api, known)}")
        recorder = self.tap.recorder
        if recorder is None:
            raise FaultError("exchanges are not recorded: trace.record begins that, and Minibroker(record=1000)")
        return [
            recorded.to_json()
            for recorded in tuple(recorder.last)
            if (api is None or recorded.api == api)
            and (client_id is None or fnmatchcase(recorded.client_id or "", client_id))
        ]


EXCHANGE_COMMANDS: dict[str, Command] = {
    "fault.add": ExchangeCommands._add,
    "fault.list": ExchangeCommands._list,
    "fault.get": ExchangeCommands._get,
    "fault.wait": ExchangeCommands._wait,
    "fault.release": ExchangeCommands._release,
    "fault.remove": ExchangeCommands._remove,
    "fault.clear": ExchangeCommands._clear,
    "trace.record": ExchangeCommands._record,
    "trace.last": ExchangeCommands._last,
    "read.requests": ExchangeCommands._requests,
}


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
