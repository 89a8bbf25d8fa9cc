"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): committed offsets of groups.

OffsetCommit 2-10: v2-4 retention time; v6 leader epoch; v7 static members; v9 member epochs (KIP-848); v10 topic ids.
OffsetFetch 1-10: v2 null asks for all topics; v5 leader epoch; v7 RequireStable (KIP-447); v8 several groups; v9 member
epochs; v10 topic ids. Kafka: KafkaApis.handleOffsetCommitRequest, handleOffsetFetchRequest, OffsetMetadataManager.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE, UNSTABLE_OFFSET_COMMIT,
GROUP_SUBSCRIBED_TO_TOPIC, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION and those of the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from minibroker.handlers.groups import check_group_id
from minibroker.handlers.offset_commits import OffsetCommitting
from minibroker.kernel.deferred import Deferred
from minibroker.requests.answers import outcome_of
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
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
_DeleteTopicResponse = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletePartitionResponse = m.OffsetDeleteResponse.OffsetDeleteResponsePartition


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


def offset_commit(ctx: RequestContext, request: m.OffsetCommitRequest) -> Answer:
    committing = OffsetCommitting(
        ctx,
        request,
        m.OffsetCommitResponse,
        m.OffsetCommitResponse.OffsetCommitResponseTopic,
        m.OffsetCommitResponse.OffsetCommitResponsePartition,
        by_id=ctx.api_version >= _TOPIC_IDS,
    )
    groups = ctx.broker.coordinators.groups
    return committing.answer(groups.commit, retention_time_ms=request.retention_time_ms)


# -- OffsetFetch -------------------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """The structs of an answer: of one group before version 8, of several after that."""

    topic: type[Any]
    partition: type[Any]


_ONE_GROUP = _Form(m.OffsetFetchResponse.OffsetFetchResponseTopic, m.OffsetFetchResponse.OffsetFetchResponsePartition)
_GROUPS = _Form(m.OffsetFetchResponse.OffsetFetchResponseTopics, m.OffsetFetchResponse.OffsetFetchResponsePartitions)


def offset_fetch(ctx: RequestContext, request: m.OffsetFetchRequest) -> Answer:
    """Each group is answered by itself. Partitions without an offset get -1; by name they need not exist."""
    if ctx.api_version >= _SEVERAL_GROUPS:
        fetch = _OffsetFetch(ctx, _GROUPS, request.require_stable)
        return fetch.answer(request.groups, lambda: m.OffsetFetchResponse(groups=fetch.groups))
    topics = None
    if request.topics is not None:
        topics = [_FetchTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics]
    fetch = _OffsetFetch(ctx, _ONE_GROUP, request.require_stable)

    def response() -> m.OffsetFetchResponse:
        (group,) = fetch.groups
        topics_of_group: list[Any] = group.topics  # in the form of one group
        return m.OffsetFetchResponse(error_code=group.error_code, topics=topics_of_group)

    return fetch.answer([_FetchGroup(group_id=request.group_id, topics=topics)], response)


