"""The running brokers of a cluster, each with its pause switch, taps, meter and transport."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from minibroker.broker.broker import Broker
from minibroker.broker.suspension import Suspension
from minibroker.cluster.hooks import BrokerHooks, Meter
from minibroker.cluster.tapped_transport import SentTap, TappedTransport
from minibroker.config.settings import Settings
from minibroker.handlers.table import make_dispatcher
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.clock import Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Executor
from minibroker.kernel.refusals import Refusal
from minibroker.kernel.transport import Network
from minibroker.metadata.broker_spec import BrokerSpec
from minibroker.metadata.image import MetadataImage
from minibroker.releases.semantics import Semantics
from minibroker.requests.chain import Link, Place
from minibroker.requests.context import RequestContext
from minibroker.requests.dispatch import Dispatcher
from minibroker.requests.pause import Pause
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.directory import DataDirectory


class RunningBrokers:
    """by_id: brokers that others can reach.
    hooks: called when one begins or stops serving.
    meters: by broker; {} without metrics.
    """

    def __init__(
        self,
        settings: Settings,
        semantics: Semantics,
        *,
        clock: BrokerClock,
        timers: Timers,
        executor: Executor,
        random: Random,
        network: Network,
        make_meter: Callable[[Broker], Meter] | None,
    ) -> None:
        self.by_id: dict[int, Broker] = {}
        self.hooks: BrokerHooks | None = None
        self.meters: dict[int, Meter] = {}
        self._settings = settings
        self._semantics = semantics
        self._clock = clock
        self._timers = timers
        self._executor = executor
        self._random = random
        self._network = network
        self._make_meter = make_meter
        self._tap: Link | None = None
        self._heard: Callable[[RequestContext, Refusal], None] | None = None
        self._broker_tap: SentTap | None = None
        self._dispatchers: dict[int, Dispatcher] = {}
        self._transports: dict[int, TappedTransport] = {}
        self._suspensions: dict[int, Suspension] = {}
        self._prepared: dict[int, tuple[Suspension, TappedTransport]] = {}

    def get(self, node_id: int) -> Broker:
        """Raises ApiError BROKER_ID_NOT_REGISTERED for one that does not run."""
        broker = self.by_id.get(node_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not running")
        return broker

    def publish(self, image: MetadataImage, changed: tuple[str, ...]) -> None:
        for broker in tuple(self.by_id.values()):
            suspension = self._suspensions[broker.node_id]
            inform = partial(suspension.run, partial(self._inform, broker, image, changed))
            self._network.publish(broker.node_id, inform)

    def _inform(self, broker: Broker, image: MetadataImage, changed: tuple[str, ...]) -> None:
        # A late image must not reach a broker that has ended, nor its successor with the same id.
        if self.by_id.get(broker.node_id) is broker:
            broker.on_image(image, changed)

    def make(self, node: BrokerSpec, directory: DataDirectory, epoch: int, image: MetadataImage) -> Broker:
        """A broker that is not yet registered (`attach`)."""
        suspension = Suspension()
        end = suspension.transport(self._network.endpoint(node.node_id), node.node_id)
        transport = TappedTransport(end)
        broker = Broker(
            node_id=node.node_id,
            epoch=epoch,
            settings=self._settings,
            semantics=self._semantics,
            image=image,
            directory=directory,
            clock=suspension.clock(self._clock),
            timers=suspension.timers(self._timers),
            executor=suspension.executor(self._executor),
            transport=transport,
            random=Random(self._random.getrandbits(64)),
            log_dir=node.log_dir,
            volume_bytes=node.volume_bytes,
        )
        broker.listeners, broker.name_for = node.listeners, node.name_for
        transport.broker = broker
        self._prepared[node.node_id] = suspension, transport
        return broker

    def attach(self, broker: Broker) -> None:
        """Connect the broker with the others. From here on it owns what was created for it."""
        node_id = broker.node_id
        suspension, transport = self._prepared.pop(node_id)
        self._suspensions[node_id], self._transports[node_id] = suspension, transport
        transport.tap = self._broker_tap
        self.by_id[node_id] = broker
        dispatcher = self._dispatchers[node_id] = make_dispatcher(broker)
        if self._make_meter is not None:
            self.meters[node_id] = self._make_meter(broker)
        dispatcher.link(Place.METER, self.meters.get(node_id))
        dispatcher.link(Place.FAULTS_AND_TRACE, self._tap)
        broker.refusals.heard = self._heard
        self._network.attach(node_id, suspension.node(dispatcher.handle))

    def dispatcher(self, node_id: int) -> Dispatcher:
        """What serves the connections of broker `node_id`."""
        return self._dispatchers[node_id]

    def set_tap(self, tap: Link | None, heard: Callable[[RequestContext, Refusal], None] | None = None) -> None:
        """Send every client's request, to any broker, through `tap`; call `heard` with the first refusal of a request
        that did not pass it."""
        self._tap, self._heard = tap, heard
        for node_id, dispatcher in self._dispatchers.items():
            dispatcher.link(Place.FAULTS_AND_TRACE, tap)
            self.by_id[node_id].refusals.heard = heard

    def set_broker_tap(self, tap: SentTap | None) -> None:
        """Send every request of a broker to another, itself or the controller through `tap`, on the sender's side."""
        self._broker_tap = tap
        for transport in self._transports.values():
            transport.tap = tap

    def began(self, node_id: int) -> None:
        """A broker that was added to a running cluster begins to serve."""
        if self.hooks is not None:
            self.hooks.started(node_id, self._dispatchers[node_id])

    def detach(self, broker: Broker) -> None:
        """The broker has stopped serving."""
        if self.hooks is not None:
            self.hooks.stopped(broker.node_id)
        del self.by_id[broker.node_id]
        del self._dispatchers[broker.node_id]
        self.meters.pop(broker.node_id, None)
        self._suspensions.pop(broker.node_id).drop()
        self._transports.pop(broker.node_id).close()
        self._network.detach(broker.node_id)

    def pause(self, node_id: int) -> None:
        """As SIGSTOP: keeps connections and accepts new ones, but processes nothing. No effect when paused."""
        self.get(node_id)
        suspension = self._suspensions[node_id]
        if not suspension.paused:
            suspension.pause()
            self._dispatchers[node_id].link(Place.PAUSE, Pause(suspension))

    def resume(self, node_id: int) -> None:
        """As SIGCONT: process the requests received while paused, in order. No effect when not paused."""
        self.get(node_id)
        suspension = self._suspensions[node_id]
        if suspension.paused:
            self._dispatchers[node_id].link(Place.PAUSE, None)
            suspension.resume()

    def when_going(self, node_id: int) -> Deferred[None]:
        """Resolved once a broker is not paused; never when it is killed before."""
        self.get(node_id)
        going: Deferred[None] = Deferred()
        self._suspensions[node_id].run(lambda: going.resolve(None))
        return going

    @property
    def paused(self) -> list[int]:
        """Node ids of the brokers that are paused."""
        return sorted(node_id for node_id, suspension in self._suspensions.items() if suspension.paused)

    def stop(self, *, keep: bool) -> None:
        """Close all of them; without `keep` nothing is written."""
        brokers = list(self.by_id.values())
        self.by_id.clear()
        for suspension in self._suspensions.values():
            suspension.drop()
        for broker in brokers:
            broker.replication.stop()
        for broker in brokers:
            self._network.detach(broker.node_id)
            broker.close(keep=keep)
