"""Copies what one leader has to this broker's replicas (Kafka's ReplicaFetcherThread and AbstractFetcherThread)."""

from __future__ import annotations

from typing import Final

from minibroker.broker.ports import ReplicatingBroker
from minibroker.kernel.clock import TimerHandle
from minibroker.kernel.deferred import spawn
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import call
from minibroker.kernel.waiting import sleep
from minibroker.partitions.partition import Partition
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker_storage.truncation import truncate_fully_and_start_at, truncate_to

log = get_logger(__name__)

FETCH_VERSION: Final = 17
LIST_OFFSETS_VERSION: Final = 10
_LATEST, _EARLIEST = -1, -2

Key = tuple[bytes, int]
_Position = tuple[int, int, int, int]


class ReplicaFetcher:
    """Follows one leader for any number of partitions. There is one request at a time. A change of the partitions
    starts a new session; a late response to the old request is ignored."""

    def __init__(self, broker: ReplicatingBroker, leader_id: int) -> None:
        self._broker = broker
        self._leader_id = leader_id
        self._partitions: dict[Key, Partition] = {}
        self._paused: dict[Key, TimerHandle] = {}
        self._run = 0
        self._starting: TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return not self._partitions

    def follow(self, partition: Partition) -> None:
        """Follow a partition, or follow it under a new leader epoch."""
        key = (partition.topic_id, partition.index)
        self._resume(key)
        self._partitions[key] = partition
        self._start_over()

    def leave(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        if self._partitions.pop(key, None) is not None:
            self._resume(key)
            self._start_over()

    def follows(self, partition: Partition) -> bool:
        return (partition.topic_id, partition.index) in self._partitions

    def stop(self) -> None:
        self._run += 1
        self._partitions.clear()
        for handle in self._paused.values():
            handle.cancel()
        self._paused.clear()
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Start the fetcher once for all changes of one turn of the loop."""
        self._run += 1
        if self._starting is None:
            self._starting = self._broker.timers.call_later(0, self._start)

    def _start(self) -> None:
        self._starting = None
        if self._active():
            spawn(self._fetch(self._run)).then(lambda done: done.result())

    def _active(self) -> dict[Key, Partition]:
        return {key: partition for key, partition in self._partitions.items() if key not in self._paused}

    async def _fetch(self, run: int) -> None:
        broker, settings = self._broker, self._broker.settings
        session_id = epoch = 0
        in_session: dict[Key, _Position] = {}
        while run == self._run:
            await self._wait_for_syncs(run)
            if run != self._run:
                return
            request = self._request(session_id, epoch, in_session)
            try:
                response = await call(broker.transport, self._leader_id, request, FETCH_VERSION, FetchResponse)
            except ApiError as error:
                log.info("broker %d cannot fetch from %d: %s", broker.node_id, self._leader_id, error)
                await sleep(broker.timers, settings.get_int("replica.fetch.backoff.ms"))
                session_id = epoch = 0
                in_session.clear()
                continue
            if run != self._run:
                return
            if response.error_code != ErrorCode.NONE:
                session_id = epoch = 0
                in_session.clear()
                continue
            session_id, epoch = response.session_id, epoch + 1
            for topic in response.responses:
                for data in topic.partitions:
                    await self._take((topic.topic_id, data.partition_index), data, run)

    async def _wait_for_syncs(self, run: int) -> None:
        """Wait until the log is synced if flush.messages asks for it: the offset of the next fetch tells the leader
        what the follower has (Kafka syncs inside the follower's append)."""
        held = [(key, p) for key, p in self._active().items() if not p.is_synced(p.log_end_offset)]
        waiting = [(key, partition, partition.when_synced(partition.log_end_offset)) for key, partition in held]
        for key, partition, synced in waiting:
            try:
                await synced
            except ApiError as error:
                log.info("broker %d pauses to follow %s: %s", self._broker.node_id, partition, error)
                if run != self._run:
                    return
                self._pause(key)

    def _request(self, session_id: int, epoch: int, in_session: dict[Key, _Position]) -> FetchRequest:
        settings = self._broker.settings
        topics: dict[bytes, list[FetchRequest.FetchPartition]] = {}
        for key, partition in self._active().items():
            wanted = (
                partition.log_end_offset,
                partition.log_start_offset,
                partition.latest_epoch,
                partition.leader_epoch,
            )
            if in_session.get(key) == wanted:
                continue
            in_session[key] = wanted
            topics.setdefault(key[0], []).append(
                FetchRequest.FetchPartition(
                    partition=key[1],
                    fetch_offset=wanted[0],
                    log_start_offset=wanted[1],
                    last_fetched_epoch=wanted[2],
                    current_leader_epoch=wanted[3],
                    partition_max_bytes=settings.get_int("replica.fetch.max.bytes"),
                )
            )
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=self._broker.node_id, replica_epoch=self._broker.epoch),
            max_wait_ms=settings.get_int("replica.fetch.wait.max.ms"),
            min_bytes=settings.get_int("replica.fetch.min.bytes"),
            max_bytes=settings.get_int("replica.fetch.response.max.bytes"),
            session_id=session_id,
            session_epoch=epoch,
            topics=[
                FetchRequest.FetchTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    # -- one partition -----------------------------------------------------------------------------------------------

    async def _take(self, key: Key, data: FetchResponse.PartitionData, run: int) -> None:
        partition = self._partitions.get(key)
        if partition is None or run != self._run:
            return
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._find_common_ground(partition)
            elif data.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(data.error_code), f"{partition}: refused by broker {self._leader_id}")
            elif data.diverging_epoch is not None:
                self._truncate(partition, data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
            else:
                partition.replicate(
                    data.records if data.records is not None else b"",  # type: ignore[arg-type]
                    high_watermark=data.high_watermark,
                    log_start_offset=data.log_start_offset,
                )
        except ApiError as error:
            log.info("broker %d pauses to follow %s: %s", self._broker.node_id, partition, error)
            if run == self._run:
                self._pause(key)

    def _truncate(self, partition: Partition, leader_epoch: int, leader_end: int) -> None:
        """Truncate what the leader does not have (AbstractFetcherThread.getOffsetTruncationState)."""
        own = partition.log
        if leader_end < 0:
            target = own.high_watermark
        elif leader_epoch < 0:
            target = min(leader_end, own.log_end_offset)
        else:
            epoch, end = own.end_offset_for_epoch(leader_epoch)
            target = min(leader_end, own.log_end_offset) if epoch < 0 else min(leader_end, end, own.log_end_offset)
        self._truncate_to(partition, target)

    def _truncate_to(self, partition: Partition, offset: int) -> None:
        own = partition.log
        if offset < own.high_watermark:
            log.warning("truncating %s to offset %d below its high watermark %d", partition, offset, own.high_watermark)
        elif offset < own.log_end_offset:
            log.info("truncating %s to offset %d", partition, offset)
        truncate_to(own, offset, now_ms=self._broker.clock.now_ms())

    async def _find_common_ground(self, partition: Partition) -> None:
        """The leader's log ends before ours or begins after it (AbstractFetcherThread.fetchOffsetAndTruncate)."""
        leader_end = await self._leader_offset(partition, _LATEST)
        if leader_end < partition.log_end_offset:
            self._truncate_to(partition, leader_end)
            return
        start = await self._leader_offset(partition, _EARLIEST)
        if start > partition.log_end_offset:
            log.warning("%s begins anew at offset %d, where its leader's log begins", partition, start)
            truncate_fully_and_start_at(partition.log, start, now_ms=self._broker.clock.now_ms())
        elif partition.has_log:
            # Same range, yet the leader does not know our last epoch: only what is committed is common for sure.
            self._truncate_to(partition, partition.high_watermark)

    async def _leader_offset(self, partition: Partition, timestamp: int) -> int:
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=partition.leader_epoch, timestamp=timestamp
        )
        response = await call(
            self._broker.transport,
            self._leader_id,
            ListOffsetsRequest(
                replica_id=self._broker.node_id,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
            ),
            LIST_OFFSETS_VERSION,
            ListOffsetsResponse,
        )
        answered = response.topics[0].partitions[0]
        if answered.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(answered.error_code), f"{partition}: no offset from broker {self._leader_id}")
        return answered.offset

    def _pause(self, key: Key) -> None:
        """Pause one partition; the others are still fetched."""

        def over() -> None:
            self._paused.pop(key, None)
            if key in self._partitions:
                self._start_over()

        self._resume(key)
        backoff_ms = self._broker.settings.get_int("replica.fetch.backoff.ms")
        self._paused[key] = self._broker.timers.call_later(backoff_ms, over)
        self._start_over()

    def _resume(self, key: Key) -> None:
        handle = self._paused.pop(key, None)
        if handle is not None:
            handle.cancel()
