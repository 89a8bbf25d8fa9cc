"""One simulated world: brokers, controller, clients and troubles of a plan, from the start to the last quiet moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from minibroker.cluster.cluster import Cluster
from minibroker.config.settings import Settings
from minibroker.coordinators.transactions.states import ONGOING
from minibroker.kernel.broker_clock import BrokerClock
from minibroker.kernel.deferred import Deferred, spawn
from minibroker.metadata.broker_spec import BrokerSpec
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.requests.dispatch import Dispatcher
from minibroker.rules.rows import Finding
from minibroker.trace.tap import RequestTap
from minibroker_lab.simulation.client import Client
from minibroker_lab.simulation.copier import LAST, Copier
from minibroker_lab.simulation.evidence import Dropped, PartitionWatch
from minibroker_lab.simulation.history import History
from minibroker_lab.simulation.late_markers import LateMarkers
from minibroker_lab.simulation.links import Reasons
from minibroker_lab.simulation.machine import MachineDisk
from minibroker_lab.simulation.nemesis import Nemesis
from minibroker_lab.simulation.network import SimulatedNetwork
from minibroker_lab.simulation.network_conditions import Chances, NetworkConditions
from minibroker_lab.simulation.odd_clients import CARELESS, Careless, Janitor
from minibroker_lab.simulation.own_records import OwnRecords
from minibroker_lab.simulation.plan import Plan
from minibroker_lab.simulation.producers import Producer
from minibroker_lab.simulation.readers import Reader
from minibroker_lab.simulation.reload import (
    COORDINATOR,
    States,
    deleted_producers,
    ends_inside_batches,
    in_memory,
    producers_below_start,
)
from minibroker_lab.simulation.schedule import Schedule, ScheduledExecutor
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ApiError
from minibroker_protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)
from minibroker_storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.coordinator_runtime.transaction_markers import EndedTransaction
    from minibroker.metadata.image import MetadataImage, PartitionImage
    from minibroker.rules.rows import TxnState
    from minibroker.trace.recorder import Recorder

QUIET_MS = 60_000.0
"""Milliseconds in which every client must finish after all failures are over."""


class Coverage(Protocol):
    """Counts the events of a world's brokers in its history."""

    def served(self, node_id: int, request: Request) -> None:
        """A broker takes up a client's request."""

    def partition(self, before: PartitionImage | None, after: PartitionImage) -> None:
        """The controller changed a partition."""

    def transactions(self, states: Iterable[TxnState]) -> None:
        """Every record of `__transaction_state`, in order of offsets."""


