"""Which replicas keep records of their own: the fact that the hole "own records below the log start" rests on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from minibroker_lab.simulation.evidence import TopicPartition
from minibroker_protocol.dsl import Request
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.offsets import DeleteRecordsRequest

if TYPE_CHECKING:
    from minibroker.partitions.partition import Partition
    from minibroker_lab.simulation.scene import Scene


class OwnRecords:
    """Called with requests before brokers serve them. DeleteRecords removes a leader's epochs below its new log start,
    so they are noted before; a fetching follower is compared with them."""

    def __init__(self, world: Scene) -> None:
        self._world = world
        #: Leader epoch -> its first offset, of all leaders that had records deleted.
        self._epochs: dict[TopicPartition, dict[int, int]] = defaultdict(dict)

    def arrives(self, node_id: int, request: Request) -> None:
        """A broker takes up a request of a client, or of another broker."""
        if isinstance(request, DeleteRecordsRequest):
            for topic in request.topics:
                for partition in topic.partitions:
                    self._remember(node_id, (topic.name, partition.partition_index))
        elif isinstance(request, FetchRequest) and request.replica_state is not None:
            for place in self._epochs:
                self._compare(node_id, request.replica_state.replica_id, place)

    def _remember(self, node_id: int, place: TopicPartition) -> None:
        leader = self._replica(node_id, place)
        if leader is not None:
            known = self._epochs[place]
            for epoch, start in leader.log.leader_epochs.entries:
                known[epoch] = min(start, known.get(epoch, start))

    def _compare(self, leader_id: int, follower_id: int, place: TopicPartition) -> None:
        """Whether the follower has another epoch's record than its leader had just below where its epochs begin."""
        leader, follower = self._replica(leader_id, place), self._replica(follower_id, place)
        if leader is None or follower is None or not leader.leader_id == follower.leader_id == leader_id:
            return
        # After a crash the log start may be what it was before DeleteRecords, the epochs below are gone all the same.
        first_epoch = next((start for _, start in leader.log.leader_epochs.entries), 0)
        last_deleted = max(leader.log_start_offset, first_epoch) - 1
        if follower.log_start_offset <= last_deleted < follower.log_end_offset:
            known = [epoch for epoch, start in self._epochs[place].items() if start <= last_deleted]
            if known and follower.log.leader_epochs.epoch_for_offset(last_deleted) != max(known):
                text = f"{place[0]}-{place[1]}: broker {follower_id} has a record of its own at {last_deleted}"
                self._world.tell("own records below the log start", text)
                self._world.history.evidence.own_records.add((follower_id, place))

    def _replica(self, node_id: int, place: TopicPartition) -> Partition | None:
        broker = self._world.cluster.brokers.get(node_id)
        partitions = () if broker is None else broker.partitions()
        return next((p for p in partitions if (p.topic, p.index) == place and p.has_log), None)
