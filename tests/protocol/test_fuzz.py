"""Any bytes give a message or one clear error, at a bounded price."""

from __future__ import annotations

import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import message_versions, sample
from sampling import search, thinned

from minibroker_protocol.codegen_read import BUDGET
from minibroker_protocol.dsl import Message
from minibroker_protocol.errors import LongMessage, Malformed
from minibroker_protocol.frames import FrameSplitter
from minibroker_protocol.headers import parse_request_header
from minibroker_protocol.messages import FetchRequest, MetadataRequest, ProduceRequest, SyncGroupRequest
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.registry import registry
from minibroker_protocol.shapes import Kind, Shapes
from minibroker_protocol.structs import Struct

VERSIONS = list(message_versions())
MESSAGES = sorted(dict(VERSIONS), key=lambda message: message.__name__)
ROUNDS = [4, int(os.environ.get("MINIBROKER_FUZZ_ROUNDS", "12"))]
"""Mutants per message and version: of the default tests, and of the tier."""

LENGTHS = [bytes.fromhex(b) for b in ("7fffffff", "ffffffff", "80000000", "fffffffe", "ffffffff07", "8080808008", "7f")]


def mutant(wire: bytes, rng: Random) -> bytes:
    """One to three random changes."""
    data = bytearray(wire)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + rng.randint(1, 4)]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            case 3:
                data[at : at + 1] = rng.randbytes(1)
            case 4:
                length = rng.choice(LENGTHS)
                data[at : at + len(length)] = length
            case 5:
                other = rng.randrange(len(data) + 1)
                data[at:at] = data[other : other + 20]
    return bytes(data)


def check(message: type[Message], version: int, wire: bytes) -> Message | None:
    """Decode; whatever was accepted must survive another round."""
    try:
        decoded, end = message.decode_from(wire, version)
    except Malformed as error:
        text = str(error)
        assert_names_the_field(message, version, text)
        return None
    assert end <= len(wire)
    again = decoded.encode(version)
    assert message.decode_from(again, version)[0].encode(version) == again
    return decoded


def assert_names_the_field(message: type[Message], version: int, text: str) -> None:
    known = {field.name for cls in structs(message) for field in cls.__fields__} | {"tagged fields"}
    match = re.match(rf"{message.__name__} v{version}: ([\w. ]+): .", text)
    assert match, text
    assert known.issuperset(match[1].split(".")), text


def structs(message: type[Message]) -> Iterator[type[Struct]]:
    yield message
    yield from (value for value in vars(message).values() if isinstance(value, type) and issubclass(value, Struct))


@pytest.mark.parametrize("rounds", thinned(ROUNDS, 2))
@pytest.mark.parametrize("message", MESSAGES)
def test_mutants_give_a_message_or_an_error_that_names_the_field(message: type[Message], rounds: int) -> None:
    rng = Random(crc32(message.__name__.encode()))
    outcomes = set()
    for version in range(message.__versions__[0], message.__versions__[1] + 1):
        wire = sample(message, version, rng).encode(version)
        for _ in range(rounds):
            outcomes.add(check(message, version, mutant(wire, rng)) is None)
        for end in rng.sample(range(len(wire)), min(rounds, len(wire))):
            outcomes.add(check(message, version, wire[:end]) is None)
    assert True in outcomes


def frame(message: type[Message], version: int, rng: Random) -> bytes:
    key, flexible = message.__api_key__, message.__flexible__  # type: ignore[attr-defined]
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=1, client_id="fuzz")
    body = header.encode(2 if version >= flexible else 1) + sample(message, version, rng).encode(version)
    body = mutant(body, rng)
    return len(body).to_bytes(4, "big") + body


