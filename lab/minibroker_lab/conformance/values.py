"""Values of a scenario: variables put in, bytes written out, and what is received compared with what is expected.

Variables: `$pid`, `$epoch+1`, `${x}-suffix`, `${t.id}`. Matchers, in expectations only: `$any`, `$pos`, `$nonneg`,
`$uuid`, `$str`, `$now` (ms, within two minutes), `$not V`, `$in A, B`, `$glob P`, `<absent>`.
"""

from __future__ import annotations

import fnmatch
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .failure import ScenarioError

Variables = dict[str, Any]
ABSENT = "<absent>"
NO_UUID = "00000000-0000-0000-0000-000000000000"
_NOW_TOLERANCE_MS = 120_000
_LONGEST_TEXT = 64

_REFERENCE = re.compile(r"\$([A-Za-z_][\w.]*)([+-]\d+)?")
_EMBEDDED = re.compile(r"\$\{([\w.]+)\}")


def resolve(value: Any, variables: Mapping[str, Any], *, strict: bool = False) -> Any:
    """`value` with variables put in, at any depth. An unknown variable stays as it is, or with `strict` is a
    ScenarioError (in expectations `$any` and its like are no variables)."""
    if isinstance(value, str):
        return _resolve_text(value, variables, strict)
    if isinstance(value, list):
        return [resolve(item, variables, strict=strict) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"repeat", "times"}:
            return str(value["repeat"]) * int(value["times"])
        return {
            resolve(key, variables, strict=strict): resolve(item, variables, strict=strict)
            for key, item in value.items()
        }
    return value


def _resolve_text(text: str, variables: Mapping[str, Any], strict: bool) -> Any:
    reference = _REFERENCE.fullmatch(text)
    if reference:
        name, offset = reference.groups()
        if name in variables:
            return variables[name] + int(offset) if offset else variables[name]
        if strict:
            raise ScenarioError(f"there is no variable ${name}")
        return text

    def embedded(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            if strict:
                raise ScenarioError(f"there is no variable ${{{name}}}")
            return match.group(0)
        return str(variables[name])

    return _EMBEDDED.sub(embedded, text)


def as_bytes(value: Any) -> bytes | None:
    """Bytes from a scenario: text, a number as text, or `{hex}`, `{repeat, times}`, `{i16: [...]}`, `{str16}`,
    `{concat: [...]}`; null is null."""
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, dict):
        return str(value).encode()
    match value:
        case {"hex": text}:
            return bytes.fromhex(text)
        case {"repeat": part, "times": times}:
            return (as_bytes(part) or b"") * int(times)
        case {"i16": numbers}:
            return struct.pack(f">{len(numbers)}h", *numbers)
        case {"str16": text}:
            raw = str(text).encode()
            return struct.pack(">h", len(raw)) + raw
        case {"concat": parts}:
            return b"".join(as_bytes(part) or b"" for part in parts)
    raise ScenarioError(f"no bytes: {value!r}")


def as_text(raw: bytes | bytearray | memoryview | None) -> str | None:
    """Received bytes as a scenario writes them; long ones are cut and their length told."""
    if raw is None:
        return None
    text = bytes(raw).decode("utf-8", "replace")
    return text if len(text) <= _LONGEST_TEXT else f"{text[:16]}...({len(raw)} bytes)"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where expectation and answer differ; `path` is relative to what was compared."""

    path: str
    expected: Any
    got: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares answers with expectations; `now_ms` is for `$now`."""

    variables: Mapping[str, Any]
    now_ms: Callable[[], int]

    def mismatch(self, expected: Any, got: Any, path: str = "") -> Mismatch | None:
        """The first difference, or None. Of a mapping only the expected keys count; lists must be equally long."""
        expected = resolve(expected, self.variables)
        if isinstance(expected, str) and expected.startswith("$"):
            said = self._matches(expected, got)
            if said is not None:
                return None if said else Mismatch(path, expected, got)
        if isinstance(expected, dict) and isinstance(got, dict):
            for key, value in expected.items():
                if key not in got:
                    return Mismatch(f"{path}.{key}", value, ABSENT)
                if mismatch := self.mismatch(value, got[key], f"{path}.{key}"):
                    return mismatch
            return None
        if isinstance(expected, list) and isinstance(got, list):
            if len(expected) != len(got):
                return Mismatch(f"{path}(length)", expected, got)
            for index, (value, item) in enumerate(zip(expected, got, strict=True)):
                if mismatch := self.mismatch(value, item, f"{path}[{index}]"):
                    return mismatch
            return None
        if isinstance(got, bytes | bytearray | memoryview):
            got = as_text(got)
        # True == 1 in Python, and on the wire they are different fields
        equal = expected is got if isinstance(expected, bool) or isinstance(got, bool) else expected == got
        return None if equal else Mismatch(path, expected, got)

    def _matches(self, matcher: str, got: Any) -> bool | None:
        """Whether `got` satisfies a matcher; None when the text is not one."""
        number = isinstance(got, int) and not isinstance(got, bool)
        word, _, rest = matcher.partition(" ")
        match word:
            case "$any":
                return True
            case "$pos":
                return number and got > 0
            case "$nonneg":
                return number and got >= 0
            case "$uuid":
                return isinstance(got, str) and got != NO_UUID
            case "$str":
                return isinstance(got, str) and got != ""
            case "$now":
                return number and abs(got - self.now_ms()) < _NOW_TOLERANCE_MS
            case "$in":
                return str(got) in rest.replace(",", " ").split()
            case "$glob":
                return isinstance(got, str) and fnmatch.fnmatchcase(got, rest)
            case "$not":
                return bool(got != resolve(_scalar(rest), self.variables))
        return None


def _scalar(text: str) -> Any:
    """What YAML reads in `text` when it is a number, a truth value or null; else the text."""
    words: dict[str, Any] = {"null": None, "~": None, "": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        return text
