"""Leaders, in-sync sets, live brokers and reassignments on the controller (Kafka's ReplicationControlManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from minibroker.controller.elections import Election, Wanted, changed
from minibroker.controller.state import ControllerState, PartitionChange, Steps, outcome_of
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import NO_LEADER, BrokerImage, PartitionImage, TopicImage
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from minibroker_protocol.messages.inter_broker import AlterPartitionRequest, AlterPartitionResponse
from minibroker_protocol.messages.topics import ElectLeadersRequest, ElectLeadersResponse

log = get_logger(__name__)

_ALTER_EPOCHS_VERSION = 3


class ReplicationControl:
    """Decides against one `ControllerState`; every decision is one journal entry and one new image."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    # -- brokers come and go -----------------------------------------------------------------------------------------

    def register(self, broker: BrokerImage, *, clean: bool = True) -> BrokerImage:
        """A broker has started. It is fenced until `unfence`.

        clean: it shut down cleanly, so it has every record that it acknowledged (KIP-966).
        """
        registered = replace(broker, fenced=True, epoch=self._state.image.offset, shutting_down=False)
        self._state.register_broker(registered)
        if not clean:
            lost = frozenset({broker.node_id})
            self._change(
                lambda p: broker.node_id in p.isr or broker.node_id in p.elr,
                lambda p, w: w._replace(unclean_shutdown=lost),
            )
        return registered

    def unfence(self, node_id: int) -> None:
        """The broker serves now: partitions that lack a leader may get it."""
        self._set(node_id, fenced=False)
        self.elect_missing()

    def fence(self, node_id: int) -> None:
        """Fence a broker: its leaders move and it leaves every in-sync set."""
        self._set(node_id, fenced=True)
        self._remove_from_isr(node_id)

    def shut_down(self, node_id: int) -> None:
        """The broker is about to stop: give its leaders to others while it still serves (controlled shutdown)."""
        self._set(node_id, shutting_down=True)
        self._remove_from_isr(node_id)

    def unregister(self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        """UnregisterBroker v0: BROKER_ID_NOT_REGISTERED for an unknown one."""
        if request.broker_id not in self._state.image.brokers:
            return UnregisterBrokerResponse(
                error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                error_message=f"Broker ID {request.broker_id} is not currently registered",
            )
        # First, as it must not be elected again where no other replica is in sync.
        self._state.remove_broker(request.broker_id)
        self._remove_from_isr(request.broker_id)
        return UnregisterBrokerResponse(error_code=ErrorCode.NONE)

    def elect_missing(self) -> None:
        """Elect leaders for partitions whose leader is missing or fenced, uncleanly where
        unclean.leader.election.enable allows it."""
        active = {broker.node_id for broker in self._state.image.brokers.values() if broker.active}
        self._change(lambda p: p.leader not in active, lambda p, w: w)

    def _remove_from_isr(self, node_id: int) -> None:
        def without(partition: PartitionImage, wanted: Wanted) -> Wanted:
            return wanted._replace(isr=[n for n in partition.isr if n != node_id])

        self._change(lambda p: node_id in p.isr or p.leader == node_id, without)

    def _set(self, node_id: int, *, fenced: bool | None = None, shutting_down: bool = False) -> None:
        broker = self._state.image.brokers.get(node_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered")
        fenced = broker.fenced if fenced is None else fenced
        self._state.register_broker(replace(broker, fenced=fenced, shutting_down=shutting_down))

    # -- partitions --------------------------------------------------------------------------------------------------

    def _partitions(self) -> Iterator[tuple[TopicImage, PartitionImage]]:
        for topic in self._state.image.topics.values():
            for partition in topic.partitions:
                yield topic, partition

    def _change(
        self, concerned: Callable[[PartitionImage], bool], wish: Callable[[PartitionImage, Wanted], Wanted]
    ) -> None:
        changes = []
        for topic, partition in self._partitions():
            if concerned(partition):
                after = changed(partition, wish(partition, self.wanted(topic, partition)))
                if after is not partition:
                    changes.append(PartitionChange(topic.name, after))
        self._state.change_partitions(changes)

    def wanted(self, topic: TopicImage, partition: PartitionImage) -> Wanted:
        """What a partition obeys by its topic's configuration: minimum of in-sync replicas, kind of election."""
        minimum = self._state.settings.topic_value("min.insync.replicas", topic.configs)
        unclean = self._state.settings.topic_value("unclean.leader.election.enable", topic.configs)
        assert isinstance(minimum, int)
        return Wanted(
            acceptable=lambda node: node not in partition.offline and self.active(node),
            min_isr=min(minimum, len(partition.replicas)),
            election=Election.UNCLEAN if unclean else Election.ONLINE,
        )

    def active(self, node_id: int) -> bool:
        broker = self._state.image.brokers.get(node_id)
        return broker is not None and broker.active

    # -- AlterPartition ----------------------------------------------------------------------------------------------

    def alter_partition(self, request: AlterPartitionRequest, api_version: int) -> AlterPartitionResponse:
        """AlterPartition v2-3: a leader's new in-sync set.

        Errors: STALE_BROKER_EPOCH (top level); UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH,
        NOT_CONTROLLER (the leader knows more), INVALID_UPDATE_VERSION, INVALID_REQUEST, INELIGIBLE_REPLICA, and
        NEW_LEADER_ELECTED when the change ended a reassignment and with it the sender's leadership.
        """
        sender = self._state.image.brokers.get(request.broker_id)
        if sender is None or sender.epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        topics = []
        for wanted in request.topics:
            topic = self._state.image.topic_by_id(wanted.topic_id)
            answers = []
            for data in wanted.partitions:
                try:
                    answers.append(self._alter(topic, data, request.broker_id, api_version))
                except ApiError as error:
                    log.info("AlterPartition by broker %d refused: %s", request.broker_id, error)
                    answers.append(
                        AlterPartitionResponse.PartitionData(
                            partition_index=data.partition_index,
                            error_code=error.code,
                            leader_id=-1,
                            leader_epoch=-1,
                            isr=[],
                            partition_epoch=-1,
                        )
                    )
            topics.append(AlterPartitionResponse.TopicData(topic_id=wanted.topic_id, partitions=answers))
        return AlterPartitionResponse(topics=topics)

    def _alter(
        self, topic: TopicImage | None, data: AlterPartitionRequest.PartitionData, sender: int, api_version: int
    ) -> AlterPartitionResponse.PartitionData:
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        if not 0 <= data.partition_index < len(topic.partitions):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {data.partition_index}"
            )
        partition = topic.partitions[data.partition_index]
        name = f"{topic.name}-{partition.index}"
        if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"{name}: the epochs of the request are newer than known here")
        if partition.leader != sender or data.leader_epoch < partition.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"{name}: broker {sender} does not lead it in this epoch")
        if data.partition_epoch != partition.partition_epoch:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name}: partition epoch {data.partition_epoch}, expected {partition.partition_epoch}",
            )
        isr = [(s.broker_id, s.broker_epoch) for s in data.new_isr_with_epochs]
        if api_version < _ALTER_EPOCHS_VERSION:
            isr = [(node, -1) for node in data.new_isr]
        nodes = [node for node, _ in isr]
        if partition.leader not in nodes or any(n not in partition.replicas for n in nodes):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: {nodes} is no in-sync set of {partition.replicas}")
        for node, epoch in isr:
            broker = self._state.image.brokers.get(node)
            if broker is None or not broker.active or epoch not in (-1, broker.epoch):
                raise ApiError(ErrorCode.INELIGIBLE_REPLICA, f"{name}: broker {node} cannot be in sync now")
        after = changed(partition, self.wanted(topic, partition)._replace(isr=nodes))
        self._state.change_partitions([PartitionChange(topic.name, after)] if after is not partition else [])
        if after.leader != sender:
            raise ApiError(ErrorCode.NEW_LEADER_ELECTED, f"{name} is led by {after.leader} now")
        return AlterPartitionResponse.PartitionData(
            partition_index=partition.index,
            leader_id=after.leader,
            leader_epoch=after.leader_epoch,
            isr=list(after.isr),
            partition_epoch=after.partition_epoch,
        )

    # -- ElectLeaders ------------------------------------------------------------------------------------------------

    def elect_leaders(self, request: ElectLeadersRequest, _: int = 2) -> Steps[ElectLeadersResponse]:
        """ElectLeaders v0-2. Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED,
        PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE; top level INVALID_REQUEST."""
        if request.election_type not in (Election.PREFERRED.value, Election.UNCLEAN.value):
            return _no_such_election(request)
        election = Election(request.election_type)
        every = request.topic_partitions is None
        named = [(t.topic, t.partitions) for t in request.topic_partitions or ()]
        if every:
            of_topic: dict[str, list[int]] = {}
            for t, p in self._partitions():
                of_topic.setdefault(t.name, []).append(p.index)
            named = list(of_topic.items())
        results = []
        for topic, indexes in named:  # one result for each, with or without partitions
            yield None
            result = ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=[])
            results.append(result)
            for index in indexes:
                yield None
                code, message = outcome_of(partial(self.elect, topic, index, election))
                if every and code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.partition_result.append(
                    ElectLeadersResponse.PartitionResult(partition_id=index, error_code=code, error_message=message)
                )
        return ElectLeadersResponse(replica_election_results=results)

    def balance(self) -> None:
        """Give leadership back to preferred leaders that are in sync again (auto.leader.rebalance.enable)."""
        self._change(
            lambda p: p.leader != p.replicas[0] and p.replicas[0] in p.isr,
            lambda p, w: w._replace(election=Election.PREFERRED),
        )

    def elect(self, topic_name: str, index: int, election: Election) -> None:
        """Raises ApiError with the code of `elect_leaders`."""
        topic = self._state.image.topics.get(topic_name)
        partition = self._state.image.partition(topic_name, index)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic_name}")
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic_name}-{index}")
        if (election is Election.PREFERRED and partition.leader == partition.replicas[0]) or (
            election is Election.UNCLEAN and partition.leader != NO_LEADER
        ):
            raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        after = changed(partition, self.wanted(topic, partition)._replace(election=election))
        if election is Election.PREFERRED and after.leader != partition.replicas[0]:
            raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
        if after.leader == NO_LEADER:
            raise ApiError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
            )
        self._state.change_partitions([PartitionChange(topic_name, after)])

    def elect_again(self, topic_name: str, index: int) -> None:
        """Begin a new leader epoch with the same leader, alone in the in-sync set, as when a replica that lost records
        is elected uncleanly. Raises UNKNOWN_TOPIC_OR_PARTITION, or LEADER_NOT_AVAILABLE when there is no leader."""
        partition = self._state.image.partition(topic_name, index)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic_name}-{index}")
        if partition.leader == NO_LEADER:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_name}-{index} has no leader")
        after = replace(
            partition,
            isr=(partition.leader,),
            elr=(),
            last_known_elr=(),
            leader_epoch=partition.leader_epoch + 1,
            partition_epoch=partition.partition_epoch + 1,
        )
        self._state.change_partitions([PartitionChange(topic_name, after)])


def _no_such_election(request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Each partition gets the error for an unknown election type; without partitions the type is not checked."""
    invalid, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
    results = [
        ElectLeadersResponse.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                ElectLeadersResponse.PartitionResult(partition_id=index, error_code=invalid, error_message=message)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    code = ErrorCode.NONE if request.topic_partitions == [] else invalid
    return ElectLeadersResponse(error_code=code, replica_election_results=results)
