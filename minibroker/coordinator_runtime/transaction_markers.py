"""Sends the markers of ended transactions to the leaders of their partitions.

Kafka's TransactionMarkerChannelManager and TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from minibroker.coordinators.transactions.metadata import TopicPartition, by_topic
from minibroker.kernel.clock import Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker.kernel.transport import Transport
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker_protocol.dsl import Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = get_logger(__name__)

WRITE_TXN_MARKERS_VERSION: Final = 2
RETRY_DELAY_MS: Final = 20
_AT_ONCE: Final = 64
"""Markers written before other work gets its turn."""

_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_Topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic


class MarkerVerdict(Enum):
    """The action that follows from a partition's answer."""

    DONE = "done"
    RETRY = "retry"
    STOP = "stop"


VERDICTS: Final = {
    ErrorCode.NONE: MarkerVerdict.DONE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: MarkerVerdict.DONE,
    ErrorCode.UNSUPPORTED_VERSION: MarkerVerdict.DONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MarkerVerdict.RETRY,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: MarkerVerdict.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: MarkerVerdict.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: MarkerVerdict.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: MarkerVerdict.RETRY,
    ErrorCode.KAFKA_STORAGE_ERROR: MarkerVerdict.RETRY,
    ErrorCode.NETWORK_EXCEPTION: MarkerVerdict.RETRY,
    ErrorCode.INVALID_PRODUCER_EPOCH: MarkerVerdict.STOP,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: MarkerVerdict.STOP,
}
"""By error code; any other code is a bug of the leader and stops the transaction too, until its coordinator reloads."""