class World:
    """`run` executes the plan; afterwards `history`, `disks` and `cluster` hold the result to judge."""

    cluster: Cluster

    def __init__(self, plan: Plan, *, telling: bool = False, recorder: Recorder | None = None) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.history = History(lambda: self.schedule.elapsed_ms, telling)
        self.conditions = NetworkConditions(Random(f"weather {plan.seed}"))
        self.random = Random(f"troubles {plan.seed}")
        self.clock = BrokerClock(self.schedule, self.schedule.now_ms)
        self.disks = {i: MachineDisk() for i in range(1, plan.brokers + 1)}
        self.journal = MemoryDisk()
        self.coverage: Coverage | None = None
        self.janitor: Janitor | None = None
        #: By the name of a known hole, what it explains.
        self.explained: dict[str, list[Finding]] = {}
        self._partitions = PartitionWatch()
        self.network = SimulatedNetwork(self.schedule, self.conditions, self.history.tell, self._strayed)
        self.network.watch = self._taken_up
        self.late_markers = LateMarkers(self)
        self.own_records = OwnRecords(self)
        self.reasons = Reasons(None if recorder is None else self._tap(recorder))
        self.network.delayed = self._delayed
        self.clients: list[Client] = []
        self._closing = False
        self.lives: dict[int, int] = dict.fromkeys(self.disks, 1)
        self._instances: dict[str, int] = {}
        self._last_init: dict[str, int] = {}
        self._granted: dict[str, tuple[int, int]] = {}
        self._executor = ScheduledExecutor(self.schedule, self.conditions.delay_ms)
        self.cluster = self.make_cluster()
        self.nemesis = Nemesis(self)

    def make_cluster(self) -> Cluster:
        """Start the brokers and their controller on the present disks."""
        cluster = Cluster(
            Settings(self.plan.config()),
            self.plan.rules,
            nodes=[
                BrokerSpec(node_id=i, host="127.0.0.1", port=9091 + i, disk=disk, log_dir=f"/simulated/{i}")
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
        cluster.set_tap(self.reasons)
        return cluster

    def _tap(self, recorder: Recorder) -> RequestTap:
        tap = RequestTap(
            lambda exchange: (exchange.apply(), None),
            wall_ms=lambda: int(self.schedule.now_ms()),
            monotonic_ms=lambda: self.schedule.elapsed_ms,
        )
        tap.recorder = recorder
        return tap

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

    def initialised(self, transactional_id: str, number: int, granted: tuple[int, int]) -> None:
        best = self._granted.get(transactional_id, (-1, -1))
        if granted[0] == best[0] and granted[1] < best[1]:
            return  # its answer was overtaken by that of an instance that asked after it, and has fenced it
        self._granted[transactional_id] = granted
        self.initialising(transactional_id, number)

    def owner(self, transactional_id: str) -> int:
        last = self._last_init.get(transactional_id, 0)
        others = (c for c in self.clients if isinstance(c, Producer) and c.transactional_id == transactional_id)
        return next((c.number for c in others if c.initialising and not c.dead and c.number != last), last)

    def coordinator_changed(self, transactional_id: str, since_ms: float) -> bool:
        return self.history.evidence.led_since(self.plan.state_log(transactional_id), since_ms)

    def deposed(self, transactional_id: str, node_id: int) -> bool:
        if node_id not in self.behind:
            return False
        return self.cluster.image.leader_of(*self.plan.state_log(transactional_id)) != node_id

    @property
    def behind(self) -> list[int]:
        return self.nemesis.behind

    @property
    def closing(self) -> bool:
        return self._closing

    def _strayed(self, node_id: int, request: Request) -> None:
        """A request between brokers that its sender gave up arrives: a marker may meet a later transaction."""
        self.late_markers.arrives(node_id, request, given_up=True)

    def _delayed(self, request: Request) -> None:
        """A marker under way outlives its coordinator more often than chance would have it."""
        if isinstance(request, WriteTxnMarkersRequest) and self.plan.move:
            self.schedule.call_later(self.random.random() * 600, self.nemesis.move_coordinator)

    # -- the run -------------------------------------------------------------------------------------------------------

    def brokers(self) -> dict[int, Broker]:
        return self.cluster.brokers

    def watch(self, node_id: int, request: Request) -> None:
        if self.coverage is not None:
            self.coverage.served(node_id, request)
        self._note_early(node_id, request)
        self._note_old_init(node_id, request)
        self.own_records.arrives(node_id, request)

    def _note_old_init(self, node_id: int, request: Request) -> None:
        """An earlier instance asks with the epoch that it had: it ends the open transaction of the one after it."""
        broker = self.cluster.brokers.get(node_id)
        if broker is None or not isinstance(request, InitProducerIdRequest) or request.transactional_id is None:
            return
        producer_id, epoch = self._granted.get(request.transactional_id, (-1, -1))
        if self.plan.rules.init_compares_epoch_while_ongoing or request.producer_id != producer_id:
            return
        shards = (shard for _, shard in broker.coordinators.transactions.host.shards())
        known = next((entry for shard in shards if (entry := shard.entries.get(request.transactional_id))), None)
        if request.producer_epoch < epoch and known is not None and known.metadata.state is ONGOING:
            late = self.history.evidence.late[request.transactional_id, "InitProducerId"]
            late.append(self.schedule.elapsed_ms)

    def _note_early(self, node_id: int, request: Request) -> None:
        """A coordinator loads its log to the end, also what its replicas may not have, and answers from it."""
        transactions = _transactions_of(request)
        broker = self.cluster.brokers.get(node_id) if transactions else None
        for name, producer_id in transactions if broker is not None else ():
            assert broker is not None
            try:
                partition = broker.partition(*self.plan.state_log(name))
            except ApiError:
                continue
            if partition.lags_behind_epoch:
                self._early(name, producer_id)

    def _early(self, transactional_id: str, producer_id: int) -> None:
        evidence = self.history.evidence
        evidence.early_producers.add(producer_id)
        evidence.early[transactional_id].append(self.schedule.elapsed_ms)
        for client in self.clients:
            if not isinstance(client, Producer) or client.transactional_id != transactional_id:
                continue
            if client.transaction_name is not None:
                evidence.early_transactions.add(client.transaction_name)

    def _taken_up(self, node_id: int, request: Request) -> None:
        """A broker, or the controller, takes up a request of another one."""
        self._note_early(node_id, request)
        self.own_records.arrives(node_id, request)
        self.late_markers.arrives(node_id, request)

    def _ending(self, broker: Broker, job: EndedTransaction, places: Iterable[tuple[str, int]]) -> None:
        """A coordinator sends markers for what it has loaded, also for what its replicas may not have."""
        self.late_markers.sends(broker.node_id, job, places)
        try:
            partition = broker.partition(TRANSACTION_STATE_TOPIC, job.shard_index)
        except ApiError:
            return
        if partition.lags_behind_epoch:
            self._early(job.transactional_id, job.marker.producer_id)

    def _note_hung(self) -> None:
        for broker in self.cluster.brokers.values():
            for partition in broker.partitions():
                if partition.has_log and partition.leader_id == broker.node_id:
                    producers = partition.log.producers.active()
                    hung = {p.producer_id for p in producers if p.current_txn_start_offset >= 0}
                    self.history.evidence.hung[partition.topic, partition.index] = hung

    def _decided(self, image: MetadataImage, topics: tuple[str, ...]) -> None:
        """The controller changed its metadata."""
        for topic, before, after in self._partitions.changes(image, topics):
            if self.coverage is not None:
                self.coverage.partition(before, after)
            self.history.evidence.changed(before, topic, after, self.schedule.elapsed_ms)

    def attended(self) -> None:
        """Be told of the markers that a broker which just started sends and drops."""
        for broker in self.cluster.brokers.values():
            broker.coordinators.transactions.effects.at_once = not self.plan.turns
            broker.coordinators.groups.effects.at_once = not self.plan.turns
            broker.coordinators.transactions.markers.on_dropped = self._dropped
            broker.coordinators.transactions.markers.on_sending = partial(self._ending, broker)

    def _dropped(self, job: EndedTransaction, place: tuple[str, int]) -> None:
        self.tell("marker dropped", f"{job.transactional_id}: no marker for {place[0]}-{place[1]}, it has no leader")
        self.history.evidence.dropped.append(Dropped(place, job.marker.producer_id, job.transactional_id))

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
        self.attended()
        self.cluster.controller.state.publishers.append(self._decided)
        self._decided(self.cluster.image, tuple(self.cluster.image.topics))
        plan = self.plan
        self.schedule.run(50)
        self.conditions.chances = Chances(
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
        if plan.delete_records:
            self.janitor = Janitor(self, "janitor", self.client_random("janitor"), plan.places)
            self.launch(self.janitor, self.janitor.run)
        if plan.careless:
            careless = Careless(
                self, f"{CARELESS}#1", self.client_random(CARELESS), plan.places, transactional_id=CARELESS
            )
            self.launch(careless, careless.run)
        self.nemesis.start()
        self.schedule.run(plan.length_ms)
        self._settle()

    def client_random(self, name: str) -> Random:
        return Random(f"client {name} {self.plan.seed}")

    def producer(
        self, name: str, transactional_id: str | None = None, places: Sequence[tuple[str, int]] = ()
    ) -> Producer:
        random, where = self.client_random(name), places or self.plan.places
        if transactional_id is not None and transactional_id.startswith("c") and transactional_id != CARELESS:
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
                doing = client.member.waits_for if isinstance(client, Copier) else client.doing
                text = f"{client.name} cannot end, {QUIET_MS / 1000:g} s after all is whole: {client.doing}, {doing}"
                self.history.report("no-progress", self.plan.places[0][0], -1, text)
                client.die()

    def _settle(self) -> None:
        """All trouble ends; clients finish what they began; then nothing is left to be done."""
        self.tell("calm", "the network is whole again, all brokers come back, clients begin nothing new")
        self.nemesis.end()
        self.conditions.calm()
        self._closing = True
        self._wait_for_clients()
        if self.plan.copiers:
            # The copiers that were left may have been fenced, so that input remains; some of it is read only when
            # enough followers are in sync again, and leaders hear of that with the followers' next fetch. What a feeder
            # gave up may be written yet.
            self.schedule.run(1000)
            self.schedule.run(QUIET_MS, lambda: not any(client.links.strays for client in self.clients))
            self.schedule.run(QUIET_MS, self._all_readable)
            self.launch_transactional(LAST)
            self._wait_for_clients()
        # Abandoned transactions time out, and followers catch up.
        self.schedule.run(self.plan.transaction_timeout_ms + 3000)
        self.final = Reader(self, "final", self.client_random("final"), [*self.plan.places, *self.plan.inputs])
        self.launch(self.final, self.final.read_all)
        self._note_hung()
        if not self.schedule.run(QUIET_MS, lambda: self.final.done):
            text = f"a reader cannot read all: {self.final.doing}, at {self.final.positions}"
            self.history.report("no-progress", self.plan.places[0][0], -1, text)

    def _all_readable(self) -> bool:
        """Whether each partition has a leader, which has shown to readers all that it has."""
        for topic in self.cluster.image.topics.values():
            for state in topic.partitions:
                broker = self.cluster.brokers.get(state.leader)
                if broker is None:
                    return False
                try:
                    partition = broker.partition(topic.name, state.index)
                except ApiError:
                    return False
                if partition.high_watermark < partition.log_end_offset:
                    return False
        return True

    def restart(self) -> tuple[States, States]:
        """Stop all brokers, cleanly or not, and start them again; returns what they had in memory before and after."""
        before = self._in_memory()
        self._note_files(clean=not self.plan.seed % 2)
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

    def _note_files(self, *, clean: bool) -> None:
        """Note evidence that is in the brokers' memory and cannot be read from the logs in that form."""
        brokers, evidence = self.cluster.brokers, self.history.evidence
        evidence.deleted.update(deleted_producers(brokers, clean=clean))
        evidence.cut_inside.update(ends_inside_batches(brokers))
        if not clean:
            started = {node for node, life in self.lives.items() if life > 1}
            evidence.found_again.update(producers_below_start(brokers, started))

    def _in_memory(self) -> States:
        return in_memory(self.cluster.brokers, self.plan.client_version)


def _transactions_of(request: Request) -> list[tuple[str, int]]:
    """Transactional and producer id that a request to a transaction coordinator is about; none for any other."""
    if isinstance(request, AddPartitionsToTxnRequest):
        several = [(t.transactional_id, t.producer_id) for t in request.transactions]
        return several or [(request.v3_and_below_transactional_id, request.v3_and_below_producer_id)]
    if isinstance(request, EndTxnRequest | AddOffsetsToTxnRequest):
        return [(request.transactional_id, request.producer_id)]
    return []
