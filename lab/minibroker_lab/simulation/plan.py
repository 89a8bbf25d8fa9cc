"""The plan of a seed: the size of its world, its failures, its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from minibroker.coordinators.hashing import partition_for
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.releases.semantics import PRESETS, Semantics

Ends = Literal["process", "machine"]
"""How a broker dies: only its process, or its machine with everything unsynced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Drawn from the seed alone. Times are virtual ms; chances are of one message, transaction or second.

    client_version: the transaction.version that clients speak for.
    synced: brokers acknowledge what was synced, so a lone broker may lose its machine.
    producers, transactional, copiers, readers: how many there are of each client.
    replicas: replication factor of the topics written to.
    hasty: that a batch is given up when it fails.
    churn: that a member of the group leaves for a moment.
    careless: clients that write transactional batches without a producer id.
    consumer_groups: KIP-848 instead of the classic protocol.
    turns: that coordinators perform the effects of their decisions in a later turn of the loop, as a broker does, and
        not at once.

    Per second: disk, a disk that fails; unclean, elections of replicas that are out of sync; reassign, replicas that
    move; absent, a controller that is unreachable; delete_records, such requests.
    """

    seed: int
    brokers: int
    semantics: str
    client_version: int
    partitions: int
    topics: int
    synced: bool
    roll_ms: int
    transaction_partitions: int
    length_ms: float
    think_ms: float
    transaction_timeout_ms: int
    abort: float
    dawdle: float
    producers: int
    transactional: int
    copiers: int
    readers: int
    lost: float
    mute: float
    late: float
    delay_ms: float
    crash: float
    machine: float
    stop: float
    isolate: float
    move: float
    reborn: float
    zombies: float
    replicas: int
    hasty: float
    disk: float
    unclean: float
    reassign: float
    absent: float
    delete_records: float
    churn: float
    careless: int
    consumer_groups: bool
    turns: bool

    @property
    def rules(self) -> Semantics:
        return PRESETS[self.semantics]

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(f"t{t}", p) for t in range(self.topics) for p in range(self.partitions)]

    def state_log(self, transactional_id: str) -> tuple[str, int]:
        """Topic and partition that have the state of a transactional id."""
        return TRANSACTION_STATE_TOPIC, partition_for(transactional_id, self.transaction_partitions)

    @property
    def inputs(self) -> list[tuple[str, int]]:
        """What is copied into `places`."""
        return [("in", p) for p in range(self.partitions)] if self.copiers else []

    def config(self) -> dict[str, str]:
        """Broker settings."""
        config = {
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": str(self.transaction_partitions),
            "default.replication.factor": str(self.replicas),
            "min.insync.replicas": str(min(2, self.replicas)),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "400",
            "replica.fetch.wait.max.ms": "2500",
            "replica.fetch.backoff.ms": "100",
            "replica.lag.time.max.ms": "4000",
            "log.roll.ms": str(self.roll_ms),
            # Brokers that are cut off are fenced by `Troubles`, which knows when.
            "broker.heartbeat.interval.ms": "1000000000",
            "broker.session.timeout.ms": "2000000000",
            "group.min.session.timeout.ms": "500",
            "group.initial.rebalance.delay.ms": "100",
            "group.consumer.min.session.timeout.ms": "500",
            "group.consumer.session.timeout.ms": "1500",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": "300",
        }
        if self.synced:
            config["minibroker.acknowledge.after.sync"] = "true"
        return config

    def __str__(self) -> str:
        return f"seed {self.seed}: {self._shape()}; {self._clients()}; {_listed(self._chances())}"

    def described(self) -> str:
        """The plan line by line, without failures of probability 0."""
        network = {"lost": self.lost, "answers lost": self.mute, "late": self.late}
        rates = {name: rate for name, rate in self._chances().items() if name not in network}
        copied = f", {_names(self.inputs)} copied from" if self.inputs else ""
        lines = [
            f"seed {self.seed}: {self._shape()}",
            f"  topics    {_names(self.places)} written to{copied}",
            f"  clients   {self._clients()}",
            f"  messages  {_listed(network, '.1%')}, each delayed by up to {self.delay_ms:g} ms",
            f"  troubles  {_listed(rates)} a second, for {self.length_ms / 1000:g} s",
        ]
        return "\n".join(lines)

    def _shape(self) -> str:
        count = "1 broker" if self.brokers == 1 else f"{self.brokers} brokers, topics have {self.replicas} replicas"
        synced = ", acknowledged after a sync" if self.synced else ""
        return f"{count}{synced}, semantics {self.semantics}, transaction.version {self.client_version}"

    def _clients(self) -> str:
        group = "KIP-848 group" if self.consumer_groups else "classic group"
        counts = {
            "idempotent": self.producers + bool(self.copiers),
            "transactional": self.transactional,
            f"copying in a {group}": self.copiers,
            "without a producer id": self.careless,
            "deleting records": int(self.delete_records > 0),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def _chances(self) -> dict[str, float]:
        return {
            "lost": self.lost,
            "answers lost": self.mute,
            "late": self.late,
            "crash": self.crash,
            "power lost": self.machine,
            "stop": self.stop,
            "isolate": self.isolate,
            "move leader": self.move,
            "reassign": self.reassign,
            "unclean election": self.unclean,
            "disk fails": self.disk,
            "controller gone": self.absent,
            "new instance": self.reborn,
        }


def _listed(chances: Mapping[str, float], form: str = ".2f") -> str:
    return ", ".join(f"{name} {chance:{form}}" for name, chance in chances.items() if chance) or "none"


def _names(places: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{index}" for topic, index in places)


def draw(seed: int) -> Plan:
    """The plan of a seed. Each kind of failure is in some runs and missing in others, so that all combinations
    occur."""
    random = Random(f"plan {seed}")
    brokers = random.choice((1, 3, 3))
    semantics = random.choice(("kafka", "kafka", "kip"))

    def some(most: float, share: float = 0.5) -> float:
        return random.random() * most if random.random() < share else 0.0

    synced = brokers == 1 and random.random() < 0.6
    replicas = random.choice((3, 3, 2, 1)) if brokers > 1 else 1
    return Plan(
        seed=seed,
        brokers=brokers,
        semantics=semantics,
        # `kip` needs version 1 or 2; a draw of its own leaves the others as they are.
        client_version=(
            Random(f"version {seed}").choice((1, 1, 1, 2)) if semantics == "kip" else random.choice((0, 1, 2, 2))
        ),
        partitions=random.choice((1, 2)),
        topics=random.choice((1, 2)),
        synced=synced,
        roll_ms=random.choice((1 << 30, 1 << 30, 700)),
        transaction_partitions=random.choice((1, 2)),
        length_ms=random.choice((1500.0, 2500.0, 4000.0)),
        think_ms=random.choice((50.0, 300.0)),
        transaction_timeout_ms=random.choice((1500, 3000)),
        abort=random.choice((0.1, 0.4)),
        dawdle=some(0.15),
        producers=random.choice((0, 0, 1)),
        transactional=random.choice((1, 1, 2)),
        copiers=random.choice((0, 0, 1, 2)),
        readers=1,
        lost=some(0.03),
        mute=some(0.03),
        late=some(0.03),
        delay_ms=random.choice((1.0, 3.0, 15.0)),
        crash=some(0.5),
        machine=some(0.5) if replicas > 1 or synced else 0.0,
        stop=some(0.4),
        isolate=some(0.6) if brokers > 1 else 0.0,
        move=some(0.5) if brokers > 1 else 0.0,
        reborn=some(0.3),
        zombies=some(0.5),
        replicas=replicas,
        hasty=some(0.6),
        disk=some(0.4, 0.3),
        unclean=some(0.6, 0.25) if replicas > 1 else 0.0,
        reassign=some(0.6, 0.4) if brokers > 1 else 0.0,
        absent=some(0.5, 0.3) if brokers > 1 else 0.0,
        delete_records=some(1.0, 0.3),
        churn=some(0.2, 0.3),
        careless=int(random.random() < 0.04),
        consumer_groups=random.random() < 0.5,
        # The number was looked for: with it most seeds that once showed something (tests/lab/simulation) still show it.
        turns=Random(f"turns 2605264 {seed}").random() < 0.25,
    )
