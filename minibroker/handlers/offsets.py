"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): committed offsets of groups.

OffsetCommit 2-10: v2-4 retention time; v6 leader epoch; v7 static members; v9 member epochs (KIP-848); v10 topic ids.
OffsetFetch 1-10: v2 null asks for all topics; v5 leader epoch; v7 RequireStable (KIP-447); v8 several groups; v9 member
epochs; v10 topic ids. Kafka: KafkaApis.handleOffsetCommitRequest, handleOffsetFetchRequest, OffsetMetadataManager.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE, UNSTABLE_OFFSET_COMMIT,
GROUP_SUBSCRIBED_TO_TOPIC, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION and those of the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from minibroker.handlers.groups import check_group_id
from minibroker.handlers.offset_commits import CommitAnswer
from minibroker.kernel.turns import STEP
from minibroker.requests.context import RequestContext
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

if TYPE_CHECKING:
    from minibroker.coordinators.groups.offsets import Offset
    from minibroker.coordinators.groups.shard import GroupShard

_TOPIC_IDS = 10
_SEVERAL_GROUPS = 8
_GROUP_ERROR = 2

_FetchGroup = m.OffsetFetchRequest.OffsetFetchRequestGroup
_FetchTopics = m.OffsetFetchRequest.OffsetFetchRequestTopics
_FetchGroupResponse = m.OffsetFetchResponse.OffsetFetchResponseGroup
_FetchTopicsResponse = m.OffsetFetchResponse.OffsetFetchResponseTopics
_FetchPartitionsResponse = m.OffsetFetchResponse.OffsetFetchResponsePartitions
_DeleteTopicResponse = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletePartitionResponse = m.OffsetDeleteResponse.OffsetDeleteResponsePartition


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


