"""Puts a cluster together: controller, brokers, transport, and the topics found on disk."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import cast

from minibroker.broker import lost_data
from minibroker.broker.broker import Broker
from minibroker.broker.suspension import Suspension
from minibroker.cluster.bootstrap import adopt
from minibroker.cluster.hooks import BrokerHooks, Meter
from minibroker.cluster.in_process_network import InProcessNetwork
from minibroker.cluster.operations import ClusterOperations
from minibroker.cluster.tapped_transport import SentTap, TappedTransport
from minibroker.config.settings import Settings
from minibroker.controller.controller import Controller
from minibroker.controller.features import default_features
from minibroker.controller.heartbeats import SESSION_TICKS
from minibroker.controller.journal import MetadataJournal
from minibroker.controller.state import ControllerState
from minibroker.controller.topics import TopicControl
from minibroker.handlers.chain import Link, Place
from minibroker.handlers.dispatch import Dispatcher
from minibroker.handlers.table import make_dispatcher
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.clock import TimerHandle, Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Executor
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import CONTROLLER, Network
from minibroker.metadata.broker_spec import BrokerSpec
from minibroker.metadata.image import BrokerImage, MetadataImage
from minibroker.metadata.internal_topics import replicated_internals
from minibroker.releases.features import TRANSACTION_VERSION
from minibroker.releases.semantics import Semantics
from minibroker.version import __version__
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.topics import CreateTopicsRequest
from minibroker_storage.directory import DataDirectory, WrongDirectory
from minibroker_storage.disk import Disk

__all__ = ["BrokerHooks", "BrokerSpec", "Cluster"]

log = get_logger(__name__)


class Cluster(ClusterOperations):
    """All brokers of one process and their controller.

    journal_disk: where the controller keeps its journal; with one broker its own data directory.
    transaction_version: level of the feature to finalize; None takes the semantics' for a new cluster and leaves an
    existing one as it is. topics: name → partitions, created at start when they are missing. network: what connects
    the brokers; None keeps all in this process. make_node: a broker to be, for `add_broker`. make_meter: what counts
    the requests of a broker's clients, None for nothing.
    """

    def __init__(
        self,
        settings: Settings,
        semantics: Semantics,
        *,
        nodes: Sequence[BrokerSpec],
        journal_disk: Disk,
        clock: BrokerClock,
        timers: Timers,
        executor: Executor,
        random: Random,
        transaction_version: int | None = None,
        topics: Mapping[str, int] | None = None,
        holder: str = "",
        network: Network | None = None,
        make_node: Callable[[int], BrokerSpec] | None = None,
        make_meter: Callable[[Broker], Meter] | None = None,
    ) -> None:
        if not nodes:
            raise ValueError("a cluster has at least one broker")
        self.settings = replicated_internals(settings, len(nodes))
        self.semantics = semantics
        self.clock = clock
        self.network: Network = network or InProcessNetwork(timers, self.settings.get_int("request.timeout.ms"))
        self.brokers: dict[int, Broker] = {}
        self.hooks: BrokerHooks | None = None
        #: By broker, of those that run; {} when nothing is counted.
        self.meters: dict[int, Meter] = {}
        self._make_meter = make_meter
        self._tap: Link | None = None
        self._broker_tap: SentTap | None = None
        self._transports: dict[int, TappedTransport] = {}
        self._suspensions: dict[int, Suspension] = {}
        self._prepared: dict[int, tuple[Suspension, TappedTransport]] = {}
        self._starting: set[int] = set()
        self._closing: dict[int, Deferred[None]] = {}
        self._stopped = False
        self._nodes = {node.node_id: node for node in nodes}
        self._make_node = make_node
        self._journal_disk = journal_disk
        self._timers = timers
        self._executor = executor
        self._random = random
        self._transaction_version = transaction_version
        self._topics = dict(topics or {})
        self._holder = holder
        self._dispatchers: dict[int, Dispatcher] = {}
        self._state: ControllerState | None = None
        self._controller: Controller | None = None
        self._directories: list[DataDirectory] = []
        self._cluster_id: str | None = None
        self._balancing: TimerHandle | None = None
        self._sessions: TimerHandle | None = None

    def start(self) -> None:
        """Lock and read the data directories, then take up every partition.

        Raises DirectoryLocked, WrongDirectory, MalformedFile, StorageError of the storage, and ApiError.
        """
        try:
            self._start()
        except BaseException:
            # Nothing may be written that calls the directories clean, or logs empty that were not looked at.
            for broker in self.brokers.values():
                broker.kill()
            self.brokers.clear()
            for directory in self._directories:
                directory.release()
            if self._state is not None:
                self._state.close()
            raise

    def _start(self) -> None:
        for node in self._nodes.values():
            self._directories.append(self._open_directory(node))
        assert self._cluster_id is not None
        journal = MetadataJournal(self._journal_disk)
        self._look_for_lost_metadata(journal)
        state = ControllerState(
            self.settings,
            journal,
            Random(self._random.getrandbits(64)),
            cluster_id=self._cluster_id,
            controller_id=min(self._nodes),
        )
        self._state = state
        level = self._transaction_version
        new = state.load(default_features(self.semantics.transaction_version if level is None else level))
        if level is not None and state.image.feature(TRANSACTION_VERSION) != level:
            state.set_feature(TRANSACTION_VERSION, level)
        level = state.image.feature(TRANSACTION_VERSION)
        problems = self.semantics.problems(level)
        if problems:
            raise WrongDirectory(f"the data directory has transaction.version {level}: {problems[0]}")
        controller = self._controller = self._activate_controller(state)
        epochs = {}
        for node in self._nodes.values():
            epochs[node.node_id] = state.image.offset
            state.register_broker(BrokerImage(node.node_id, node.host, node.port, node.rack, epoch=state.image.offset))
        adopt(state, self._directories, new=new, transaction_version=level)
        # Leaders that are not among the brokers of this start, and partitions that had none when the last one ended.
        controller.replication.elect_missing()
        for node, directory in zip(self._nodes.values(), self._directories, strict=True):
            self._attach(self._make_broker(node, directory, epochs[node.node_id]))
        for broker in self.brokers.values():
            broker.prepare()
        self._place_ids(state, new=new)
        for broker in self.brokers.values():
            broker.image = state.image  # nothing went stray since `prepare`
            broker.start(state.image)
        state.subscribe(self._publish)
        self._create_topics(state)
        if self.settings.get_boolean("auto.leader.rebalance.enable"):
            self._schedule_balance()
        self._warn_of_short_sessions()
        self._watch_sessions()

    def _place_ids(self, state: ControllerState, *, new: bool) -> None:
        """Once in a directory's life, and only where minibroker wrote before it was done."""
        if state.ids_placed:
            return
        if new and not any(directory.written_before_by for directory in self._directories):
            state.finish_placing()
            return
        from minibroker.cluster.id_migration import migrate_ids

        migrate_ids(
            state,
            self.brokers,
            layout=self.semantics.transaction_state_layout,
            now_ms=self.clock.now_ms(),
        )

    def _look_for_lost_metadata(self, journal: MetadataJournal) -> None:
        lost = journal.lost()
        if lost is not None:
            lost_data.report([lost], next(iter(self._nodes.values())).log_dir, self.settings)

    def _activate_controller(self, state: ControllerState) -> Controller:
        controller = Controller(state, self._executor, self._timers, self.semantics.problems)
        self.network.attach(CONTROLLER, controller.handle)
        return controller

    def _watch_sessions(self) -> None:
        """Start the session timer once there are several brokers."""
        if self._sessions is None and len(self._nodes) > 1:
            interval_ms = self.settings.get_int("broker.session.timeout.ms") / SESSION_TICKS
            self._sessions = self._timers.call_later(interval_ms, self._look_at_sessions)

    def _warn_of_short_sessions(self) -> None:
        beat, session = (self.settings.get_int(f"broker.{of}.ms") for of in ("heartbeat.interval", "session.timeout"))
        if beat * 2 > session:  # Kafka says so as well, and goes on
            log.error(
                "broker.heartbeat.interval.ms (%d) is above half of broker.session.timeout.ms (%d)", beat, session
            )

    def _look_at_sessions(self) -> None:
        self._sessions = None
        self._watch_sessions()
        if self._controller is not None:
            self._controller.heartbeats.tick()

    def _schedule_balance(self) -> None:
        interval_ms = self.settings.get_int("leader.imbalance.check.interval.seconds") * 1000
        self._balancing = self._timers.call_later(interval_ms, self._balance)

    def _balance(self) -> None:
        self._schedule_balance()
        if self._controller is not None:
            self._controller.replication.balance()

    def _open_directory(self, node: BrokerSpec) -> DataDirectory:
        directory = DataDirectory.open(
            node.disk,
            node_id=node.node_id,
            make_id=self._new_id,
            cluster_id=self._cluster_id or cast("str | None", self.settings.get("minibroker.cluster.id")),
            holder=self._holder,
            version=__version__,
            transaction_state_layout=self.semantics.transaction_state_layout,
        )
        self._cluster_id = directory.cluster_id
        return directory

    def _publish(self, image: MetadataImage, changed: tuple[str, ...]) -> None:
        for broker in tuple(self.brokers.values()):
            suspension = self._suspensions[broker.node_id]
            inform = partial(suspension.run, partial(self._inform, broker, image, changed))
            self.network.publish(broker.node_id, inform)

    def _inform(self, broker: Broker, image: MetadataImage, changed: tuple[str, ...]) -> None:
        # A late image must not reach a broker that has ended, nor its successor with the same id.
        if self.brokers.get(broker.node_id) is broker:
            broker.on_image(image, changed)

    def _make_broker(self, node: BrokerSpec, directory: DataDirectory, epoch: int) -> Broker:
        """A broker that is not yet registered (`_attach`)."""
        suspension = Suspension()
        end = suspension.transport(self.network.endpoint(node.node_id), node.node_id)
        transport = TappedTransport(end)
        broker = Broker(
            node_id=node.node_id,
            epoch=epoch,
            settings=self.settings,
            semantics=self.semantics,
            image=self.image,
            directory=directory,
            clock=suspension.clock(self.clock),
            timers=suspension.timers(self._timers),
            executor=self._executor,
            transport=transport,
            random=Random(self._random.getrandbits(64)),
            log_dir=node.log_dir,
            volume_bytes=node.volume_bytes,
        )
        broker.listeners, broker.name_for = node.listeners, node.name_for
        transport.broker = broker
        self._prepared[node.node_id] = suspension, transport
        return broker

    def _attach(self, broker: Broker) -> None:
        """Let others reach the broker, and it them; what was made for it is its own from here on."""
        node_id = broker.node_id
        suspension, transport = self._prepared.pop(node_id)
        self._suspensions[node_id], self._transports[node_id] = suspension, transport
        transport.tap = self._broker_tap
        self.brokers[node_id] = broker
        dispatcher = self._dispatchers[node_id] = make_dispatcher(broker)
        if self._make_meter is not None:
            self.meters[node_id] = self._make_meter(broker)
        dispatcher.link(Place.METER, self.meters.get(node_id))
        dispatcher.link(Place.FAULTS_AND_TRACE, self._tap)
        self.network.attach(node_id, suspension.node(dispatcher.handle))

    def dispatcher(self, node_id: int) -> Dispatcher:
        """What serves the connections of broker `node_id`."""
        return self._dispatchers[node_id]

    def set_tap(self, tap: Link | None) -> None:
        """Have every request of a client, to any broker of now or later, go through `tap`."""
        self._tap = tap
        for dispatcher in self._dispatchers.values():
            dispatcher.link(Place.FAULTS_AND_TRACE, tap)

    def set_broker_tap(self, tap: SentTap | None) -> None:
        """Have every request that a broker, of now or later, sends to another, itself or the controller go through
        `tap`, where it is sent."""
        self._broker_tap = tap
        for transport in self._transports.values():
            transport.tap = tap

    @property
    def nodes(self) -> tuple[BrokerSpec, ...]:
        """Every broker of the cluster, running or not."""
        return tuple(self._nodes.values())

    def stop(self, *, keep: bool = True) -> None:
        """Close every broker cleanly, then the controller. Without `keep` nothing is written, as it is never read:
        a test that wrote to thousands of partitions would wait for it."""
        self._stopped = True
        for timer in (self._balancing, self._sessions):
            if timer is not None:
                timer.cancel()
        brokers, self.brokers = list(self.brokers.values()), {}
        for suspension in self._suspensions.values():
            suspension.drop()
        for broker in brokers:
            broker.replication.stop()
        for broker in brokers:
            self.network.detach(broker.node_id)
            broker.close(keep=keep)
        self.network.detach(CONTROLLER)
        if self._state is not None:
            self._state.close(keep=keep)
        self.clock.close()

    def _new_id(self) -> str:
        return base64.urlsafe_b64encode(self._random.randbytes(16)).rstrip(b"=").decode()

    def _create_topics(self, state: ControllerState) -> None:
        missing = {name: count for name, count in self._topics.items() if name not in state.image.topics}
        if not missing:
            return
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name, num_partitions=count, replication_factor=-1, assignments=[], configs=[]
                )
                for name, count in missing.items()
            ],
            timeout_ms=0,
            validate_only=False,
        )
        for result in TopicControl(state).create_topics(request).topics:
            if result.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(result.error_code), f"topic {result.name}: {result.error_message}")
