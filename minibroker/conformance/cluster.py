"""What the suite itself asks of a cluster: versions, topics, leaders, coordinators, the controller."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from minibroker.client.connection import Address, Connection
from minibroker.client.security import PLAINTEXT, Security

from .failure import ScenarioFailed
from .messages import API_VERSIONS, api_key, apis, decode_response, encode_request
from .paths import error_names

CLIENT_ID = "minibroker-conformance"
TRANSIENT = frozenset(
    {
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_COORDINATOR",
        "CONCURRENT_TRANSACTIONS",
        "NOT_LEADER_OR_FOLLOWER",
        "LEADER_NOT_AVAILABLE",
    }
)
"""Errors after which a client asks again."""
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""
_TOPIC_SECONDS = 15.0
_WARM_GROUPS = 500
_START_SECONDS = 90.0
_TRIES = 3
_TRY_SECONDS = 0.2
_LAST_SECONDS = 3.0
"""How long the run waits for a broker's answers once it was interrupted."""


class ClusterUnderTest:
    """A cluster, seen from one bootstrap address. Every question has a connection of its own, so that a scenario that
    breaks its connection harms no other. security: how every connection gets in."""

    def __init__(self, bootstrap: Address, *, timeout: float, patience: float, security: Security = PLAINTEXT) -> None:
        self._security = security
        self.bootstrap = bootstrap
        self.timeout = timeout
        self.patience = patience
        self._versions: dict[int, tuple[int, int]] | None = None
        self._brokers: list[Address] = []
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._open_lock = threading.Lock()
        self._abandoned = threading.Event()

    def connect(self, address: Address) -> Connection:
        """A connection that may ask anything. Raises BrokerFailed."""
        self._refuse_when_abandoned()
        connection = self._security.connect(address, self.timeout)
        with self._open_lock:
            self._open.add(connection)
        self._refuse_when_abandoned()
        return connection

    def abandon(self) -> None:
        """End what is under way: every wait, and every question from now on, raises ScenarioFailed; topics can still be
        deleted. For any thread."""
        self._abandoned.set()
        with self._open_lock:
            connections = list(self._open)
        for connection in connections:
            connection.shut()

    def pause(self, seconds: float) -> None:
        """Wait that long."""
        self._abandoned.wait(seconds)
        self._refuse_when_abandoned()

    def _refuse_when_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise ScenarioFailed("abandoned")

    def ask(self, address: Address, api: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """One request and its response."""
        with self.connect(address) as connection:
            try:
                connection.send_frame(encode_request(api, version, body, correlation_id=1, client_id=CLIENT_ID))
                got, response = decode_response(connection.receive(self.timeout), api, version, exact=False)
            except ScenarioFailed as exc:
                raise type(exc)(f"{api} v{version}: {exc}") from None
        if got != 1:
            raise ScenarioFailed(f"{api} v{version}: correlation id {got}, expected 1")
        return response

    def versions(self) -> dict[int, tuple[int, int]]:
        """API key → lowest and highest version, asked once."""
        with self._lock:
            if self._versions is None:
                response = self.ask(self.bootstrap, API_VERSIONS, 0, {})
                self._versions = {api["apiKey"]: (api["minVersion"], api["maxVersion"]) for api in response["apiKeys"]}
            return self._versions

    def wait_until_up(self, token: str) -> None:
        """Return once a restarted broker answers and has loaded its coordinators. token: makes names unique."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.ask(self.bootstrap, API_VERSIONS, 0, {})
                break
            except ScenarioFailed as exc:
                if time.monotonic() > deadline:
                    raise ScenarioFailed(f"not up again within {_START_SECONDS:g} s: {exc}") from None
                self.pause(0.1)
        self.warm_up(token)

    def answers(self) -> bool:
        """Whether the broker is there; False once it has not answered several times."""
        for left in reversed(range(_TRIES)):
            try:
                self.ask(self.bootstrap, API_VERSIONS, 0, {})
                return True
            except ScenarioFailed:
                if self._abandoned.is_set():
                    return True  # nothing is known of it, and nothing more is asked
                if left:
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

    def version(self, api: str, at_most: int) -> int:
        """The version to ask with: the broker's highest, but no more than `at_most`."""
        low, high = self.versions().get(api_key(api), apis()[api][0].__versions__)
        return max(low, min(at_most, high))

    def metadata(self, topics: list[str], *, create: bool = False) -> dict[str, Any]:
        body = {"topics": [{"name": name} for name in topics], "allowAutoTopicCreation": create}
        return self.ask(self.bootstrap, "Metadata", self.version("Metadata", 12), body)

    def every_topic(self) -> list[str]:
        version = self.version("Metadata", 12)
        body: dict[str, Any] = {"topics": None if version else [], "allowAutoTopicCreation": False}
        return [topic["name"] for topic in self.ask(self.bootstrap, "Metadata", version, body)["topics"]]

    def every_broker(self) -> list[Address]:
        return list(_brokers(self.metadata([])).values())

    def sole_broker(self) -> Address | None:
        """The broker that leads and coordinates everything, because there is no other; asked once."""
        if not self._brokers:
            self._brokers = self.every_broker()
        return self._brokers[0] if len(self._brokers) == 1 else None

    def controller(self) -> Address:
        metadata = self.metadata([])
        return _brokers(metadata).get(metadata.get("controllerId", -1), self.bootstrap)

    def leader(self, topic: str, partition: int) -> Address:
        """The leader's address; the bootstrap address when there is none."""
        metadata = self.metadata([topic])
        brokers = _brokers(metadata)
        for found in metadata["topics"]:
            for entry in found["partitions"]:
                if entry["partitionIndex"] == partition and entry["leaderId"] in brokers:
                    return brokers[entry["leaderId"]]
        return self.bootstrap

    def coordinator(self, key: str, key_type: int) -> Address:
        """The coordinator of a group or a transactional id; the bootstrap address when the broker names none."""
        version = self.version("FindCoordinator", 2)
        deadline = time.monotonic() + self.patience
        while True:
            response = self.ask(self.bootstrap, "FindCoordinator", version, {"key": key, "keyType": key_type})
            error = response["errorCode"]
            if error == "NONE":
                return response["host"], response["port"]
            if error not in TRANSIENT or time.monotonic() > deadline:
                return self.bootstrap
            self.pause(0.3)

    def warm_up(self, token: str) -> None:
        """Have the coordinators' topics made and loaded, before a scenario meets one that is loading: Kafka answers a
        Heartbeat NONE then, for any member. Gives up silently, because the scenarios report the error."""
        name = f"mb-warm-{token}"
        with contextlib.suppress(ScenarioFailed):
            self.coordinator(name, TRANSACTION)
            address = self.coordinator(name, GROUP)
            # so many names that every partition of the offsets topic has one
            body = {"groups": [name, *(f"{name}-{number}" for number in range(_WARM_GROUPS))]}
            version = self.version("DescribeGroups", 5)
            deadline = time.monotonic() + self.patience
            while time.monotonic() < deadline:
                first, *others = error_names(self.ask(address, "DescribeGroups", version, body))
                if first not in TRANSIENT and "COORDINATOR_LOAD_IN_PROGRESS" not in others:
                    return
                self.pause(0.05)

    def create_topics(self, topics: dict[str, tuple[int, dict[str, Any]]]) -> dict[str, str]:
        """Make topics, name → (partitions, configs), and wait until all partitions answer. Returns their ids."""
        automatic = api_key("CreateTopics") not in self.versions()  # such a broker makes them when asked for metadata
        if not automatic:
            self._create(topics)
        wanted = {name: partitions for name, (partitions, _) in topics.items()}
        deadline = time.monotonic() + _TOPIC_SECONDS
        while True:
            metadata = self.metadata(list(wanted), create=automatic)
            ready = {
                topic["name"]: topic.get("topicId", "")
                for topic in metadata["topics"]
                if _has_leaders(topic, None if automatic else wanted.get(topic["name"]))
            }
            if ready.keys() == wanted.keys() and self._serve(wanted):
                return ready
            if time.monotonic() > deadline:
                raise ScenarioFailed(f"set-up: topics without leaders after {_TOPIC_SECONDS:g} s")
            self.pause(0.05)

    def _create(self, topics: dict[str, tuple[int, dict[str, Any]]]) -> None:
        body = {
            "timeoutMs": 10_000,
            "topics": [
                {
                    "name": name,
                    "numPartitions": partitions,
                    "replicationFactor": 1,
                    "configs": [{"name": key, "value": str(value)} for key, value in configs.items()],
                }
                for name, (partitions, configs) in topics.items()
            ],
        }
        response = self.ask(
            self.sole_broker() or self.controller(), "CreateTopics", self.version("CreateTopics", 5), body
        )
        for topic in response["topics"]:
            if topic["errorCode"] not in ("NONE", "TOPIC_ALREADY_EXISTS"):
                raise ScenarioFailed(f"set-up: CreateTopics: {topic['errorCode']}: {topic.get('errorMessage')}")

    def _serve(self, wanted: dict[str, int]) -> bool:
        """Whether the leaders know the partitions too; metadata may be ahead of them."""
        version = self.version("ListOffsets", 5)
        for name, partitions in wanted.items():
            for partition in range(partitions):
                asked = {"partitionIndex": partition, "timestamp": -1, "currentLeaderEpoch": -1}
                body = {"replicaId": -1, "topics": [{"name": name, "partitions": [asked]}]}
                leader = self.sole_broker() or self.leader(name, partition)
                response = self.ask(leader, "ListOffsets", version, body)
                if any(error != "NONE" for error in error_names(response)):
                    return False
        return True

    def for_the_last_time(self) -> ClusterUnderTest:
        """The same cluster for what is removed at the end; also of a run that was abandoned, and then soon over."""
        limit = _LAST_SECONDS if self._abandoned.is_set() else self.timeout
        return ClusterUnderTest(self.bootstrap, timeout=limit, patience=limit, security=self._security)

    def delete_topics(self, names: list[str]) -> None:
        """Remove topics after a scenario; it has had its verdict, so failing is no matter."""
        if self._abandoned.is_set():
            self.for_the_last_time().delete_topics(names)
            return
        with contextlib.suppress(ScenarioFailed):
            body = {"topicNames": names, "timeoutMs": 5000}
            controller = self.sole_broker() or self.controller()
            self.ask(controller, "DeleteTopics", self.version("DeleteTopics", 5), body)


def _brokers(metadata: dict[str, Any]) -> dict[int, Address]:
    return {broker["nodeId"]: (broker["host"], broker["port"]) for broker in metadata["brokers"]}


def _has_leaders(topic: dict[str, Any], partitions: int | None) -> bool:
    return (
        topic["errorCode"] == "NONE"
        and partitions in (None, len(topic["partitions"]))
        and all(entry["leaderId"] >= 0 and entry["errorCode"] == "NONE" for entry in topic["partitions"])
    )
