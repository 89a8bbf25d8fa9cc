"""The exchanges of a broker: the last ones in memory, all of them for listeners."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from minibroker.trace.plain import has_secret, plain, refusals
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.structs import Struct

if TYPE_CHECKING:
    from minibroker.kernel.refusals import Refusal
    from minibroker.requests.dispatch import Answered
    from minibroker.requests.tapped_request import TappedRequest

# A larger response is converted at once. The object of a smaller one is kept until it is read.
_KEPT_BYTES = 64 * 1024

Listener = Callable[["Recorded"], None]


class Recorded:
    """One exchange.

    number: its place among the finished ones, from 1; 0 until it is finished.
    time_ms: wall clock at the request's arrival.
    took_ms: until the answer was ready.
    outcome: ``answered``, ``no answer``, or why the connection was closed.
    fault: number of the rule that acted, 0 for none.

    request_bytes, response_bytes: the frames as on the wire (the response with its size), when bytes are kept.
    """

    __slots__ = (
        "_errors", "_reasons", "_request", "_response", "_secret", "api", "broker", "client", "client_id",
        "correlation_id", "fault", "local", "number", "outcome", "request_bytes", "request_size", "response_bytes",
        "response_size", "time_ms", "took_ms", "version",
    )  # fmt: skip

    def __init__(self, tapped: TappedRequest, time_ms: int) -> None:
        context = tapped.context
        info = context.connection
        self.number = 0
        self.time_ms = time_ms
        self.took_ms = 0.0
        self.broker = context.broker.node_id
        self.client = (info.client_host, info.client_port)
        self.local = (info.local_host, info.local_port)
        self.client_id = context.client_id
        self.api = tapped.api.name
        self.version = tapped.version
        self.correlation_id = tapped.correlation_id
        self.request_size = tapped.size
        self.response_size = 0
        self.outcome = "no answer"
        self.fault = 0
        self.request_bytes: bytes | None = None
        self.response_bytes: bytes | None = None
        # A handler may write into the batches of a request, but not into what is recorded of them.
        self._secret = False
        self._request: Request | dict[str, Any] = tapped.request
        if tapped.size > _KEPT_BYTES:
            self._secret = has_secret(tapped.request, tapped.version)
            self._request = plain(tapped.request, tapped.version)
        else:
            context.keeps_records = True
        self._response: Response | dict[str, Any] | None = None
        self._errors: list[str] | None = None
        self._reasons: list[Refusal] = []
        context.hear_refusals(self._reasons.append)

    def refused(self, refusal: Refusal) -> None:
        """Add a reason from before the recorder listened to the request's context."""
        self._reasons.append(refusal)

    def answered(self, response: Response | None, size: int) -> None:
        """The answer that leaves, before faults changed its bytes."""
        self.outcome = "no answer" if response is None else "answered"
        self.response_size = size
        if response is not None and size > _KEPT_BYTES:
            self._secret = self._secret or has_secret(response, self.version)
        self._errors = refusals(response) if response is not None else []
        self._response = plain(response, self.version) if response is not None and size > _KEPT_BYTES else response

    @property
    def request(self) -> dict[str, Any]:
        if isinstance(self._request, Request):
            return plain(self._request, self.version)
        return self._request

    @property
    def response(self) -> dict[str, Any] | None:
        if isinstance(self._response, Response):
            return plain(self._response, self.version)
        return self._response

    @property
    def errors(self) -> list[str]:
        """Kafka's names of the errors in the answer, with place and reason."""
        return self._errors or []

    @property
    def reasons(self) -> list[str]:
        """The reasons of all refusals, also where the answer has room for a code only."""
        return [f"{r.error} ({r.code}) of {r.subject}: {r.reason}" for r in self._reasons]

    def to_json(self) -> dict[str, Any]:
        """The exchange as one JSON object."""
        return {
            "number": self.number,
            "time_ms": self.time_ms,
            "took_ms": round(self.took_ms, 3),
            "broker": self.broker,
            "client": f"{self.client[0]}:{self.client[1]}",
            "server": f"{self.local[0]}:{self.local[1]}",
            "client_id": self.client_id,
            "api": self.api,
            "version": self.version,
            "correlation_id": self.correlation_id,
            "outcome": self.outcome,
            "errors": self.errors,
            "reasons": self.reasons,
            "fault": self.fault,
            "request_bytes": self.request_size,
            "response_bytes": self.response_size,
            "request": self.request,
            "response": self.response,
        }

    def frames(self) -> dict[str, str | None]:
        """The bytes of both frames, without their sizes, in base64; None for what was not kept or not sent, and for an
        exchange that contains a secret."""
        kept = (message for message in (self._request, self._response) if isinstance(message, Struct))
        if self._secret or any(has_secret(message, self.version) for message in kept):
            return {"request_frame": None, "response_frame": None}
        response = self.response_bytes
        return {
            "request_frame": _base64(self.request_bytes),
            "response_frame": _base64(None if response is None else response[4:]),
        }

    def line(self) -> str:
        """One line for a person."""
        return line_of(self.to_json())


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def clock(time_ms: int) -> str:
    """The time of day in UTC, to the millisecond."""
    seconds, ms = divmod(time_ms, 1000)
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"


