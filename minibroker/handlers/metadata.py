"""Metadata (key 3): brokers, topics, leaders. DescribeTopicPartitions (75), DescribeCluster (60).

Metadata versions 0-13. v1 null asks for all topics; v4 auto creation; v8 authorized operations; v10 topic ids; v12
topics by id; v13 top-level error. Kafka: KafkaApis.handleTopicMetadataRequest.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, LEADER_NOT_AVAILABLE, and the
controller's when it refuses to create a topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.controller.topics import check_topic_name
from minibroker.kernel.turns import AT_A_TIME, STEP, STEPS, Work, parts
from minibroker.metadata.image import INTERNAL_TOPICS, NO_LEADER, PartitionImage, TopicImage
from minibroker.requests.auth_helper import NOT_ASKED, authorize, authorized_operations
from minibroker.requests.context import RequestContext
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

_TOPIC = ResourceType.TOPIC
_Topic = MetadataResponse.MetadataResponseTopic
_ENDPOINT_BROKER = 1
_IDS_UNUSED = (10, 11)


def handle(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse | Work[MetadataResponse]:
    """One topic of few partitions, as most clients ask for, costs no coroutine."""
    if request.topics is not None and len(request.topics) == 1:
        wanted = request.topics[0]
        topic = ctx.broker.image.topics.get(wanted.name or "")
        if topic is not None and wanted.topic_id == NO_ID and len(topic.partitions) <= AT_A_TIME:
            found = _find(ctx, request, wanted, {})
            return _answer(
                ctx,
                request,
                [_describe(ctx, request, found, found.partitions) if isinstance(found, TopicImage) else found],
            )
    return _in_turns(ctx, request)


async def _in_turns(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    wanted = request.topics
    image = ctx.broker.image
    if wanted is None or (ctx.api_version == 0 and not wanted):
        return _answer(ctx, request, [await _describe_in_turns(ctx, request, topic) for topic in image.topics.values()])
    if _IDS_UNUSED[0] <= ctx.api_version <= _IDS_UNUSED[1] and any(topic.topic_id != NO_ID for topic in wanted):
        return _refused(wanted, ErrorCode.INVALID_REQUEST)
    if any(topic.name is None for topic in wanted) and all(topic.topic_id == NO_ID for topic in wanted):
        # Kafka refuses a missing name in versions 10 and 11, and fails on it later.
        if ctx.api_version <= _IDS_UNUSED[1]:
            return _refused(wanted, ErrorCode.INVALID_REQUEST)
        ctx.refused("a topic", ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a topic has neither a name nor an id"))
        return _refused(wanted, ErrorCode.UNKNOWN_SERVER_ERROR)
    if len(wanted) > 1:
        # Each topic is answered once. If one is requested by id, topics without an id are left out.
        by_id = {topic.topic_id: topic for topic in wanted if topic.topic_id != NO_ID}
        wanted = list(by_id.values() or {topic.name: topic for topic in wanted}.values())
    refused: dict[str, ErrorCode] = {}
    if request.allow_auto_topic_creation:  # True in versions that do not have it
        missing = []
        for few in parts(wanted):
            missing += [
                topic.name
                for topic in few
                if topic.name is not None and topic.topic_id == NO_ID and topic.name not in image.topics
            ]
            if len(few) == AT_A_TIME:
                await STEPS
        if missing and ctx.broker.settings.get_boolean("auto.create.topics.enable"):
            refused = await ctx.broker.create_topics(missing)
    topics = []
    for few in parts(wanted):
        for topic in few:
            found = _find(ctx, request, topic, refused)
            topics.append(await _describe_in_turns(ctx, request, found) if isinstance(found, TopicImage) else found)
        if len(few) == AT_A_TIME:
            await STEPS
    return _answer(ctx, request, topics)


def _refused(wanted: list[MetadataRequest.MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    """No brokers, and the error for each topic. Versions 10 and 11 have a field for topic ids, but do not support it
    (KAFKA-12701)."""
    topics = [_Topic(error_code=code, name=topic.name or "", topic_id=topic.topic_id) for topic in wanted]
    # From version 13 on the answer has a code of its own; Kafka gives it where it fails.
    own = code if code == ErrorCode.UNKNOWN_SERVER_ERROR else ErrorCode.NONE
    return MetadataResponse(topics=topics, error_code=own)


def _find(
    ctx: RequestContext,
    request: MetadataRequest,
    wanted: MetadataRequest.MetadataRequestTopic,
    refused: dict[str, ErrorCode],
) -> TopicImage | MetadataResponse.MetadataResponseTopic:
    """The topic, or the answer with the error."""
    image = ctx.broker.image
    if wanted.topic_id != NO_ID:
        return image.topic_by_id(wanted.topic_id) or _unknown_id(ctx, wanted.topic_id)
    name = wanted.name
    if name is None:
        return _unknown_id(ctx, NO_ID)
    topic = image.topics.get(name)
    if topic is None:
        return _unavailable(ctx, request, name, refused.get(name) or _absent(name))
    return topic


def _unavailable(
    ctx: RequestContext, request: MetadataRequest, name: str, code: ErrorCode
) -> MetadataResponse.MetadataResponseTopic:
    return _Topic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=authorized_operations(ctx, _TOPIC, name)
        if request.include_topic_authorized_operations
        else NOT_ASKED,
    )


def _absent(name: str) -> ErrorCode:
    """The code for a missing topic. An invalid name has its own code, so that clients do not wait for the topic."""
    try:
        check_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _unknown_id(ctx: RequestContext, topic_id: bytes) -> MetadataResponse.MetadataResponseTopic:
    # Before v12 the name of an answer cannot be null, and Kafka leaves it empty.
    return _Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None if ctx.api_version >= 12 else "", topic_id=topic_id)


async def _describe_in_turns(
    ctx: RequestContext, request: MetadataRequest, topic: TopicImage
) -> MetadataResponse.MetadataResponseTopic:
    first, *others = parts(topic.partitions)
    told = _describe(ctx, request, topic, first)
    for few in others:
        await STEPS
        told.partitions += [_partition(ctx, partition) for partition in few]
    return told


def _describe(
    ctx: RequestContext, request: MetadataRequest, topic: TopicImage, partitions: Sequence[PartitionImage]
) -> MetadataResponse.MetadataResponseTopic:
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(ctx, partition) for partition in partitions],
        topic_authorized_operations=authorized_operations(ctx, _TOPIC, topic.name)
        if request.include_topic_authorized_operations
        else NOT_ASKED,
    )


def _partition(ctx: RequestContext, partition: PartitionImage) -> MetadataResponse.MetadataResponsePartition:
    return MetadataResponse.MetadataResponsePartition(
        error_code=0 if partition.leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=_offline(ctx, partition),
    )


def _offline(ctx: RequestContext, partition: PartitionImage) -> list[int]:
    brokers = ctx.broker.image.brokers
    return [n for n in partition.replicas if n not in brokers or brokers[n].fenced]


def _answer(
    ctx: RequestContext, request: MetadataRequest, topics: list[MetadataResponse.MetadataResponseTopic]
) -> MetadataResponse:
    image = ctx.broker.image
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=b.node_id, host=host, port=port, rack=b.rack)
        for b, host, port in ctx.broker.advertised(ctx.connection)
        if not b.fenced
    ]
    return MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            authorized_operations(ctx, ResourceType.CLUSTER)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def describe_cluster(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """DescribeCluster v0-2; only the brokers' endpoint type is served (MISMATCHED_ENDPOINT_TYPE otherwise)."""
    image = ctx.broker.image
    if request.endpoint_type != _ENDPOINT_BROKER:
        known = request.endpoint_type == 2
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of wrong type."
            if known
            else "Unsupported endpoint type",
            endpoint_type=_ENDPOINT_BROKER,
            cluster_id="",
            brokers=[],
        )
    return DescribeClusterResponse(
        endpoint_type=_ENDPOINT_BROKER,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=b.node_id, host=host, port=port, rack=b.rack, is_fenced=b.fenced
            )
            for b, host, port in ctx.broker.advertised(ctx.connection)
            if request.include_fenced_brokers or not b.fenced
        ],
        cluster_authorized_operations=authorized_operations(ctx, ResourceType.CLUSTER)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


