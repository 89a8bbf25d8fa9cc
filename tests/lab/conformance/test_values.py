"""Variables, bytes and matchers."""

from typing import Any

import pytest

from minibroker_lab.conformance.failure import ScenarioError
from minibroker_lab.conformance.values import NO_UUID, Comparison, as_bytes, as_text, resolve

VARIABLES = {"pid": 41, "x": "mb-x", "t.id": "abc", "n": None}
NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("$pid", 41),
        ("$pid+1", 42),
        ("$pid-41", 0),
        ("$n", None),
        ("${x}-suffix", "mb-x-suffix"),
        ("${t.id}", "abc"),
        ("$t.id", "abc"),
        ("a $pid", "a $pid"),
        (["$pid", {"$x": ["${pid}"]}], [41, {"mb-x": ["41"]}]),
        ({"repeat": "ab", "times": 3}, "ababab"),
        (7, 7),
        (None, None),
        ("$unknown", "$unknown"),
        ("${unknown}", "${unknown}"),
    ],
)
def test_resolve(value: Any, resolved: Any) -> None:
    assert resolve(value, VARIABLES) == resolved


@pytest.mark.parametrize("value", ["$unknown", "${unknown}!", ["$unknown+1"], {"a": "$unknown"}])
def test_unknown_variables_in_requests_are_errors(value: Any) -> None:
    with pytest.raises(ScenarioError, match="unknown"):
        resolve(value, VARIABLES, strict=True)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, None),
        ("é", "é".encode()),
        (12, b"12"),
        ({"hex": "00 ff"}, b"\0\xff"),
        ({"repeat": "ab", "times": 2}, b"abab"),
        ({"i16": [1, -1]}, b"\0\1\xff\xff"),
        ({"str16": "abc"}, b"\0\3abc"),
        ({"concat": [{"i16": [0]}, "x", {"repeat": {"hex": "00"}, "times": 2}]}, b"\0\0x\0\0"),
    ],
)
def test_as_bytes(value: Any, raw: bytes | None) -> None:
    assert as_bytes(value) == raw


def test_as_bytes_of_something_else() -> None:
    with pytest.raises(ScenarioError, match="hax"):
        as_bytes({"hax": "00"})


def test_long_bytes_are_cut() -> None:
    assert as_text(b"a" * 64) == "a" * 64
    assert as_text(b"a" * 65) == "a" * 16 + "...(65 bytes)"
    assert as_text(b"\xff") == "�"
    assert as_text(None) is None


GOOD: list[tuple[Any, Any]] = [
    (1, 1),
    ("a", b"a"),
    ("a", "a"),
    (None, None),
    (True, True),
    ("$pid", 41),
    ("$any", None),
    ("$pos", 1),
    ("$nonneg", 0),
    ("$uuid", "6f4b2b60-0000-0000-0000-000000000000"),
    ("$str", "x"),
    ("$now", NOW + 119_999),
    ("$in A, B", "B"),
    ("$in 1 2", 2),
    ("$not 3", 4),
    ("$not $pid", 40),
    ("$not null", 0),
    ("$not abc", "abd"),
    ("$glob a*c", "abbc"),
    ({"a": 1}, {"a": 1, "b": 2}),
    ([1, {"a": "$any"}], [1, {"a": 5}]),
    ([], []),
    ({}, {"a": 1}),
    ("$nosuch", "$nosuch"),
]
BAD: list[tuple[Any, Any, str]] = [
    (1, 2, ""),
    (1, True, ""),
    (True, 1, ""),
    (0, False, ""),
    (None, 0, ""),
    ("a", b"b", ""),
    ("$pid", 42, ""),
    ("$pos", 0, ""),
    ("$pos", True, ""),
    ("$pos", "1", ""),
    ("$nonneg", -1, ""),
    ("$uuid", NO_UUID, ""),
    ("$str", "", ""),
    ("$str", None, ""),
    ("$now", NOW + 120_000, ""),
    ("$now", NOW - 120_000, ""),
    ("$in A, B", "C", ""),
    ("$not 4", 4, ""),
    ("$not $pid", 41, ""),
    ("$not null", None, ""),
    ("$not abc", "abc", ""),
    ("$glob a*c", "abbd", ""),
    ("$glob *", 5, ""),
    ({"a": 1}, {"a": 2}, ".a"),
    ({"a": {"b": [1]}}, {"a": {"b": [2]}}, ".a.b[0]"),
    ({"a": 1}, {"b": 1}, ".a"),
    ([1], [1, 2], "(length)"),
    ([1, 2], [1], "(length)"),
    ([1, 2], [1, 3], "[1]"),
    ({"a": 1}, [1], ""),
    ([1], 1, ""),
    ("<absent>", 1, ""),
]


@pytest.mark.parametrize(("expected", "got"), GOOD)
def test_match(expected: Any, got: Any) -> None:
    assert Comparison(VARIABLES, lambda: NOW).mismatch(expected, got) is None


@pytest.mark.parametrize(("expected", "got", "path"), BAD)
def test_mismatch(expected: Any, got: Any, path: str) -> None:
    found = Comparison(VARIABLES, lambda: NOW).mismatch(expected, got)
    assert found is not None
    assert found.path == path


def test_a_missing_key_is_said_to_be_absent() -> None:
    found = Comparison(VARIABLES, lambda: NOW).mismatch({"a": 1}, {})
    assert found is not None
    assert found.got == "<absent>"