def line_of(exchange: dict[str, Any]) -> str:
    """One line for a person, of an exchange as JSON has it."""
    when = clock(exchange["time_ms"])
    head = f"{when} {exchange['client_id'] or '-'}@{exchange['client'].rpartition(':')[2]} → {exchange['broker']}"
    parts = [f"{head} {exchange['api']} v{exchange['version']}", _brief(exchange["request"])]
    parts.append(f"= {'; '.join(exchange['errors'])}" if exchange["errors"] else "")
    if exchange["reasons"]:
        parts.append(f"because {'; '.join(exchange['reasons'])}")
    if exchange["outcome"] != "answered":
        parts.append(f"[{exchange['outcome']}]")
    if exchange["fault"]:
        parts.append(f"[fault {exchange['fault']}]")
    parts.append(f"{exchange['took_ms']:.1f} ms")
    return " ".join(part for part in parts if part)


_BRIEF_CHARACTERS = 240
_DULL = (
    "max_wait_ms",
    "min_bytes",
    "max_bytes",
    "rack_id",
    "cluster_id",
    "replica_id",
    "timeout_ms",
    "throttle_time_ms",
)


def _brief(request: dict[str, Any]) -> str:
    kept = {name: value for name, value in request.items() if name not in _DULL and value not in (None, [], "")}
    text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False).replace('"', "")
    return text if len(text) <= _BRIEF_CHARACTERS else text[: _BRIEF_CHARACTERS - 1] + "…"


class Recorder:
    """Keeps the last exchanges, and hands every one to the listeners once it is over.

    keep_bytes: frames too.
    hand_bytes: only to the listeners.

    left_out: how often it began to leave exchanges out.
    changed: called when `resting` does.
    """

    def __init__(self, kept: int = 100) -> None:
        self.last: deque[Recorded] = deque(maxlen=kept)
        self.listeners: list[Listener] = []
        self.keep_bytes = False
        self.hand_bytes = False
        self.left_out = 0
        self.changed: Callable[[], None] = lambda: None
        self._count = 0

    @property
    def takes_bytes(self) -> bool:
        """Whether frames are needed, to be kept or for the listeners."""
        return self.keep_bytes or self.hand_bytes

    @property
    def resting(self) -> bool:
        """Whether the recorder records nothing for now, so that exchanges need not pass it."""
        return False

    def wants(self) -> bool:
        """Whether to record the exchange that begins."""
        return True

    def wants_refused(self) -> bool:
        """Whether to record an exchange that is refused, although `wants` was False at its start."""
        return False

    def begin(self, tapped: TappedRequest, time_ms: int) -> Recorded:
        recorded = Recorded(tapped, time_ms)
        if self.takes_bytes and tapped.frame:
            recorded.request_bytes = bytes(tapped.frame)
        self.last.append(recorded)
        return recorded

    def end(self, recorded: Recorded, buffers: Answered) -> None:
        if self.takes_bytes and buffers is not None:
            recorded.response_bytes = b"".join(buffers)
        self._count += 1
        recorded.number = self._count
        handed = recorded
        if self.hand_bytes and not self.keep_bytes:
            handed = copy(recorded)
            recorded.request_bytes = recorded.response_bytes = None
        for listener in tuple(self.listeners):
            listener(handed)
