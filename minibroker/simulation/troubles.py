"""What befalls brokers: they crash, lose power, stop, are cut off, and give up leadership, at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.cluster.transport import CONTROLLER
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    from minibroker.simulation.world import World

_SESSION_MS = 800.0
"""After which the controller fences a broker it does not hear of."""
_CATCH_UP_MS = 500.0


class Troubles:
    """Draws one event after the other while the world's clients work."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._isolated: dict[int, int] = {}
        self._fenced: set[int] = set()
        self._reconnected: dict[int, float] = {}
        self._over = False
        self._turn = 0
        plan = world.plan
        self._kinds = [
            (self._crash, plan.crash),
            (self._power, plan.machine),
            (self._stop, plan.stop),
            (self._isolate, plan.isolate),
            (self._move, plan.move),
            (self._another_instance, plan.reborn),
        ]
        self._rate = sum(rate for _, rate in self._kinds)

    def start(self) -> None:
        if self._rate > 0:
            delay = self._random.expovariate(self._rate) * 1000
            self._world.schedule.call_later(delay, self._strike)

    def end(self) -> None:
        """Every broker is up, reachable and in the controller's favour."""
        self._over = True
        for node in list(self._isolated):
            self._reconnect(node)
        for node in self._world.disks:
            self._bring_back(node)

    @property
    def behind(self) -> list[int]:
        """Brokers that may not know what the controller decided: cut off now, or until a moment ago."""
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

    def _gone(self, node: int) -> None:
        for client in self._world.clients:
            client.broker_gone(node)
        downtime = self._random.choice((20.0, 300.0, 2000.0))
        self._world.schedule.call_later(downtime, lambda: self._bring_back(node))

    def _crash(self) -> None:
        if self._up():
            node = self._random.choice(self._up())
            self._world.tell("broker crashed", f"broker {node} crashes; what the system has of its files stays")
            self._world.cluster.kill_broker(node)
            self._gone(node)

    def _power(self) -> None:
        """Only where replication, or syncing, promises that nothing acknowledged is lost by it."""
        if not self._up() or (self._world.plan.brokers > 1 and not self._all_in_sync()):
            return
        node = self._random.choice(self._up())
        self._world.tell("power lost", f"the machine of broker {node} loses power")
        self._world.cluster.kill_broker(node)
        self._world.disks[node].lose_power(self._random)
        self._gone(node)

    def _all_in_sync(self) -> bool:
        if len(self._up()) < self._world.plan.brokers or self._isolated:
            return False
        topics = self._world.cluster.image.topics.values()
        return all(len(p.isr) == len(p.replicas) for topic in topics for p in topic.partitions)

    def _stop(self) -> None:
        if self._up():
            node = self._random.choice(self._up())
            self._world.tell("broker stopped", f"broker {node} is stopped")
            self._world.cluster.stop_broker(node)
            self._gone(node)

    def _bring_back(self, node: int) -> None:
        world = self._world
        if node in world.cluster.brokers:
            return
        self._reconnect(node)
        world.lives[node] += 1
        world.tell("broker started", f"broker {node} starts again")
        world.cluster.start_broker(node)

    # -- the network breaks --------------------------------------------------------------------------------------------

    def _isolate(self) -> None:
        """A broker is cut off from others, and perhaps from the controller; clients may still reach it."""
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
            world.weather.cut(node, other)
        if whole:
            world.weather.cut(node, CONTROLLER)
            world.schedule.call_later(_SESSION_MS, lambda: self._fence(node, turn))
        world.schedule.call_later(self._random.choice((300.0, 1500.0, 3000.0)), lambda: self._reconnect(node, turn))

    def _fence(self, node: int, turn: int) -> None:
        if self._isolated.get(node) == turn and node in self._world.cluster.brokers:
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
            world.weather.mend(node, other)
        world.tell("broker reconnected", f"broker {node} is reachable again")
        if node in self._fenced:
            self._fenced.discard(node)
            if node in world.cluster.brokers:
                world.cluster.controller.replication.unfence(node)

    # -- leaders and clients -------------------------------------------------------------------------------------------

    def _move(self) -> None:
        world = self._world
        partitions = [(t.name, p) for t in world.cluster.image.topics.values() for p in t.partitions]
        topic, partition = self._random.choice(partitions)
        to = self._random.choice(partition.replicas)
        try:
            world.cluster.move_leader(topic, partition.index, to)
        except ApiError as error:
            world.tell(f"move refused: {error.code.name}", f"{topic}-{partition.index} stays where it is: {error}")
        else:
            world.tell("leader moved", f"broker {to} is to lead {topic}-{partition.index}")

    def _another_instance(self) -> None:
        """A client dies, or seems to, and a new instance with its transactional id takes over."""
        from minibroker.simulation.producers import Producer

        world = self._world
        found = [c for c in world.clients if isinstance(c, Producer) and c.transactional_id and not c.superseded]
        if not found:
            return
        old = self._random.choice(found)
        if not old.done and self._random.random() >= world.plan.zombies:
            old.die()
        assert old.transactional_id is not None
        world.launch_transactional(old.transactional_id)
