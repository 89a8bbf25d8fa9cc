"""Failures of brokers: they crash, lose power, stop, are isolated, and lose leadership, at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.transport import CONTROLLER
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker_lab.simulation.members import INPUT
from minibroker_lab.simulation.producers import Producer
from minibroker_lab.simulation.scene import Scene
from minibroker_protocol.errors import ApiError
from minibroker_storage.directory import partition_of
from minibroker_storage.disk import StorageError

if TYPE_CHECKING:
    from minibroker.metadata.image import PartitionImage

_CATCH_UP_MS = 500.0
_SESSION_MS = 800.0
"""Time without a heartbeat after which the controller fences a broker."""


class Nemesis:
    """Draws one failure after another while the clients work."""

    def __init__(self, world: Scene) -> None:
        self._world = world
        self._random = world.random
        self._isolated: dict[int, int] = {}
        self._fenced: set[int] = set()
        self._reconnected: dict[int, float] = {}
        self._over = False
        self._turn = 0
        self._absent = False
        # Work for the next controller.
        self._waiting: list[Callable[[], None]] = []
        plan = world.plan
        self._kinds = [
            (self._crash, plan.crash),
            (self._power, plan.machine),
            (self._stop, plan.stop),
            (self._isolate, plan.isolate),
            (self._move, plan.move),
            (self._another_instance, plan.reborn),
            (self._disk, plan.disk),
            (self._lose_all, plan.unclean),
            (self._reassign, plan.reassign),
            (self._absent_controller, plan.absent),
        ]
        self._rate = sum(rate for _, rate in self._kinds)

    def start(self) -> None:
        if self._rate > 0:
            delay = self._random.expovariate(self._rate) * 1000
            self._world.schedule.call_later(delay, self._strike)

    def end(self) -> None:
        """Make every broker run, reachable and unfenced."""
        self._over = True
        self._controller_back()
        for node in list(self._isolated):
            self._reconnect(node)
        for disk in self._world.disks.values():
            disk.heal()
        for node in self._world.disks:
            self._bring_back(node)

    @property
    def behind(self) -> list[int]:
        """Brokers that may not know the controller's last decisions: isolated now, or until a moment ago."""
        now = self._world.schedule.elapsed_ms
        lately = [node for node, at in self._reconnected.items() if now - at < _CATCH_UP_MS]
        return sorted({*self._isolated, *lately})

    def _strike(self) -> None:
        if self._over:
            return
        kinds, weights = zip(*self._kinds, strict=True)
        self._random.choices(kinds, weights)[0]()
        self.start()

    # -- brokers end ---------------------------------------------------------------------------------------------------

    def _up(self) -> list[int]:
        return sorted(self._world.cluster.brokers)

    def _gone(self, node: int, downtime: float | None = None) -> None:
        for client in self._world.clients:
            client.broker_gone(node)
        if downtime is None:
            downtime = self._random.choice((20.0, 300.0, 2000.0))
        self._world.schedule.call_later(downtime, lambda: self._bring_back(node))

    def _crash(self) -> None:
        if self._up():
            node = self._random.choice(self._up())
            self._world.tell("broker crashed", f"broker {node} crashes; what the system has of its files stays")
            self._world.cluster.kill_broker(node)
            self._gone(node)

    def _power(self) -> None:
        """Only where replication or syncing ensures that it loses no acknowledged record."""
        if not self._up() or (self._world.plan.brokers > 1 and not self._all_in_sync()):
            return
        node = self._random.choice(self._up())
        self._world.tell("power lost", f"the machine of broker {node} loses power")
        self._world.cluster.kill_broker(node)
        self._note_uncut(node)
        self._world.disks[node].lose_power(self._random)
        self._world.history.evidence.powerless.add(node)
        self._gone(node)

    def _note_uncut(self, node: int) -> None:
        disk, evidence = self._world.disks[node], self._world.history.evidence
        for paths, noted in ((disk.unsynced_cuts(), evidence.uncut), (disk.forgotten_writes(), evidence.forgotten)):
            for path in paths:
                place = partition_of(path.rpartition("/")[0])
                if place is not None and path.endswith(".log"):
                    noted.add((node, place))

    def _all_in_sync(self) -> bool:
        if len(self._up()) < self._world.plan.brokers or self._isolated:
            return False
        topics = self._world.cluster.image.topics.values()
        return all(len(p.isr) == len(p.replicas) for topic in topics for p in topic.partitions)

    def _closed(self, node: int, done: Deferred[None]) -> None:
        try:
            done.result()
        except StorageError as error:
            self._world.tell("unclean stop", f"broker {node} ends without a clean shutdown: {error}")

    def _stop(self) -> None:
        if self._up():
            node = self._random.choice(self._up())
            self._world.tell("broker stopped", f"broker {node} is stopped")
            self._world.cluster.stop_broker(node).then(lambda done: self._closed(node, done))
            self._gone(node)

    def _bring_back(self, node: int) -> None:
        world = self._world
        if node in world.cluster.brokers:
            return
        self._reconnect(node)
        world.disks[node].heal()
        if self._absent:
            world.schedule.call_later(50.0, lambda: self._bring_back(node))
            return
        world.lives[node] += 1
        world.tell("broker started", f"broker {node} starts again")
        world.cluster.start_broker(node).result()
        world.attended()

    # -- disks fail --------------------------------------------------------------------------------------------------

    def _disk(self) -> None:
        """A disk gives an error, or is full; the broker of a failed disk ends, as Kafka's does with its only one."""
        world = self._world
        if not self._up():
            return
        node = self._random.choice(self._up())
        turn = world.lives[node]

        def ends() -> None:
            if world.lives[node] == turn and node in world.cluster.brokers:
                world.tell("broker ended by its disk", f"broker {node} ends, its disk having failed")
                world.cluster.kill_broker(node)
                self._gone(node)

        if self._random.random() < 0.5:
            world.tell("disk error", f"the disk of broker {node} is about to fail")
            world.disks[node].fail_soon(self._random)
        else:
            world.tell("disk full", f"the disk of broker {node} is full")
            world.disks[node].fill()
        world.schedule.call_later(self._random.choice((50.0, 200.0, 600.0)), ends)

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _partitions(self, *, internal: bool) -> list[tuple[str, PartitionImage]]:
        topics = self._world.cluster.image.topics.values()
        return [(topic.name, p) for topic in topics if internal or not topic.internal for p in topic.partitions]

    def _reassign(self) -> None:
        """Reassign replicas: a broker without the partition replaces one of its replicas."""
        world = self._world
        topic, partition = self._random.choice(self._partitions(internal=True))
        replicas = self._random.sample(sorted(world.disks), len(partition.replicas) - len(partition.removing))
        try:
            world.cluster.reassign(topic, partition.index, replicas)
        except ApiError as error:
            world.tell(f"reassignment refused: {error.code.name}", f"{topic}-{partition.index} stays: {error}")
        else:
            world.tell("reassigned", f"{topic}-{partition.index} is to be on {replicas}")

    def _lose_all(self) -> None:
        """All replicas of a partition stop; then the first out-of-sync one starts alone and must lead."""
        world = self._world
        places = [(t, p) for t, p in self._partitions(internal=False) if len(p.replicas) > 1 and t != INPUT]
        if len(self._up()) < world.plan.brokers or self._isolated or not places:
            return
        topic, partition = self._random.choice(places)
        others = [node for node in partition.replicas if node != partition.leader]
        lagging = self._random.choice(others)
        world.tell("replicas lost", f"{topic}-{partition.index} loses broker {lagging}, then all others")
        world.cluster.kill_broker(lagging)
        self._gone(lagging, downtime=700.0)

        def rest() -> None:
            for node in self._up():
                world.tell("broker crashed", f"broker {node} crashes too")
                world.cluster.kill_broker(node)
                self._gone(node, downtime=1500.0)

        def elect() -> None:
            if not self._over and lagging in world.cluster.brokers:
                try:
                    world.cluster.elect(topic, partition.index, unclean=True)
                except ApiError as error:
                    world.tell(f"unclean election refused: {error.code.name}", f"no unclean election: {error}")
                else:
                    world.tell(
                        "unclean election", f"broker {lagging} is to lead {topic}-{partition.index}, come what may"
                    )

        world.schedule.call_later(400.0, rest)
        world.schedule.call_later(900.0, elect)

    # -- the controller ------------------------------------------------------------------------------------------------

    def _absent_controller(self) -> None:
        """Stop the controller, as while a quorum elects one; the next one reads the journal."""
        if self._absent:
            return
        self._absent = True
        self._world.tell("controller absent", "the controller is gone")
        self._world.cluster.stop_controller()
        self._world.schedule.call_later(self._random.choice((200.0, 800.0)), self._controller_back)

    def _controller_back(self) -> None:
        if self._absent:
            self._absent = False
            self._world.tell("controller back", "there is a controller again, which has read the journal")
            self._world.cluster.start_controller()
            for late in self._waiting:
                late()
            self._waiting.clear()

    # -- the network breaks --------------------------------------------------------------------------------------------

    def _isolate(self) -> None:
        """Isolate a broker from others, and perhaps from the controller; clients may still reach it."""
        world = self._world
        nodes = [node for node in self._up() if node not in self._isolated]
        if not nodes or self._isolated:
            return
        node = self._random.choice(nodes)
        self._turn += 1
        self._isolated[node] = turn = self._turn
        whole = self._random.random() < 0.7
        others = [other for other in world.disks if other != node]
        world.tell("broker isolated", f"broker {node} is cut off from {others}{' and the controller' if whole else ''}")
        for other in others:
            world.conditions.cut(node, other)
        if whole:
            world.conditions.cut(node, CONTROLLER)
            world.schedule.call_later(_SESSION_MS, lambda: self._fence(node, turn))
        world.schedule.call_later(self._random.choice((300.0, 1500.0, 3000.0)), lambda: self._reconnect(node, turn))

    def _fence(self, node: int, turn: int) -> None:
        if self._isolated.get(node) == turn and node in self._world.cluster.brokers and not self._absent:
            self._world.tell("broker fenced", f"the controller fences broker {node}, which it does not hear of")
            self._world.cluster.controller.replication.fence(node)
            self._fenced.add(node)

    def _reconnect(self, node: int, turn: int | None = None) -> None:
        if node not in self._isolated or (turn is not None and self._isolated[node] != turn):
            return
        del self._isolated[node]
        world = self._world
        self._reconnected[node] = world.schedule.elapsed_ms
        for other in (*world.disks, CONTROLLER):
            world.conditions.mend(node, other)
        world.tell("broker reconnected", f"broker {node} is reachable again")
        if node in self._fenced:
            self._fenced.discard(node)
            if self._absent:
                self._waiting.append(lambda: self._unfence(node))
            else:
                self._unfence(node)

    def _unfence(self, node: int) -> None:
        if node in self._world.cluster.brokers and node not in self._isolated:
            self._world.cluster.controller.replication.unfence(node)

    # -- leaders and clients -------------------------------------------------------------------------------------------

    def _move(self) -> None:
        self._move_one(self._partitions(internal=True))

    def move_coordinator(self) -> None:
        """Of some transactional ids."""
        if not self._over:
            self._move_one([(t, p) for t, p in self._partitions(internal=True) if t == TRANSACTION_STATE_TOPIC])

    def _move_one(self, partitions: list[tuple[str, PartitionImage]]) -> None:
        if not partitions:
            return
        world = self._world
        topic, partition = self._random.choice(partitions)
        to = self._random.choice(partition.replicas)
        try:
            world.cluster.move_leader(topic, partition.index, to)
        except ApiError as error:
            world.tell(f"move refused: {error.code.name}", f"{topic}-{partition.index} stays where it is: {error}")
        else:
            world.tell("leader moved", f"broker {to} is to lead {topic}-{partition.index}")

    def _another_instance(self) -> None:
        """A client dies, or hangs, and a new instance with its transactional id starts."""
        world = self._world
        producers = [c for c in world.clients if isinstance(c, Producer) and c.transactional_id and not c.superseded]
        if not producers:
            return
        old = self._random.choice(producers)
        if not old.done and self._random.random() >= world.plan.zombies:
            old.die()
        assert old.transactional_id is not None
        world.launch_transactional(old.transactional_id)
