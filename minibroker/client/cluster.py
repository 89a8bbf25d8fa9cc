"""A blocking client of any cluster: it connects, logs in, finds leaders and coordinators, and asks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from minibroker.client.connection import (
    Address,
    BrokerFailed,
    Connection,
    ConnectionClosed,
    NotConnected,
    parse_address,
)
from minibroker.client.security import PLAINTEXT, Security
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

R = TypeVar("R", bound=Response)
DEFAULT_TIMEOUT: Final = 30.0
PATIENCE: Final = 30.0
"""Seconds until an error that should pass is given up."""
_PAUSE: Final = 0.05
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a leader after which a client looks for it again."""


class ClusterClient:
    """Connects to `bootstrap` (HOST:PORT[,HOST:PORT…]) when first asked, and to the broker that each request is for.

    Raises BrokerFailed when no broker answers, ApiError with the broker's code when one refuses. Can be pickled, and
    used after `close`: connections are made as needed. timeout: seconds to wait for a response.
    """

    client_id = "minibroker"

    def __init__(self, bootstrap: str, *, timeout: float = DEFAULT_TIMEOUT, security: Security = PLAINTEXT) -> None:
        self.bootstrap = [parse_address(text.strip()) for text in bootstrap.split(",")]
        self.timeout = timeout
        self.security = security
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[tuple[str, int], Address | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}, "_leaders": {}}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one broker --------------------------------------------------------------------------------------------------

    def ask(self, address: Address, request: Request, response: type[R], version: int) -> R:
        """One request to one broker. A connection that was closed since the request before is made anew."""
        known = address in self._connections
        try:
            with self._connected(address) as connection:
                answer = connection.ask(request, version, self.client_id, self.timeout)
        except NotConnected:
            raise
        except ConnectionClosed as error:
            if not known:
                doubt = "" if self.security != PLAINTEXT else "; does this listener want TLS or a password?"
                raise ConnectionClosed(f"{error}{doubt}") from None
            return self.ask(address, request, response, version)
        assert isinstance(answer, response)
        return answer

    @contextmanager
    def _connected(self, address: Address) -> Iterator[Connection]:
        """The connection to a broker, which is given up when a request fails on it."""
        try:
            if address not in self._connections:
                self._connections[address] = self.security.connect(address, self.timeout)
            yield self._connections[address]
        except BrokerFailed as error:
            if address in self._connections:
                self._connections.pop(address).close()
            place = f"{address[0]}:{address[1]}"
            raise error if place in str(error) else type(error)(f"{place}: {error}") from None

    def ask_any(self, request: Request, response: type[R], version: int) -> R:
        """One request to the first bootstrap broker that answers."""
        *others, last = self.bootstrap
        for address in others:
            try:
                return self.ask(address, request, response, version)
            except BrokerFailed:
                continue
        return self.ask(last, request, response, version)

    # -- the broker that a request is for ------------------------------------------------------------------------------

    def _metadata(self, topics: Collection[str] | None) -> m.MetadataResponse:
        named = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        return self.ask_any(m.MetadataRequest(topics=named, allow_auto_topic_creation=False), m.MetadataResponse, 5)

    def brokers(self) -> dict[int, Address]:
        """Node id → address."""
        return _addresses(self._metadata([]))

    def leaders(self, topics: Collection[str] | None = None) -> dict[tuple[str, int], Address | None]:
        """The partitions of these topics, None for all, each with its leader's address; None without a leader."""
        answer = self._metadata(topics)
        brokers = _addresses(answer)
        found = {}
        for topic in answer.topics:
            require(topic.error_code, f"topic {topic.name}")
            for partition in topic.partitions:
                found[topic.name or "", partition.partition_index] = brokers.get(partition.leader_id)
        self._leaders |= found
        return found

    def leader(self, topic: str, partition: int) -> Address:
        place = topic, partition
        if self._leaders.get(place) is None and place not in self.leaders([topic]):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        found = self._leaders[place]
        if found is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader now")
        return found

    def ask_leader(
        self,
        topic: str,
        partition: int,
        request: Request,
        response: type[R],
        version: int,
        one: Callable[[R], Any],
    ) -> Any:
        """What `one` finds of the partition in the answer, once its error code is no transient one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = one(self.ask(self.leader(topic, partition), request, response, version))
            if found.error_code not in _MOVED or time.monotonic() > deadline:
                require(found.error_code, f"{topic}-{partition}", getattr(found, "error_message", None))
                return found
            self._leaders.pop((topic, partition), None)
            time.sleep(_PAUSE)

    def coordinator(self, key: str, key_type: int) -> tuple[int, Address]:
        """Node id and address; `key_type` as FindCoordinator has it: 0 of a group, 1 of a transactional id."""
        request = m.FindCoordinatorRequest(key=key, key_type=key_type)
        for _ in range(50):  # its topic may just be in the making
            answer = self.ask_any(request, m.FindCoordinatorResponse, 2)
            if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                break
            time.sleep(_PAUSE)
        require(answer.error_code, f"the coordinator of {key}", answer.error_message)
        return answer.node_id, (answer.host, answer.port)


def _addresses(metadata: m.MetadataResponse) -> dict[int, Address]:
    return {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}


def require(code: int, subject: str, message: str | None = None) -> None:
    """Raises ApiError for an error code."""
    if code != ErrorCode.NONE:
        error = ErrorCode(code)
        raise ApiError(error, f"{subject}: {message}" if message else subject)
