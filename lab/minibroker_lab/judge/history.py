"""A client's history: JSON lines that it writes while it runs.

    {"event": "send", "topic": "t", "value": "v1", "transaction": 1}     sent; without transaction: outside of one
    {"event": "ack",  "topic": "t", "value": "v1"}                       its success came back
    {"event": "end",  "transaction": 1, "outcome": "commit"}             a commit or abort whose success came back
    {"event": "read", "topic": "t", "partition": 0, "offset": 4, "value": "v1"}      given to a read_committed reader
    {"event": "give up", "reason": "commit failed 20 times"}             the last event: each try ended with an error

A value names its record, so none may be sent twice. ``client`` and ``reader`` tell several apart. ``partition`` is
optional in ``send``. A transaction that has no ``end`` may have been committed or aborted, as a whole. A commit that
succeeded is the acknowledgement of all that was sent in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from minibroker.kernel.outside_json import parse_json
from minibroker.rules.rows import ABORT, COMMIT, Seen, Sent

_OUTCOMES = {"commit": COMMIT, "abort": ABORT}


class HistoryError(ValueError):
    """A history that cannot be read; the text names the line."""


@dataclass(slots=True)
class History:
    """The rows that `judge_history` takes."""

    sent: list[Sent] = field(default_factory=list)
    outcomes: dict[Hashable, str] = field(default_factory=dict)
    reads: list[Seen] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Why each client that gave up did so."""


def text_of(value: object) -> str:
    """A record's value as histories have it: UTF-8, other bytes as \\xNN, null empty."""
    return "" if value is None else bytes(value).decode("utf-8", "backslashreplace")  # type: ignore[call-overload]


def key_of(topic: str, value: str) -> str:
    """How a record is named in the whole history."""
    return f"{topic}/{value}"


def read_history(lines: Iterable[str]) -> History:
    """Raises HistoryError."""
    history = History()
    place: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                _add(history, place, parse_json(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise HistoryError(f"line {number} of the history: {reason}") from None
    for at, sent in enumerate(history.sent):
        if sent.transaction is not None and history.outcomes.get(sent.transaction) == COMMIT:
            history.sent[at] = sent._replace(acknowledged=True)
    return history


def _add(history: History, place: dict[str, int], event: dict[str, Any]) -> None:
    kind = event["event"]
    client = str(event.get("client", ""))
    if kind == "end":
        if event["outcome"] not in _OUTCOMES:
            raise ValueError(f"outcome is commit or abort, not {event['outcome']!r}")
        history.outcomes[client, event["transaction"]] = _OUTCOMES[event["outcome"]]
        return
    if kind == "give up":
        history.given_up.append(f"{client or 'the client'} gave up: {event['reason']}")
        return
    if kind not in ("send", "ack", "read"):
        raise ValueError(f"event is send, ack, end, read or give up, not {kind!r}")
    topic = str(event["topic"])
    key = key_of(topic, str(event["value"]))
    if kind == "send":
        if key in place:
            raise ValueError(f"{key!r} was sent before; a value names one record")
        transaction = event.get("transaction")
        own = None if transaction is None else (client, transaction)
        place[key] = len(history.sent)
        history.sent.append(Sent(client or "the client", topic, int(event.get("partition", -1)), key, False, own))
    elif kind == "ack":
        if key not in place:
            raise ValueError(f"{key!r} was not sent")
        at = place[key]
        history.sent[at] = history.sent[at]._replace(acknowledged=True)
    else:
        reader = str(event.get("reader", client)) or "the reader"
        history.reads.append(Seen(reader, topic, int(event["partition"]), int(event["offset"]), key))