def read(stream: bytes, step: int) -> list[str]:
    """What a connection would make of a stream that arrives in pieces of ``step`` bytes."""
    splitter = FrameSplitter(1 << 20)
    found = []
    try:
        for pos in range(0, len(stream) + step, step):
            for body in splitter.feed(stream[pos : pos + step]):
                key, version, _, _, start = parse_request_header(body)
                if key not in registry():
                    raise Malformed(f"API {key}")
                found.append(repr(registry()[key][0].decode(bytes(body), version, start).encode(version)))
    except Malformed as error:
        found.append(str(error))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_whole_and_byte_by_byte_are_the_same(seed: int) -> None:
    rng = Random(seed)
    requests = [request for request, _ in registry().values()]
    chosen = [rng.choice(requests) for _ in range(3)]
    stream = b"".join(frame(m, rng.randint(*m.__versions__), rng) for m in chosen)
    stream = mutant(stream, rng) if seed % 2 else stream
    assert read(stream, len(stream)) == read(stream, 1) == read(stream, 7)


@search(300)
@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_arbitrary_bytes(case: tuple[type[Message], int], wire: bytes) -> None:
    check(*case, wire)


@search(300)
@given(st.sampled_from(VERSIONS), st.randoms(use_true_random=False))
def test_round_trip(case: tuple[type[Message], int], rng: Random) -> None:
    message, version = case
    made = sample(message, version, rng)
    wire = made.encode(version)
    assert message.decode_from(wire, version) == (made, len(wire))
    assert b"".join(made.encode_buffers(version, b"head")) == b"head" + wire
    assert message.decode_from(memoryview(bytearray(b"ab" + wire + b"c")), version, 2) == (made, 2 + len(wire))


def peak_of(message: type[Message], version: int, wire: bytes, most: int = BUDGET) -> int:
    """The most bytes allocated at once while decoding, whether it succeeds or not."""
    message.decoder(version)
    tracemalloc.start()
    try:
        message.decode_within(most, wire, version)
    except (Malformed, LongMessage):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


UNSHARED = {"string": "ab", "bytes": b"ab", "16s": bytes(range(16)), "d": 1.5, "?": True, "b": 7, "records": b"ab"}
"""Small values that CPython makes a new object for, where there are such."""
NOTHING = {"string": "", "bytes": b"", "16s": bytes(16), "d": 0.0, "?": False, "records": None}


def dense(shapes: Shapes, cls: type[Struct], count: int) -> Struct:
    """A struct with ``count`` elements in its arrays and none in theirs."""
    return filled(shapes, cls, count, UNSHARED, 12345, structs=True)


def smallest(shapes: Shapes, cls: type[Struct], count: int) -> Struct:
    """With `count` elements in the arrays of a message, and as little as there can be in everything else."""
    return filled(shapes, cls, count, NOTHING, 0, structs=False)


def filled(
    shapes: Shapes, cls: type[Struct], count: int, plain: dict[str, Any], number: int, *, structs: bool
) -> Struct:
    """Fields have the value of their kind in `plain`, or `number`; `structs`: also those that may be null are there."""
    values = {field.name: shapes.default(field) for field in cls.__fields__}
    for field in [*shapes.present(cls), *shapes.tagged(cls)]:
        kind = shapes.kind(field)
        if kind.struct:
            element: Any = filled(shapes, kind.struct, 0, plain, number, structs=structs)
        else:
            element = plain.get(kind.code, number)
        if kind.array:
            values[field.name] = [element] * count
        elif field.tag is None:
            values[field.name] = None if kind.struct and not structs and shapes.nullable(field) else element
    return cls(**values)


@pytest.mark.parametrize("message", thinned(MESSAGES, 30))
def test_objects_are_not_larger_than_their_estimate(message: type[Message]) -> None:
    """``BUDGET`` is worth what ``Shapes.weight`` is: check it with many elements that are as small as they can be."""
    version, count = message.__versions__[1], 2000
    shapes = Shapes(message, version)
    fields = [*shapes.present(message), *shapes.tagged(message)]
    arrays = [shapes.kind(field) for field in fields if shapes.kind(field).array]
    estimate = sum(count * shapes.weight(kind) for kind in arrays)
    made = dense(shapes, message, count)
    assert isinstance(made, Message)
    wire = made.encode(version)
    assert peak_of(message, version, wire) <= 1.1 * estimate + 10_000


