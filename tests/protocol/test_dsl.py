from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from minibroker_protocol import dsl, fields, structs
from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import EncodeError, Malformed
from minibroker_protocol.fields import (
    NEVER,
    NO_ID,
    RecordBuffers,
    bool_,
    bytes_,
    f,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uint32,
    uuid,
)
from minibroker_protocol.messages import FetchResponse, ProduceRequest
from minibroker_protocol.structs import Struct


class Numbers(Data, versions="0"):
    a: int8
    b: int16
    c: uint16
    d: int32
    e: uint32
    g: int64
    h: float64
    i: bool_
    j: uuid


class Evolved(Data, versions="0-3", flexible="2+"):
    class Item(Struct):
        name: string
        note: string | None = f("1+", nullable="2+", default="")

    class Extra(Struct):
        number: int32 = f(default=7)

    id: int16
    old: int32 = f("0-1", default=5)
    quiet: int32 = f("1+", default=-1, ignorable=True)
    items: list[Evolved.Item] = f(default=[])
    blob: bytes_ | None = f("1+", nullable="1+", default=None)
    label: string = f("2+", tag=0, default="")
    extra: Evolved.Extra | None = f("2+", tag=1, default=None)
    maybe: Evolved.Extra | None = f("2+", nullable="2+", tag=3, default=None)


class Ids(Data, versions="0"):
    ids: list[uuid]


class Blob(Data, versions="0-1", flexible="1+"):
    first: int32
    records: RecordBuffers | None = f(nullable="0+")
    last: int32


def evolved(**values: Any) -> Evolved:
    return Evolved(**dict[str, Any](id=1) | values)


def test_numbers_are_big_endian() -> None:
    numbers = Numbers(a=-2, b=-2, c=65534, d=-2, e=2**32 - 2, g=-2, h=1.5, i=True, j=bytes(range(16)))
    wire = numbers.encode(0)
    assert wire.hex() == "fefffefffefffffffefffffffefffffffffffffffe3ff800000000000001" + bytes(range(16)).hex()
    assert Numbers.decode(wire, 0) == numbers


@pytest.mark.parametrize(
    ("version", "wire"),
    [
        (0, "00010000000500000001000178"),
        (1, "000100000005ffffffff000000010001780000ffffffff"),
        (2, "0001ffffffff02027801000000"),
    ],
)
def test_layout_per_version(version: int, wire: str) -> None:
    message = evolved(items=[Evolved.Item(name="x")])
    assert message.encode(version) == bytes.fromhex(wire)
    assert Evolved.decode(bytes.fromhex(wire), version) == message


def test_tagged_fields_are_written_only_when_they_differ_in_order_of_tag() -> None:
    assert evolved(old=5).encode(2).hex() == "0001ffffffff010000"
    full = evolved(label="L", extra=Evolved.Extra(number=9), maybe=Evolved.Extra())
    # count, then tag, size, value; a nullable struct has a marker byte inside its size.
    tags = "030002024c010500000009000306010000000700"
    assert full.encode(2).hex() == "0001ffffffff0100" + tags
    assert Evolved.decode(full.encode(2), 2) == full


def test_a_tagged_struct_equal_to_its_default_is_not_written() -> None:
    assert evolved(extra=Evolved.Extra()).encode(2) == evolved().encode(2)


def test_unknown_tags_are_skipped() -> None:
    wire = bytes.fromhex("0001ffffffff0100020002024ccd0203aabbcc")
    assert Evolved.decode_from(wire, 2) == (evolved(label="L"), len(wire))


def test_a_field_the_version_lacks_must_be_at_its_default_or_ignorable() -> None:
    assert evolved(quiet=3).encode(0) == evolved().encode(0)
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"label": "x"}, 1, "label"),
        ({"old": 6}, 2, "old"),
        ({"blob": b""}, 0, "blob"),
        ({"extra": Evolved.Extra(number=8)}, 1, "extra"),
        ({"items": [Evolved.Item(name="", note="n")]}, 0, "items.note"),
    ]
    for values, version, name in cases:
        with pytest.raises(EncodeError, match=rf"^Evolved v{version}: {name}: this version does not have it"):
            evolved(**values).encode(version)


