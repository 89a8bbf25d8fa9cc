"""Replication of one broker: the leaders its replicas follow, the followers and in-sync sets of its partitions.

Kafka's ReplicaFetcherManager, AlterPartitionManager and the ISR expiration of ReplicaManager.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.ports import ReplicatingBroker
from minibroker.broker.replica_fetcher import ReplicaFetcher
from minibroker.broker.replica_sessions import ReplicaSessions
from minibroker.kernel.clock import TimerHandle
from minibroker.kernel.deferred import spawn
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import CONTROLLER, call
from minibroker.partitions.in_sync import LAG_TICKS
from minibroker.partitions.partition import Partition
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import AlterPartitionRequest, AlterPartitionResponse

log = get_logger(__name__)

ALTER_PARTITION_VERSION: Final = 3


class Replication:
    """`ReplicationRules` of the broker's partitions, and their fetchers."""

    def __init__(self, broker: ReplicatingBroker) -> None:
        self._broker = broker
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._timer: TimerHandle | None = None
        self._stopped = False
        self.tick = 0
        #: Since this broker started, as Kafka's metrics of these names have it.
        self.isr_expands = self.isr_shrinks = self.failed_isr_updates = 0
        self.sessions = ReplicaSessions(broker.random)

    def start(self) -> None:
        """Look after the in-sync sets every half of replica.lag.time.max.ms of real time."""
        if self._stopped:
            return
        interval_ms = self._broker.settings.get_int("replica.lag.time.max.ms") / LAG_TICKS
        self._timer = self._broker.timers.call_later(interval_ms, self._sweep)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._fetchers.clear()
        self.sessions.close_all()

    def _sweep(self) -> None:
        self.start()
        self.tick += 1
        self.review()

    def review(self) -> None:
        """Review every in-sync set; also called when a broker was registered, removed or unfenced. A follower that has
        caught up may have fetched before this broker learned of the change, and sends no new position where nothing is
        written. In Kafka its next fetch counts for all partitions of its session."""
        for partition in self._broker.partitions():
            if partition.in_sync is not None:
                partition.review_in_sync()

    # -- as follower -------------------------------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """Follow the partition's current leader."""
        leader = partition.leader_id
        for node_id, fetcher in list(self._fetchers.items()):
            if node_id != leader or partition.is_leader:
                fetcher.leave(partition)
        if partition.is_leader or leader < 0 or self._stopped:
            return
        known = self._fetchers.get(leader)
        if known is None:
            known = self._fetchers[leader] = ReplicaFetcher(self._broker, leader)
        known.follow(partition)

    def forget(self, partition: Partition) -> None:
        """The replica was removed from this broker."""
        for fetcher in self._fetchers.values():
            fetcher.leave(partition)

    # -- as leader (ReplicationRules) --------------------------------------------------------------------------------

    def eligible(self, node_id: int, broker_epoch: int) -> bool:
        broker = self._broker.image.brokers.get(node_id)
        return broker is not None and broker.active and broker.epoch == broker_epoch

    def alive(self, node_id: int) -> bool:
        broker = self._broker.image.brokers.get(node_id)
        return broker is not None and not broker.fenced

    def propose(self, partition: Partition, isr: frozenset[int]) -> None:
        spawn(self._alter(partition, isr, partition.leader_epoch)).then(lambda done: done.result())

    async def _alter(self, partition: Partition, isr: frozenset[int], leader_epoch: int) -> None:
        broker = self._broker
        in_sync = partition.in_sync
        assert in_sync is not None
        before = len(in_sync.isr)  # the new image may come before the answer does
        states = []
        for node_id in sorted(isr):
            follower = in_sync.followers.get(node_id)
            epoch = broker.epoch if node_id == broker.node_id else follower.broker_epoch if follower is not None else -1
            states.append(AlterPartitionRequest.BrokerState(broker_id=node_id, broker_epoch=epoch))
        wanted = AlterPartitionRequest.PartitionData(
            partition_index=partition.index,
            leader_epoch=leader_epoch,
            new_isr_with_epochs=states,
            partition_epoch=partition.partition_epoch,
        )
        topics = [AlterPartitionRequest.TopicData(topic_id=partition.topic_id, partitions=[wanted])]
        answer: AlterPartitionResponse.PartitionData | None = None
        try:
            response = await call(
                broker.transport,
                CONTROLLER,
                AlterPartitionRequest(broker_id=broker.node_id, broker_epoch=broker.epoch, topics=topics),
                ALTER_PARTITION_VERSION,
                AlterPartitionResponse,
            )
            code = response.error_code
            if code == ErrorCode.NONE:
                answer = response.topics[0].partitions[0]
                code = answer.error_code
            if code != ErrorCode.NONE:
                log.info("%s keeps its in-sync set: %s", partition, ErrorCode(code).name)
                answer = None
        except ApiError as error:
            log.info("%s keeps its in-sync set: %s", partition, error)
        if partition.leader_epoch != leader_epoch or partition.in_sync is not in_sync:
            return  # another leader epoch, with a new in-sync set
        if answer is None:
            self.failed_isr_updates += 1
            partition.in_sync_answered(None)
            # The follower may have nothing to fetch, and so no other occasion to join the in-sync set.
            broker.timers.call_later(broker.settings.get_int("replica.fetch.wait.max.ms"), partition.review_in_sync)
        else:
            if len(answer.isr) > before:
                self.isr_expands += 1
            elif len(answer.isr) < before:
                self.isr_shrinks += 1
            partition.in_sync_answered(tuple(answer.isr), answer.partition_epoch)