@pytest.mark.parametrize(
    ("message", "version", "wire"),
    [
        # Two million topics of three bytes each, and a length that no bytes are behind.
        (FetchRequest, 12, b"\xff\xff\xff\xff" + bytes(21) + b"\x81\x89\x7a" + b"\x01\x01\x00" * 2_000_000),
        (MetadataRequest, 9, b"\x81\x89\x7a" + b"\x01\x00" * 2_000_000 + bytes(4)),
        (ProduceRequest, 9, bytes.fromhex("00 ffff 00007530 ffffffff07") + bytes(100)),
        (ProduceRequest, 3, bytes.fromhex("ffff ffff 00007530 7fffffff") + bytes(100)),
    ],
)
def test_a_hostile_frame_is_refused_before_it_costs_memory(message: type[Message], version: int, wire: bytes) -> None:
    with pytest.raises(Malformed, match=rf"{message.__name__} v{version}: (topics|topic_data): "):
        message.decode(wire, version)
    assert peak_of(message, version, wire) < 1_000_000


def test_the_budget_counts_nested_arrays_together() -> None:
    partition = ProduceRequest.PartitionProduceData(index=0, records=None)
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=[partition] * 100)] * 100
    wire = ProduceRequest(acks=1, timeout_ms=1, topic_data=topics).encode(9)
    with pytest.raises(LongMessage, match=r"^100 elements would make the message too large"):
        ProduceRequest.decode_within(1_000_000, wire, 9)
    assert peak_of(ProduceRequest, 9, wire, 1_000_000) < 1_300_000
    few = ProduceRequest(acks=1, timeout_ms=1, topic_data=topics[:10])
    assert ProduceRequest.decode_within(1_000_000, few.encode(9), 9) == few


def test_the_budget_counts_bytes_that_are_copied() -> None:
    """Strings are as long as the frame is; bytes are copied besides, and counted."""

    def wire(name: str, assignment: bytes) -> bytes:
        one = SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=assignment)
        return SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[one] * 40).encode(5)

    for fits in (wire("n", bytes(20_000)), wire("n" * 30_000, b"")):
        assert len(SyncGroupRequest.decode_within(1_000_000, fits, 5).assignments) == 40
    with pytest.raises(LongMessage, match=r"^30000 bytes would make the message too large"):
        SyncGroupRequest.decode_within(1_000_000, wire("n", bytes(30_000)), 5)


def arrays_of(shapes: Shapes, message: type[Message]) -> list[tuple[Kind, bool]]:
    fields = [*shapes.present(message), *shapes.tagged(message)]
    return [(shapes.kind(field), shapes.compact(field)) for field in fields if shapes.kind(field).array]


@pytest.mark.parametrize("message", MESSAGES)
def test_estimates_of_one_element(message: type[Message]) -> None:
    """Of its bytes on the wire, exactly; of its memory, not less than its fields take without what they hold."""
    for version in range(message.__versions__[0], message.__versions__[1] + 1):
        shapes = Shapes(message, version)
        sizes = {}
        for count in (1, 2):
            made = smallest(shapes, message, count)
            assert isinstance(made, Message)
            sizes[count] = len(made.encode(version))
        arrays = arrays_of(shapes, message)
        assert sizes[2] - sizes[1] == sum(shapes.smallest(kind, compact) for kind, compact in arrays), version
        for kind, _ in arrays:
            if kind.struct is not None:
                one = dense(shapes, kind.struct, 0)
                held = [field for field in shapes.present(kind.struct) if shapes.kind(field).code not in ("b", "?")]
                held += [field for field in kind.struct.__fields__ if field.array and field not in held]
                own = [getattr(one, field.name) for field in held if getattr(one, field.name) is not None]
                assert shapes.weight(kind) >= sys.getsizeof(one) + sum(map(sys.getsizeof, own)), (version, kind)
