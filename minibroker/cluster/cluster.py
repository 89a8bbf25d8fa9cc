"""Puts a cluster together: controller, brokers, transport, and the topics found on disk."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import cast

from minibroker.broker import lost_data
from minibroker.broker.broker import Broker
from minibroker.cluster.hooks import BrokerHooks, Meter
from minibroker.cluster.in_process_network import InProcessNetwork
from minibroker.cluster.leaders import Leaders
from minibroker.cluster.operations import BrokerOperations
from minibroker.cluster.running_brokers import RunningBrokers
from minibroker.cluster.takeover import kafka_metadata, take_over
from minibroker.config.settings import Settings
from minibroker.controller.controller import Controller
from minibroker.controller.features import default_features
from minibroker.controller.heartbeats import SESSION_TICKS
from minibroker.controller.journal import MetadataJournal
from minibroker.controller.state import ControllerState
from minibroker.controller.topics import TopicControl
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.clock import TimerHandle, Timers
from minibroker.kernel.executor import Executor
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import CONTROLLER, Network
from minibroker.kernel.turns import AT_A_TIME
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


class Cluster:
    """All brokers of one process and their controller.

    journal_disk: where the controller keeps its journal; with one broker its own data directory.
    transaction_version: level of the feature to finalize; None takes the semantics' for a new cluster and leaves an
        existing one as it is.
    topics: name → partitions, created at start when they are missing.
    network: what connects the brokers; None keeps all in this process.
    make_node: a broker to be, for `add_broker`.
    make_meter: what counts the requests of a broker's clients, None for nothing.
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
        self._nodes = {node.node_id: node for node in nodes}
        running = self._running = RunningBrokers(
            self.settings,
            semantics,
            clock=clock,
            timers=timers,
            executor=executor,
            random=random,
            network=self.network,
            make_meter=make_meter,
        )
        operations = self._operations = BrokerOperations(
            self, running, self._nodes, network=self.network, executor=executor, make_node=make_node
        )
        leaders = Leaders(self)
        # Operations on the cluster, by subject.
        self.brokers, self.meters = running.by_id, running.meters
        self.dispatcher = running.dispatcher
        self.set_tap, self.set_broker_tap = running.set_tap, running.set_broker_tap
        self.pause_broker, self.resume_broker, self.when_going = running.pause, running.resume, running.when_going
        self.stop_broker, self.kill_broker = operations.stop_broker, operations.kill_broker
        self.start_broker, self.add_broker = operations.start_broker, operations.add_broker
        self.remove_broker = operations.remove_broker
        self.cut_link, self.mend_link = operations.cut_link, operations.mend_link
        self.elect, self.reassign, self.move_leader = leaders.elect, leaders.reassign, leaders.move_leader
        self.elect_again = leaders.elect_again
        self.coordinator, self.move_coordinator = leaders.coordinator, leaders.move_coordinator
        self._journal_disk = journal_disk
        self._timers = timers
        self._executor = executor
        self._random = random
        self._transaction_version = transaction_version
        self._topics = dict(topics or {})
        self._holder = holder
        self._state: ControllerState | None = None
        self._controller: Controller | None = None
        self._directories: list[DataDirectory] = []
        #: Whether this start may have changed more than the lock of its directories.
        self._touched = False
        self._cluster_id: str | None = None
        self._balancing: TimerHandle | None = None
        self._sessions: TimerHandle | None = None
        #: Why all brokers have ended by themselves, None as long as they have not, and what is called when they do.
        self.failure: ApiError | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Lock and read the data directories, then take up every partition.

        Raises DirectoryLocked, WrongDirectory, MalformedFile, StorageError of the storage, and ApiError.
        """
        try:
            self._start()
        except BaseException:
            # Write nothing that marks the directories as clean, or logs as empty that were not read.
            for broker in self.brokers.values():
                broker.kill()
            self.brokers.clear()
            for directory in self._directories:
                if self._touched:
                    directory.release()
                else:
                    directory.put_back()
            if self._state is not None:
                self._state.close()
            raise

    def _start(self) -> None:
        for node in self._nodes.values():
            self._directories.append(self.open_directory(node))
        assert self._cluster_id is not None
        journal = MetadataJournal(self._journal_disk)
        lost = journal.lost()
        if lost is not None:
            lost_data.report([lost], next(iter(self._nodes.values())).log_dir, self.settings)
        state = ControllerState(
            self.settings,
            journal,
            Random(self._random.getrandbits(64)),
            cluster_id=self._cluster_id,
            controller_id=min(self._nodes),
        )
        self._state = state
        new = state.load()
        kraft = kafka_metadata(state, self._directories, new=new)
        level = self._transaction_version
        if level is None and new:
            level = self.semantics.transaction_version if kraft is None else kraft.features.get(TRANSACTION_VERSION, 0)
        if level is None:
            level = state.image.feature(TRANSACTION_VERSION)
        problems = self.semantics.problems(level)
        if problems:
            raise WrongDirectory(f"the data directory has transaction.version {level}: {problems[0]}")
        self._touched = True
        if not new and state.image.feature(TRANSACTION_VERSION) != level:
            state.set_feature(TRANSACTION_VERSION, level)
        controller = self._controller = self._activate_controller(state)
        epochs = {}
        for node in self._nodes.values():
            epochs[node.node_id] = state.image.offset
            state.register_broker(BrokerImage(node.node_id, node.host, node.port, node.rack, epoch=state.image.offset))
        take_over(state, self._directories, kraft, new=new)
        if new:
            state.finalize(default_features(level))
        # Only now, so that a first start that is killed is begun again on what is still another one's directory.
        for directory in self._directories:
            directory.note_version(__version__)
        # Leaders that are not among the brokers of this start, and partitions that had none when the last one ended.
        controller.replication.elect_missing()
        for node, directory in zip(self._nodes.values(), self._directories, strict=True):
            self._running.attach(self._running.make(node, directory, epochs[node.node_id], state.image))
        for broker in self.brokers.values():
            broker.prepare()
        # Brokers follow a large topic in turns: made before they do, it is there for the first client.
        self._create_topics(state, at_least=AT_A_TIME)
        for broker in self.brokers.values():
            broker.image = state.image  # nothing went stray since `prepare`
            broker.start(state.image)
        state.publishers.append(self._running.publish)
        self._create_topics(state)
        if self.settings.get_boolean("auto.leader.rebalance.enable"):
            self._schedule_balance()
        self._warn_of_short_sessions()
        self.watch_sessions()

    def _activate_controller(self, state: ControllerState) -> Controller:
        controller = Controller(state, self._executor, self._timers, self.semantics, self._journal_failed)
        self.network.attach(CONTROLLER, controller.handle)
        return controller

    def watch_sessions(self) -> None:
        """Start the session timer once there are several brokers."""
        if self._sessions is None and len(self._nodes) > 1:
            interval_ms = self.settings.get_int("broker.session.timeout.ms") / SESSION_TICKS
            self._sessions = self._timers.call_later(interval_ms, self._look_at_sessions)

    def _warn_of_short_sessions(self) -> None:
        beat, session = (self.settings.get_int(f"broker.{of}.ms") for of in ("heartbeat.interval", "session.timeout"))
        if beat * 2 > session:  # Kafka logs this as well, and continues
            log.error(
                "broker.heartbeat.interval.ms (%d) is above half of broker.session.timeout.ms (%d)", beat, session
            )

    def _look_at_sessions(self) -> None:
        self._sessions = None
        self.watch_sessions()
        if self._controller is not None:
            self._controller.heartbeats.tick()

    def _schedule_balance(self) -> None:
        interval_ms = self.settings.get_int("leader.imbalance.check.interval.seconds") * 1000
        self._balancing = self._timers.call_later(interval_ms, self._balance)

    def _balance(self) -> None:
        self._schedule_balance()
        if self._controller is not None:
            self._controller.replication.balance()

    def open_directory(self, node: BrokerSpec) -> DataDirectory:
        """Lock and read a broker's data directory."""
        directory = DataDirectory.open(
            node.disk,
            node_id=node.node_id,
            make_id=self._new_id,
            cluster_id=self._cluster_id or cast("str | None", self.settings.get("minibroker.cluster.id")),
            holder=self._holder,
            transaction_state_layout=self.semantics.transaction_state_layout,
        )
        self._cluster_id = directory.cluster_id
        before = directory.written_before_by
        if before and before != __version__:
            log.info("%s was last opened by minibroker %s, this is %s", node.log_dir, before, __version__)
        return directory

    @property
    def controller(self) -> Controller:
        """The active controller; raises ApiError NOT_CONTROLLER while there is none."""
        if self._controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "no controller is active")
        return self._controller

    @property
    def has_controller(self) -> bool:
        """Whether a controller is active."""
        return self._controller is not None

    @property
    def image(self) -> MetadataImage:
        """The metadata as the controller has it, or had it when it went away."""
        assert self._state is not None, "the cluster has not been started"
        return self._state.image

    @property
    def unclean_elections(self) -> int:
        """Leaders elected out of sync since the cluster's start."""
        return self._state.unclean_elections if self._state is not None else 0

    # -- the controller ----------------------------------------------------------------------------------------------

    def stop_controller(self) -> None:
        """Leave the quorum without a leader: no elections, no fencing, and requests for the controller wait.
        Brokers keep their metadata."""
        self.controller.close()  # raises when it is stopped already
        self._controller = None
        self.network.detach(CONTROLLER)

    def start_controller(self) -> None:
        """Start the next active controller: it reads the journal, fences missing brokers, and renews all sessions."""
        state = self._state
        if self._controller is not None or state is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "there is an active controller")
        state.reload()
        self._controller = controller = self._activate_controller(state)
        for broker in list(state.image.brokers.values()):
            if broker.node_id not in self.brokers and not broker.fenced:
                controller.replication.fence(broker.node_id)
        controller.replication.elect_missing()

    def _journal_failed(self, error: ApiError) -> None:
        """Kafka halts when the directory of its metadata log fails, so that what it serves is what is on the disk."""
        log.critical(
            "the metadata journal failed, every broker ends: %s (data directory: %s)",
            error.message,
            self._journal_disk.root,
        )
        self._timers.call_later(0, lambda: self._end(error))  # after the refusals of the waiting requests

    def _end(self, error: ApiError) -> None:
        if self._operations.stopped:
            return
        for node_id in list(self.brokers):
            self.kill_broker(node_id, unnoticed=True)
        if self._controller is not None:
            self.stop_controller()
        self.failure = error
        self.on_failure()

    def set_hooks(self, hooks: BrokerHooks) -> None:
        """Call these hooks when a broker begins and stops serving."""
        self._running.hooks = hooks

    @property
    def paused_brokers(self) -> list[int]:
        """Node ids of the brokers that are paused."""
        return self._running.paused

    @property
    def nodes(self) -> tuple[BrokerSpec, ...]:
        """Every broker of the cluster, running or not."""
        return tuple(self._nodes.values())

    def stop(self, *, keep: bool = True) -> None:
        """Close every broker cleanly, then the controller. Without `keep` nothing is written, because nothing will read
        it: a test that wrote to thousands of partitions would wait for it."""
        self._operations.stopped = True
        for timer in (self._balancing, self._sessions):
            if timer is not None:
                timer.cancel()
        self._running.stop(keep=keep)
        self.network.detach(CONTROLLER)
        if self._state is not None:
            self._state.close(keep=keep)
        self.clock.close()

    def _new_id(self) -> str:
        return base64.urlsafe_b64encode(self._random.randbytes(16)).rstrip(b"=").decode()

    def _create_topics(self, state: ControllerState, at_least: int = -1) -> None:
        missing = {
            name: count for name, count in self._topics.items() if name not in state.image.topics and count >= at_least
        }
        if not missing:
            return
        control = TopicControl(state)
        for name, count in missing.items():  # what one request may make is limited
            topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=-1)
            (result,) = control.create_topics(CreateTopicsRequest(topics=[topic], timeout_ms=0)).topics
            if result.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(result.error_code), f"topic {result.name}: {result.error_message}")
