"""What can be done to a running cluster: brokers stop, die, come back, join and leave; leaders and replicas move."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from minibroker.broker.broker import Broker
from minibroker.controller.controller import Controller
from minibroker.controller.elections import Election
from minibroker.controller.state import ControllerState
from minibroker.coordinators.hashing import partition_for
from minibroker.handlers.chain import Place
from minibroker.handlers.pause import Pause
from minibroker.kernel.deferred import Deferred, resolved, spawn
from minibroker.kernel.executor import Executor
from minibroker.kernel.transport import CONTROLLER
from minibroker.metadata.broker_spec import BrokerSpec
from minibroker.metadata.image import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    BrokerImage,
    MetadataImage,
)
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.cluster import UnregisterBrokerRequest
from minibroker_storage.directory import DataDirectory

if TYPE_CHECKING:
    from minibroker.broker.suspension import Suspension
    from minibroker.cluster.hooks import BrokerHooks, Meter
    from minibroker.cluster.tapped_transport import TappedTransport
    from minibroker.handlers.dispatch import Dispatcher
    from minibroker.kernel.transport import Network

Coordinator = Literal["transaction", "group"]
_TOPICS: dict[Coordinator, str] = {"transaction": TRANSACTION_STATE_TOPIC, "group": CONSUMER_OFFSETS_TOPIC}


class ClusterOperations:
    """The half of :class:`~minibroker.cluster.cluster.Cluster` that changes brokers and leaders.

    All run on the loop's thread. Raises ApiError with Kafka's code for what the controller refuses, and
    BROKER_ID_NOT_REGISTERED, DUPLICATE_BROKER_REGISTRATION for brokers that are not there, or already.
    """

    brokers: dict[int, Broker]
    hooks: BrokerHooks | None
    network: Network
    _nodes: dict[int, BrokerSpec]
    _make_node: Callable[[int], BrokerSpec] | None
    meters: dict[int, Meter]
    _dispatchers: dict[int, Dispatcher]
    _suspensions: dict[int, Suspension]
    _transports: dict[int, TappedTransport]
    _state: ControllerState | None
    _controller: Controller | None
    _executor: Executor
    _starting: set[int]
    _closing: dict[int, Deferred[None]]
    _stopped: bool

    @abstractmethod
    def _activate_controller(self, state: ControllerState) -> Controller: ...

    @abstractmethod
    def _watch_sessions(self) -> None: ...

    @abstractmethod
    def _open_directory(self, node: BrokerSpec) -> DataDirectory: ...

    @abstractmethod
    def _make_broker(self, node: BrokerSpec, directory: DataDirectory, epoch: int) -> Broker: ...

    @abstractmethod
    def _attach(self, broker: Broker) -> None: ...

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

    # -- brokers -----------------------------------------------------------------------------------------------------

    def stop_broker(self, node_id: int) -> Deferred[None]:
        """As SIGTERM: its leaders move to other replicas, then it closes its logs. Without a controller no leader
        moves, as Kafka's after a timeout. A paused broker is resumed first, so that it gets the signal.
        Resolved once its files are closed; the other brokers keep serving."""
        broker = self._running(node_id)
        self.resume_broker(node_id)
        if self._controller is not None:
            self._controller.replication.shut_down(node_id)
        self._gone(broker)
        closing = self._closing[node_id] = broker.close_aside()
        if self._controller is not None:
            self._controller.replication.fence(node_id)

        def closed(_: Deferred[None]) -> None:
            del self._closing[node_id]

        closing.then(closed)
        return closing

    def kill_broker(self, node_id: int, *, unnoticed: bool = False) -> None:
        """As SIGKILL: nothing is flushed or closed. The controller learns of it at once, as if the session had timed
        out in this moment; `unnoticed` leaves it to the session (broker.session.timeout.ms)."""
        broker = self._running(node_id)
        self._gone(broker)
        broker.kill()
        if self._controller is not None and not unnoticed:
            self._controller.replication.fence(node_id)

    def _gone(self, broker: Broker) -> None:
        if self.hooks is not None:
            self.hooks.stopped(broker.node_id)
        del self.brokers[broker.node_id]
        del self._dispatchers[broker.node_id]
        self.meters.pop(broker.node_id, None)
        self._suspensions.pop(broker.node_id).drop()
        self._transports.pop(broker.node_id).close()
        self.network.detach(broker.node_id)

    def pause_broker(self, node_id: int) -> None:
        """As SIGSTOP: keeps connections and accepts new ones, but processes nothing. No effect when paused."""
        self._running(node_id)
        suspension = self._suspensions[node_id]
        if not suspension.paused:
            suspension.pause()
            self._dispatchers[node_id].link(Place.PAUSE, Pause(suspension))

    def resume_broker(self, node_id: int) -> None:
        """As SIGCONT: process the requests received while paused, in order. No effect when not paused."""
        self._running(node_id)
        suspension = self._suspensions[node_id]
        if suspension.paused:
            self._dispatchers[node_id].link(Place.PAUSE, None)
            suspension.resume()

    def when_going(self, node_id: int) -> Deferred[None]:
        """Resolved once a broker is not paused; never when it is killed before."""
        self._running(node_id)
        going: Deferred[None] = Deferred()
        self._suspensions[node_id].run(lambda: going.resolve(None))
        return going

    @property
    def paused_brokers(self) -> list[int]:
        """Node ids of the brokers that are paused."""
        return sorted(node_id for node_id, suspension in self._suspensions.items() if suspension.paused)

    def start_broker(self, node_id: int) -> Deferred[Broker]:
        """Bring a stopped or killed broker back with what is on its disk. It needs a controller to register with.

        Resolved once it serves; what its disk needs before (a clean end that is not over yet, recovery after an
        unclean one) does not hold up the others.
        """
        if node_id in self.brokers or node_id in self._starting:
            raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"broker {node_id} is running")
        node = self._nodes.get(node_id)
        if node is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not known")
        self.controller  # noqa: B018  (raises while nobody could register the broker)
        self._starting.add(node_id)
        started = spawn(self._bring_up(node))
        if started.done:
            started.result()
        return started

    async def _bring_up(self, node: BrokerSpec) -> Broker:
        node_id = node.node_id
        try:
            if node_id in self._closing:
                with suppress(Exception):  # `stop_broker`'s caller gets it
                    await self._closing[node_id]
            replication = self.controller.replication
            directory = self._open_directory(node)
            registered = replication.register(
                BrokerImage(node_id, node.host, node.port, node.rack), clean=directory.clean
            )
            broker = self._make_broker(node, directory, registered.epoch)
            try:
                await self._executor.aside(lambda: broker.prepare(remove_strays=True))
                if self._stopped:
                    raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the cluster ends")
            except BaseException:
                broker.discard()
                raise
        finally:
            self._starting.discard(node_id)
        self._attach(broker)
        broker.start(self.image)
        if self.hooks is not None:
            self.hooks.started(node_id, self._dispatchers[node_id])
        if self._controller is not None:  # else its heartbeats unfence it once there is one
            self._controller.replication.unfence(node_id)
        self._watch_sessions()
        return broker

    def add_broker(self, node: BrokerSpec | None = None) -> Deferred[Broker]:
        """A new broker with an empty disk; it holds nothing until partitions are created or moved there."""
        self.controller  # noqa: B018  (raises while nobody could register the broker)
        if node is None:
            if self._make_node is None:
                raise ValueError("this cluster cannot make brokers: give the node")
            node = self._make_node(max(self._nodes) + 1)
        if node.node_id in self._nodes:
            raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"there is a broker {node.node_id} already")
        self._nodes[node.node_id] = node
        return self.start_broker(node.node_id)

    def remove_broker(self, node_id: int) -> Deferred[None]:
        """Stop a broker, if it runs, and take it out of the metadata (UnregisterBroker). Replica lists that name it
        stay as they are, as in Kafka; reassign them first."""
        if node_id in self._starting:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {node_id} is about to start")
        controller = self.controller
        closed = self.stop_broker(node_id) if node_id in self.brokers else resolved(None)
        response = controller.replication.unregister(UnregisterBrokerRequest(broker_id=node_id))
        if response.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(response.error_code), response.error_message or "")
        del self._nodes[node_id]
        if self.hooks is not None:
            self.hooks.removed(node_id)
        return closed

    def _running(self, node_id: int) -> Broker:
        broker = self.brokers.get(node_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not running")
        return broker

    # -- the wire between them ---------------------------------------------------------------------------------------

    def cut_link(self, one: int, other: int) -> None:
        """Drop all messages between two brokers, or a broker and the controller (-1), without an error. Clients still
        reach both."""
        self._check_link(one, other)
        self.network.cut(one, other)

    def mend_link(self, one: int, other: int) -> None:
        """Let messages pass again. Held ones arrive if their sender still waits."""
        self._check_link(one, other)
        self.network.mend(one, other)

    def _check_link(self, one: int, other: int) -> None:
        for node in (one, other):
            if node != CONTROLLER and node not in self._nodes:
                raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node} is not known")
        if one == other:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a node cannot be cut off from itself")

    # -- leaders and replicas ----------------------------------------------------------------------------------------

    def elect(self, topic: str, index: int, *, unclean: bool = False) -> None:
        """ElectLeaders of one partition: its preferred leader, or with `unclean` any live replica when it has none."""
        self.controller.replication.elect(topic, index, Election.UNCLEAN if unclean else Election.PREFERRED)

    def reassign(self, topic: str, index: int, replicas: Sequence[int]) -> Deferred[None]:
        """AlterPartitionReassignments of one partition; resolved once the new replicas are the only ones."""
        self.controller.reassignments.reassign(topic, index, replicas)

        def done() -> bool:
            partition = self.image.partition(topic, index)
            return partition is None or (partition.replicas == tuple(replicas) and not partition.adding)

        return self._when(done)

    def move_leader(self, topic: str, index: int, to: int) -> Deferred[None]:
        """Make broker `to` lead a partition; when it has no replica of it, it takes the place of the leader's first.

        Done as with Kafka's tools: a reassignment that puts `to` first, then the election of the preferred leader.
        Raises PREFERRED_LEADER_NOT_AVAILABLE when `to` is a replica that is not in sync.
        """
        partition = self.image.partition(topic, index)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}")
        if partition.leader == to:
            return resolved(None)
        kept = [node for node in partition.replicas if node != to]
        if to not in partition.replicas:
            kept = [node for node in kept if node != partition.leader]
        moved = self.reassign(topic, index, [to, *kept])
        outcome: Deferred[None] = Deferred()

        def elect(_: Deferred[None]) -> None:
            try:
                now = self.image.partition(topic, index)
                if now is not None and now.leader != to:
                    self.elect(topic, index)
                outcome.resolve(None)
            except ApiError as error:
                outcome.fail(error)

        moved.then(elect)
        if outcome.done:
            outcome.result()
        return outcome

    def move_coordinator(self, kind: Coordinator, key: str, to: int) -> Deferred[None]:
        """Make broker `to` coordinate a transactional id or a group, and all others of its partition with it."""
        name = _TOPICS[kind]
        topic = self.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} does not exist yet")
        return self.move_leader(name, partition_for(key, len(topic.partitions)), to)

    def coordinator(self, kind: Coordinator, key: str) -> int | None:
        """Node id of the coordinator of a transactional id or group; None while there is none."""
        topic = self.image.topics.get(_TOPICS[kind])
        if topic is None:
            return None
        return self.image.leader_of(topic.name, partition_for(key, len(topic.partitions)))

    def _when(self, reached: Callable[[], bool]) -> Deferred[None]:
        """Resolved once the metadata make `reached` true."""
        outcome: Deferred[None] = Deferred()
        state = self.controller.state
        if reached():
            return resolved(None)

        def look(_: MetadataImage, __: tuple[str, ...]) -> None:
            if not outcome.done and reached():
                state.unsubscribe(look)
                outcome.resolve(None)

        state.subscribe(look)
        return outcome
