"""What a handler is told beside the request itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, cast

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import in_turns
from minibroker_protocol.dsl import Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.registry import registry

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.kernel.refusals import Refusal


# A setting may answer with a number that is none of Kafka's.
_KNOWN_CODES = frozenset(map(int, ErrorCode))
MOST_REASONS = 100
"""Refusals of one request with the same code that are remembered: a request may name very many things."""


@dataclass(slots=True)
class RequestContext:
    """One request on its way: the broker that serves it, its version, and the connection it came over.

    inter_broker: the request came from another broker of the cluster (CLUSTER_ACTION is granted).
    """

    broker: Broker
    api_key: int
    api_version: int
    client_id: str | None
    connection: ConnectionInfo
    inter_broker: bool = False
    #: codes that `refused` was told of, and how often
    noted: dict[int, int] | None = None
    #: more was done for it than goes into one turn of the loop, so that its answer is long as well
    long: bool = False
    #: told of every refusal with its reason
    on_refusal: Callable[[Refusal], None] | None = None

    def takes_long(self) -> None:
        self.long = True

    def refused(self, subject: object, error: ApiError, code: int | None = None) -> None:
        """Remember why: `subject` is what the refusal is about, `code` what is sent where that is not the error's."""
        sent = int(error.code if code is None else code)
        if self.noted is None:
            self.noted = {}
        times = self.noted[sent] = self.noted.get(sent, 0) + 1
        if times > MOST_REASONS:
            return
        from minibroker.kernel.refusals import Refusal

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
        self.broker.refusals.note(refusal)
        if self.on_refusal is not None:
            self.on_refusal(refusal)


@cache
def _api_name(api_key: int) -> str:
    return registry()[api_key][0].__name__.removesuffix("Request")


# A handler answers at once, later, or (Produce with acks=0) not at all.
Answer = Response | None | Deferred[Any] | Coroutine[Deferred[Any] | None, None, Any]
Handler = Callable[[RequestContext, Any], Answer]


def settled(ctx: RequestContext, answer: Answer) -> Response | Deferred[Any] | None:
    """The answer of a handler; one that is a coroutine is run, where its list is long in turns with others."""
    if not iscoroutine(answer):
        return cast("Response | Deferred[Any] | None", answer)
    return in_turns(ctx.broker.timers, answer, ctx.takes_long)