async def offset_commit(ctx: RequestContext, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
    answer = CommitAnswer(
        m.OffsetCommitResponse.OffsetCommitResponseTopic,
        m.OffsetCommitResponse.OffsetCommitResponsePartition,
        by_id=ctx.api_version >= _TOPIC_IDS,
    )
    topics = await answer.committed(
        ctx,
        request,
        lambda commit: ctx.broker.coordinators.groups.commit(commit),
        retention_time_ms=request.retention_time_ms,
    )
    return m.OffsetCommitResponse(topics=topics)


# -- OffsetFetch -------------------------------------------------------------------------------------------------------


async def offset_fetch(ctx: RequestContext, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
    """Each group is answered by itself. Partitions without an offset get -1; by name they need not exist."""
    if ctx.api_version >= _SEVERAL_GROUPS:
        return m.OffsetFetchResponse(
            groups=[await _fetch_group(ctx, group, request.require_stable) for group in request.groups]
        )
    topics = None
    if request.topics is not None:
        topics = [_FetchTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics]
    group = await _fetch_group(ctx, _FetchGroup(group_id=request.group_id, topics=topics), request.require_stable)
    return await _single(ctx, request, group)


async def _single(
    ctx: RequestContext, request: m.OffsetFetchRequest, group: _FetchGroupResponse
) -> m.OffsetFetchResponse:
    """The form before v8. Version 1 has no error of the group: each partition carries it."""
    code = group.error_code
    topics = group.topics
    if code != ErrorCode.NONE and ctx.api_version < _GROUP_ERROR:
        topics = [
            _FetchTopicsResponse(name=t.name, partitions=await _all_none(t.partition_indexes, ErrorCode(code)))
            for t in request.topics or ()
        ]
    answered = []
    for topic in topics:
        partitions = []
        for p in topic.partitions:
            await STEP
            partitions.append(
                m.OffsetFetchResponse.OffsetFetchResponsePartition(
                    partition_index=p.partition_index,
                    committed_offset=p.committed_offset,
                    committed_leader_epoch=p.committed_leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error_code,
                )
            )
        answered.append(m.OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return m.OffsetFetchResponse(error_code=code, topics=answered)


async def _all_none(indexes: Iterable[int], code: ErrorCode = ErrorCode.NONE) -> list[_FetchPartitionsResponse]:
    answers = []
    for index in indexes:
        await STEP
        answers.append(_none(index, code))
    return answers


async def _fetch_group(ctx: RequestContext, group: _FetchGroup, require_stable: bool) -> _FetchGroupResponse:
    await STEP
    try:
        _, shard = ctx.broker.coordinators.groups.shard_for(group.group_id)
        exists = shard.validate_fetch(group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            topics = await _all_topics(ctx, shard, group.group_id, require_stable) if exists else []
        else:
            topics = await _named_topics(ctx, shard if exists else None, group, group.topics, require_stable)
        return _FetchGroupResponse(group_id=group.group_id, topics=topics)
    except ApiError as error:
        ctx.refused(group.group_id, error)
        return _FetchGroupResponse(group_id=group.group_id, error_code=error.code)


async def _all_topics(
    ctx: RequestContext, shard: GroupShard, group_id: str, require_stable: bool
) -> list[_FetchTopicsResponse]:
    by_id = ctx.api_version >= _TOPIC_IDS
    found: list[_FetchTopicsResponse] = []
    # Offsets committed in the meantime are not in it.
    for name, offsets in [(name, dict(offsets)) for name, offsets in shard.offsets.group(group_id).items()]:
        topic_id = NO_ID
        if by_id:
            known = ctx.broker.image.topics.get(name)
            if known is None:  # deleted, and its offsets are about to go as well
                continue
            topic_id = known.topic_id
        partitions = []
        for index, offset in offsets.items():
            await STEP
            unstable = require_stable and shard.offsets.is_pending(group_id, name, index)
            partitions.append(_told(index, offset, unstable=unstable))
        found.append(_FetchTopicsResponse(name="" if by_id else name, topic_id=topic_id, partitions=partitions))
    return found


async def _named_topics(
    ctx: RequestContext,
    shard: GroupShard | None,
    group: _FetchGroup,
    topics: Iterable[_FetchTopics],
    require_stable: bool,
) -> list[_FetchTopicsResponse]:
    by_id = ctx.api_version >= _TOPIC_IDS
    group_id = group.group_id
    responses = []
    strange = []  # ids of no topic come last
    for topic in topics:
        name = topic.name
        response = _FetchTopicsResponse(name=name, topic_id=topic.topic_id)
        if by_id:
            known = ctx.broker.image.topic_by_id(topic.topic_id)
            if known is None:
                response.partitions = await _all_none(topic.partition_indexes, ErrorCode.UNKNOWN_TOPIC_ID)
                strange.append(response)
                continue
            name = known.name
        responses.append(response)
        if shard is None:
            response.partitions = await _all_none(topic.partition_indexes)
            continue
        offsets = shard.offsets
        for index in topic.partition_indexes:
            await STEP
            offset = offsets.get(group_id, name, index)
            if offset is not None and by_id and offset.topic_id not in (NO_ID, topic.topic_id):
                offset = None  # of an earlier topic with this name
            unstable = require_stable and offsets.is_pending(group_id, name, index)
            response.partitions.append(_told(index, offset, unstable=unstable))
    return responses + strange


def _told(index: int, offset: Offset | None, *, unstable: bool) -> _FetchPartitionsResponse:
    if unstable:
        return _none(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if offset is None:
        return _none(index)
    return _FetchPartitionsResponse(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def _none(index: int, code: ErrorCode = ErrorCode.NONE) -> _FetchPartitionsResponse:
    return _FetchPartitionsResponse(partition_index=index, committed_offset=-1, error_code=code)


# -- OffsetDelete ------------------------------------------------------------------------------------------------------


async def offset_delete(ctx: RequestContext, request: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse:
    """A refusal of the group answers no partition."""
    image = ctx.broker.image
    known: list[tuple[str, Sequence[int]]] = []
    responses: list[_DeleteTopicResponse] = []
    for topic in request.topics:
        there: list[int] = []
        partitions: list[_DeletePartitionResponse] = []
        known.append((topic.name, there))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition in topic.partitions:
            await STEP
            index = partition.partition_index
            if image.partition(topic.name, index) is not None:
                there.append(index)
            else:
                partitions.append(_DeletePartitionResponse(partition_index=index, error_code=unknown))
        responses.append(_DeleteTopicResponse(name=topic.name, partitions=partitions))
    try:
        check_group_id(request.group_id)
        results = await ctx.broker.coordinators.groups.delete_offsets(request.group_id, known)
    except ApiError as error:
        ctx.refused(request.group_id, error)
        return m.OffsetDeleteResponse(error_code=error.code)
    for response, codes in zip(responses, results, strict=True):
        for index, code in codes:
            await STEP
            response.partitions.append(_DeletePartitionResponse(partition_index=index, error_code=code))
    return m.OffsetDeleteResponse(topics=responses)
