"""WriteTxnMarkers (key 27, v1-2): end a transaction on partitions this broker leads.

Sent by transaction coordinators, and by admin clients to abort a hanging transaction. v2 carries the transaction
version that decides how the epoch is checked (KIP-1228). Errors per partition: UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, INVALID_PRODUCER_EPOCH,
TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR (producer id, epoch or version -1).
Kafka: KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from minibroker.coordinator_runtime.transaction_markers import Marker
from minibroker.coordinators.transactions.metadata import TopicPartition
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEP
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker.requests.context import RequestContext
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


async def handle(ctx: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Answered when every marker is below its partition's high watermark."""
    codes: _Codes = {}
    waiting: list[tuple[_Marker, TopicPartition, Deferred[None]]] = []
    for marker in request.markers:
        if -1 in (marker.producer_id, marker.producer_epoch) and await _names_a_log(ctx, marker):
            return await _response(await _unbuilt(ctx, request, marker))
        of_producer = codes.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for index in topic.partition_indexes:
                await STEP
                partition = (topic.name, index)
                try:
                    written = _write(ctx, marker, partition)
                    if written.done:
                        written.result()
                except ApiError as error:
                    of_producer[partition] = _refusal(ctx, marker, partition, error)
                    continue
                of_producer[partition] = ErrorCode.NONE
                if not written.done:
                    waiting.append((marker, partition, written))
    for marker, partition, written in waiting:
        await STEP
        try:
            await written
        except ApiError as error:
            codes[marker.producer_id][partition] = error.code
            ctx.refused(f"producer id {marker.producer_id} in {partition[0]}-{partition[1]}", error)
    return await _response(codes)


async def _names_a_log(ctx: RequestContext, marker: _Marker) -> bool:
    """Whether one of the marker's partitions exists and is not the group coordinator's, which fails by itself."""
    for topic in marker.topics:
        if topic.name == CONSUMER_OFFSETS_TOPIC:
            continue
        for index in topic.partition_indexes:
            await STEP
            if ctx.broker.image.partition(topic.name, index) is not None:
                return True
    return False


async def _unbuilt(ctx: RequestContext, request: WriteTxnMarkersRequest, marker: _Marker) -> _Codes:
    """The codes where a batch cannot be built (MemoryRecords.withEndTransactionMarker): as in Kafka the request fails
    as a whole, but markers that were before this one are written."""
    reason = f"a marker needs a producer id and an epoch: {marker.producer_id}, {marker.producer_epoch}"
    ctx.refused("the request", ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))
    codes: _Codes = {}
    for each in request.markers:
        of_producer = codes.setdefault(each.producer_id, {})
        for topic in each.topics:
            for index in topic.partition_indexes:
                await STEP
                of_producer[topic.name, index] = ErrorCode.UNKNOWN_SERVER_ERROR
    return codes


def _write(ctx: RequestContext, marker: _Marker, target: TopicPartition) -> Deferred[None]:
    epochs = marker.coordinator_epoch, marker.transaction_version
    end = Marker(marker.producer_id, marker.producer_epoch, marker.transaction_result, *epochs)
    return ctx.broker.coordinators.append_marker(end, target)


def _refusal(ctx: RequestContext, marker: _Marker, target: TopicPartition, error: ApiError) -> int:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _COORDINATOR_ERRORS else error.code
    ctx.refused(f"producer id {marker.producer_id} in {target[0]}-{target[1]}", error, code)
    return code


async def _response(codes: _Codes) -> WriteTxnMarkersResponse:
    markers = []
    for producer_id, of_producer in codes.items():
        topics: dict[str, list[_PartitionResult]] = {}
        await STEP
        for (topic, index), code in of_producer.items():
            await STEP
            topics.setdefault(topic, []).append(_PartitionResult(partition_index=index, error_code=code))
        markers.append(
            _MarkerResult(
                producer_id=producer_id,
                topics=[_TopicResult(name=name, partitions=results) for name, results in topics.items()],
            )
        )
    return WriteTxnMarkersResponse(markers=markers)
