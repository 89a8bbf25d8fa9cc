"""The links between a request and its handler, in one order.

`Place` has the order, from the connection to the handler. Before the first place is authentication, on a SASL listener
only: it reads frames, because the tokens of old clients have no header, and refuses before anything is decoded; once
the user is known, it takes itself out of the connection (`minibroker.server.authenticator`).

A link gives for each API the handler that goes around the next one. A place that is empty, or a link that has nothing
to do for an API, is not called at all.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

from minibroker.requests.api import Api
from minibroker.requests.context import Answer, Handler, RequestContext


class Place(IntEnum):
    """Where a link stands, from the outside in."""

    PAUSE = 0
    """A paused broker processes no request."""
    METER = 1
    """Counts what leaves, including the answers that faults make."""
    FAULTS_AND_TRACE = 2
    """Outside of rights: a fault acts as the network would, and a trace contains requests that rights refuse."""
    QUOTA = 3
    EXPLAIN = 4
    """Outside of rights, because their refusals need reasons too."""
    RIGHTS = 5
    NOT_YET = 6
    """Inside of rights: what a client may not do is refused, however ready it is."""
    SLICES = 7
    """At the handler: all others see whole requests and whole answers."""


class Later:
    """A handler that is imported when a chain of its API is bound, at the first request."""

    def __init__(self, imported: Callable[[], Handler]) -> None:
        self.imported = imported

    def __call__(self, ctx: RequestContext, request: Any) -> Answer:
        return self.imported()(ctx, request)


class Link(Protocol):
    """One link of the chain."""

    def around(self, api: Api, onward: Handler) -> Handler:
        """The handler of `api` from this link on: `onward` itself, or a function that calls `onward` or answers in its
        place."""


class Chain:
    """The links in their order."""

    def __init__(self) -> None:
        self._links: dict[Place, Link] = {}

    def put(self, place: Place, link: Link | None) -> None:
        """Set the link at a place; None leaves the place empty."""
        if link is None:
            self._links.pop(place, None)
        else:
            self._links[place] = link

    def at(self, place: Place) -> Link | None:
        """The link at a place, None where it is empty."""
        return self._links.get(place)

    def bound(self, api: Api) -> Handler:
        """The outermost handler of an API."""
        handler = api.handler.imported() if isinstance(api.handler, Later) else api.handler
        for place in sorted(self._links, reverse=True):
            handler = self._links[place].around(api, handler)
        return handler
