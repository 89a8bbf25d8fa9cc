"""The network of brokers that live in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minibroker.kernel.clock import Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.transport import CONTROLLER, Carrier, Receiver, Transport
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

_PATIENCE_TICKS = 6


class Cuts:
    """The links of a network that are cut, and the messages held on them."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        # By link: (receiving node, what delivers the message).
        self._held: dict[frozenset[int], list[tuple[int, Callable[[], None]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def cut(self, one: int, other: int) -> None:
        self._held.setdefault(frozenset((one, other)), [])

    def mend(self, one: int, other: int) -> None:
        for _, arrive in self._held.pop(frozenset((one, other)), ()):
            self._timers.call_later(0, arrive)

    def forget(self, node_id: int) -> None:
        """Drop all messages that are held for this node."""
        for link in self._held:
            self._held[link] = [(target, arrive) for target, arrive in self._held[link] if target != node_id]

    def holds(self, source: int, target: int, arrive: Callable[[], None]) -> bool:
        """Keep `arrive` until the link is mended; False when the link is whole."""
        held = self._held.get(frozenset((source, target))) if self._held else None
        if held is None:
            return False
        held.append((target, arrive))
        return True


class InProcessNetwork:
    """All nodes in one process. What goes to another node is encoded and decoded on the way, so that nodes share no
    object, and takes one turn of the event loop, so that no caller is called back inside its own call.

    A node that sends to itself is called at once with the object, and so is the controller of a single broker.

    A cut link holds what is sent, as a connection whose packets are dropped does: after `mend` it arrives, in order. A
    sender waits for `patience_ms` (request.timeout.ms) of real time, and up to a sixth longer.
    """

    def __init__(self, timers: Timers, patience_ms: float = 30_000) -> None:
        self._timers = timers
        self._patience_ms = patience_ms
        self._nodes: dict[int, Receiver] = {}
        # By number, so that what serves a call holds nothing of the node that made it.
        self._calls: dict[int, PendingCall] = {}
        self._count = 0
        self._tick = 0
        self._ticking = False
        self._cuts = Cuts(timers)

    def attach(self, node_id: int, node: Receiver) -> None:
        self._nodes[node_id] = node

    def detach(self, node_id: int) -> None:
        self._nodes.pop(node_id, None)
        self._cuts.forget(node_id)
        for number, call_ in list(self._calls.items()):
            if call_.target == node_id:
                self._fail(number, _unreachable(node_id))
            elif call_.source == node_id:
                del self._calls[number]

    def endpoint(self, node_id: int) -> Transport:
        return Endpoint(self, node_id)

    def publish(self, node_id: int, deliver: Callable[[], None]) -> None:
        if node_id in self._nodes and not self._cuts.holds(CONTROLLER, node_id, deliver):
            deliver()

    def cut(self, one: int, other: int) -> None:
        self._cuts.cut(one, other)

    def mend(self, one: int, other: int) -> None:
        self._cuts.mend(one, other)

    def send(self, source: int, target: int, request: Request, api_version: int) -> Deferred[Response]:
        node = self._nodes.get(target)
        if node is not None and (
            source == target or (target == CONTROLLER and len(self._nodes) <= 2 and not self._cuts)
        ):
            return node(request, api_version)
        self._count += 1
        number = self._count
        self._calls[number] = call_ = PendingCall(source, target, api_version, self._tick)
        if node is None:
            self._fail(number, _unreachable(target))
        else:
            kind, data = type(request), request.encode(api_version)
            self._carry(source, target, lambda: self._deliver(number, kind, data))
            if not self._ticking:
                self._watch_patience()
        return call_.answer

    def _carry(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        if not self._cuts.holds(source, target, arrive):
            self._timers.call_later(0, arrive)

    def _watch_patience(self) -> None:
        # Counted in ticks instead of by a timer for each call, which also spares calls when the whole process hangs.
        self._ticking = True
        self._timers.call_later(self._patience_ms / _PATIENCE_TICKS, self._patience_tick)

    def _patience_tick(self) -> None:
        self._tick += 1
        self._ticking = False
        for number, call_ in list(self._calls.items()):
            if self._tick - call_.tick > _PATIENCE_TICKS:
                self._fail(number, ApiError(ErrorCode.NETWORK_EXCEPTION, f"node {call_.target} does not answer"))
        if self._calls:
            self._watch_patience()

    def _deliver(self, number: int, kind: type[Request], data: bytes) -> None:
        call_ = self._calls.get(number)
        node = self._nodes.get(call_.target) if call_ is not None else None
        if call_ is None or node is None:
            return
        try:
            served = node(kind.decode(data, call_.api_version), call_.api_version)
        except Exception as error:
            self._fail(number, _copy_of(error))
            return
        served.then(lambda done: self._answered(number, done))

    def _answered(self, number: int, served: Deferred[Response]) -> None:
        call_ = self._calls.get(number)
        if call_ is None:
            return
        try:
            response = served.result()
            kind, data = type(response), response.encode(call_.api_version)
        except Exception as error:
            self._fail(number, _copy_of(error))
            return

        def arrive() -> None:
            waiting = self._calls.pop(number, None)
            if waiting is not None:
                waiting.answer.resolve(kind.decode(data, waiting.api_version))

        self._carry(call_.target, call_.source, arrive)

    def _fail(self, number: int, error: ApiError) -> None:
        """Call back later, as an answer would come, so that the caller finishes its current change first."""
        call_ = self._calls.pop(number, None)
        if call_ is not None:
            self._timers.call_later(0, lambda: call_.answer.fail(error))


@dataclass(slots=True)
class PendingCall:
    """A request to another node that has no answer yet.

    tick: when it was sent, on the network's count of time.
    """

    source: int
    target: int
    api_version: int
    tick: int = 0
    answer: Deferred[Response] = field(default_factory=Deferred)


class Endpoint:
    """The transport of one node: what it sends goes out under its own id."""

    __slots__ = ("_network", "_node_id")
    direct = True

    def __init__(self, network: Carrier, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        return self._network.send(self._node_id, node_id, request, api_version)


def _copy_of(error: Exception) -> ApiError:
    """A copy of the error for the other node, without its traceback."""
    if isinstance(error, ApiError):
        return ApiError(error.code, error.message)
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _unreachable(node_id: int) -> ApiError:
    return ApiError(ErrorCode.NETWORK_EXCEPTION, f"node {node_id} cannot be reached")
