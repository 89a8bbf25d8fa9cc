"""Requests in which one integer has its smallest or largest value, or one beside a border: every integer of every API.

Each starts from a plausible request of `lockstep_requests`. The integers are found by a walk through the message's
schema, and in the header of a record batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from lockstep import Lockstep
from lockstep_requests import Batch, Requests, World
from samples import INTEGER_BITS

from minibroker.requests.api import Api
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.fields import Field
from minibroker_protocol.shapes import Shapes
from minibroker_protocol.structs import Struct

CASES_OF_A_ROUND = 8
_TRIES = 200
_HEADER = (
    ("base_offset", 0, "q"),
    ("partition_leader_epoch", 12, "i"),
    ("last_offset_delta", 23, "i"),
    ("base_timestamp", 27, "q"),
    ("max_timestamp", 35, "q"),
    ("producer_id", 43, "q"),
    ("producer_epoch", 51, "h"),
    ("base_sequence", 53, "i"),
    ("record_count", 57, "i"),
)
"""Name, position and type of each integer in the header of a batch that is not its size or its checksum."""


class Integer(NamedTuple):
    """Where an integer is: the struct, its field, and for a field of records the part of the batch's header."""

    cls: type[Struct]
    field: Field
    code: str
    position: int = -1
    part: str = ""

    @property
    def name(self) -> str:
        return f"{self.cls.__name__}.{self.field.name}{'.' * bool(self.part)}{self.part}"


def edges(code: str) -> list[int]:
    """The smallest and largest value of a type, those beside them, and those beside 0 and -1."""
    bits = INTEGER_BITS[code.lower()]
    low, high = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return sorted({low, low + 1, high - 1, high, 0, 1, *((-1, -2) if low else ())})


def integers(message: type[Request], version: int) -> list[Integer]:
    """Every integer of a message, in the order of its schema."""
    shapes = Shapes(message, version)

    def walk(cls: type[Struct]) -> Iterator[Integer]:
        for field in [*shapes.present(cls), *shapes.tagged(cls)]:
            kind = shapes.kind(field)
            if kind.struct is not None:
                yield from walk(kind.struct)
            elif kind.code.lower() in INTEGER_BITS:
                yield Integer(cls, field, kind.code)
            elif kind.code == "records":
                yield from (Integer(cls, field, code, at, part) for part, at, code in _HEADER)

    return list(walk(message))


def structs_of(value: Any, cls: type[Struct]) -> Iterator[Any]:
    """The instances of a struct in a request."""
    if isinstance(value, cls):
        yield value
    if isinstance(value, list):
        for item in value:
            yield from structs_of(item, cls)
    elif isinstance(value, Struct):
        for field in value.__fields__:
            yield from structs_of(getattr(value, field.name), cls)


class _Plausible(Random):
    """A source with which `Requests` chooses none of its odd values, and nothing that is missing."""

    def random(self) -> float:
        return 0.2 + 0.78 * super().random()

    def getrandbits(self, k: int) -> int:  # or `choice` would use `random`
        return super().getrandbits(k)


class Case(NamedTuple):
    """One request: its API and version, and the integer that has this value."""

    api: str
    version: int
    integer: Integer
    value: int

    def __str__(self) -> str:
        return f"{self.api} v{self.version} {self.integer.name} = {self.value}"


UNREGISTERS = "UnregisterBrokerRequest.broker_id", 1
"""The one value after which a cluster of one broker is none."""
SHORTEST_WAIT = "timeout_ms", 1
"""Whether a millisecond is enough depends on the machine."""


def cases(api: str, message: type[Request], versions: Sequence[int]) -> list[Case]:
    return [
        Case(api, version, integer, value)
        for version in versions
        for integer in integers(message, version)
        for value in edges(integer.code)
        if (integer.name, value) != UNREGISTERS and (integer.field.name, value) != SHORTEST_WAIT
    ]


def sample_of(api: Api, low: int, high: int, count: int) -> list[Case]:
    """So many cases of an API, spread over its lowest and highest version."""
    every = cases(api.name, api.request, sorted({low, high}))
    taken = min(count, len(every))
    return [every[number * len(every) // taken] for number in range(taken)]


def request_of(case: Case, message: type[Request], random: Random, world: World) -> Request:
    """A plausible request with the value in its place. Raises LookupError where none has that place."""
    for _ in range(_TRIES):
        request = Requests(case.api, message, case.version, random, world).make()
        for place in structs_of(request, case.integer.cls):
            name = case.integer.field.name
            value = getattr(place, name)
            if not case.integer.part and not case.integer.field.array:
                setattr(place, name, case.value)
            elif isinstance(value, list) and value:
                setattr(place, name, [case.value, *value[1:]])
            elif isinstance(value, Batch):
                header = (case.integer.position, case.integer.code, case.value)
                setattr(place, name, replace(value, header=header))
            else:
                continue
            assert isinstance(request, Request)
            return request
    raise LookupError(f"{case}: no request has it")


def ask_all(lockstep: Lockstep, chosen: Sequence[Case]) -> None:
    """Ask for every case, some in a round, after what they may be about was made: records, producers, members and
    offsets. A difference ends its round."""
    random = _Plausible(lockstep.seed)
    remaining = list(chosen)
    while remaining:
        api = remaining[0].api
        with lockstep.round(api, f"{lockstep.seed}x{lockstep.round_number + 1}_") as world:
            assert _stage(lockstep, api, world), lockstep.report.classes
            for _ in range(CASES_OF_A_ROUND):
                if not remaining or remaining[0].api != api:
                    break
                case = remaining.pop(0)
                message = lockstep.table[case.api][0].request
                lockstep.subject = str(case)
                if not lockstep.step(case.api, case.version, request_of(case, message, random, world), world):
                    break


def _stage(lockstep: Lockstep, api: str, world: World) -> bool:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=Batch(-1, -1, -1, 2, False, 1_700_000_000_000))
    topics = [m.ProduceRequest.TopicProduceData(name=world.topics[0], partition_data=[data])]
    steps: list[tuple[str, int, Request]] = [
        ("Produce", 9, m.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=topics)),
    ]
    steps += [
        ("InitProducerId", 4, m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000))
        for name in world.ids
    ]
    offset = m.OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    offsets = [m.OffsetCommitRequest.OffsetCommitRequestTopic(name=world.topics[0], partitions=[offset])]
    if api == "ConsumerGroupHeartbeat":
        subscribed = {"subscribed_topic_names": [world.topics[0]], "topic_partitions": [], "rebalance_timeout_ms": 1000}
        join = m.ConsumerGroupHeartbeatRequest(group_id=world.groups[0], member_id="A", member_epoch=0, **subscribed)
        steps.append(("ConsumerGroupHeartbeat", 1, join))
    else:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        join_classic = m.JoinGroupRequest(
            group_id=world.groups[0], session_timeout_ms=10_000, rebalance_timeout_ms=300, member_id="",
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        steps.append(("JoinGroup", 3, join_classic))
    commit = m.OffsetCommitRequest(
        group_id=world.groups[1], generation_id_or_member_epoch=-1, member_id="", topics=offsets
    )
    steps.append(("OffsetCommit", 8, commit))
    return all(lockstep.step(name, version, request, world) for name, version, request in steps)
