"""WriteTxnMarkers (key 27, v1-2): end a transaction on partitions this broker leads.

Sent by transaction coordinators, and by admin clients to abort a hanging transaction. v2 carries the transaction
version that decides how the epoch is checked (KIP-1228). Errors per partition: UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, INVALID_PRODUCER_EPOCH,
TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR (producer id, epoch or version -1).
Kafka: KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.coordinator_runtime.transaction_markers import Marker
from minibroker.coordinators.transactions.metadata import TopicPartition
from minibroker.kernel.deferred import Deferred, when_all_done
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker.requests.answers import follow
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult

_COORDINATOR_ERRORS = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
"""Only the group coordinator's partitions are refused with these."""

# Codes per producer id: Kafka merges markers of one producer in a request.
_Codes = dict[int, dict[TopicPartition, int]]


_InPartition = tuple[_Marker, TopicPartition]


def handle(ctx: RequestContext, request: WriteTxnMarkersRequest) -> Answer:
    """Answered when every marker is below its partition's high watermark.

    Where a batch cannot be built, the request fails as a whole, as in Kafka (MemoryRecords.withEndTransactionMarker),
    but markers that were before it are written.
    """
    markers = request.markers
    unbuilt = next((number for number, marker in enumerate(markers) if _cannot_be_built(ctx, marker)), None)
    codes: _Codes = {marker.producer_id: {} for marker in markers[:unbuilt]}
    waiting: list[tuple[_InPartition, Deferred[None]]] = []

    def write(some: Sequence[_InPartition]) -> None:
        for marker, partition in some:
            of_producer = codes[marker.producer_id]
            try:
                written = _write(ctx, marker, partition)
                if written.done:
                    written.result()
            except ApiError as error:
                of_producer[partition] = _refusal(ctx, marker, partition, error)
                continue
            of_producer[partition] = ErrorCode.NONE
            if not written.done:
                waiting.append(((marker, partition), written))

    def refuse(some: Sequence[tuple[_InPartition, Deferred[None]]]) -> None:
        for (marker, partition), written in some:
            try:
                written.result()
            except ApiError as error:
                codes[marker.producer_id][partition] = error.code
                ctx.refused(f"producer id {marker.producer_id} in {partition[0]}-{partition[1]}", error)

    def written() -> Answer:
        return in_slices(ctx, waiting, refuse, lambda: _response(ctx, codes))

    def answer() -> Answer:
        if unbuilt is not None:
            return _response(ctx, _all_failed(ctx, markers, markers[unbuilt]))
        if not waiting:
            return _response(ctx, codes)
        return follow(when_all_done([deferred for _, deferred in waiting]), lambda _: written())

    return in_slices(ctx, _in_partitions(markers[:unbuilt]), write, answer)


def _in_partitions(markers: Sequence[_Marker]) -> list[_InPartition]:
    topics = [(marker, topic) for marker in markers for topic in marker.topics]
    return [(marker, (topic.name, index)) for marker, topic in topics for index in topic.partition_indexes]


def _cannot_be_built(ctx: RequestContext, marker: _Marker) -> bool:
    """Whether it has no producer and one of its partitions exists and is not the group coordinator's, which fails by
    itself."""
    return -1 in (marker.producer_id, marker.producer_epoch) and any(
        topic.name != CONSUMER_OFFSETS_TOPIC and ctx.broker.image.partition(topic.name, index) is not None
        for topic in marker.topics
        for index in topic.partition_indexes
    )


def _all_failed(ctx: RequestContext, markers: Sequence[_Marker], unbuilt: _Marker) -> _Codes:
    reason = f"a marker needs a producer id and an epoch: {unbuilt.producer_id}, {unbuilt.producer_epoch}"
    ctx.refused("the request", ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))
    codes: _Codes = {marker.producer_id: {} for marker in markers}
    for marker, partition in _in_partitions(markers):
        codes[marker.producer_id][partition] = ErrorCode.UNKNOWN_SERVER_ERROR
    return codes


def _write(ctx: RequestContext, marker: _Marker, target: TopicPartition) -> Deferred[None]:
    epochs = marker.coordinator_epoch, marker.transaction_version
    end = Marker(marker.producer_id, marker.producer_epoch, marker.transaction_result, *epochs)
    return ctx.broker.coordinators.append_marker(end, target)


def _refusal(ctx: RequestContext, marker: _Marker, target: TopicPartition, error: ApiError) -> int:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _COORDINATOR_ERRORS else error.code
    ctx.refused(f"producer id {marker.producer_id} in {target[0]}-{target[1]}", error, code)
    return code


def _response(ctx: RequestContext, codes: _Codes) -> Answer:
    """One result for each producer, and in it one for each topic."""
    markers = [_MarkerResult(producer_id=producer_id, topics=[]) for producer_id in codes]
    topics: dict[tuple[int, str], list[_PartitionResult]] = {}

    def answer(some: Sequence[tuple[_MarkerResult, TopicPartition, int]]) -> None:
        for marker, (topic, index), code in some:
            results = topics.get((marker.producer_id, topic))
            if results is None:
                results = topics[marker.producer_id, topic] = []
                marker.topics.append(_TopicResult(name=topic, partitions=results))
            results.append(_PartitionResult(partition_index=index, error_code=code))

    written = [
        (marker, partition, code)
        for marker, of_producer in zip(markers, codes.values(), strict=True)
        for partition, code in of_producer.items()
    ]
    return in_slices(ctx, written, answer, lambda: WriteTxnMarkersResponse(markers=markers))
