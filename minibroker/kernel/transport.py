"""The transport between brokers: carries only Kafka's request and response objects.

The transport is handed in, so the same broker code runs with all brokers in one process, over a simulated network, or
over sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from minibroker.kernel.deferred import Deferred, mapped
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

CONTROLLER = -1
"""Where requests to the active controller are sent."""

Receiver = Callable[[Request, int], Deferred[Response]]
"""What receives requests: (request, API version) -> the response, later."""

R = TypeVar("R", bound=Response)


class Transport(Protocol):
    """One node's end of the wire."""

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        """Send to broker `node_id` or to CONTROLLER; fails with ApiError(NETWORK_EXCEPTION) when it is out of reach."""

    @property
    def direct(self) -> bool:
        """Whether requests of this node to itself pass no tap, so that it may call itself directly."""


class Carrier(Protocol):
    """What takes a request from one node to another."""

    def send(self, source: int, target: int, request: Request, api_version: int) -> Deferred[Response]: ...


class Network(Protocol):
    """What connects the nodes of a cluster."""

    def attach(self, node_id: int, node: Receiver) -> None:
        """From now on `node` serves the requests sent to `node_id`."""

    def detach(self, node_id: int) -> None:
        """`node_id` has ended: requests on their way to it fail, and its own requests are no longer answered."""

    def endpoint(self, node_id: int) -> Transport:
        """The end of `node_id`."""

    def publish(self, node_id: int, deliver: Callable[[], None]) -> None:
        """Send a metadata update of the controller to a broker by calling `deliver`; updates arrive in order."""

    def cut(self, one: int, other: int) -> None:
        """Hold every message between two nodes until `mend` lets it pass, without an error."""

    def mend(self, one: int, other: int) -> None:
        """Let messages pass again."""


def call(transport: Transport, node_id: int, request: Request, api_version: int, response: type[R]) -> Deferred[R]:
    """Send and wait; checks that the answer is a `response`."""

    def checked(answer: Response) -> R:
        if not isinstance(answer, response):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"expected {response.__name__}, got {type(answer).__name__}")
        return answer

    return mapped(transport.send(node_id, request, api_version), checked)
