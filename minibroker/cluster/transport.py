"""The wire between brokers: Kafka's own request and response objects, and nothing else.

The transport is handed in, so the same broker code runs with all brokers in one process, over a simulated network, or
over sockets.
"""

from __future__ import annotations

from typing import Protocol

from minibroker_protocol.dsl import Request, Response

from minibroker.runtime.deferred import Deferred


class Transport(Protocol):
    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        """Send to broker `node_id`; fails with ApiError(NETWORK_EXCEPTION) when it cannot be reached."""
        ...
