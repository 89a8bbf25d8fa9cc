"""The network between brokers: bytes over one connection for each pair, under `NetworkConditions`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from minibroker.cluster.in_process_network import Endpoint, PendingCall
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.transport import CONTROLLER, Receiver, Transport
from minibroker_lab.simulation.network_conditions import Fate, NetworkConditions
from minibroker_lab.simulation.schedule import Schedule
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import WriteTxnMarkersRequest

Told = Callable[[str, str], None]
Strayed = Callable[[int, Request], None]


_MARKERS_BAD_LUCK = 3.0
"""Markers are few, and losing them matters."""


class SimulatedNetwork:
    """`minibroker.kernel.transport.Network`. What a node sends to itself does not pass it.

    tell: called with (event, text) for each message that is not simply delivered.
    strayed: called with the node and each request that arrives there after its sender gave it up.
    """

    def __init__(self, schedule: Schedule, conditions: NetworkConditions, tell: Told, strayed: Strayed) -> None:
        self._schedule = schedule
        self._conditions = conditions
        self._tell = tell
        self._strayed = strayed
        #: Called with each request that will arrive after its sender gave it up.
        self.delayed: Callable[[Request], None] = lambda request: None
        #: Told of each request that a node takes up.
        self.watch: Callable[[int, Request], None] = lambda node_id, request: None
        self._nodes: dict[int, Receiver] = {}
        self._lives: dict[int, int] = {}
        self._arrivals: dict[tuple[int, int], float] = {}
        self._calls: dict[int, PendingCall] = {}
        self._count = 0
        self._news: dict[int, deque[Callable[[], None]]] = {}

    # -- Network -----------------------------------------------------------------------------------------------------

    def attach(self, node_id: int, node: Receiver) -> None:
        self._nodes[node_id] = node
        self._lives[node_id] = self._lives.get(node_id, 0) + 1

    def detach(self, node_id: int) -> None:
        self._nodes.pop(node_id, None)
        self._news.pop(node_id, None)
        for number, call in list(self._calls.items()):
            if call.target == node_id:
                self._schedule.call_later(self._conditions.delay_ms(), lambda number=number: self._fail(number))  # type: ignore[misc]
            elif call.source == node_id:
                del self._calls[number]

    def endpoint(self, node_id: int) -> Transport:
        return Endpoint(self, node_id)

    def publish(self, node_id: int, deliver: Callable[[], None]) -> None:
        """Metadata updates are never lost: an unreachable broker gets them later, in order."""
        if node_id in self._nodes:
            queue = self._news.setdefault(node_id, deque())
            queue.append(deliver)
            if len(queue) == 1:
                self._later(CONTROLLER, node_id, lambda: self._inform(node_id, queue))

    def cut(self, one: int, other: int) -> None:
        self._conditions.cut(one, other)

    def mend(self, one: int, other: int) -> None:
        self._conditions.mend(one, other)

    def _inform(self, node_id: int, queue: deque[Callable[[], None]]) -> None:
        if self._news.get(node_id) is not queue:
            return
        if not self._conditions.reaches(CONTROLLER, node_id):
            self._schedule.call_later(20, lambda: self._inform(node_id, queue))
            return
        while queue:
            deliver = queue.popleft()
            deliver()

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, source: int, target: int, request: Request, api_version: int) -> Deferred[Response]:
        node = self._nodes.get(target)
        if source == target and node is not None:
            self.watch(target, request)
            return node(request, api_version)
        self._count += 1
        number = self._count
        self._calls[number] = call = PendingCall(source, target, api_version)
        if node is None:
            self._schedule.call_later(self._conditions.delay_ms(), lambda: self._fail(number))
            return call.answer
        bad_luck = _MARKERS_BAD_LUCK if isinstance(request, WriteTxnMarkersRequest) else 1.0
        fate = self._conditions.fate(bad_luck=bad_luck) if self._conditions.reaches(source, target) else Fate.LOST
        kind, data, life = type(request), request.encode(api_version), self._lives[target]
        if fate is not Fate.DELIVERED:
            self._tell(f"between brokers: {fate.value}", f"{source} to {target}: {kind.__name__} is {fate.value}")
            patience = self._conditions.patience_ms()
            self._schedule.call_later(patience, lambda: self._fail(number))
            if fate is Fate.LATE:
                self.delayed(request)

                def arrive_late() -> None:
                    if target in self._nodes and self._lives[target] == life:
                        self._strayed(target, request)
                    self._deliver(-1, target, life, kind, data, api_version)

                self._schedule.call_later(patience + self._conditions.stray_ms(), arrive_late)
            elif fate is Fate.MUTE:
                self._later(source, target, lambda: self._deliver(-1, target, life, kind, data, api_version))
        else:
            self._later(source, target, lambda: self._deliver(number, target, life, kind, data, api_version))
        return call.answer

    def _later(self, source: int, target: int, callback: Callable[[], None]) -> None:
        """After a delay, and after what was sent before on the same way."""
        now = self._schedule.time_ms
        arrival = max(now + self._conditions.delay_ms(), self._arrivals.get((source, target), 0.0))
        self._arrivals[source, target] = arrival
        self._schedule.call_later(arrival - now, callback)

    def _deliver(self, number: int, target: int, life: int, kind: type[Request], data: bytes, version: int) -> None:
        """`number` -1: no request waits for the answer any more."""
        node = self._nodes.get(target)
        if node is None or self._lives[target] != life:
            return
        try:
            request = kind.decode(data, version)
            self.watch(target, request)
            served = node(request, version)
        except ApiError:
            self._fail(number)
            return
        served.then(lambda done: self._answered(number, done))

    def _answered(self, number: int, served: Deferred[Response]) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        try:
            response = served.result()
        except ApiError as error:
            self._fail(number, ApiError(error.code, error.message))
            return
        kind, data = type(response), response.encode(call.api_version)
        if not self._conditions.reaches(call.source, call.target):
            self._schedule.call_later(self._conditions.patience_ms(), lambda: self._fail(number))
            return

        def arrive() -> None:
            waiting = self._calls.pop(number, None)
            if waiting is not None:
                waiting.answer.resolve(kind.decode(data, waiting.api_version))

        self._later(call.target, call.source, arrive)

    def _fail(self, number: int, error: ApiError | None = None) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            text = f"node {call.target} cannot be reached"
            call.answer.fail(error or ApiError(ErrorCode.NETWORK_EXCEPTION, text))