@pytest.mark.parametrize(
    ("message", "version", "text"),
    [
        (evolved(id=40000), 0, "Evolved v0: id"),
        (evolved(id=None), 0, "Evolved v0: id"),
        (evolved(items=None), 0, "Evolved v0: items"),
        (evolved(items=[Evolved.Item(name=None)]), 0, "Evolved v0: items.name"),  # type: ignore[arg-type]
        (evolved(items=[Evolved.Item(name="x", note=None)]), 1, "Evolved v1: items.note"),
        (evolved(items=[Evolved.Item(name="x" * 32768)]), 0, "Evolved v0: items.name"),
        (evolved(items=[Evolved.Item(name="x" * 32768)]), 2, "Evolved v2: items.name: 32768 bytes are too long"),
        (evolved(), 4, "Evolved has no version 4"),
        (Numbers(a=0, b=0, c=0, d=0, e=0, g=0, h=0, i=False, j=b"x"), 0, "Numbers v0: j: not 16 bytes"),
        (Ids(ids=[bytes(16), bytes(17)]), 0, "Ids v0: ids: not 16 bytes"),
    ],
)
def test_what_cannot_be_encoded_names_the_field(message: Data, version: int, text: str) -> None:
    with pytest.raises(EncodeError) as caught:
        message.encode(version)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("version", "wire", "text"),
    [
        (0, "", "Evolved v0: id: the bytes end at 0"),
        (0, "00010000", "Evolved v0: old: the bytes end at 4"),
        (0, "000100000005", "Evolved v0: items: the bytes end at 6"),
        (0, "000100000005ffffffff", "Evolved v0: items: is null, which this version does not allow"),
        (0, "000100000005fffffff0", "Evolved v0: items: length -16"),
        (0, "0001000000057fffffff", "Evolved v0: items: length 2147483647, but 0 bytes are left"),
        (0, "000100000005000000010000", None),
        (0, "000100000005000000010003aa", "Evolved v0: items.name: length 3, but 1 bytes are left"),
        (0, "00010000000500000001ffff", "Evolved v0: items.name: is null"),
        (2, "0001ffffffff00", "Evolved v2: items: is null"),
        (2, "0001ffffffffffffffff0f", "Evolved v2: items: a varint above 2147483647"),
        (2, "0001ffffffffffffffffff01", "Evolved v2: items: a varint above 2147483647"),
        (2, "0001ffffffff0100", "Evolved v2: tagged fields: the bytes end at 8"),
        (2, "0001ffffffff010001", "Evolved v2: tagged fields: the bytes end at 9"),
        (2, "0001ffffffff010001051000", "Evolved v2: tagged fields: length 16, but 1 bytes are left"),
        (2, "0001ffffffff01000100030161", "Evolved v2: tagged fields: length 3, but 2 bytes are left"),
        (2, "0001ffffffff0100010003026100", "Evolved v2: label: its size says otherwise"),
        (2, "0001ffffffff0100010001026100", "Evolved v2: label: its size says otherwise"),
        (9, "00", "Evolved has no version 9"),
    ],
)
def test_malformed_names_message_version_and_field(version: int, wire: str, text: str | None) -> None:
    if text is None:
        Evolved.decode(bytes.fromhex(wire), version)
        return
    with pytest.raises(Malformed) as caught:
        Evolved.decode(bytes.fromhex(wire), version)
    assert str(caught.value).startswith(text)


def test_a_compact_string_above_kafkas_limit_is_refused() -> None:
    wire = bytes.fromhex("0001ffffffff02818002") + b"x" * 32768 + bytes(10)
    with pytest.raises(Malformed, match="length 32768 is above 32767"):
        Evolved.decode(wire, 2)


def test_bytes_that_are_no_utf8_are_replaced_as_kafka_does() -> None:
    wire = bytes.fromhex("00010000000500000001000361ff62")
    assert Evolved.decode(wire, 0).items[0].name == "a\ufffdb"


def test_trailing_bytes_are_tolerated_and_counted() -> None:
    wire = evolved().encode(0)
    assert Evolved.decode(wire + b"more", 0) == evolved()
    assert Evolved.decode(b"ab" + wire, 0, 2) == evolved()
    assert Evolved.decode_from(b"ab" + wire + b"more", 0, 2) == (evolved(), 2 + len(wire))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_and_records_are_views_of_it(kind: Any) -> None:
    wire = Blob(first=1, records=b"batch", last=2).encode(1)
    message = Blob.decode(kind(wire), 1)
    assert isinstance(message.records, memoryview)
    assert message == Blob(first=1, records=b"batch", last=2)


def test_records_are_not_copied_either_way() -> None:
    frame = bytearray(Blob(first=1, records=b"x" * 5000, last=2).encode(0))
    message = Blob.decode(frame, 0)
    frame[8] = ord("y")
    assert isinstance(message.records, memoryview)
    assert message.records[0] == ord("y")
    buffers = message.encode_buffers(0, b"head")
    assert any(buffer is message.records for buffer in buffers)
    assert b"".join(buffers) == b"head" + frame


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 500, 5000])
def test_records_gathered_from_parts(version: int, size: int) -> None:
    parts: list[fields.Buffer] = [b"a" * size, bytearray(b"b" * size), memoryview(b"c" * size)]
    gathered = Blob(first=1, records=parts, last=2)
    wanted = Blob(first=1, records=b"".join(parts), last=2).encode(version)
    assert gathered.encode(version) == wanted
    assert b"".join(gathered.encode_buffers(version, b"head")) == b"head" + wanted
    assert Blob(first=1, records=None, last=2).encode(0).hex() == "00000001ffffffff00000002"