class _Lookup:
    """One topic of a group: where its partitions are answered, and what is known of each.

    code: the error of all of them.
    offset: the committed offset of a partition.
    unstable: whether a transaction with an offset of the partition has not ended.
    """

    __slots__ = ("code", "offset", "partitions", "unstable")

    def __init__(
        self,
        partitions: list[Any],
        code: ErrorCode = ErrorCode.NONE,
        offset: Callable[[int], Offset | None] = lambda _: None,
        unstable: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.partitions, self.code, self.offset, self.unstable = partitions, code, offset, unstable


class _OffsetFetch:
    """One request while it is served: its groups are looked up in slices, and after that their partitions."""

    def __init__(self, ctx: RequestContext, form: _Form, require_stable: bool) -> None:
        self.groups: list[_FetchGroupResponse] = []
        self._ctx = ctx
        self._form = form
        self._require_stable = require_stable
        self._by_id = ctx.api_version >= _TOPIC_IDS
        self._lookups: list[tuple[_Lookup, int]] = []

    def answer(self, groups: Sequence[_FetchGroup], response: Callable[[], m.OffsetFetchResponse]) -> Answer:
        return in_slices(
            self._ctx,
            groups,
            self._look_up,
            lambda: in_slices(self._ctx, self._lookups, self._fill, response, keep=False),
            keep=False,
        )

    def _look_up(self, groups: Sequence[_FetchGroup]) -> None:
        self.groups += [self._group(group) for group in groups]

    def _group(self, group: _FetchGroup) -> _FetchGroupResponse:
        try:
            _, shard = self._ctx.broker.coordinators.groups.shard_for(group.group_id)
            exists = shard.validate_fetch(group.group_id, group.member_id, group.member_epoch)
        except ApiError as error:
            self._ctx.refused(group.group_id, error)
            topics = []
            if self._ctx.api_version < _GROUP_ERROR:  # no error of the group: each partition carries it
                topics = [self._topic(t, t.name, code=error.code) for t in group.topics or ()]
            return _FetchGroupResponse(group_id=group.group_id, error_code=error.code, topics=topics)
        if group.topics is None:
            topics = self._all_topics(shard, group.group_id) if exists else []
        else:
            topics = self._named_topics(shard if exists else None, group.group_id, group.topics)
        return _FetchGroupResponse(group_id=group.group_id, topics=topics)

    def _topic(self, topic: _FetchTopics, name: str, **known: Any) -> Any:
        partitions: list[Any] = []
        lookup = _Lookup(partitions, **known)
        self._lookups += [(lookup, index) for index in topic.partition_indexes]
        return self._response(name, topic.topic_id, partitions)

    def _response(self, name: str, topic_id: bytes, partitions: list[Any]) -> Any:
        if self._form is _ONE_GROUP:
            return self._form.topic(name=name, partitions=partitions)
        return self._form.topic(name=name, topic_id=topic_id, partitions=partitions)

    def _unstable(self, shard: GroupShard, group_id: str, name: str) -> Callable[[int], bool]:
        if not self._require_stable:
            return lambda _: False
        return partial(shard.offsets.is_pending, group_id, name)

    def _all_topics(self, shard: GroupShard, group_id: str) -> list[Any]:
        topics = []
        pending: dict[str, set[int]] = {}
        for topic, index in shard.offsets.pending(group_id) if self._require_stable else ():
            pending.setdefault(topic, set()).add(index)
        for name, offsets in shard.offsets.group(group_id).items():
            topic_id = NO_ID
            if self._by_id:
                image = self._ctx.broker.image.topics.get(name)
                if image is None:  # deleted, and its offsets are about to go as well
                    continue
                topic_id = image.topic_id
            partitions: list[Any] = []
            # Neither offsets committed in the meantime are in it, nor ends of transactions: what was pending with an
            # offset is answered with it.
            unstable = pending.get(name, ())
            lookup = _Lookup(partitions, offset=dict(offsets).get, unstable=unstable.__contains__)
            self._lookups += [(lookup, index) for index in offsets]
            topics.append(self._response("" if self._by_id else name, topic_id, partitions))
        return topics

    def _named_topics(self, shard: GroupShard | None, group_id: str, topics: Iterable[_FetchTopics]) -> list[Any]:
        responses = []
        strange = []  # ids of no topic come last
        for topic in topics:
            name = topic.name
            if self._by_id:
                image = self._ctx.broker.image.topic_by_id(topic.topic_id)
                if image is None:
                    strange.append(self._topic(topic, name, code=ErrorCode.UNKNOWN_TOPIC_ID))
                    continue
                name = image.name
            if shard is None:
                responses.append(self._topic(topic, topic.name))
                continue
            find: Callable[[int], Offset | None] = partial(shard.offsets.get, group_id, name)
            if self._by_id:
                find = partial(_of_this_topic, find, topic.topic_id)
            unstable = self._unstable(shard, group_id, name)
            responses.append(self._topic(topic, topic.name, offset=find, unstable=unstable))
        return responses + strange

    def _fill(self, some: Sequence[tuple[_Lookup, int]]) -> None:
        kind = self._form.partition
        for lookup, index in some:
            code, offset = lookup.code, lookup.offset(index)
            if lookup.unstable(index):
                code, offset = ErrorCode.UNSTABLE_OFFSET_COMMIT, None
            if offset is None:
                partition = kind(partition_index=index, committed_offset=-1, error_code=code)
            else:
                partition = kind(
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                )
            lookup.partitions.append(partition)


def _of_this_topic(find: Callable[[int], Offset | None], topic_id: bytes, index: int) -> Offset | None:
    """The offset unless it is of an earlier topic with the same name."""
    offset = find(index)
    return None if offset is not None and offset.topic_id not in (NO_ID, topic_id) else offset


# -- OffsetDelete ------------------------------------------------------------------------------------------------------


def offset_delete(ctx: RequestContext, request: m.OffsetDeleteRequest) -> Answer:
    """OffsetDelete v0. When the group is refused the answer has its error and no partitions."""
    image = ctx.broker.image
    responses = [_DeleteTopicResponse(name=topic.name, partitions=[]) for topic in request.topics]
    requested: list[tuple[str, list[int]]] = [(topic.name, []) for topic in request.topics]

    def look_up(some: Sequence[tuple[int, int]]) -> None:
        for number, index in some:
            name, there = requested[number]
            if image.partition(name, index) is not None:
                there.append(index)
            else:
                responses[number].partitions.append(
                    _DeletePartitionResponse(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                )

    def delete() -> Deferred[list[list[tuple[int, ErrorCode]]]]:
        check_group_id(request.group_id)
        return ctx.broker.coordinators.groups.delete_offsets(request.group_id, requested)

    def refused(error: ApiError) -> Answer:
        ctx.refused(request.group_id, error)
        return m.OffsetDeleteResponse(error_code=error.code)

    def answer(some: Sequence[tuple[_DeleteTopicResponse, tuple[int, ErrorCode]]]) -> None:
        for response, (index, code) in some:
            response.partitions.append(_DeletePartitionResponse(partition_index=index, error_code=code))

    def deleted(results: list[list[tuple[int, ErrorCode]]]) -> Answer:
        codes = [(response, code) for response, some in zip(responses, results, strict=True) for code in some]
        return in_slices(ctx, codes, answer, lambda: m.OffsetDeleteResponse(topics=responses))

    named = [(number, p.partition_index) for number, topic in enumerate(request.topics) for p in topic.partitions]
    return in_slices(ctx, named, look_up, lambda: outcome_of(delete, deleted, refused))
