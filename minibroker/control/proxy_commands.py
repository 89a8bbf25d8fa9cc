"""The commands of a proxy: rules and exchanges, and what is known of the brokers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from minibroker.control.commands import all_commands
from minibroker.control.exchange_commands import EXCHANGE_COMMANDS, Command, ExchangeCommands
from minibroker.control.live_state import LiveRows, Row
from minibroker.control.waits import on_the_wire
from minibroker.faults.engine import FaultEngine
from minibroker.faults.operations import check_call
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.words import near
from minibroker.proxy.proxy_dispatcher import known_apis, no_handler

if TYPE_CHECKING:
    from minibroker.kernel.clock import Timers
    from minibroker.proxy.upstream_nodes import UpstreamNodes
    from minibroker.trace.tap import RequestTap

_MOST_LINES: Final = 20


class ProxyCommands(ExchangeCommands):
    """Costs requests nothing until a rule is set or exchanges are recorded.

    servers: the proxy's own address. install: has requests pass a tap.
    """

    def __init__(
        self, nodes: UpstreamNodes, servers: str, timers: Timers, install: Callable[[RequestTap | None], None]
    ) -> None:
        super().__init__(FaultEngine(None, timers, self._changed, known_apis(no_handler)), timers)
        self._nodes = nodes
        self._servers = servers
        self._install_tap = install

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        command = PROXY_COMMANDS.get(name)
        if command is None and name in all_commands():
            raise FaultError(f"{name} reads or changes what brokers keep, and those behind a proxy are not ours")
        if command is None:
            raise FaultError(f"there is no command {name!r}{near(name, PROXY_COMMANDS)}")
        if name != "fault.add":
            check_call(name, command, arguments)
        return command(self, **arguments)

    def _install(self, tap: RequestTap | None) -> None:
        self._install_tap(tap)

    def rows(self) -> LiveRows:
        return _NodeRows(self._nodes)

    def overview(self) -> dict[str, Any]:
        nodes = sorted(self._nodes.brokers)
        return {
            "clock": {"now_ms": wall_ms(), "frozen": False},
            "servers": self._servers,
            "brokers": nodes,
            "all_brokers": nodes,
            "paused_brokers": [],
        }

    def _describe(self) -> dict[str, Any]:
        """The brokers of the upstream that answers named, and the topics whose ids they gave, without leaders."""
        nodes = sorted(self._nodes.brokers)
        topics: dict[str, Any] = {name: {} for name in sorted(self._nodes.topic_names.values())}
        return {"brokers": nodes, "all_brokers": nodes, "topics": topics}

    def _waits(self) -> list[str]:
        """What requests wait for, in lines for a person: rules that hold, and unanswered requests while exchanges are
        recorded."""
        kinds = on_the_wire(self.tap.recorder, self.engine, wall_ms())
        return list(chain.from_iterable(islice(kind, _MOST_LINES) for kind in kinds))

    def _reset(self, *, topics: bool = False) -> None:
        """Remove all rules, and forget recorded exchanges. topics: only False, as they are not ours."""
        if topics:
            raise FaultError("cluster.reset deletes no topics here: those behind a proxy are not ours")
        self.engine.clear()
        if self.tap.recorder is not None:
            self.tap.recorder.last.clear()


PROXY_COMMANDS: Final[dict[str, Command]] = {
    **EXCHANGE_COMMANDS,
    "cluster.describe": ProxyCommands._describe,
    "cluster.waits": ProxyCommands._waits,
    "cluster.reset": ProxyCommands._reset,
}


class _NodeRows(LiveRows):
    """The brokers alone: what they keep is not known here."""

    def __init__(self, nodes: UpstreamNodes) -> None:
        self._nodes = nodes
        super().__init__()

    def _read(self) -> Iterator[Row]:
        for node_id in sorted(self._nodes.brokers):
            yield {"kind": "broker", "name": str(node_id), "leads": 0, "controller": False}