class Marker(NamedTuple):
    """How a producer's transaction ends. Its transaction version decides how leaders check the epoch (KIP-1228)."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(slots=True, eq=False)
class EndedTransaction:
    """The marker of one transaction and the partitions that are to get it.

    shard_index: the partition of ``__transaction_state``.
    unwritten: how many of them do not have it yet.
    """

    transactional_id: str
    shard_index: int
    marker: Marker
    partitions: frozenset[TopicPartition]
    cancelled: bool = False
    unwritten: int = 0


class MarkerSender:
    """described(topic, partition): its row in the image, or None; append(marker, partition): write a marker on this
    broker, `node_id`, which raises or fails with ApiError; written(transaction, partition): called once for each
    partition that has its marker or needs none.

    drop_without_leader: Kafka 4.3.1 treats a partition that has no leader as deleted
        (KRaftMetadataCache.getPartitionLeaderEndpoint).
    on_dropped: called with such a transaction and partition.
    on_sending: called with every transaction and the partitions that it sends markers to, again for each retry.
    """

    def __init__(
        self,
        transport: Transport,
        timers: Timers,
        described: Callable[[str, int], PartitionImage | None],
        node_id: int,
        append: Callable[[Marker, TopicPartition], Deferred[None]],
        written: Callable[[EndedTransaction, TopicPartition], None],
        *,
        drop_without_leader: bool = False,
    ) -> None:
        self._transport = transport
        self._timers = timers
        self._described = described
        self._node_id = node_id
        self._append = append
        self._on_written = written
        self._drop_without_leader = drop_without_leader
        self.on_sending: Callable[[EndedTransaction, Iterable[TopicPartition]], None] | None = None
        self.on_dropped: Callable[[EndedTransaction, TopicPartition], None] = lambda job, partition: None
        self._active: dict[str, EndedTransaction] = {}
        self._closed = False

    @property
    def active(self) -> list[str]:
        """Transactional ids whose markers are not all written, stopped ones included."""
        return list(self._active)

    def send(self, job: EndedTransaction) -> None:
        """Send the markers of a transaction, which has partitions, until each of them is written."""
        if job.transactional_id in self._active:
            self.cancel(job.transactional_id)
        self._active[job.transactional_id] = job
        job.unwritten = len(job.partitions)
        self._send(job, sorted(job.partitions))

    def cancel(self, transactional_id: str) -> None:
        job = self._active.pop(transactional_id, None)
        if job is not None:
            job.cancelled = True

    def cancel_shard(self, shard_index: int) -> None:
        """Drop the markers of one partition of ``__transaction_state``: another coordinator sends them now."""
        for name in [name for name, job in self._active.items() if job.shard_index == shard_index]:
            self.cancel(name)

    def close(self) -> None:
        self._closed = True
        for name in list(self._active):
            self.cancel(name)

    # -- sending ---------------------------------------------------------------------------------------------------

    def _send(self, job: EndedTransaction, partitions: list[TopicPartition]) -> None:
        if job.cancelled or self._closed:
            return
        now, later = partitions[:_AT_ONCE], partitions[_AT_ONCE:]
        if later:
            self._timers.call_later(0, lambda: self._send(job, later))
        if self.on_sending is not None:
            self.on_sending(job, now)
        by_leader: dict[int, list[TopicPartition]] = {}
        retry: list[TopicPartition] = []
        for partition in now:
            described = self._described(*partition)
            if described is not None and described.leader != NO_LEADER:
                by_leader.setdefault(described.leader, []).append(partition)
            elif described is not None and not self._drop_without_leader:
                retry.append(partition)
            elif described is not None:
                log.warning(
                    "no marker for %s-%d of %s: it has no leader, and its transaction stays open there",
                    *partition,
                    job.transactional_id,
                )
                self.on_dropped(job, partition)
                self._written(job, partition)
            else:
                # The topic was deleted and needs no marker (addTxnMarkersToSend).
                log.info("no marker for %s-%d of %s: it no longer exists", *partition, job.transactional_id)
                self._written(job, partition)
        if retry:
            self._send_later(job, retry)
        for leader, owned in by_leader.items():
            if leader == self._node_id and self._transport.direct:
                self._write_here(job, owned)
            else:
                self._ask(job, leader, owned)

    def _write_here(self, job: EndedTransaction, partitions: list[TopicPartition]) -> None:
        """Append on this broker without a request, which would cost as much as the marker. If the append is refused, a
        request is sent, and its answer has the reason."""
        refused = []
        for partition in partitions:
            try:
                written = self._append(job.marker, partition)
                if not written.done:
                    written.then(lambda done, partition=partition: self._written_here(job, partition, done))  # type: ignore[misc]
                    continue
                written.result()
            except Exception:  # as below: the request's answer has the reason
                refused.append(partition)
            else:
                self._written(job, partition)
        if refused:
            self._ask(job, self._node_id, refused)

    def _written_here(self, job: EndedTransaction, partition: TopicPartition, done: Deferred[None]) -> None:
        try:
            done.result()
            code = ErrorCode.NONE
        except Exception as error:
            code = error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self._count(job, [partition], {partition: code})

    def _ask(self, job: EndedTransaction, leader: int, partitions: list[TopicPartition]) -> None:
        marker = _Marker(
            producer_id=job.marker.producer_id,
            producer_epoch=job.marker.producer_epoch,
            transaction_result=job.marker.commit,
            topics=[_Topic(name=name, partition_indexes=indexes) for name, indexes in by_topic(partitions).items()],
            coordinator_epoch=job.marker.coordinator_epoch,
            transaction_version=job.marker.transaction_version,
        )
        answer = self._transport.send(leader, WriteTxnMarkersRequest(markers=[marker]), WRITE_TXN_MARKERS_VERSION)
        answer.then(lambda done: self._answered(job, partitions, done))

    def _answered(self, job: EndedTransaction, partitions: list[TopicPartition], answer: Deferred[Response]) -> None:
        try:
            response = answer.result()
        except Exception as error:  # a leader that fails to answer must not take the coordinator with it
            if not (job.cancelled or self._closed):
                log.warning("no answer to the markers of %s: %s", job.transactional_id, error)
            code = error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
            codes = dict.fromkeys(partitions, code)
        else:
            assert isinstance(response, WriteTxnMarkersResponse)
            codes = {
                (topic.name, result.partition_index): ErrorCode(result.error_code)
                for marker in response.markers
                for topic in marker.topics
                for result in topic.partitions
            }
        self._count(job, partitions, codes)

    def _count(
        self, job: EndedTransaction, partitions: list[TopicPartition], codes: dict[TopicPartition, ErrorCode]
    ) -> None:
        if job.cancelled or self._closed:
            return
        retry = []
        for partition in partitions:
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            verdict = VERDICTS.get(code, MarkerVerdict.STOP)
            if verdict is MarkerVerdict.DONE:
                self._written(job, partition)
            elif verdict is MarkerVerdict.RETRY:
                retry.append(partition)
            else:
                log.error(
                    "%s-%d refused the marker of %s with %s: the transaction stays undecided there until its"
                    " coordinator is loaded again",
                    *partition,
                    job.transactional_id,
                    code.name,
                )
        if retry:
            self._send_later(job, retry)

    def _send_later(self, job: EndedTransaction, partitions: list[TopicPartition]) -> None:
        self._timers.call_later(RETRY_DELAY_MS, lambda: self._send(job, partitions))

    def _written(self, job: EndedTransaction, partition: TopicPartition) -> None:
        job.unwritten -= 1
        if not job.unwritten and self._active.get(job.transactional_id) is job:
            del self._active[job.transactional_id]
        self._on_written(job, partition)
