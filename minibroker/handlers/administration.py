"""Requests answered from this broker's own state: log directories, quorum, quotas.

DescribeLogDirs (35), DescribeClientQuotas (48), DescribeQuorum (55).
"""

from __future__ import annotations

from minibroker.requests.context import RequestContext
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_METADATA_TOPIC = "__cluster_metadata"
_QUORUM_EPOCH = 1
_QUOTA_ENTITIES = ("user", "client-id", "ip")
_EXACT, _DEFAULT, _SPECIFIED = range(3)


def describe_log_dirs(ctx: RequestContext, request: m.DescribeLogDirsRequest) -> m.DescribeLogDirsResponse:
    """DescribeLogDirs v1-5: the one log directory with the sizes of its partitions, bytes; v4 adds the volume's."""
    broker = ctx.broker
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics: dict[str, list[m.DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
    for partition in broker.partitions():
        if wanted is not None and (partition.topic, partition.index) not in wanted:
            continue
        topics.setdefault(partition.topic, []).append(
            m.DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size if partition.has_log else 0,
                offset_lag=0,
                is_future_key=False,
            )
        )
    total, usable = broker.volume_bytes()
    return m.DescribeLogDirsResponse(
        results=[
            m.DescribeLogDirsResponse.DescribeLogDirsResult(
                log_dir=broker.log_dir,
                topics=[
                    m.DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
                total_bytes=total,
                usable_bytes=usable,
            )
        ]
    )


def describe_client_quotas(
    ctx: RequestContext, request: m.DescribeClientQuotasRequest
) -> m.DescribeClientQuotasResponse:
    """DescribeClientQuotas v0-1: there are no quotas, and none can be set. Filters are checked as in Kafka's
    ClientQuotasImage: INVALID_REQUEST, UNSUPPORTED_VERSION."""
    try:
        _check_quota_filter(request)
    except ApiError as error:
        ctx.refused("quotas", error)
        return m.DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return m.DescribeClientQuotasResponse(entries=[])


def _check_quota_filter(request: m.DescribeClientQuotasRequest) -> None:
    seen = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _QUOTA_ENTITIES:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type == _EXACT and component.match is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if component.match_type in (_DEFAULT, _SPECIFIED) and component.match is not None:
            name = "DEFAULT" if component.match_type == _DEFAULT else "SPECIFIED"
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Request specified MATCH_TYPE_{name}, but also specified a match string."
            )
        if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        seen.add(kind)
    if "ip" in seen and len(seen) > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid entity filter component combination")


def describe_quorum(ctx: RequestContext, request: m.DescribeQuorumRequest) -> m.DescribeQuorumResponse:
    """DescribeQuorum v0-2: the one controller leads and is the only voter; the other brokers observe.

    UNKNOWN_TOPIC_OR_PARTITION for each partition unless the metadata partition alone is named
    (DescribeQuorumRequest.getPartitionLevelErrorResponse). The controller has no listener of its own.
    """
    data = m.DescribeQuorumResponse.TopicData
    named = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if named != [(_METADATA_TOPIC, [0])]:
        return m.DescribeQuorumResponse(
            topics=[data(topic_name=topic, partitions=[_no_quorum(i) for i in indexes]) for topic, indexes in named]
        )
    image = ctx.broker.image
    now_ms = ctx.broker.clock.now_ms()

    def replica(node_id: int) -> m.DescribeQuorumResponse.ReplicaState:
        return m.DescribeQuorumResponse.ReplicaState(
            replica_id=node_id,
            log_end_offset=image.offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )

    partition = m.DescribeQuorumResponse.PartitionData(
        partition_index=0,
        leader_id=image.controller_id,
        leader_epoch=_QUORUM_EPOCH,
        high_watermark=image.offset,
        current_voters=[replica(image.controller_id)],
        observers=[replica(node_id) for node_id in sorted(image.brokers) if node_id != image.controller_id],
    )
    nodes = [m.DescribeQuorumResponse.Node(node_id=image.controller_id)] if ctx.api_version >= 2 else []
    return m.DescribeQuorumResponse(topics=[data(topic_name=_METADATA_TOPIC, partitions=[partition])], nodes=nodes)


def _no_quorum(index: int) -> m.DescribeQuorumResponse.PartitionData:
    return m.DescribeQuorumResponse.PartitionData(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message="This server does not host this topic-partition.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )
