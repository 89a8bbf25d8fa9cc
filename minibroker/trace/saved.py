"""Exchanges that `minibroker trace --json`, `judge`, `museum` and `simulate` have written, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from minibroker.kernel.outside_json import parse_json

_NEEDED: Final = ("number", "time_ms", "took_ms", "api", "outcome", "request")


class NoTrace(ValueError):
    """A line that is not an exchange."""


class Trace(NamedTuple):
    """said: lines about the whole trace, such as a verdict. An exchange as `Recorded.to_json` has it; with ``broken``
    where it broke promises: a list of what a rule exchanges."""

    exchanges: Sequence[Mapping[str, Any]]
    said: Sequence[str] = ()


def exchange_of(line: str, number: int) -> dict[str, Any]:
    """The exchange on a line, whose number an error names. Raises NoTrace."""
    try:
        exchange = parse_json(line)
    except ValueError as error:
        raise NoTrace(f"line {number} is no exchange: {error}") from None
    if not isinstance(exchange, dict):
        raise NoTrace(f"line {number} is no exchange: it is no JSON object")
    return exchange


def read(lines: Iterable[str]) -> Trace:
    """A saved trace. Raises NoTrace with the line."""
    exchanges, said = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        exchange = exchange_of(line, number)
        if isinstance(exchange.get("said"), list):
            said += [str(text) for text in exchange["said"]]
            continue
        missing = [name for name in _NEEDED if name not in exchange]
        if missing:
            raise NoTrace(
                f"line {number} is no exchange: {missing[0]} is missing (minibroker trace --json writes them)"
            )
        exchanges.append(exchange)
    return Trace(exchanges, said)


def as_lines(trace: Trace) -> str:
    """The trace in the format that `read` reads."""
    first = [{"said": [*trace.said]}] if trace.said else []
    return "".join(f"{json.dumps(row)}\n" for row in (*first, *trace.exchanges))
