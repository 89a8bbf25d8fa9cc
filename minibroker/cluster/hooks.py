"""Callbacks for events of a cluster's brokers."""

from __future__ import annotations

from typing import Protocol

from minibroker.handlers.chain import Link
from minibroker.handlers.dispatch import Dispatcher

Meter = Link
"""A link that only counts, of one broker from its start to its end."""


class BrokerHooks(Protocol):
    """Told when a broker begins and ends to serve, so that its port is opened and closed with it."""

    def started(self, node_id: int, dispatcher: Dispatcher) -> None: ...

    def stopped(self, node_id: int) -> None:
        """The broker is gone: no connection of its clients may stay open, and none may be accepted."""

    def removed(self, node_id: int) -> None:
        """It does not come back."""