async def describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """DescribeTopicPartitions v0 (KIP-966): topics in name order, at most `response_partition_limit` partitions."""
    image = ctx.broker.image
    names = sorted({t.name for t in request.topics})
    if not names:
        names = sorted(name for name in image.topics if authorize(ctx, AclOperation.DESCRIBE, _TOPIC, name))
    limit = max(
        1, min(request.response_partition_limit, ctx.broker.settings.get_int("max.request.partition.size.limit"))
    )
    first_topic, first_partition = "", 0
    if request.cursor is not None:
        first_topic, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0 or (request.topics and first_topic not in names):
            return _refused_whole(request, ErrorCode.INVALID_REQUEST)
    if "" in names and not first_topic:
        return _refused_whole(request, ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka 4.4.0, which fails there
    topics = []
    cursor = None
    for name in names:
        if name < first_topic:
            continue
        await STEP
        topic = image.topics.get(name)
        if topic is None:
            topics.append(
                DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
                    error_code=_absent(name),
                    name=name,
                    topic_id=NO_ID,
                    topic_authorized_operations=authorized_operations(ctx, _TOPIC, name),
                )
            )
            continue
        start = first_partition if name == first_topic else 0
        partitions = topic.partitions[start : start + limit]
        limit -= len(partitions)
        topics.append(_topic_partitions(topic, partitions, ctx))
        if start + len(partitions) < len(topic.partitions):
            cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=start + len(partitions))
            break
        if limit <= 0:
            following = [n for n in names if n > name]
            if following:
                cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=following[0], partition_index=0)
            break
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _refused_whole(request: DescribeTopicPartitionsRequest, error_code: ErrorCode) -> DescribeTopicPartitionsResponse:
    """The answer to an empty topic name, or to a cursor that points at no requested partition."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
                error_code=error_code, name=topic.name, topic_id=NO_ID
            )
            for topic in request.topics
        ]
    )


def _topic_partitions(
    topic: TopicImage, partitions: tuple[PartitionImage, ...], ctx: RequestContext
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                error_code=0 if p.leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=p.index,
                leader_id=p.leader,
                leader_epoch=p.leader_epoch,
                replica_nodes=list(p.replicas),
                isr_nodes=list(p.isr),
                eligible_leader_replicas=list(p.elr),
                last_known_elr=list(p.last_known_elr),
                offline_replicas=_offline(ctx, p),
            )
            for p in partitions
        ],
        topic_authorized_operations=authorized_operations(ctx, _TOPIC, topic.name),
    )
