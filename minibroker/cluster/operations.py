"""Operations on the brokers of a running cluster: stop, kill, start, add and remove brokers, cut links."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from minibroker.broker.broker import Broker
from minibroker.cluster.leaders import Metadata
from minibroker.kernel.deferred import Deferred, resolved, spawn
from minibroker.kernel.transport import CONTROLLER
from minibroker.metadata.broker_spec import BrokerSpec
from minibroker.metadata.image import BrokerImage
from minibroker.version import __version__
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.cluster import UnregisterBrokerRequest
from minibroker_storage.directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from minibroker.cluster.running_brokers import RunningBrokers
    from minibroker.kernel.executor import Executor
    from minibroker.kernel.transport import Network


class Home(Metadata, Protocol):
    """What these operations see of a cluster."""

    @property
    def has_controller(self) -> bool:
        """Whether a controller is active."""

    def open_directory(self, node: BrokerSpec) -> DataDirectory:
        """Lock and read a broker's data directory."""

    def watch_sessions(self) -> None:
        """There may be several brokers now."""


class BrokerOperations:
    """All run on the loop's thread. Raises ApiError with Kafka's code for what the controller refuses, and
    BROKER_ID_NOT_REGISTERED, DUPLICATE_BROKER_REGISTRATION for a broker that is missing or already registered.

    nodes: every broker of the cluster, running or not.
    stopped: the cluster is shutting down and starts no broker any more.
    """

    def __init__(
        self,
        home: Home,
        brokers: RunningBrokers,
        nodes: dict[int, BrokerSpec],
        *,
        network: Network,
        executor: Executor,
        make_node: Callable[[int], BrokerSpec] | None,
    ) -> None:
        self.stopped = False
        self._home = home
        self._brokers = brokers
        self._nodes = nodes
        self._network = network
        self._executor = executor
        self._make_node = make_node
        self._starting: set[int] = set()
        self._closing: dict[int, Deferred[None]] = {}

    def stop_broker(self, node_id: int) -> Deferred[None]:
        """As SIGTERM: its leaders move to other replicas, then it closes its logs. Without a controller its leaders
        stay where they are: Kafka too gives up moving them after a timeout. A paused broker is resumed first, so that
        it gets the signal. Resolved once its files are closed; the other brokers keep serving."""
        broker = self._brokers.get(node_id)
        self._brokers.resume(node_id)
        if self._home.has_controller:
            self._home.controller.replication.shut_down(node_id)
        self._brokers.detach(broker)
        closing = self._closing[node_id] = broker.close_aside()
        if self._home.has_controller:
            self._home.controller.replication.fence(node_id)

        def closed(_: Deferred[None]) -> None:
            del self._closing[node_id]

        closing.then(closed)
        return closing

    def kill_broker(self, node_id: int, *, unnoticed: bool = False) -> None:
        """As SIGKILL: nothing is flushed or closed. The controller learns of it at once, as if the session had timed
        out at this moment; with `unnoticed` only when the session times out (broker.session.timeout.ms)."""
        broker = self._brokers.get(node_id)
        self._brokers.detach(broker)
        broker.kill()
        if self._home.has_controller and not unnoticed:
            self._home.controller.replication.fence(node_id)

    def start_broker(self, node_id: int) -> Deferred[Broker]:
        """Start a stopped or killed broker again with the data on its disk. It needs a controller to register with.
        Resolved once it serves. Disk work before that (a shutdown still in progress, recovery after an unclean one)
        does not block the other brokers.
        """
        if node_id in self._brokers.by_id or node_id in self._starting:
            raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"broker {node_id} is running")
        node = self._nodes.get(node_id)
        if node is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not known")
        self._home.controller  # noqa: B018  (raises while there is no controller to register the broker)
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
            replication = self._home.controller.replication
            directory = self._home.open_directory(node)
            directory.note_version(__version__)
            registered = replication.register(
                BrokerImage(node_id, node.host, node.port, node.rack), clean=directory.clean
            )
            broker = self._brokers.make(node, directory, registered.epoch, self._home.image)
            try:
                await self._executor.aside(lambda: broker.prepare(remove_strays=True))
                if self.stopped:
                    raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the cluster ends")
            except BaseException:
                broker.discard()
                raise
        finally:
            self._starting.discard(node_id)
        self._brokers.attach(broker)
        broker.start(self._home.image)
        self._brokers.began(node_id)
        if self._home.has_controller:  # else its heartbeats unfence it once there is one
            self._home.controller.replication.unfence(node_id)
        self._home.watch_sessions()
        return broker

    def add_broker(self, node: BrokerSpec | None = None) -> Deferred[Broker]:
        """A new broker with an empty disk; it holds nothing until partitions are created or moved there."""
        self._home.controller  # noqa: B018  (raises while there is no controller to register the broker)
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
        controller = self._home.controller
        closed = self.stop_broker(node_id) if node_id in self._brokers.by_id else resolved(None)
        response = controller.replication.unregister(UnregisterBrokerRequest(broker_id=node_id))
        if response.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(response.error_code), response.error_message or "")
        del self._nodes[node_id]
        if self._brokers.hooks is not None:
            self._brokers.hooks.removed(node_id)
        return closed

    def cut_link(self, one: int, other: int) -> None:
        """Drop all messages between two brokers, or a broker and the controller (-1), without an error. Clients still
        reach both."""
        self._check_link(one, other)
        self._network.cut(one, other)

    def mend_link(self, one: int, other: int) -> None:
        """Let messages pass again. Held ones are delivered if their sender still waits."""
        self._check_link(one, other)
        self._network.mend(one, other)

    def _check_link(self, one: int, other: int) -> None:
        for node in (one, other):
            if node != CONTROLLER and node not in self._nodes:
                raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node} is not known")
        if one == other:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a node cannot be cut off from itself")
