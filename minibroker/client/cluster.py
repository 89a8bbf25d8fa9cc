"""A blocking client of any cluster: it connects, logs in, finds leaders and coordinators, and asks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from minibroker.client.connection import (
    BrokerFailed,
    Connection,
    ConnectionClosed,
    NotConnected,
    Throttled,
)
from minibroker.client.security import PLAINTEXT, LoginFailed, Security
from minibroker.kernel.addresses import Address, format_address, parse_address
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

R = TypeVar("R", bound=Response)
T = TypeVar("T")
DEFAULT_TIMEOUT: Final = 30.0
PATIENCE: Final = 30.0
"""Seconds until an error that should pass is given up."""
_COORDINATOR_SECONDS: Final = 2.5
"""How long a coordinator is asked for: its topic may just be in the making."""
_PAUSE: Final = 0.05
RETRIABLE: Final = frozenset(code for code in ErrorCode if code.retriable)


class NoSuchPartition(ApiError):
    """The cluster's metadata does not have the topic or partition: waiting does not help."""


class ClusterClient:
    """Connects to `bootstrap` (HOST:PORT[,HOST:PORT…]) when first asked, and to the broker that each request is for.

    Raises BrokerFailed when no broker answers, ApiError with the broker's code when one refuses. Can be pickled, and
    used after `close`: connections are made as needed.

    timeout: seconds to wait for a response.
    """

    client_id = "minibroker"
    patience = PATIENCE
    """Seconds that `patiently` asks again, unless it is told otherwise."""
    leader_patience = PATIENCE
    """The same for requests to a partition's leader, and for the records that are read there."""

    def __init__(self, bootstrap: str, *, timeout: float = DEFAULT_TIMEOUT, security: Security = PLAINTEXT) -> None:
        self.bootstrap = [parse_address(text.strip()) for text in bootstrap.split(",")]
        self.timeout = timeout
        self.security = security
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[tuple[str, int], Address | None] = {}
        self._brokers: dict[int, Address] = {}
        self.topic_ids: dict[str, bytes] = {}
        """Of topics, as of the last metadata that named them. Clusters older than Kafka 2.8 have none."""
        self._versions: dict[int, tuple[int, int]] | None = None

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

    def connect(self, address: Address) -> Connection:
        """A connection of the caller's own, ready for requests. Raises BrokerFailed."""
        return self.security.connect(address, self.timeout)

    def ask(self, address: Address, request: Request, response: type[R], version: int) -> R:
        """One request to one broker. A connection that was closed since the last request is opened again."""
        known = address in self._connections
        try:
            with self._connected(address) as connection:
                answer = connection.ask(request, version, self.client_id, self.timeout)
        except BrokerFailed as error:
            closed = isinstance(error, ConnectionClosed) and not isinstance(error, NotConnected)
            if closed and known:
                return self.ask(address, request, response, version)
            place, said = format_address(*address), str(error)
            if isinstance(error, Throttled):
                raise
            if closed and not self._brokers and self.security == PLAINTEXT:
                said += "; does this listener want TLS or a password?"
            raise type(error)(said if place in said else f"{place}: {said}") from None
        assert isinstance(answer, response)
        return answer

    @contextmanager
    def _connected(self, address: Address) -> Iterator[Connection]:
        """The connection to a broker, which is given up when a request fails on it."""
        try:
            if address not in self._connections:
                self._connections[address] = self.connect(address)
            yield self._connections[address]
        except Throttled:
            raise  # the broker would count a new connection to the same client
        except BrokerFailed:
            if address in self._connections:
                self._connections.pop(address).close()
            raise

    def ask_any(self, request: Request, response: type[R], version: int) -> R:
        """One request to the first broker that answers: of the bootstrap servers, then of those that metadata named."""
        *others, last = dict.fromkeys([*self.bootstrap, *self._brokers.values()])
        for address in others:
            try:
                return self.ask(address, request, response, version)
            except BrokerFailed:
                continue
        return self.ask(last, request, response, version)

    def versions(self) -> dict[int, tuple[int, int]]:
        """API key → lowest and highest version, asked once."""
        if self._versions is None:
            answer = self.ask_any(m.ApiVersionsRequest(), m.ApiVersionsResponse, 0)
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        return self._versions

    def version(self, request: type[Request], at_most: int) -> int:
        """The version to ask with: the brokers' highest, but no more than `at_most`."""
        low, high = self.versions().get(request.__api_key__, request.__versions__)
        return max(low, min(at_most, high))

    # -- the broker that a request is for ------------------------------------------------------------------------------

    def metadata(self, topics: Collection[str] | None, *, create: bool = False) -> m.MetadataResponse:
        """Brokers and these topics, None for all; errors are in each topic.

        create: what is missing, if the brokers do so (auto.create.topics.enable).
        """
        version = self.version(m.MetadataRequest, 12)
        if topics is None and version == 0:
            topics = []  # stands for all of them in that version
        named = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=named, allow_auto_topic_creation=create or version < 4)
        answer = self.ask_any(request, m.MetadataResponse, version)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return answer

    def brokers(self) -> dict[int, Address]:
        """Node id → address."""
        self.metadata([])
        return self._brokers

    def controller(self) -> Address:
        answer = self.metadata([])
        if answer.controller_id not in self._brokers:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller now")
        return self._brokers[answer.controller_id]

    def leaders(self, topics: Collection[str] | None = None) -> dict[tuple[str, int], Address | None]:
        """The partitions of these topics, None for all, each with its leader's address; None without a leader."""
        leaders = {}
        for topic in self.metadata(topics).topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchPartition(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} is not in the cluster")
            require(topic.error_code, f"topic {topic.name}")
            if bytes(topic.topic_id) != NO_ID:
                self.topic_ids[topic.name or ""] = bytes(topic.topic_id)
            for partition in topic.partitions:
                leaders[topic.name or "", partition.partition_index] = self._brokers.get(partition.leader_id)
        self._leaders |= leaders
        return leaders

    def leader(self, topic: str, partition: int) -> Address:
        place = topic, partition
        if self._leaders.get(place) is None and place not in self.leaders([topic]):
            raise NoSuchPartition(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        leader = self._leaders[place]
        if leader is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader now")
        return leader

    def ask_leader(
        self,
        topic: str,
        partition: int,
        request: Request,
        response: type[R],
        version: int,
        part_of: Callable[[R], Any],
    ) -> Any:
        """The partition's part of the leader's answer, which `part_of` picks. Retries while its error is retriable or
        the leader does not answer, for `leader_patience` seconds."""

        def ask() -> Any:
            result = part_of(self.ask(self.leader(topic, partition), request, response, version))
            require(result.error_code, f"{topic}-{partition}", getattr(result, "error_message", None))
            return result

        return self.patiently(ask, self.leader_patience, final=(NoSuchPartition,))

    def patiently(
        self, ask: Callable[[], T], patience: float | None = None, *, final: tuple[type[Exception], ...] = ()
    ) -> T:
        """Call `ask` again while its error is retriable or a broker is away.

        final: errors that are raised at once.

        Leaders are looked up for each try.
        """
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        raised: tuple[type[Exception], ...] = (LoginFailed, *final)
        while True:
            pause = _PAUSE
            try:
                return ask()
            except raised:
                raise
            except BrokerFailed as error:
                if isinstance(error, Throttled):
                    pause = error.seconds
                if time.monotonic() + pause > deadline:
                    raise
            except ApiError as error:
                if not error.code.retriable or time.monotonic() > deadline:
                    raise
            self._leaders.clear()
            self.pause(pause)

    def pause(self, seconds: float) -> None:
        """Wait that long before the next try."""
        time.sleep(seconds)

    def coordinator(self, key: str, key_type: int, *, patience: float = _COORDINATOR_SECONDS) -> tuple[int, Address]:
        """Node id and address; `key_type` as FindCoordinator has it: 0 of a group, 1 of a transactional id."""
        request = m.FindCoordinatorRequest(key=key, key_type=key_type)
        version = self.version(m.FindCoordinatorRequest, 2)
        deadline = time.monotonic() + patience
        while True:
            answer = self.ask_any(request, m.FindCoordinatorResponse, version)
            if answer.error_code not in RETRIABLE or time.monotonic() > deadline:
                require(answer.error_code, f"the coordinator of {key}", answer.error_message)
                return answer.node_id, (answer.host, answer.port)
            time.sleep(_PAUSE)


def require(code: int, subject: str, message: str | None = None) -> None:
    """Raises ApiError for an error code."""
    if code != ErrorCode.NONE:
        error = ErrorCode(code)
        raise ApiError(error, f"{subject}: {message}" if message else subject)
