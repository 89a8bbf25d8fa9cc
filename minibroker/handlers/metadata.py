"""Metadata (key 3): brokers, topics, leaders. DescribeTopicPartitions (75), DescribeCluster (60).

Metadata versions 0-13. v1 null asks for all topics; v4 auto creation; v8 authorized operations; v10 topic ids; v12
topics by id; v13 top-level error. Kafka: KafkaApis.handleTopicMetadataRequest.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, LEADER_NOT_AVAILABLE, and the
controller's when it refuses to create a topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minibroker.controller.topics import check_topic_name
from minibroker.metadata.image import INTERNAL_TOPICS, NO_LEADER, PartitionImage, TopicImage
from minibroker.requests.answers import outcome_of
from minibroker.requests.auth_helper import authorize, authorized_operations
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
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


def handle(ctx: RequestContext, request: MetadataRequest) -> Answer:
    wanted = request.topics
    if wanted is None or (ctx.api_version == 0 and not wanted):
        return _Describing(ctx, request, {}).answer(list(ctx.broker.image.topics.values()))
    topics = ctx.broker.image.topics
    missing: list[str] = []
    by_id = unnamed = False
    for topic in wanted:
        if topic.topic_id != NO_ID:
            by_id = True
        elif topic.name is None:
            unnamed = True
        elif topic.name not in topics:
            missing.append(topic.name)
    if by_id:
        if _IDS_UNUSED[0] <= ctx.api_version <= _IDS_UNUSED[1]:
            return _refused(wanted, ErrorCode.INVALID_REQUEST)
        # Each topic is answered once, and topics without an id are left out.
        wanted = list({topic.topic_id: topic for topic in wanted if topic.topic_id != NO_ID}.values())
        missing = []
    elif unnamed:
        # Kafka refuses a missing name in versions 10 and 11, and fails on it later.
        if ctx.api_version <= _IDS_UNUSED[1]:
            return _refused(wanted, ErrorCode.INVALID_REQUEST)
        ctx.refused("a topic", ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a topic has neither a name nor an id"))
        return _refused(wanted, ErrorCode.UNKNOWN_SERVER_ERROR)
    elif len(wanted) > 1:
        wanted = list({topic.name: topic for topic in wanted}.values())
    # `allow_auto_topic_creation` is True in versions that do not have it.
    if (
        not missing
        or not request.allow_auto_topic_creation
        or not ctx.broker.settings.get_boolean("auto.create.topics.enable")
    ):
        return _Describing(ctx, request, {}).answer(wanted)
    # While the controller is out of reach they are not there yet to the client, as in Kafka, which does not wait.
    not_created = dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return outcome_of(
        lambda: ctx.broker.create_topics(list(not_created)),
        lambda refused: _Describing(ctx, request, refused).answer(wanted),
        lambda _: _Describing(ctx, request, not_created).answer(wanted),
    )


class _Describing:
    """A request while it is served: its topics are described in slices, and the partitions with them as far as the turn
    of the loop has room for them, the others after that.

    refused: topics that the controller did not create, and why.
    """

    def __init__(self, ctx: RequestContext, request: MetadataRequest, refused: Mapping[str, ErrorCode]) -> None:
        self._ctx, self._request, self._refused = ctx, request, refused
        self._topics: list[_Topic] = []
        self._missing: list[_Topic] = []
        #: each partition, and the list in the answer that it belongs to
        self._partitions: list[tuple[list[MetadataResponse.MetadataResponsePartition], PartitionImage]] = []

    def answer(self, topics: Sequence[TopicImage | MetadataRequest.MetadataRequestTopic]) -> Answer:
        return in_slices(self._ctx, topics, self._describe, self._describe_partitions, keep=False)

    def _describe(self, topics: Sequence[TopicImage | MetadataRequest.MetadataRequestTopic]) -> None:
        ctx, request = self._ctx, self._request
        for wanted in topics:
            topic = wanted if isinstance(wanted, TopicImage) else _find(ctx, request, wanted, self._refused)
            if not isinstance(topic, TopicImage):
                self._missing.append(topic)
                continue
            described = _Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.internal,
                partitions=[],
                topic_authorized_operations=authorized_operations(
                    ctx, _TOPIC, topic.name, wanted=request.include_topic_authorized_operations
                ),
            )
            self._topics.append(described)
            count = len(topic.partitions)
            if count <= ctx.room:
                ctx.room -= count
                for partition in topic.partitions:
                    described.partitions.append(_partition(ctx, partition))
            else:
                self._partitions += [(described.partitions, partition) for partition in topic.partitions]

    def _describe_partitions(self) -> Answer:
        if not self._partitions:
            return self._response()
        return in_slices(self._ctx, self._partitions, self._fill, self._response, keep=False)

    def _fill(self, some: Sequence[tuple[list[MetadataResponse.MetadataResponsePartition], PartitionImage]]) -> None:
        for partitions, partition in some:
            partitions.append(_partition(self._ctx, partition))

    def _response(self) -> MetadataResponse:
        """Unknown ids, topics, missing names, each as the request has them (KafkaApis.handleTopicMetadataRequest)."""
        unknown_ids = [topic for topic in self._missing if topic.name is None]
        names = [] if unknown_ids else self._missing
        return _answer(self._ctx, self._request, unknown_ids + self._topics + names)


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
    refused: Mapping[str, ErrorCode],
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
        topic_authorized_operations=authorized_operations(
            ctx, _TOPIC, name, wanted=request.include_topic_authorized_operations
        ),
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
        cluster_authorized_operations=authorized_operations(
            ctx, ResourceType.CLUSTER, wanted=request.include_cluster_authorized_operations
        ),
    )


def describe_cluster(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """DescribeCluster v0-2; only the brokers' endpoint type is served (MISMATCHED_ENDPOINT_TYPE otherwise)."""
    image = ctx.broker.image
    if request.endpoint_type != _ENDPOINT_BROKER:
        for_controllers = request.endpoint_type == 2
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if for_controllers else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of wrong type."
            if for_controllers
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
        cluster_authorized_operations=authorized_operations(
            ctx, ResourceType.CLUSTER, wanted=request.include_cluster_authorized_operations
        ),
    )


