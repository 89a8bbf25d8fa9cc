"""The rules that are set, and the tap that puts them between requests and handlers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from minibroker.faults.facts import Facts, facts_of
from minibroker.faults.rules import FaultRule
from minibroker.handlers.table import apis, apis_of_brokers
from minibroker.kernel.deferred import Deferred, failed, resolved, spawn
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.logs import get_logger
from minibroker.kernel.waiting import sleep, with_timeout
from minibroker.requests.context import CloseConnection, Frames
from minibroker.requests.tapped_request import TappedRequest

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.kernel.clock import TimerHandle, Timers
    from minibroker.requests.api import Api

log = get_logger(__name__)

_HITS_KEPT = 100
_NEEDS_CLUSTER = "acts on what brokers keep, and those behind a proxy are not ours: minibroker serve has it"


@dataclass(frozen=True, slots=True)
class Hit:
    """One request that a rule acted on."""

    api: str
    version: int
    client_id: str | None
    correlation_id: int
    broker: int


class SetRule:
    """A rule that is set, and its counts.

    matched: requests that fit.
    fired: requests it acted on.
    """

    def __init__(self, number: int, rule: FaultRule, engine: FaultEngine) -> None:
        self.number = number
        self.rule = rule
        self.matched = 0
        self.fired = 0
        self.hits: deque[Hit] = deque(maxlen=_HITS_KEPT)
        self.silenced: set[str | None] = set()
        self._engine = engine
        self._random = rule.random()
        self._held: deque[Deferred[None]] = deque()
        self._waiting: list[tuple[int, Deferred[None]]] = []

    # -- deciding ----------------------------------------------------------------------------------------------------

    def fires(self, tapped: TappedRequest, facts: Callable[[], Facts]) -> bool:
        """Whether the rule acts on this request, which is counted."""
        rule = self.rule
        if tapped.context.client_id in self.silenced and rule.match.between_brokers == tapped.between_brokers:
            return True
        if rule.times is not None and self.fired >= rule.times:
            return False
        match = rule.match
        if not match.fits_header(tapped) or (match.needs_facts and not match.fits(facts())):
            return False
        self.matched += 1
        if self.matched < rule.nth or (rule.probability < 1 and self._random.random() >= rule.probability):
            return False
        self.fired += 1
        context = tapped.context
        self.hits.append(
            Hit(tapped.api.name, tapped.version, context.client_id, tapped.correlation_id, tapped.receiver)
        )
        due = [w for w in self._waiting if w[0] <= self.fired]
        self._waiting = [w for w in self._waiting if w[0] > self.fired]
        for _, waiter in due:
            waiter.resolve(None)
        return True

    def when_fired(self, times: int) -> Deferred[None]:
        """Resolved once the rule has acted `times` times."""
        if self.fired >= times:
            return resolved(None)
        waiter: Deferred[None] = Deferred()
        self._waiting.append((times, waiter))
        return waiter

    # -- what actions use (`actions.Stage`) --------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        """Raises FaultError behind a proxy, whose brokers belong to others."""
        if self._engine.cluster is None:
            raise FaultError(f"{self.rule.action.name} {_NEEDS_CLUSTER}")
        return self._engine.cluster

    def sleep(self, ms: float) -> Deferred[None]:
        return sleep(self._engine.timers, ms)

    def hold(self) -> Deferred[None]:
        held: Deferred[None] = Deferred()
        self._held.append(held)
        return held

    def going(self, tapped: TappedRequest) -> Deferred[None]:
        return self._engine.going(tapped)

    def silence(self, tapped: TappedRequest) -> Deferred[None]:
        self.silenced.add(tapped.context.client_id)
        return self.hold()

    def postpone(self, tapped: TappedRequest, within_ms: float) -> None:
        self._engine.postpone(tapped, within_ms)

    def later(self, ms: float, tapped: TappedRequest) -> None:
        over = _late(tapped)
        self._engine.timers.call_later(ms, lambda: _log_failure(spawn(self._engine.apply_late(tapped)), over))

    # -- the end of holding ------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Requests or answers that are kept."""
        return len(self._held)

    def release(self, count: int | None = None) -> int:
        """Release the oldest `count` held requests or answers, or all; how many were released."""
        released = 0
        while self._held and (count is None or released < count):
            self._held.popleft().resolve(None)
            released += 1
        return released

    def end(self) -> None:
        """The rule is removed: held clients are disconnected, because their answer is lost."""
        self.silenced.clear()
        while self._held:
            self._held.popleft().fail(CloseConnection("fault: the rule that held this request is gone"))
        for _, waiter in self._waiting:
            waiter.fail(FaultError(f"rule {self.number} was removed"))
        self._waiting.clear()


