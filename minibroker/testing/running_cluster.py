"""The brokers behind a running `Minibroker`: stop, kill, start, add and remove them, move leaders and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minibroker.faults.operations import lose_producers, the_broker
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.loop_calls import call_in_loop
from minibroker.server.service import Service
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.cluster.cluster import Cluster
    from minibroker.cluster.leaders import CoordinatorType
    from minibroker.kernel.refusals import Refusal
    from minibroker.partitions.producer_loss import Cause

__tracebackhide__ = True  # pytest shows the line of the test

DEFAULT_TIMEOUT = 30.0


class RunningCluster:
    """Every method may be called from any thread but the broker's own, and returns once it is done. Methods that have
    the same name as one of `State` do the same.

    A node id may be left out where there is one broker. Raises ApiError with Kafka's code for what a controller
    refuses, FaultError for a node id that is missing, and TimeoutError when a move takes longer than `timeout` seconds
    (it continues in the background).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, service: Service, *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> None:
        self._loop = loop
        self._service = service
        self._timeout = timeout

    def run(self, work: Callable[[Cluster], Any]) -> Any:
        """Call `work(cluster)` on the broker's thread; a Deferred is waited for."""

        def on_cluster() -> Any:
            cluster = self._service.cluster
            if cluster is None:
                raise RuntimeError("the broker is not running")
            return work(cluster)

        try:
            return call_in_loop(self._loop, on_cluster).result(self._timeout)
        except (ApiError, FaultError, TimeoutError) as error:
            raise error.with_traceback(None) from None

    def refusals(self) -> list[Refusal]:
        """The last refused requests of all running brokers, oldest first, each with its reason."""

        def collect(cluster: Cluster) -> list[Refusal]:
            refusals = [refusal for broker in cluster.brokers.values() for refusal in broker.refusals]
            return sorted(refusals, key=lambda refusal: refusal.time_ms)

        refusals: list[Refusal] = self.run(collect)
        return refusals

    def lose_producers(self, topic: str, partition: int = 0, *, cause: Cause, offset: int | None = None) -> list[int]:
        """Make the leader of a partition forget producers; returns their ids. The same as `state.lose_producers`."""
        lost: list[int] = self.run(
            lambda cluster: lose_producers(cluster, topic=topic, partition=partition, cause=cause, offset=offset)
        )
        return lost

    @property
    def broker_ids(self) -> list[int]:
        """Node ids of the brokers that run."""
        ids: list[int] = self.run(lambda cluster: sorted(cluster.brokers))
        return ids

    def stop_broker(self, node_id: int | None = None) -> None:
        """Stop a broker as SIGTERM does: its leaders move, logs are closed, connections end."""
        self.run(lambda cluster: cluster.stop_broker(the_broker(cluster, node_id)))

    def kill_broker(self, node_id: int | None = None, *, unnoticed: bool = False) -> None:
        """Kill a broker as SIGKILL does: connections end, nothing is flushed or closed.

        unnoticed: the controller learns of it only when the broker's session times out (broker.session.timeout.ms), not
            at once.
        """
        self.run(lambda cluster: cluster.kill_broker(the_broker(cluster, node_id), unnoticed=unnoticed))

    def start_broker(self, node_id: int | None = None) -> None:
        """Start a stopped or killed broker again, on its port and with its data."""
        self.run(lambda cluster: cluster.start_broker(the_broker(cluster, node_id)))

    def pause_broker(self, node_id: int | None = None) -> None:
        """Pause a broker as SIGSTOP does: connections stay open, no request is processed."""
        self.run(lambda cluster: cluster.pause_broker(the_broker(cluster, node_id)))

    def resume_broker(self, node_id: int | None = None) -> None:
        """Resume a paused broker: requests received while paused are processed."""
        self.run(lambda cluster: cluster.resume_broker(the_broker(cluster, node_id)))

    def add_broker(self) -> int:
        """Add a new, empty broker; returns its node id."""
        broker: Broker = self.run(lambda cluster: cluster.add_broker())
        return broker.node_id

    def remove_broker(self, node_id: int) -> None:
        """Stop a broker and remove it from the metadata."""
        self.run(lambda cluster: cluster.remove_broker(node_id))

    def stop_controller(self) -> None:
        """Stop the controller: there are no elections, and requests for the controller wait for the next one."""
        self.run(lambda cluster: cluster.stop_controller())

    def start_controller(self) -> None:
        """Start the next active controller, which reads the metadata journal."""
        self.run(lambda cluster: cluster.start_controller())

    def cut_link(self, one: int, other: int) -> None:
        """Drop every message between two brokers, or a broker and the controller (-1), without an error."""
        self.run(lambda cluster: cluster.cut_link(one, other))

    def mend_link(self, one: int, other: int) -> None:
        """Undo `cut_link`; held messages are delivered if their sender still waits."""
        self.run(lambda cluster: cluster.mend_link(one, other))

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Node id of the leader; None while there is none."""
        node_id: int | None = self.run(lambda cluster: cluster.image.leader_of(topic, partition))
        return node_id

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """Node ids in sync; empty when the partition does not exist."""

        def isr(cluster: Cluster) -> list[int]:
            state = cluster.image.partition(topic, partition)
            return [] if state is None else sorted(state.isr)

        ids: list[int] = self.run(isr)
        return ids

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Make broker `to` the leader, with a new replica there when it has none."""
        self.run(lambda cluster: cluster.move_leader(topic, partition, to))

    def coordinator(self, kind: CoordinatorType, key: str) -> int | None:
        """Node id of the coordinator of a ``"transaction"`` id or a ``"group"``."""
        node_id: int | None = self.run(lambda cluster: cluster.coordinator(kind, key))
        return node_id

    def move_coordinator(self, kind: CoordinatorType, key: str, to: int) -> None:
        """Make broker `to` the coordinator of a transactional id or a group."""
        self.run(lambda cluster: cluster.move_coordinator(kind, key, to))

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition other replicas; returns when they are the only ones."""
        self.run(lambda cluster: cluster.reassign(topic, partition, replicas))

    def elect(self, topic: str, partition: int, *, unclean: bool = False) -> None:
        """Elect the preferred leader, or with `unclean` any live replica of a partition without leader."""
        self.run(lambda cluster: cluster.elect(topic, partition, unclean=unclean))


class LocalCaller:
    """Runs commands of a broker in this process; usable from any thread but the broker's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service) -> None:
        # No timeout here: commands that wait have their own.
        self._running = RunningCluster(loop, service, timeout=None)
        self._service = service

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of one command. Raises FaultError, ApiError, RuntimeError when the broker does not run."""
        return self._running.run(lambda _: self._service.commands.call(name, arguments))
