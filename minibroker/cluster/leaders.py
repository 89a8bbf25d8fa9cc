"""Operations on leaders and replicas of a running cluster: elections, reassignments, moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from minibroker.controller.elections import Election
from minibroker.coordinators.hashing import partition_for
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, MetadataImage
from minibroker_protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from minibroker.controller.controller import Controller

CoordinatorType = Literal["transaction", "group"]
_TOPICS: dict[CoordinatorType, str] = {"transaction": TRANSACTION_STATE_TOPIC, "group": CONSUMER_OFFSETS_TOPIC}


class Metadata(Protocol):
    """The part of a cluster that these operations use."""

    @property
    def controller(self) -> Controller:
        """The active controller; raises ApiError NOT_CONTROLLER while there is none."""

    @property
    def image(self) -> MetadataImage:
        """The metadata as the controller has it."""


class Leaders:
    """Raises ApiError with Kafka's code for what the controller refuses."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def elect(self, topic: str, index: int, *, unclean: bool = False) -> None:
        """ElectLeaders of one partition: its preferred leader, or with `unclean` any live replica when it has none."""
        self._metadata.controller.replication.elect(topic, index, Election.UNCLEAN if unclean else Election.PREFERRED)

    def elect_again(self, topic: str, index: int) -> None:
        """Begin a new epoch of a partition's leader, alone in the in-sync set: what follows an unclean election."""
        self._metadata.controller.replication.elect_again(topic, index)

    def reassign(self, topic: str, index: int, replicas: Sequence[int]) -> Deferred[None]:
        """AlterPartitionReassignments of one partition; resolved once the new replicas are the only ones."""
        self._metadata.controller.reassignments.reassign(topic, index, replicas)

        def done() -> bool:
            partition = self._metadata.image.partition(topic, index)
            return partition is None or (partition.replicas == tuple(replicas) and not partition.adding)

        return self._when(done)

    def move_leader(self, topic: str, index: int, to: int) -> Deferred[None]:
        """Make broker `to` lead a partition; when it has no replica of it, it takes the place of the leader's first.

        Done as with Kafka's tools: a reassignment that puts `to` first, then the election of the preferred leader.
        Raises PREFERRED_LEADER_NOT_AVAILABLE when `to` is a replica that is not in sync.
        """
        partition = self._metadata.image.partition(topic, index)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}")
        if partition.leader == to:
            return resolved(None)
        kept = [node for node in partition.replicas if node != to]
        if to not in partition.replicas:
            kept = [node for node in kept if node != partition.leader]
        moved = self.reassign(topic, index, [to, *kept])
        outcome: Deferred[None] = Deferred()

        def elect(_: Deferred[None]) -> None:
            try:
                now = self._metadata.image.partition(topic, index)
                if now is not None and now.leader != to:
                    self.elect(topic, index)
                outcome.resolve(None)
            except ApiError as error:
                outcome.fail(error)

        moved.then(elect)
        if outcome.done:
            outcome.result()
        return outcome

    def move_coordinator(self, kind: CoordinatorType, key: str, to: int) -> Deferred[None]:
        """Make broker `to` coordinate a transactional id or a group, and all others of its partition with it."""
        name = _TOPICS[kind]
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} does not exist yet")
        return self.move_leader(name, partition_for(key, len(topic.partitions)), to)

    def coordinator(self, kind: CoordinatorType, key: str) -> int | None:
        """Node id of the coordinator of a transactional id or group; None while there is none."""
        topic = self._metadata.image.topics.get(_TOPICS[kind])
        if topic is None:
            return None
        return self._metadata.image.leader_of(topic.name, partition_for(key, len(topic.partitions)))

    def _when(self, reached: Callable[[], bool]) -> Deferred[None]:
        """Resolved once the metadata make `reached` true."""
        outcome: Deferred[None] = Deferred()
        state = self._metadata.controller.state
        if reached():
            return resolved(None)

        def look(_: MetadataImage, __: tuple[str, ...]) -> None:
            if not outcome.done and reached():
                state.publishers.remove(look)
                outcome.resolve(None)

        state.publishers.append(look)
        return outcome
