"""The base of all simulated clients: find leaders and coordinators, send requests, retry as real clients do."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from random import Random
from typing import Any, Literal, Protocol, TypeVar

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.waiting import sleep
from minibroker.requests.dispatch import Dispatcher
from minibroker_lab.simulation.history import History
from minibroker_lab.simulation.links import Disconnected, Links, Reasons
from minibroker_lab.simulation.network_conditions import NetworkConditions
from minibroker_lab.simulation.plan import Plan
from minibroker_lab.simulation.schedule import Schedule
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse

R = TypeVar("R", bound=Response)
Kind = Literal["group", "transaction"]

RETRIABLE = frozenset(code for code in ErrorCode if code.retriable)
"""Codes after which Kafka's clients retry, possibly at another broker."""
_LOST = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class ClientEnvironment(Protocol):
    """What a client may see of the simulated world."""

    plan: Plan
    schedule: Schedule
    conditions: NetworkConditions
    history: History
    reasons: Reasons

    def dispatcher(self, node_id: int) -> tuple[int, Dispatcher] | None: ...

    def instance(self, transactional_id: str) -> int:
        """Register another instance with this id; returns its number."""

    def initialising(self, transactional_id: str, number: int) -> None:
        """The instance sends InitProducerId."""

    def initialised(self, transactional_id: str, number: int, granted: tuple[int, int]) -> None:
        """The instance has received a producer id and epoch."""

    def owner(self, transactional_id: str) -> int:
        """The instance that received one last, or another one that is requesting one now."""

    def watch(self, node_id: int, request: Request) -> None:
        """A broker begins to serve a client's request."""

    def deposed(self, transactional_id: str, node_id: int) -> bool:
        """Whether a broker may act as the id's coordinator although another one is."""

    def coordinator_changed(self, transactional_id: str, since_ms: float) -> bool:
        """Whether the id's coordinator has moved or restarted since then."""

    @property
    def behind(self) -> list[int]:
        """Brokers that may not know what the controller decided."""

    @property
    def closing(self) -> bool:
        """Clients begin nothing new."""


class Client:
    """One application. `random` is its own, so that one client's choices do not depend on another's."""

    def __init__(self, world: ClientEnvironment, name: str, random: Random) -> None:
        self.world = world
        self.name = name
        self.random = random
        self.history = world.history
        self.links = Links(name, world.schedule, world.conditions, world.dispatcher, world.history.tell)
        self.links.watch = world.watch
        self.links.reasons = world.reasons
        self.links.late = self.served_late
        self.dead = False
        self.done = False
        self.doing = "nothing yet"
        self._leaders: dict[tuple[str, int], int] = {}
        # Metadata of an older leader epoch is not believed (Kafka's Metadata.updateLatestMetadata).
        self._leader_epochs: dict[tuple[str, int], int] = {}
        self._coordinators: dict[tuple[Kind, str], int] = {}
        #: The node that gave the last answer of `coordinate`.
        self.answered_by = -1

    def tell(self, event: str, text: str) -> None:
        self.history.tell(event, f"{self.name}: {text}")

    def die(self) -> None:
        """Without a word."""
        self.dead = True
        self.links.forget()
        self.tell("client died", "dies")

    def served_late(self, request: Request, moment: Hashable) -> None:
        """A broker begins to serve a request that this client gave up.

        moment: the client's step when it sent it.
        """
        name = type(request).__name__.removesuffix("Request")
        self.history.evidence.late[self.name, name].append(self.history.elapsed_ms())
        self.tell(f"late {name}", f"its {name}, given up before, arrives only now")

    def broker_gone(self, node_id: int) -> None:
        """Connections to it break."""
        self.links.broker_gone(node_id)

    async def pause(self, delay_ms: float) -> None:
        await sleep(self.world.schedule, delay_ms)
        if self.dead:
            await Deferred[None]()

    def bootstrap(self) -> int:
        return self.random.randrange(self.world.plan.brokers) + 1

    async def ask(self, node_id: int, request: Request, version: int, response: type[R]) -> R:
        """Raises Disconnected."""
        answer = await self.links.send(node_id, request, version)
        if self.dead:
            await Deferred[None]()
        assert isinstance(answer, response)
        return answer

    def why(self, code: int) -> str:
        """The broker's reason for `code` in the last response to this client."""
        return next((refusal.reason for refusal in self.links.refusals if refusal.code == code), "no reason is known")

    async def leader(self, topic: str, index: int) -> int:
        """The leader of a partition by this client's metadata; asks any broker when it is unknown."""
        while (topic, index) not in self._leaders:
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
            )
            try:
                answer = await self.ask(self.bootstrap(), request, 9, MetadataResponse)
            except Disconnected:
                await self.pause(50)
                continue
            for listed in answer.topics:
                for partition in listed.partitions:
                    place = topic, partition.partition_index
                    if partition.leader_epoch < self._leader_epochs.get(place, -1):
                        self.history.counts["metadata of an older leader epoch"] += 1
                        continue
                    self._leader_epochs[place] = partition.leader_epoch
                    if partition.leader_id >= 0:
                        self._leaders[place] = partition.leader_id
            if (topic, index) not in self._leaders:
                await self.pause(100)
        return self._leaders[topic, index]

    def lost_leader(self, topic: str, index: int) -> None:
        self._leaders.pop((topic, index), None)

    async def coordinator(self, kind: Kind, key: str) -> int:
        while (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key=key, key_type=0 if kind == "group" else 1)
            try:
                answer = await self.ask(self.bootstrap(), request, 3, FindCoordinatorResponse)
            except Disconnected:
                await self.pause(50)
                continue
            if answer.error_code == ErrorCode.NONE:
                self._coordinators[kind, key] = answer.node_id
            else:
                await self.pause(100)
        return self._coordinators[kind, key]

    async def coordinate(
        self,
        kind: Kind,
        key: str,
        request: Request,
        version: int,
        response: type[R],
        code: Callable[[Any], int] = attrgetter("error_code"),
    ) -> tuple[R, bool]:
        """Ask the coordinator until it answers with a code that is not to be retried.

        code: finds it.

        Returns the answer, and whether an earlier attempt may have been served too.
        """
        twice = False
        name = type(request).__name__.removesuffix("Request")
        while True:
            node = await self.coordinator(kind, key)
            self.doing = f"{name} at {node}"
            try:
                answer = await self.ask(node, request, version, response)
            except Disconnected as error:
                twice = twice or error.sent
                self._coordinators.pop((kind, key), None)
                await self.pause(20 + self.random.random() * 80)
                continue
            answered = ErrorCode(code(answer))
            self.history.tell(f"{name}: {answered.name}", f"{self.name}: {name} of {key} at {node}: {answered.name}")
            if answered not in RETRIABLE:
                self.answered_by = node
                return answer, twice
            if answered in _LOST:
                self._coordinators.pop((kind, key), None)
            if answered not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                twice = True
            await self.pause(20 + self.random.random() * 60)
