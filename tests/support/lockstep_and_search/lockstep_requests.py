"""Random requests of every API, as likely right as wrong, in terms that hold for two brokers at once.

A broker makes ids of its own: of topics, producers, members and fetch sessions. A request names them by symbol, the
how-manieth that both brokers told; `lockstep` puts each broker's own in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from samples import _Sampler

from minibroker_protocol.dsl import Request
from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.shapes import Kind, Shapes
from minibroker_protocol.structs import Struct

PRODUCER, TOPIC_ID, MEMBER, SESSION = "producer", "topic id", "member", "session"
_PRODUCER_BASE, _SESSION_BASE = 1 << 50, 1 << 29
STRANGER = 123_456_789
OWN_MEMBERS = ("A", "B", "nobody")
ODD_RESOURCES = ("x", "2", "a b")
BUILT = ("range", "roundrobin")


def symbol(kind: str, index: int) -> Any:
    """What stands for the how-manieth id of a kind in a request and in a compared answer."""
    if kind == PRODUCER:
        return _PRODUCER_BASE + index
    if kind == SESSION:
        return _SESSION_BASE + index
    return b"\xee" * 12 + index.to_bytes(4, "big") if kind == TOPIC_ID else f"member#{index}"


@dataclass(frozen=True)
class Batch:
    """A record batch whose producer id is a symbol, or none (-1).

    header: position, type and value of an integer that is written over in its header, before the checksum is made.
    """

    producer_id: int
    producer_epoch: int
    sequence: int
    count: int
    transactional: bool
    timestamp: int
    header: Sequence[Any] | None = None


@dataclass
class World:
    """What a round of requests knows: names of its own, and what both brokers answered so far."""

    number: str
    known: dict[str, list[Any]] = field(default_factory=dict)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    members: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    sequences: dict[tuple[int, str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topics = [f"t{self.number}{letter}" for letter in "abc"]
        self.groups = [f"g{self.number}{letter}" for letter in "abcd"]
        self.ids = [f"x{self.number}{letter}" for letter in "ab"]

    def symbols(self, kind: str) -> list[Any]:
        return self.known.setdefault(kind, [])


def _often(random: Random, usual: Sequence[Any], odd: Sequence[Any], share: float = 0.12) -> Any:
    return random.choice(odd if odd and random.random() < share else usual)


Pool = Callable[[Random, World], Any]


def _of(*values: Any, odd: Sequence[Any] = (), share: float = 0.12) -> Pool:
    return lambda random, _: _often(random, values, odd, share)


def _topic(random: Random, world: World) -> str:
    odd = ["", "a b", ".", "x" * 250, "__consumer_offsets", "__transaction_state", "no-such"]
    return str(_often(random, [world.topics[0], *world.topics], odd))


def _group(random: Random, world: World) -> str:
    return str(_often(random, [world.groups[0], *world.groups], ["", f"n{world.number}"], 0.06))


def _member(random: Random, world: World) -> str:
    return str(_often(random, [*world.symbols(MEMBER)[-4:], "", *OWN_MEMBERS[:2]], OWN_MEMBERS[2:]))


def _topic_id(random: Random, world: World) -> bytes:
    return bytes(_often(random, world.symbols(TOPIC_ID)[-3:] or [NO_ID], [NO_ID, b"\x11" * 16]))


def _producer(random: Random, world: World) -> int:
    return int(_often(random, [*world.symbols(PRODUCER)[-3:], -1], [STRANGER, -2, 0]))


def _resource(random: Random, world: World) -> str:
    own = [world.topics[0], world.topics[0], world.groups[0], f"m{world.number}"]
    return str(_often(random, [*own, "1", "1", ""], ODD_RESOURCES, 0.1))


_EPOCHS = _of(-1, 0, 0, 0, 1, odd=(2, 5, -2))
_BROKERS = _of(1, 1, 1, 1, odd=(2, -1, 99), share=0.2)
_CONFIGS = [
    "retention.ms",
    "cleanup.policy",
    "segment.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "compression.type",
    "nope",
    "consumer.session.timeout.ms",
    "consumer.assignment.interval.ms",
    "share.isolation.level",
    "interval.ms",
    "match",
    "metrics",
    "log.retention.ms",
    "log.cleanup.policy",
    "message.max.bytes",
    "max.connections.per.ip",
    "num.replica.fetchers",
    "log.dirs",
    "leader.replication.throttled.replicas",
    "flush.ms",
    "root",
]
_VALUES = _of("1000", "compact", "delete", "-1", "50000", "2000000", "client_id=a", "", "x", "INFO", "1", "producer")

POOLS: dict[str, Pool] = {
    # by what the field says of itself
    "@topicName": _topic,
    "@topicId": _topic_id,
    "@groupId": _group,
    "@memberId": _member,
    "@generation": _of(-1, 0, 1, 1, 1, 2, odd=(5, -2)),
    "@groupInstanceId": _of(None, None, None, None, "i", odd=("",)),
    "@transactionalId": lambda random, world: _often(random, world.ids, ["", f"n{world.number}"], 0.06),
    "@producerId": _producer,
    "@producerEpoch": _of(0, 0, 1, -1, odd=(2, 7, 32767)),
    "@partition": _of(0, 0, 0, 1, 1, odd=(2, -1, 7)),
    "@brokerId": _BROKERS,
    "@resourceName": _resource,
    "@resourceType": _of(2, 2, 4, 8, 16, 32, odd=(0, 1, 3, 64, 5)),
    "@user": _of("alice", "bob", odd=("",)),
    "@feature": _of("group.version", "transaction.version", "nope", "share.version", "kraft.version", odd=("",)),
    "@coordinatorKey": lambda random, world: random.choice([*world.groups[:2], *world.ids, ""]),
    "@coordinatorType": _of(0, 1, 0, 1, odd=(2, 7, -1)),
    # by name
    "replica_id": _of(-1, -1, -1, -1, odd=(1, -2, 5)),
    "replica_state": _of(None),
    "cluster_id": _of(None, odd=("other",)),
    "max_wait_ms": _of(0, 10),
    "min_bytes": _of(0, 1, odd=(-1, 1 << 20)),
    "max_bytes": _of(1 << 20, 1 << 20, 100, odd=(0, -1)),
    "isolation_level": _of(0, 1, odd=(2, -1), share=0.05),
    "session_id": lambda random, world: _often(random, [0, 0, *world.symbols(SESSION)[-2:]], [77]),
    "session_epoch": _of(-1, 0, 0, 1, 2, odd=(5, -2)),
    "current_leader_epoch": _EPOCHS,
    "leader_epoch": _of(-1, 0, 0, 1, odd=(5, -2)),
    "last_fetched_epoch": _of(-1, -1, -1, 0, odd=(3,)),
    "fetch_offset": _of(0, 0, 1, 2, 3, 5, odd=(-1, 100)),
    "log_start_offset": _of(-1, 0),
    "partition_max_bytes": _of(1 << 20, 1 << 20, 200, odd=(0, -1)),
    "replica_directory_id": _of(NO_ID),
    "high_watermark": _of((1 << 63) - 1),
    "timestamp": _of(-1, -2, -3, 0, 1_700_000_000_000, 1_700_000_000_005, odd=(-4, -5, -6, -7)),
    "offset": _of(-1, 0, 1, 2, odd=(-2, 100)),
    "acks": _of(-1, -1, 1, odd=(2, -2)),
    "timeout_ms": _of(5000, odd=(100,)),
    "session_timeout_ms": _of(6000, 6000, 10_000, odd=(1, 5999, 1_800_001, -1)),
    "rebalance_timeout_ms": _of(200, 300),
    "protocol_type": _of("consumer", "consumer", "consumer", odd=("connect", "")),
    "protocol_name": _of(*BUILT, "range", odd=(None, "nope", "")),
    "metadata": _of(b"\0\1\0\0\0\0\xff\xff\xff\xff", b"", b"m"),
    "assignment": _of(b"", b"abc"),
    "reason": _of(None, "why"),
    "retention_time_ms": _of(-1, -1, 1000),
    "committed_offset": _of(0, 1, 5, odd=(-1, -2)),
    "committed_leader_epoch": _of(-1, 0, odd=(5,)),
    "committed_metadata": _of("", "m", None, odd=("m" * 4097,)),
    "member_epoch": _of(-1, 0, 0, 1, 2, odd=(-2, -3, 7)),
    "include_topic_authorized_operations": _of(False, True),
    "states_filter": _of("Stable", "Empty", "stable", "nope", ""),
    "types_filter": _of("classic", "consumer", "Classic", "nope"),
    "state_filters": _of("Ongoing", "Empty", "nope", "CompleteCommit", ""),
    "duration_filter": _of(-1, -1, 1 << 40),
    "transactional_id_pattern": _of(None, "x.*", "", odd=("(",)),
    "client_software_name": _of("test", "test-1", odd=("", " a", "-")),
    "client_software_version": _of("1.0", "v1", odd=("", "*")),
    "num_partitions": _of(1, 2, 3, odd=(-1, 0, -2)),
    "replication_factor": _of(1, 1, 1, -1, odd=(0, 2, -2)),
    "count": _of(1, 2, 3, 4, odd=(0, -1)),
    "validate_only": _of(False, False, True),
    "transaction_timeout_ms": _of(60_000, 60_000, odd=(0, -1, 1, 900_001)),
    "enable2_pc": _of(False, odd=(True,)),
    "keep_prepared_txn": _of(False, odd=(True,)),
    "coordinator_epoch": _of(0, 0, 1, odd=(-1,)),
    "transaction_version": _of(0, 1, 2),
    "resource_type_filter": _of(1, 2, 3, 5, odd=(0, 99, 4)),
    "resource_name_filter": _of(None, "t", "*", odd=("",)),
    "pattern_type_filter": _of(1, 3, 2, 4, odd=(0, 9)),
    "principal_filter": _of(None, "User:a", odd=("a", "")),
    "host_filter": _of(None, "*", "1.2.3.4"),
    "operation": _of(3, 4, 2, 1, odd=(0, 99, 12)),
    "permission_type": _of(3, 2, 1, odd=(0, 9)),
    "resource_pattern_type": _of(3, 4, odd=(0, 1, 2)),
    "principal": _of("User:a", odd=("a", "", "Group:x")),
    "host": _of("*", "1.2.3.4", odd=("",)),
    "configuration_keys": lambda random, _: random.choice(_CONFIGS),
    "configs.name": lambda random, _: random.choice(_CONFIGS),
    "value": _VALUES,
    "config_operation": _of(0, 0, 1, 2, 3, odd=(4, -1)),
    "election_type": _of(0, 1, odd=(2, -1)),
    "replicas": _BROKERS,
    "entity_type": _of("user", "client-id", "ip", odd=("nope", "")),
    "match_type": _of(0, 1, 2, odd=(3, -1)),
    "match": _of(None, "a", "127.0.0.1"),
    "max_version_level": _of(0, 1, 1, 2, odd=(3, -1)),
    "upgrade_type": _of(1, 2, odd=(0, 3, 9)),
    "endpoint_type": _of(1, 1, 2, odd=(0, 3)),
    "include_fenced_brokers": _of(False, True),
    "rack_id": _of(None, odd=("", "r")),
    "subscribed_topic_regex": lambda random, world: _often(random, [None, None, None, f"t{world.number}.*"], ["(", ""]),
    "server_assignor": _of(None, None, "range", "uniform", odd=("nope", "")),
    "response_partition_limit": _of(2000, 1, 2, odd=(0, -1)),
    "partition_index": _of(0, 1, 0, odd=(2, -1)),
    "replica_epoch": _of(-1),
    "node_id": _of(-1, 1),
    "resource_types": _of(2, 4, 8, 16, 32, odd=(0, 64)),
    "protocols.name": _of(*BUILT),
    "mechanism": _of("PLAIN", "nope", ""),
    "auth_bytes": _of(b"", b"\0a\0b"),
    "iterations": _of(4096, 4096, 16_384, odd=(0, 4095, 16_385)),
    "salt": _of(b"a salt of enough bytes"),
    "salted_password": _of(b"p" * 32, odd=(b"",)),
    # by API and name, where it is something else there
    "allow_downgrade": _of(False),
    "AlterUserScramCredentials.mechanism": _of(1, 2, odd=(0, 3)),
    "UnregisterBroker.broker_id": _of(99, -1),
    "AlterPartitionReassignments.replicas": _BROKERS,
    "DescribeQuorum.topic_name": _of("__cluster_metadata", odd=("x",)),
    "ConsumerGroupHeartbeat.rebalance_timeout_ms": _of(1000, 1000, -1),
    "ConsumerGroupHeartbeat.member_id": _of("A", "A", "B", odd=("", "nobody")),
    "DeleteTopics.name": lambda random, world: _often(random, [world.topics[2], None], ["no-such", "", "a b"]),
    "DeleteTopics.topic_names": lambda random, world: _often(random, [world.topics[2]], ["no-such", "", "a b"], 0.4),
    "CreateTopics.name": lambda random, world: _often(
        random, [world.topics[0], world.topics[2], f"{world.topics[2]}-{random.randrange(3)}"], ["", "a b", "x" * 250]
    ),
}

_BATCH_MS = 1_700_000_000_000


_NAMING = ("name", "topic", "topic_name", "topic_id", "partition_index", "partition", "index", "group_id", "member_id",
           "transactional_id", "resource_type", "resource_name", "entity_type", "feature")  # fmt: skip


def oddities(request: Struct, version: int) -> list[str]:
    """What a request has that brokers take in many ways: "twice", the same thing named again; "empty", a thing named
    without parts; "zero id", a topic that has none of its names."""
    shapes, oddities = Shapes(type(request), version), set[str]()

    def look(struct: Struct) -> None:
        for field_ in shapes.present(type(struct)):
            value = getattr(struct, field_.name)
            if field_.name == "topic_id" and value == NO_ID:
                oddities.add("zero id")
            if not isinstance(value, list):
                continue
            if not value and struct is not request:
                oddities.add("empty")
            names = [named(item) for item in value]
            if len(set(names)) < len(names):
                oddities.add("twice")
            for item in value:
                if isinstance(item, Struct):
                    look(item)

    look(request)
    return sorted(oddities)


def named(item: Any) -> tuple[str, ...]:
    """What a part of a request, or of a compared answer, is about."""
    if isinstance(item, dict):
        return tuple(repr(item.get(name)) for name in _NAMING)
    return tuple(repr(getattr(item, name, None)) for name in _NAMING) if isinstance(item, Struct) else (repr(item),)


def _each_once(structs: list[Struct]) -> list[Struct]:
    """Without those that are about the same as one before: Kafka keeps some lists as sets, and brokers answer a thing
    named twice in many ways."""
    by_name: dict[Any, Struct] = {}
    for struct in structs:
        by_name.setdefault(named(struct), struct)
    return list(by_name.values())


class Requests(_Sampler):
    """Makes one request; see the module."""

    def __init__(self, api: str, message: type[Request], version: int, random: Random, world: World) -> None:
        super().__init__(Shapes(message, version), random)
        self._api, self._world, self._parents = api, world, ["", ""]

    def make(self) -> Struct:
        return self.struct(self.shapes.message, 0)

    def struct(self, cls: type[Struct], depth: int) -> Struct:
        made = super().struct(cls, depth)
        self._correlate(made)
        return made

    def field(self, field: Field, depth: int) -> Any:
        kind = self.shapes.kind(field)
        if field.name == "records":
            return self._batch()
        if kind.array:
            if self.shapes.nullable(field) and self.rng.random() < 0.12:
                return None
            count = self.rng.choice((1, 1, 1, 1, 2, 2, 2, 3)) if self.rng.random() < 0.98 else 0
            twice = self.rng.random() < 0.03
            if kind.struct is None:
                values = [self._plain(field, kind) for _ in range(count)]
                return values if twice else list(dict.fromkeys(values))
            self._parents.append(field.name)
            try:
                structs = [self.struct(kind.struct, depth + 1) for _ in range(count)]
            finally:
                self._parents.pop()
            return structs if twice else _each_once(structs)
        if kind.struct is not None:
            return (
                None if self.shapes.nullable(field) and self.rng.random() < 0.7 else self.struct(kind.struct, depth + 1)
            )
        return self._plain(field, kind)

    def _plain(self, field: Field, kind: Kind) -> Any:
        names = (f"{self._api}.{field.name}", f"{self._parents[-1]}.{field.name}", field.name, f"@{field.entity}")
        pool = next((POOLS[name] for name in names if name in POOLS), None)
        if pool is None:
            if kind.code == "?":
                return self.rng.random() < 0.5
            raise LookupError(f"{self._api}: no values for {field.name}")
        for _ in range(20):
            value = pool(self.rng, self._world)
            if value is not None or (not kind.array and self.shapes.nullable(field)):
                return value
        return "" if kind.code == "string" else b""

    # -- what belongs together ---------------------------------------------------------------------------------------

    def _correlate(self, made: Struct) -> None:
        """Most of the time a producer's id, epoch and transactional id, or a member and its generation, go together."""
        world, rng = self._world, self.rng
        names = {f.name for f in self.shapes.present(type(made))}
        if rng.random() < 0.2:
            return
        prefix = "v3_and_below_" if "v3_and_below_producer_id" in names else ""
        if f"{prefix}producer_id" in names and f"{prefix}transactional_id" in names:
            held = world.producers.get(getattr(made, f"{prefix}transactional_id") or "")
            if held is not None:
                setattr(made, f"{prefix}producer_id", held[0])
                setattr(made, f"{prefix}producer_epoch", held[1])
        group = getattr(made, "group_id", None)
        epoch = next(
            (n for n in ("generation_id", "member_epoch", "generation_id_or_member_epoch") if n in names), None
        )
        if group is not None and world.members.get(group) and "member_id" in names and self._api != "JoinGroup":
            member, generation = rng.choice(world.members[group])
            made.member_id = member  # type: ignore[attr-defined]
            if epoch is not None and self._api != "ConsumerGroupHeartbeat":
                setattr(made, epoch, generation)
            elif epoch is not None:
                setattr(made, epoch, generation if rng.random() < 0.8 else getattr(made, epoch))
        if self._api == "ConsumerGroupHeartbeat" and getattr(made, "member_epoch", 1) == 0:
            made.topic_partitions = []  # type: ignore[attr-defined]
            made.rebalance_timeout_ms = 1000  # type: ignore[attr-defined]
        if self._api == "Produce" and "partition_data" in names:
            made.partition_data = made.partition_data[:1]  # type: ignore[attr-defined]

    def _batch(self) -> Any:
        rng, world = self.rng, self._world
        if rng.random() < 0.03:
            return b"\0" * rng.choice((3, 61, 80))
        transactional = rng.random() < 0.5
        holders = list(world.producers.values())
        if holders and rng.random() < 0.6:
            producer, epoch = rng.choice(holders)
            producer, epoch = (producer, epoch) if rng.random() < 0.9 else (STRANGER, 0)
        else:
            producer, epoch, transactional = -1, -1, False
        expected = world.sequences.get((producer, "", 0), 0)
        sequence = -1 if producer == -1 else rng.choice((expected, expected, 0, 0, expected + 1))
        stamp = rng.choice((_BATCH_MS, _BATCH_MS + 5, _BATCH_MS + 10, -1))
        return Batch(producer, epoch, sequence, rng.choice((1, 1, 2)), transactional, stamp)
