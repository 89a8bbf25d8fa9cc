"""AlterPartitionReassignments and ListPartitionReassignments on the controller (KIP-455)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minibroker.controller.elections import Election, changed
from minibroker.controller.replication import ReplicationControl
from minibroker.controller.state import ControllerState, PartitionChange, Steps, outcome_of
from minibroker.controller.topics import check_replica_list
from minibroker.metadata.image import PartitionImage, TopicImage
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_Answer = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


class ReassignmentControl:
    """Moves partitions to other replicas: the new ones join first, then the old ones go."""

    def __init__(self, state: ControllerState, replication: ReplicationControl) -> None:
        self._state = state
        self._replication = replication

    def alter(
        self, request: m.AlterPartitionReassignmentsRequest, _: int = 1
    ) -> Steps[m.AlterPartitionReassignmentsResponse]:
        """AlterPartitionReassignments v0-1; replicas null cancels.

        Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR,
        NO_REASSIGNMENT_IN_PROGRESS.
        """
        topics = []
        for topic in request.topics:
            answers = []
            for wanted in topic.partitions:
                yield None
                index = wanted.partition_index
                keeps_count = not request.allow_replication_factor_change
                code, message = outcome_of(
                    partial(self.reassign, topic.name, index, wanted.replicas, same_count=keeps_count)
                )
                answers.append(_Answer(partition_index=index, error_code=code, error_message=message))
            topics.append(
                m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=answers)
            )
        return m.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, responses=topics
        )

    def reassign(
        self, topic_name: str, index: int, replicas: Sequence[int] | None, *, same_count: bool = False
    ) -> None:
        """Begin a reassignment, or with None cancel one. Raises ApiError with the codes of `alter`."""
        topic = self._state.image.topics.get(topic_name)
        partition = self._state.image.partition(topic_name, index)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic_name}.")
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic_name}:{index}.")
        after = (
            self._cancelled(topic, partition)
            if replicas is None
            else self._begun(topic, partition, replicas, same_count)
        )
        if after is not partition:
            self._state.change_partitions([PartitionChange(topic_name, after)])

    def _begun(
        self, topic: TopicImage, partition: PartitionImage, replicas: Sequence[int], same_count: bool
    ) -> PartitionImage:
        check_replica_list(replicas, self._state.image.brokers)
        count = len(set(partition.replicas) - set(partition.removing))
        if same_count and len(replicas) != count:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {count} to {len(replicas)}",
            )
        adding = sorted(set(replicas) - set(partition.replicas))
        removing = sorted(set(partition.replicas) - set(replicas))
        # An empty list leaves that of the one under way (ReplicationControlManager.changePartitionReassignment): one
        # that leads back waits for replicas that it removes, until it is cancelled. No leader is elected uncleanly.
        wanted = self._replication.wanted(topic, partition)._replace(
            replicas=(*replicas, *removing), adding=adding or None, removing=removing or None, election=Election.ONLINE
        )
        return changed(partition, wanted)

    def _cancelled(self, topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        if not partition.adding and not partition.removing:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        original = [n for n in partition.replicas if n not in partition.adding]
        isr = [n for n in partition.isr if n in original]
        wanted = self._replication.wanted(topic, partition)
        if not isr and wanted.election is not Election.UNCLEAN:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{partition.index} because it would require "
                "an unclean leader election.",
            )
        return changed(partition, wanted._replace(replicas=original, isr=isr or original[:1], adding=(), removing=()))

    def listed(self, request: m.ListPartitionReassignmentsRequest, _: int = 0) -> m.ListPartitionReassignmentsResponse:
        """ListPartitionReassignments v0: those under way, of the partitions named or of all."""
        named = None
        if request.topics is not None:
            named = {(t.name, i) for t in request.topics for i in t.partition_indexes}
        topics = []
        for topic in self._state.image.topics.values():
            partitions = [
                m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                    partition_index=p.index,
                    replicas=list(p.replicas),
                    adding_replicas=list(p.adding),
                    removing_replicas=list(p.removing),
                )
                for p in topic.partitions
                if (p.adding or p.removing) and (named is None or (topic.name, p.index) in named)
            ]
            if partitions:
                topics.append(
                    m.ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                        name=topic.name, partitions=partitions
                    )
                )
        return m.ListPartitionReassignmentsResponse(topics=topics)
