"""The wire between brokers: Kafka's own request and response objects, and nothing else.

The transport is handed in, so the same broker code runs with all brokers in one process, over a simulated network, or
over sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from minibroker.runtime.deferred import Deferred
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

CONTROLLER = -1
"""Where requests to the active controller are sent."""

Node = Callable[[Request, int], Deferred[Response]]
"""What receives requests: (request, API version) -> the response, later."""

R = TypeVar("R", bound=Response)


class Transport(Protocol):
    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        """Send to broker `node_id` or to CONTROLLER; fails with ApiError(NETWORK_EXCEPTION) when it is out of reach."""
        ...


class InProcessTransport:
    """Hands request objects to nodes of the same process, at once."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}

    def attach(self, node_id: int, node: Node) -> None:
        self._nodes[node_id] = node

    def detach(self, node_id: int) -> None:
        self._nodes.pop(node_id, None)

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        node = self._nodes.get(node_id)
        if node is None:
            unreachable: Deferred[Response] = Deferred()
            unreachable.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, f"node {node_id} cannot be reached"))
            return unreachable
        return node(request, api_version)


async def call(transport: Transport, node_id: int, request: Request, api_version: int, response: type[R]) -> R:
    """Send and wait; checks that what came back is a `response`."""
    answer = await transport.send(node_id, request, api_version)
    if not isinstance(answer, response):
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"expected {response.__name__}, got {type(answer).__name__}")
    return answer