def describe_topic_partitions(ctx: RequestContext, request: DescribeTopicPartitionsRequest) -> Answer:
    """DescribeTopicPartitions v0 (KIP-966): topics in name order, at most `response_partition_limit` partitions."""
    image = ctx.broker.image
    names = sorted({t.name for t in request.topics})
    if not names:
        names = sorted(name for name in image.topics if authorize(ctx, AclOperation.DESCRIBE, _TOPIC, name))
    first_topic, first_partition = "", 0
    if request.cursor is not None:
        first_topic, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0 or (request.topics and first_topic not in names):
            return _refused_whole(request, ErrorCode.INVALID_REQUEST)
    if "" in names and request.cursor is None:
        return _refused_whole(request, ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka 4.4.0, which fails there
    names = [name for name in names if name >= first_topic]
    page = _Page(ctx, request.response_partition_limit, first_topic, first_partition)
    return in_slices(ctx, names, page.describe, lambda: page.response(names), keep=False)


class _Page:
    """An answer of at most `limit` partitions, which begins at a partition of a topic."""

    def __init__(self, ctx: RequestContext, limit: int, first_topic: str, first_partition: int) -> None:
        self._ctx = ctx
        self._partitions_left = max(1, min(limit, ctx.broker.settings.get_int("max.request.partition.size.limit")))
        self._first = (first_topic, first_partition)
        self._topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = []
        self._cursor: DescribeTopicPartitionsResponse.Cursor | None = None
        self._full = False

    def describe(self, names: Sequence[str]) -> None:
        for name in names:
            if not self._full:
                self._describe(name)

    def _describe(self, name: str) -> None:
        topic = self._ctx.broker.image.topics.get(name)
        if topic is None:
            self._topics.append(
                DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
                    error_code=_absent(name),
                    name=name,
                    topic_id=NO_ID,
                    topic_authorized_operations=authorized_operations(self._ctx, _TOPIC, name),
                )
            )
            return
        start = self._first[1] if name == self._first[0] else 0
        partitions = topic.partitions[start : start + self._partitions_left]
        self._partitions_left -= len(partitions)
        self._topics.append(_topic_partitions(topic, partitions, self._ctx))
        end = start + len(partitions)
        if end < len(topic.partitions):
            self._cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
        self._full = self._partitions_left <= 0 or self._cursor is not None

    def response(self, names: Sequence[str]) -> DescribeTopicPartitionsResponse:
        if self._full and self._cursor is None and len(names) > len(self._topics):
            following = names[len(self._topics)]
            self._cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=following, partition_index=0)
        return DescribeTopicPartitionsResponse(topics=self._topics, next_cursor=self._cursor)


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