def test_constructors_know_their_fields() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nmae'"):
        Evolved.Item(nmae="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'name'"):
        Evolved.Item()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Evolved.Item(name="x").nmae = 3  # type: ignore[attr-defined]
    assert evolved().items is not evolved().items
    assert repr(Evolved.Item(name="x")) == "Evolved.Item(name='x', note='')"
    assert evolved() != evolved(id=2)
    assert evolved() != Evolved.Item(name="x")


def test_class_attributes() -> None:
    assert (ProduceRequest.__api_key__, ProduceRequest.__versions__, ProduceRequest.__flexible__) == (0, (3, 13), 9)
    assert Numbers.__flexible__ == NEVER
    assert [field.name for field in Evolved.__fields__][:3] == ["id", "old", "quiet"]
    assert set(structs.struct_types(Evolved)) == {"Item", "Extra"}
    assert FetchResponse.AbortedTransaction is structs.struct_types(FetchResponse)["AbortedTransaction"]


def test_generated_source_is_kept_and_shown_in_tracebacks() -> None:
    import linecache

    decoder = Evolved.decoder(2)
    assert decoder.source.startswith("def decode(buf, pos, most=BUDGET):")
    assert linecache.getline("<decoder of Evolved v2>", 1) == "def decode(buf, pos, most=BUDGET):\n"


def test_an_annotation_without_a_wire_type_is_an_error() -> None:
    namespace: dict[str, Any] = {}
    code = (
        "from __future__ import annotations\nfrom minibroker_protocol.dsl import *\nclass Odd(Data):\n    x: complex\n"
    )
    exec(code, namespace)
    with pytest.raises(TypeError, match=r"Odd\.x: no wire type is called 'complex'"):
        namespace["Odd"].decode(b"", 0)


def test_annotations_without_the_future_import() -> None:
    namespace: dict[str, Any] = {"__name__": "late"}
    imports = "from minibroker_protocol.dsl import Data\nfrom minibroker_protocol.fields import int32\n"
    code = f"{imports}class Late(Data):\n    x: int32\n"
    compiled = compile(code, "late", "exec", dont_inherit=True)
    if sys.version_info >= (3, 14):
        exec(compiled, namespace)
        assert namespace["Late"](x=1).encode(0).hex() == "00000001"
    else:
        with pytest.raises(TypeError, match="from __future__ import annotations"):
            exec(compiled, namespace)


def test_annotations_as_python_3_14_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def annotate(form: int) -> dict[str, str]:
        return {"a": "int32", "b": "list[string] | None"} if form == 4 else {}

    library = types.ModuleType("annotationlib")
    library.Format = types.SimpleNamespace(STRING=4)  # type: ignore[attr-defined]
    library.get_annotate_from_class_namespace = lambda namespace: namespace.get("__annotate_func__")  # type: ignore[attr-defined]
    library.call_annotate_function = lambda function, form: function(form)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "annotationlib", library)
    monkeypatch.setattr(sys, "version_info", (3, 14))
    namespace = {"__qualname__": "Late", "__module__": "m", "__annotate_func__": annotate, "b": f(nullable="0+")}
    metaclass: Any = type(Data)
    late = metaclass("Late", (Data,), namespace, versions="0")
    assert late(a=1, b=["x"]).encode(0).hex() == "0000000100000001000178"
    bare = metaclass("Bare", (Data,), {"__qualname__": "Bare", "__module__": "m"}, versions="0")
    assert bare().encode(0) == b""


CHECKED = """
from minibroker_protocol.messages import ProduceResponse

good = ProduceResponse(responses=[])
text: str = good.responses[0].name
ProduceResponse(response=[])
ProduceResponse(responses=3)
ProduceResponse()
good.throttle_time
number: str = good.throttle_time_ms
"""


@pytest.mark.matrix
def test_a_type_checker_sees_constructors_and_attributes(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="the extra `check` is not installed")
    source = tmp_path / "checked.py"
    source.write_text(CHECKED)
    root = Path(dsl.__file__).parents[2]
    config = str(root / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", str(tmp_path / "cache"), str(source)],
        capture_output=True,
        text=True,
        cwd=root,
    )
    lines = re.findall(r"checked\.py:(\d+): error", done.stdout)
    assert sorted({int(line) for line in lines}) == [6, 7, 8, 9, 10], done.stdout


def test_struct_constructed_directly_is_a_struct() -> None:
    assert isinstance(Evolved.Extra(), Struct)
    assert bytes(16) == NO_ID


def test_a_length_below_minus_one_is_null_too() -> None:
    """As for Kafka's generated readers, where null may be."""
    from minibroker_protocol.messages import MetadataRequest

    assert MetadataRequest.decode(bytes.fromhex("fffffffe00"), 4, 0).topics is None
    with pytest.raises(Malformed):
        MetadataRequest.decode(bytes.fromhex("fffffffe"), 0, 0)