class FaultEngine:
    """The rules of one cluster; the first one that fits a request acts on it.

    cluster: None behind a proxy, where only what passes over the wire can be changed.
    on_change: called when the first rule is set and when the last one went.
    known: the APIs that clients may ask for; None: those that are served here.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        timers: Timers,
        on_change: Callable[[], None] = lambda: None,
        known: Mapping[int, Api] | None = None,
    ) -> None:
        self.cluster = cluster
        self.timers = timers
        self.rules: dict[int, SetRule] = {}
        self._count = 0
        self._on_change = on_change
        self.known = apis() if known is None else known
        self._postponed: dict[int, _Postponed] = {}

    @property
    def busy(self) -> bool:
        """Whether requests have to go through `serve`."""
        return bool(self.rules or self._postponed)

    def concerns(self, api: str) -> bool:
        """Whether a rule can act on a request of a client of this kind. One that holds a client's requests back, or
        until the next one, acts on all kinds."""
        return bool(self._postponed) or any(
            rule.silenced or not rule.rule.match.api or api in rule.rule.match.api for rule in self.rules.values()
        )

    @property
    def between_brokers(self) -> bool:
        """Whether requests between brokers have to go through `serve`, too."""
        return any(rule.rule.match.between_brokers for rule in self.rules.values()) or any(
            postponed.tapped.between_brokers for postponed in self._postponed.values()
        )

    def add(self, rule: FaultRule) -> SetRule:
        """Set a rule. Raises FaultError for one that can never act, or not on its requests."""
        if self.cluster is None and rule.action.needs_cluster:
            raise FaultError(f"{rule.action.name} {_NEEDS_CLUSTER}")
        if self.cluster is None and rule.match.between_brokers:
            raise FaultError("requests between brokers do not pass a proxy: no rule can match them")
        self._count += 1
        added = SetRule(self._count, rule.checked(self.known, apis_of_brokers()), self)
        self.rules[added.number] = added
        self._on_change()
        return added

    def get(self, number: int) -> SetRule:
        rule = self.rules.get(number)
        if rule is None:
            raise FaultError(f"there is no rule {number}")
        return rule

    def remove(self, number: int) -> SetRule:
        """Remove a rule; connections it holds are closed."""
        removed = self.get(number)
        del self.rules[number]
        removed.end()
        self._on_change()
        return removed

    def clear(self) -> None:
        """Remove all rules."""
        for number in list(self.rules):
            self.remove(number)

    def wait(self, number: int, times: int, timeout_ms: float) -> Deferred[bool]:
        """Whether a rule has acted `times` times before the timeout, which is real time."""
        return with_timeout(self.timers, self.get(number).when_fired(times), timeout_ms)

    # -- requests ----------------------------------------------------------------------------------------------------

    def serve(self, tapped: TappedRequest) -> tuple[Deferred[Any], SetRule | None]:
        """Serve by the first rule that fires, else as if there were no faults. Returns what is sent, which is a
        response or a rule's frames, and the rule."""
        connection = id(tapped.context.connection)
        if self._postponed and connection in self._postponed:
            first, timer, over = self._postponed.pop(connection)
            timer.cancel()
            swapped = spawn(_swapped(first, tapped))
            swapped.then(lambda _: over.resolve(None))
            return swapped, None
        known: list[Facts] = []

        def facts() -> Facts:
            if not known:
                known.append(facts_of(tapped.request, tapped.context.broker.image.topic_names.get))
            return known[0]

        for rule in self.rules.values():
            if rule.fires(tapped, facts):
                log.info("fault %d: %s on %s", rule.number, rule.rule.action.name, tapped.api.name)
                return spawn(_acted(tapped, rule)), rule
        return tapped.apply(), None

    def postpone(self, tapped: TappedRequest, within_ms: float) -> None:
        connection = id(tapped.context.connection)  # unique as long as the request is kept
        over = _late(tapped)

        def alone() -> None:
            if self._postponed.pop(connection, None) is not None:
                _log_failure(spawn(self._push(tapped)), over)
                self._on_change()

        self._postponed[connection] = _Postponed(tapped, self.timers.call_later(within_ms, alone), over)

    # -- what comes late ---------------------------------------------------------------------------------------------

    def going(self, tapped: TappedRequest) -> Deferred[None]:
        """Resolved once the broker of the request is not paused; fails with CloseConnection when it is gone."""
        broker, cluster = tapped.context.broker, self.cluster
        if cluster is None:
            return resolved(None)  # its connection ends where the broker does
        if cluster.brokers.get(broker.node_id) is not broker:
            return failed(CloseConnection(f"fault: broker {broker.node_id} is gone"))
        return cluster.when_going(broker.node_id)

    async def apply_late(self, tapped: TappedRequest) -> Any:
        """Apply what a timer brings, which no pause and no end of its broker stops; its response."""
        await self.going(tapped)
        return await tapped.apply()

    async def _push(self, tapped: TappedRequest) -> None:
        buffers = tapped.encode(await self.apply_late(tapped))
        await self.going(tapped)
        channel = tapped.context.connection.channel
        if buffers is not None and channel is not None:
            channel.push(buffers)


class _Postponed(NamedTuple):
    """A request that waits for the next one of its connection.

    over: resolved once both are done.
    """

    tapped: TappedRequest
    timer: TimerHandle
    over: Deferred[None]


class BrokerTap:
    """`SentTap` of requests between brokers: rules act on them, they are not recorded."""

    def __init__(self, engine: FaultEngine) -> None:
        self._engine = engine

    def serve(self, tapped: TappedRequest) -> Deferred[Any]:
        return self._engine.serve(tapped)[0]


async def _acted(tapped: TappedRequest, rule: SetRule) -> Frames:
    """The frames that a rule answers; none where it answers nothing."""
    return await rule.rule.action.run(tapped, rule) or []


async def _swapped(first: TappedRequest, second: TappedRequest) -> Frames:
    """Apply the later request first; the answers leave in the order of the requests."""
    later = second.encode(await second.apply())
    earlier = first.encode(await first.apply())
    return [*(earlier or []), *(later or [])]


def _late(tapped: TappedRequest) -> Deferred[None]:
    """A Deferred to resolve once the request is over. It is applied after its turn, perhaps when its client has
    left."""
    over: Deferred[None] = Deferred()
    if tapped.context.connection.on_late is not None:
        tapped.context.connection.on_late(over)
    return over


def _log_failure(done: Deferred[Any], over: Deferred[None]) -> None:
    def look(finished: Deferred[Any]) -> None:
        over.resolve(None)
        try:
            finished.result()
        except Exception as error:
            log.warning("fault: %s", error)

    done.then(look)
