"""The context of a request, beside the request itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.refusals import Refusal
from minibroker.kernel.turns import STEPS_AT_ONCE
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import Buffer
from minibroker_protocol.registry import registry

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker


# A setting may name an error code that Kafka does not have.
_KNOWN_CODES = frozenset(map(int, ErrorCode))
AnswerWatcher = Callable[[Response | None, int], None]

MOST_REASONS = 100
"""Refusals of one request with the same code that are remembered: a request may name very many things."""


class CloseConnection(Exception):
    """The connection must be closed without an answer; the text says why."""


@dataclass(slots=True)
class RequestContext:
    """One request on its way: the broker that serves it, its version, and the connection it came over.

    frame, position: the bytes of the request, and where its body starts in them. The frame is empty once it is
    released.
    inter_broker: the request came from another broker of the cluster (CLUSTER_ACTION is granted).
    """

    broker: Broker
    api_key: int
    api_version: int
    client_id: str | None
    connection: ConnectionInfo
    correlation_id: int = -1
    frame: Buffer = b""
    position: int = 0
    inter_broker: bool = False
    #: a recorder shows the records of the request later
    keeps_records: bool = False
    #: size of the frame, once it is released
    released: int = 0
    #: how often `refused` was called with each code
    noted: dict[int, int] | None = None
    #: the decoded request; None for one from another broker
    request: Request | None = None
    #: how many more elements of lists may be processed in this turn of the loop
    room: int = STEPS_AT_ONCE
    #: the request took more than one turn of the loop, so its answer is long too
    long: bool = False
    #: called with every refusal and its reason
    on_refusal: Callable[[Refusal], None] | None = None
    #: called with the response (None if there is none) and the size of its frame, before faults change it
    watchers: tuple[AnswerWatcher, ...] = ()

    def hear_refusals(self, hear: Callable[[Refusal], None]) -> None:
        """Have `hear` called with every refusal, in addition to earlier listeners."""
        before = self.on_refusal
        if before is None:
            self.on_refusal = hear
            return

        def both(refusal: Refusal) -> None:
            before(refusal)
            hear(refusal)

        self.on_refusal = both

    def wanted(self) -> bool:
        """Whether the client is still there to read the response; on any thread."""
        return not self.connection.gone

    @property
    def size(self) -> int:
        """Size of the request in bytes, without the size field."""
        return len(self.frame) + self.released

    def release_frame(self) -> None:
        """Release the bytes of the request before its answer is there, so that other requests get their memory (Kafka's
        RequestChannel.Request.releaseBuffer)."""
        frame, self.frame = self.frame, b""
        self.released += len(frame)
        if self.connection.release is not None:
            self.connection.release(frame)

    def begin_turn(self) -> None:
        """The request goes on in a new turn of the loop, with room for as many elements as at first."""
        self.room = STEPS_AT_ONCE

    def takes_long(self) -> None:
        self.long = True

    def refused(self, subject: object, error: ApiError, code: int | None = None) -> None:
        """Note a refusal: `subject` is what it is about, `code` the error code that is sent if that is not the
        error's."""
        sent = int(error.code if code is None else code)
        first = self.noted is None
        if self.noted is None:
            self.noted = {}
        times = self.noted[sent] = self.noted.get(sent, 0) + 1
        if times > MOST_REASONS:
            return

        refusal = Refusal(
            time_ms=self.broker.clock.now_ms(),
            node_id=self.broker.node_id,
            api=_api_name(self.api_key),
            api_version=self.api_version,
            client_id=self.client_id,
            subject=str(subject) or '""',
            code=sent,
            error=ErrorCode(sent).name if sent in _KNOWN_CODES else error.code.name,
            reason=error.message or "no reason given",
        )
        refusals = self.broker.refusals
        refusals.note(refusal)
        if self.on_refusal is not None:
            self.on_refusal(refusal)
        elif first and self.request is not None and refusals.heard is not None:
            refusals.heard(self, refusal)


@cache
def _api_name(api_key: int) -> str:
    return registry()[api_key][0].__name__.removesuffix("Request")


Frames = list[Buffer]
"""The buffers of a response frame, size prefix included."""

Answer = Response | Frames | None | Deferred[Any]
"""What a handler or a link of the chain returns: the response, None for a request without one (Produce with acks=0),
ready frames where a fault changed the bytes, or a Deferred of these."""
Handler = Callable[[RequestContext, Any], Answer]
