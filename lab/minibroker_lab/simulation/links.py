"""A client's connections: frames into a broker's dispatcher and out of it, one request at a time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.refusals import Refusal
from minibroker.requests.api import Api
from minibroker.requests.chain import Link
from minibroker.requests.context import Answer, CloseConnection, Handler, RequestContext
from minibroker.requests.dispatch import Dispatcher
from minibroker_lab.simulation.network_conditions import Fate, NetworkConditions
from minibroker_lab.simulation.schedule import Schedule
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.headers import decode_response, encode_request


class Disconnected(Exception):
    """The connection broke before the answer came.

    sent: the broker may have served the request.
    """

    def __init__(self, sent: bool) -> None:
        super().__init__("disconnected")
        self.sent = sent


class Reasons:
    """`Link` that keeps the reasons why the last request was refused; later ones are added to the list.

    inner: the next link, if there is one.
    """

    def __init__(self, inner: Link | None = None) -> None:
        self.of_last: list[Refusal] = []
        self._inner = inner

    def around(self, api: Api, onward: Handler) -> Handler:
        if self._inner is not None:
            onward = self._inner.around(api, onward)

        def handle(ctx: RequestContext, request: Any) -> Answer:
            self.of_last = []
            ctx.hear_refusals(self.of_last.append)
            return onward(ctx, request)

        return handle


class Links:
    """One client's connections to brokers.

    dispatcher: the node's current dispatcher, with a number that changes at each start.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        conditions: NetworkConditions,
        dispatcher: Callable[[int], tuple[int, Dispatcher] | None],
        tell: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self._schedule = schedule
        self._conditions = conditions
        self._dispatcher = dispatcher
        self._tell = tell
        #: Told of each request that a broker takes up.
        self.watch: Callable[[int, Request], None] = lambda node_id, request: None
        self._connections: dict[int, _Connection] = {}
        #: The client's current step, and the callback for a request that is served after the client gave it up.
        self.moment: Callable[[], Hashable] = lambda: None
        self.late: Callable[[Request, Hashable], None] = lambda request, moment: None
        #: Requests that the client has given up and that are still on their way.
        self.strays = 0
        #: The tap of all brokers, and what it kept of the request whose answer has just come.
        self.reasons = Reasons()
        self.refusals: list[Refusal] = []

    def send(self, node_id: int, request: Request, version: int) -> Deferred[Response]:
        """Fails with Disconnected."""
        running = self._dispatcher(node_id)
        answer: Deferred[Response] = Deferred()
        if running is None:
            self._schedule.call_later(self._conditions.delay_ms(), lambda: answer.fail(Disconnected(sent=False)))
            return answer
        connection = self._connections.get(node_id)
        if connection is None or connection.broken or connection.life != running[0]:
            connection = self._connections[node_id] = _Connection(self, node_id, *running)
        connection.send(request, version, answer)
        return answer

    def broker_gone(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.break_off()

    def forget(self) -> None:
        """The client dies: its requests are no longer answered; those that have arrived are served."""
        for connection in self._connections.values():
            connection.abandon()
        self._connections.clear()


class _Message(NamedTuple):
    """A request in flight; without `answer` no client waits for it."""

    frame: bytearray
    request: Request
    version: int
    moment: Hashable
    answer: Deferred[Response] | None


class _Connection:
    def __init__(self, links: Links, node_id: int, life: int, dispatcher: Dispatcher) -> None:
        self._links = links
        self._schedule = links._schedule
        self._conditions = links._conditions
        self._node_id = node_id
        self.life = life
        self._dispatcher = dispatcher
        self.broken = False
        # No message passes any more, and the client has not noticed yet.
        self._failing = False
        self._waiting: deque[Deferred[Response]] = deque()
        self._queue: deque[_Message] = deque()
        self._busy = False
        self._arrival = 0.0
        self._return = 0.0
        self._info = ConnectionInfo(client_host="127.0.0.1", local_host="127.0.0.1")
        self._correlation_id = 0

    def send(self, request: Request, version: int, answer: Deferred[Response]) -> None:
        self._correlation_id += 1
        frame = bytearray(encode_request(request, version, self._correlation_id, self._links.name))
        message = _Message(frame, request, version, self._links.moment(), answer)
        self._waiting.append(answer)
        if self._failing:
            return
        conditions, schedule = self._conditions, self._schedule
        fate = conditions.fate() if conditions.reaches(self._links.name, self._node_id) else Fate.LOST
        if fate is not Fate.DELIVERED:
            # A message is lost with its connection; all that follows on it is lost too.
            text = f"{self._links.name} to {self._node_id}: {type(request).__name__} is {fate.value}"
            self._links._tell(f"client: {fate.value}", text)
            self._failing = True
            patience = conditions.patience_ms()
            schedule.call_later(patience, self.break_off)
            unheard = message._replace(answer=None)
            if fate is Fate.LATE:
                self._links.strays += 1
                schedule.call_later(patience + conditions.stray_ms(), lambda: self._arrive_late(unheard))
            elif fate is Fate.MUTE:
                schedule.call_later(conditions.delay_ms(), lambda: self._arrive(unheard))
            return
        now = schedule.time_ms
        self._arrival = max(self._arrival, now + conditions.delay_ms())
        schedule.call_later(self._arrival - now, lambda: self._arrive(message))

    def _arrive_late(self, message: _Message) -> None:
        self._links.strays -= 1
        self._arrive(message)

    def _arrive(self, message: _Message) -> None:
        self._queue.append(message)
        self._serve()

    def _serve(self) -> None:
        """The broker takes the next request of the connection once the one before is answered."""
        running = self._links._dispatcher(self._node_id)
        # Busy: a request that arrived since this was scheduled had it served already.
        if self._busy or not self._queue or running is None or running[0] != self.life:
            return
        message = self._queue.popleft()
        self._busy = True
        if self.broken:
            self._links.late(message.request, message.moment)
        self._links.watch(self._node_id, message.request)
        try:
            served = self._dispatcher.dispatch(message.frame, self._info)
        except CloseConnection:
            self.break_off()
            return
        reasons = self._links.reasons.of_last
        if isinstance(served, Deferred):
            served.then(lambda done: self._done(done, message, reasons))
        else:
            self._served(served, message, reasons)

    def _done(self, done: Deferred[Any], message: _Message, reasons: list[Refusal]) -> None:
        running = self._links._dispatcher(self._node_id)
        if running is not None and running[0] == self.life:  # else that broker is gone
            self._served(done.result(), message, reasons)

    def _served(self, buffers: list[Any] | None, message: _Message, reasons: list[Refusal]) -> None:
        self._busy = False
        answer, kind, version = message.answer, type(message.request), message.version
        conditions, schedule = self._conditions, self._schedule
        if answer is not None and buffers is not None and not answer.done and not self._failing:
            if conditions.reaches(self._links.name, self._node_id):
                now = schedule.time_ms
                self._return = max(self._return, now + conditions.delay_ms())
                data = [bytes(buffer) for buffer in buffers]
                schedule.call_later(self._return - now, lambda: self._answer(data, kind, version, answer, reasons))
            else:
                self._failing = True
                schedule.call_later(conditions.patience_ms(), self.break_off)
        if self._queue:
            schedule.call_later(0, self._serve)

    def _answer(
        self,
        data: list[Any],
        kind: type[Request],
        version: int,
        answer: Deferred[Response],
        reasons: list[Refusal],
    ) -> None:
        if not answer.done and answer in self._waiting:
            self._waiting.remove(answer)
            self._links.refusals = reasons
            answer.resolve(decode_response(b"".join(data)[4:], kind.__api_key__, version))

    def break_off(self) -> None:
        """Fail the requests that wait for an answer on this connection."""
        self.broken = self._failing = True
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if not answer.done:
                self._schedule.call_later(0, lambda answer=answer: answer.fail(Disconnected(sent=True)))  # type: ignore[misc]

    def abandon(self) -> None:
        self.broken = self._failing = True
        self._waiting.clear()
