"""One simulated world: brokers, controller, clients and troubles of a plan, from the start to the last quiet moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from minibroker.cluster.cluster import Cluster
from minibroker.cluster.node import Node
from minibroker.handlers.dispatch import Dispatcher
from minibroker.runtime.clock import BrokerClock
from minibroker.runtime.deferred import Deferred, spawn
from minibroker.settings import Settings
from minibroker.simulation.client import Client
from minibroker.simulation.history import History
from minibroker.simulation.machine import MachineDisk
from minibroker.simulation.members import Copier
from minibroker.simulation.network import SimulatedNetwork
from minibroker.simulation.plan import Plan
from minibroker.simulation.producers import Producer
from minibroker.simulation.readers import Reader
from minibroker.simulation.reload import COORDINATOR, States, in_memory
from minibroker.simulation.schedule import Schedule, ScheduledExecutor
from minibroker.simulation.troubles import Troubles
from minibroker.simulation.weather import Chances, Weather
from minibroker_protocol.dsl import Request
from minibroker_protocol.messages.transactions import WriteTxnMarkersRequest
from minibroker_storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from minibroker.cluster.broker import Broker

QUIET_MS = 60_000.0
"""How long the clients have, once all is whole, to come to an end."""


class World:
    """`run` plays the plan; afterwards `history`, `disks` and `cluster` hold what there is to judge."""

    def __init__(self, plan: Plan, *, telling: bool = False) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.history = History(lambda: self.schedule.elapsed_ms, telling)
        self.weather = Weather(Random(f"weather {plan.seed}"))
        self.random = Random(f"troubles {plan.seed}")
        self.clock = BrokerClock(self.schedule, self.schedule.now_ms)
        self.disks = {i: MachineDisk() for i in range(1, plan.brokers + 1)}
        self.journal = MemoryDisk()
        self.network = SimulatedNetwork(self.schedule, self.weather, self.history.tell, self._strayed)
        self.clients: list[Client] = []
        self._closing = False
        self.lives: dict[int, int] = dict.fromkeys(self.disks, 1)
        self._instances: dict[str, int] = {}
        self._last_init: dict[str, int] = {}
        self._executor = ScheduledExecutor(self.schedule, self.weather.delay_ms)
        self.cluster = self.make_cluster()
        self.troubles = Troubles(self)

    def make_cluster(self) -> Cluster:
        """The brokers and their controller on the disks there are."""
        return Cluster(
            Settings(self.plan.config()),
            self.plan.rules,
            nodes=[
                Node(node_id=i, host="127.0.0.1", port=9091 + i, disk=disk, log_dir=f"/simulated/{i}")
                for i, disk in self.disks.items()
            ],
            journal_disk=self.journal,
            clock=self.clock,
            timers=self.schedule,
            executor=self._executor,
            random=Random(f"cluster {self.plan.seed}"),
            transaction_version=self.plan.client_version,
            topics={topic: self.plan.partitions for topic, _ in (*self.plan.places, *self.plan.inputs)},
            network=self.network,
        )

    # -- Surroundings --------------------------------------------------------------------------------------------------

    def dispatcher(self, node_id: int) -> tuple[int, Dispatcher] | None:
        if node_id not in self.cluster.brokers:
            return None
        return self.lives[node_id], self.cluster.dispatcher(node_id)

    def instance(self, transactional_id: str) -> int:
        self._instances[transactional_id] = number = self._instances.get(transactional_id, 0) + 1
        return number

    def initialising(self, transactional_id: str, number: int) -> None:
        self._last_init[transactional_id] = number
        self._instances[transactional_id] = max(number, self._instances[transactional_id])

    def owner(self, transactional_id: str) -> int:
        return self._last_init.get(transactional_id, 0)

    def reason(self, client: str, code: int) -> str:
        refusals = [r for broker in self.cluster.brokers.values() for r in broker.refusals]
        kept = [r for r in refusals if r.client_id == client and r.code == code]
        newest = max(kept, key=lambda refusal: refusal.time_ms, default=None)
        return "no reason is known" if newest is None else newest.reason

    @property
    def behind(self) -> list[int]:
        return self.troubles.behind

    @property
    def closing(self) -> bool:
        return self._closing

    def _strayed(self, request: Request) -> None:
        """A request between brokers that its sender gave up arrives: a marker may meet a later transaction."""
        if isinstance(request, WriteTxnMarkersRequest) and self.plan.client_version < 2:
            held = {(marker.producer_id, marker.producer_epoch) for marker in request.markers}
            for producer_id, epoch in held:
                self.history.stale_markers[producer_id, epoch] = producer_id
            for client in self.clients:
                if isinstance(client, Producer) and (client.producer_id, client.epoch) in held and client.joined:
                    self.tell("stale WriteTxnMarkers", f"a late marker meets {client.transaction_name}")
                    self.history.stale_markers[client.transaction_name] = client.producer_id

    # -- the run -------------------------------------------------------------------------------------------------------

    def brokers(self) -> dict[int, Broker]:
        return self.cluster.brokers

    def launch(self, client: Client, run: Callable[[], object]) -> None:
        """Let a client begin; its end, good or bad, is noted."""
        self.clients.append(client)

        def ended(done: Deferred[None]) -> None:
            client.done = True
            done.result()

        spawn(run()).then(ended)  # type: ignore[arg-type]

    def run(self) -> None:
        """From an empty cluster to a quiet one. Exceptions of the brokers' code come out of here."""
        self.cluster.start()
        plan = self.plan
        self.schedule.run(50)
        self.weather.chances = Chances(
            lost=plan.lost, mute=plan.mute, late=plan.late, delay_ms=plan.delay_ms, stray_ms=1500
        )
        for number in range(plan.producers):
            producer = self.producer(f"p{number}")
            self.launch(producer, producer.run)
        for number in range(plan.transactional):
            self.launch_transactional(f"x{number}")
        if plan.inputs:
            feeder = self.producer("feeder", places=plan.inputs)
            self.launch(feeder, feeder.run)
        for number in range(plan.copiers):
            self.launch_transactional(f"c{number}")
        for number in range(plan.readers):
            reader = Reader(self, f"r{number}", self.client_random(f"r{number}"), plan.places)
            self.launch(reader, reader.run)
        self.troubles.start()
        self.schedule.run(plan.length_ms)
        self._settle()

    def client_random(self, name: str) -> Random:
        return Random(f"client {name} {self.plan.seed}")

    def producer(
        self, name: str, transactional_id: str | None = None, places: Sequence[tuple[str, int]] = ()
    ) -> Producer:
        random, where = self.client_random(name), places or self.plan.places
        if transactional_id is not None and transactional_id.startswith("c"):
            return Copier(self, name, random, where, transactional_id=transactional_id)
        return Producer(self, name, random, where, transactional_id=transactional_id)

    def launch_transactional(self, transactional_id: str) -> Producer:
        name = f"{transactional_id}#{self._instances.get(transactional_id, 0) + 1}"
        producer = self.producer(name, transactional_id)
        self.tell("instance started", f"{name} starts with transactional id {transactional_id}")
        self.launch(producer, producer.run_transactions)
        return producer

    def tell(self, event: str, text: str) -> None:
        self.history.tell(event, text)

    def _wait_for_clients(self) -> None:
        if self.schedule.run(QUIET_MS, lambda: all(client.done or client.dead for client in self.clients)):
            return
        for client in self.clients:
            if not (client.done or client.dead):
                doing = client.member.doing if isinstance(client, Copier) else client.doing
                text = f"{client.name} cannot end, {QUIET_MS / 1000:g} s after all is whole: {client.doing}, {doing}"
                self.history.report("no-progress", self.plan.places[0][0], -1, text)
                client.die()

    def _settle(self) -> None:
        """All trouble ends; clients finish what they began; then nothing is left to be done."""
        self.tell("calm", "the network is whole again, all brokers come back, nobody begins anything new")
        self.troubles.end()
        self.weather.calm()
        self._closing = True
        self._wait_for_clients()
        if self.plan.copiers:
            # Whoever was left of the copiers may have been fenced, so that input remains.
            self.launch_transactional("c9")
            self._wait_for_clients()
        # Transactions that nobody ends time out, and followers catch up.
        self.schedule.run(self.plan.transaction_timeout_ms + 3000)
        self.final = Reader(self, "final", self.client_random("final"), [*self.plan.places, *self.plan.inputs])
        self.launch(self.final, self.final.read_all)
        if not self.schedule.run(QUIET_MS, lambda: self.final.done):
            text = f"a reader cannot read all: {self.final.doing}, at {self.final.positions}"
            self.history.report("no-progress", self.plan.places[0][0], -1, text)

    def restart(self) -> tuple[States, States]:
        """Stop all brokers, cleanly or not, and start them again: what they had in memory before and after."""
        before = self._in_memory()
        if self.plan.seed % 2:
            for node in list(self.cluster.brokers):
                self.cluster.kill_broker(node)
        self.cluster.stop()
        self.cluster = self.make_cluster()
        self.cluster.start()
        after = self._in_memory()
        self.schedule.run(400)
        coordinators = {log: state for log, state in self._in_memory().items() if log.root == COORDINATOR}
        return before, {**after, **coordinators}

    def _in_memory(self) -> States:
        return in_memory(self.cluster.brokers, self.plan.client_version)
