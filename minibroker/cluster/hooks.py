"""Callbacks for events of a cluster's brokers."""

from __future__ import annotations

from typing import Protocol

from minibroker.requests.chain import Link
from minibroker.requests.dispatch import Dispatcher

Meter = Link
"""A link that only counts, of one broker from its start to its end."""


class BrokerHooks(Protocol):
    """Called when a broker begins and stops serving, to open and close its port."""

    def started(self, node_id: int, dispatcher: Dispatcher) -> None: ...

    def stopped(self, node_id: int) -> None:
        """The broker has stopped: close its clients' connections and accept none."""

    def removed(self, node_id: int) -> None:
        """The broker does not come back."""
