"""Requests answered from this broker's own state: log directories, quorum, quotas.

DescribeLogDirs (35), DescribeClientQuotas (48), DescribeQuorum (55).
"""

from __future__ import annotations

from minibroker.handlers.context import RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.cluster import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)

_METADATA_PARTITION = ("__cluster_metadata", 0)
_QUORUM_EPOCH = 1
UNKNOWN_BYTES = -1
"""Kafka's value for a volume whose size is not known."""


def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """DescribeLogDirs v1-5: the one log directory with the sizes of its partitions, bytes; v4 adds the volume's."""
    broker = ctx.broker
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics: dict[str, list[DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
    for partition in broker.partitions():
        if wanted is not None and (partition.topic, partition.index) not in wanted:
            continue
        topics.setdefault(partition.topic, []).append(
            DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size if partition.has_log else 0,
                offset_lag=0,
                is_future_key=False,
            )
        )
    total, usable = broker.volume_bytes()
    return DescribeLogDirsResponse(
        error_code=0,
        results=[
            DescribeLogDirsResponse.DescribeLogDirsResult(
                error_code=0,
                log_dir=broker.log_dir,
                topics=[
                    DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
                total_bytes=total,
                usable_bytes=usable,
            )
        ],
    )


def describe_client_quotas(_: RequestContext, __: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """DescribeClientQuotas v0-1: there are no quotas, and none can be set."""
    return DescribeClientQuotasResponse(error_code=0, error_message="", entries=[])


def describe_quorum(ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """DescribeQuorum v0-2: the one controller leads and is the only voter; the other brokers observe.

    UNKNOWN_TOPIC_OR_PARTITION for anything but the metadata partition. The controller has no listener of its own.
    """
    partitions = [(topic.topic_name, p.partition_index) for topic in request.topics for p in topic.partitions]
    if not partitions:
        return DescribeQuorumResponse(error_code=0, error_message="", topics=[], nodes=[])
    topic, index = partitions[0]
    if len(partitions) > 1 or (topic, index) != _METADATA_PARTITION:
        return _quorum(topic, _no_quorum(index), [])
    image = ctx.broker.image
    now_ms = ctx.broker.clock.now_ms()

    def replica(node_id: int) -> DescribeQuorumResponse.ReplicaState:
        return DescribeQuorumResponse.ReplicaState(
            replica_id=node_id,
            log_end_offset=image.offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )

    partition = DescribeQuorumResponse.PartitionData(
        partition_index=index,
        error_code=0,
        error_message="",
        leader_id=image.controller_id,
        leader_epoch=_QUORUM_EPOCH,
        high_watermark=image.offset,
        current_voters=[replica(image.controller_id)],
        observers=[replica(node_id) for node_id in sorted(image.brokers) if node_id != image.controller_id],
    )
    nodes = [DescribeQuorumResponse.Node(node_id=image.controller_id, listeners=[])] if ctx.api_version >= 2 else []
    return _quorum(topic, partition, nodes)


def _no_quorum(index: int) -> DescribeQuorumResponse.PartitionData:
    return DescribeQuorumResponse.PartitionData(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message="This server does not host this topic-partition.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


def _quorum(
    topic: str, partition: DescribeQuorumResponse.PartitionData, nodes: list[DescribeQuorumResponse.Node]
) -> DescribeQuorumResponse:
    data = DescribeQuorumResponse.TopicData(topic_name=topic, partitions=[partition])
    return DescribeQuorumResponse(error_code=0, error_message="", topics=[data], nodes=nodes)
