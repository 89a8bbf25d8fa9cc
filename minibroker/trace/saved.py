"""Exchanges that `minibroker trace --json` has written, one JSON object a line."""

from __future__ import annotations

from typing import Any

from minibroker.kernel.outside_json import parse_json


class NoTrace(ValueError):
    """A line that is no exchange."""


def exchange_of(line: str, number: int) -> dict[str, Any]:
    """The exchange on a line, whose number an error names. Raises NoTrace."""
    try:
        exchange = parse_json(line)
    except ValueError as error:
        raise NoTrace(f"line {number} is no exchange: {error}") from None
    if not isinstance(exchange, dict):
        raise NoTrace(f"line {number} is no exchange: it is no JSON object")
    return exchange
