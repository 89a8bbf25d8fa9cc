"""The suite's own client of a cluster: what it asks beside the scenarios, and what it makes and removes for them."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from minibroker.client.cluster import RETRIABLE, require
from minibroker.client.connection import Connection
from minibroker.client.security import PLAINTEXT, Security
from minibroker.client.topics import LATEST, ReadingClient
from minibroker.kernel.addresses import Address
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, EncodeError, ErrorCode

from .failure import ScenarioFailed
from .messages import api_key

R = TypeVar("R", bound=Response)
Topics = Mapping[str, tuple[int, Mapping[str, Any]]]
"""Name → partitions and configs."""
_KEY_TYPES = {"group": 0, "txn": 1}
"""Of FindCoordinator."""
_TOPIC_SECONDS = 15.0
_WARM_GROUPS = 500
_START_SECONDS = 90.0
_TRIES = 3
_TRY_SECONDS = 0.2
_LAST_SECONDS = 3.0
"""How long the run waits for a broker's answers once it was interrupted."""


class ClusterUnderTest(ReadingClient):
    """A cluster, seen from one bootstrap address, for any number of threads.

    patience: seconds until a coordinator that is not there yet is given up.
    security: TLS and login of every connection.
    """

    client_id = "minibroker-conformance"

    def __init__(self, bootstrap: str, *, timeout: float, patience: float, security: Security = PLAINTEXT) -> None:
        super().__init__(bootstrap, timeout=timeout, security=security)
        self.patience = patience
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._open_lock = threading.Lock()
        self._abandoned = threading.Event()

    def connect(self, address: Address) -> Connection:
        self._refuse_when_abandoned()
        connection = super().connect(address)
        with self._open_lock:
            self._open.add(connection)
        self._refuse_when_abandoned()
        return connection

    @contextlib.contextmanager
    def _connected(self, address: Address) -> Iterator[Connection]:
        """A new connection for each question, so that a scenario that breaks its own harms no other."""
        with self.connect(address) as connection:
            yield connection

    def abandon(self) -> None:
        """End what is under way: every wait, and every question from now on, raises ScenarioFailed; topics can still be
        deleted. For any thread."""
        self._abandoned.set()
        with self._open_lock:
            connections = list(self._open)
        for connection in connections:
            connection.shut()

    @property
    def abandoned(self) -> bool:
        return self._abandoned.is_set()

    def pause(self, seconds: float) -> None:
        """Wait that long."""
        self._abandoned.wait(seconds)
        self._refuse_when_abandoned()

    def _refuse_when_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise ScenarioFailed("abandoned")

    def check(self) -> None:
        """Raises ScenarioFailed when no broker answers."""
        self.ask_any(m.ApiVersionsRequest(), m.ApiVersionsResponse, 0)

    def ask_at_most(self, address: Address, request: Request, response: type[R], version: int) -> R:
        """One request and its response, in the broker's highest version up to this one."""
        try:
            return self.ask(address, request, response, self.version(type(request), version))
        except EncodeError as error:  # the broker's versions are too old for it
            raise ScenarioFailed(str(error)) from None

    def serves(self, request: type[Request]) -> bool:
        return request.__api_key__ in self.versions()

    def wait_until_up(self, token: str) -> None:
        """Return once a restarted broker answers and has loaded its coordinators.

        token: makes names unique.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.check()
                break
            except ScenarioFailed as exc:
                if time.monotonic() > deadline:
                    raise ScenarioFailed(f"not up again within {_START_SECONDS:g} s: {exc}") from None
                self.pause(0.1)
        self.warm_up(token)

    def answers(self) -> bool:
        """Whether the broker is there; False once it has not answered several times."""
        for tries_left in reversed(range(_TRIES)):
            try:
                self.check()
                return True
            except ScenarioFailed:
                if self._abandoned.is_set():
                    return True  # the run was given up, so it does not matter whether the broker is back
                if tries_left:
                    time.sleep(_TRY_SECONDS)
        return False

    def lacks(self, used: Iterable[tuple[str, int]]) -> list[str]:
        """Those (API, version) pairs, as text, that the broker does not advertise."""
        known = self.versions()
        return [
            f"{api} v{version}"
            for api, version in sorted(used)
            if not (span := known.get(api_key(api))) or not span[0] <= version <= span[1]
        ]

    def sole_broker(self) -> Address | None:
        """The broker that leads and coordinates everything, because there is no other; asked once."""
        addresses = list((self._brokers or self.brokers()).values())
        return addresses[0] if len(addresses) == 1 else None

    def address(self, kind: str, name: str = "", partition: int = 0) -> Address:
        """The address of the `leader` of a partition, of the coordinator of a `group` or `txn`, or of the `controller`;
        the bootstrap address when the broker names none."""
        with contextlib.suppress(ApiError):
            match kind:
                case "leader":
                    return self.leaders([name]).get((name, partition)) or self.bootstrap[0]
                case "controller":
                    return self.controller()
                case _:
                    return self.coordinator(name, _KEY_TYPES[kind], patience=self.patience)[1]
        return self.bootstrap[0]

    def warm_up(self, token: str) -> None:
        """Have the coordinators' topics made and loaded first: while one is loading, Kafka answers any member's
        Heartbeat with NONE. Gives up silently, because the scenarios report the error."""
        name = f"mb-warm-{token}"
        with contextlib.suppress(ScenarioFailed):
            self.address("txn", name)
            address = self.address("group", name)
            # so many names that every partition of the offsets topic has one
            request = m.DescribeGroupsRequest(groups=[name, *(f"{name}-{number}" for number in range(_WARM_GROUPS))])
            deadline = time.monotonic() + self.patience
            while time.monotonic() < deadline:
                answer = self.ask_at_most(address, request, m.DescribeGroupsResponse, 5)
                first, *others = (group.error_code for group in answer.groups)
                if first not in RETRIABLE and ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in others:
                    return
                self.pause(0.05)

    def create_topics(self, topics: Topics) -> dict[str, str]:
        """Make topics and wait until all partitions answer. Returns their ids."""
        automatic = not self.serves(m.CreateTopicsRequest)  # such a broker makes them when asked for metadata
        try:
            if not automatic:
                self._create(topics)
            deadline = time.monotonic() + _TOPIC_SECONDS
            while True:
                ready = {
                    topic.name or "": str(uuid.UUID(bytes=bytes(topic.topic_id)))
                    for topic in self.metadata(topics, create=automatic).topics
                    if _has_leaders(topic, None if automatic else topics[topic.name or ""][0])
                }
                if ready.keys() == topics.keys():
                    break
                if time.monotonic() > deadline:
                    raise ScenarioFailed(f"set-up: topics without leaders after {_TOPIC_SECONDS:g} s")
                self.pause(0.05)
            for name, (partitions, _) in topics.items():
                for partition in range(partitions):
                    self.offset(name, partition, LATEST)  # metadata may be ahead of the leaders
        except ApiError as error:
            raise ScenarioFailed(f"set-up: {error}") from None
        return ready

    def _create(self, topics: Topics) -> None:
        kind = m.CreateTopicsRequest
        made = [
            kind.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[kind.CreatableTopicConfig(name=key, value=str(value)) for key, value in configs.items()],
            )
            for name, (partitions, configs) in topics.items()
        ]
        controller = self.sole_broker() or self.address("controller")
        answer = self.ask_at_most(controller, kind(topics=made, timeout_ms=10_000), m.CreateTopicsResponse, 5)
        for topic in answer.topics:
            if topic.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                require(topic.error_code, "CreateTopics", topic.error_message)

    def for_the_last_time(self) -> Self:
        """The same cluster for what is removed at the end; also of a run that was abandoned, and then soon over."""
        last = copy.copy(self)
        last._abandoned = threading.Event()
        if self._abandoned.is_set():
            last.timeout = last.patience = _LAST_SECONDS
        return last

    def delete_topics(self, names: list[str]) -> None:
        """Remove topics after a scenario. It has its verdict by then, so a failure does not matter."""
        if self._abandoned.is_set():
            self.for_the_last_time().delete_topics(names)
            return
        with contextlib.suppress(ScenarioFailed):
            request = m.DeleteTopicsRequest(topic_names=names, timeout_ms=5000)
            controller = self.sole_broker() or self.address("controller")
            self.ask_at_most(controller, request, m.DeleteTopicsResponse, 5)


def _has_leaders(topic: m.MetadataResponse.MetadataResponseTopic, partitions: int | None) -> bool:
    return (
        topic.error_code == ErrorCode.NONE
        and partitions in (None, len(topic.partitions))
        and all(entry.leader_id >= 0 and entry.error_code == ErrorCode.NONE for entry in topic.partitions)
    )
