"""What OffsetCommit (8) and TxnOffsetCommit (28) have in common: which topics there are, the commit and its answer.

Kafka: OffsetCommitResponse.Builder and TxnOffsetCommitResponse.Builder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from minibroker.coordinators.groups.commits import Commit, CommitPartition, Committed, CommitTopic, all_partitions
from minibroker.kernel.turns import STEP
from minibroker.metadata.image import MetadataImage
from minibroker.requests.context import RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.offsets import OffsetCommitRequest
from minibroker_protocol.messages.transactions import TxnOffsetCommitRequest


class CommitAnswer:
    """Topics of the answer. Missing topics come first; where there are some, a topic that is named twice is one."""

    def __init__(self, topic: type[Any], partition: type[Any], *, by_id: bool) -> None:
        """topic, partition: the structs of the answer. by_id: the request's version names topics by their id."""
        self.topics: list[Any] = []
        self._entries: dict[str | bytes, list[Any]] = {}
        self._topic = topic
        self._partition = partition
        self._by_id = by_id

    async def committed(
        self,
        ctx: RequestContext,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        write: Callable[[Commit], Awaitable[Committed]],
        *,
        in_words_of_version: Callable[[ErrorCode], ErrorCode] = lambda code: code,
        **of_this_api: int,
    ) -> list[Any]:
        """Commit a request's offsets of existing topics with one call of `write`; the topics of the answer.

        Missing topics are answered without it. of_this_api: fields of `Commit` that the other API does not have.
        """
        valid = await self._existing(ctx.broker.image, request.topics)
        apart = not self.topics
        if not valid:
            return self.topics
        commit = Commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            valid,
            ctx.api_version,
            **of_this_api,
        )
        try:
            results = await write(commit)
        except ApiError as error:
            ctx.refused(request.group_id, error)
            results = all_partitions(commit, error.code)
        for topic, codes in zip(valid, results, strict=True):
            if apart:
                # Kafka's coordinator answers each topic that is named; they are merged only with topics missing before.
                self._entries = {}
            for index, code in codes:
                await STEP
                self._add(topic.name, topic.topic_id, index, in_words_of_version(code))
        return self.topics

    async def _existing(self, image: MetadataImage, topics: Iterable[Any]) -> list[CommitTopic]:
        """The existing topics of a request; the others are answered with UNKNOWN_TOPIC_ID or _OR_PARTITION."""
        valid: list[CommitTopic] = []
        for topic in topics:
            known = image.topic_by_id(topic.topic_id) if self._by_id else image.topics.get(topic.name)
            count = 0 if known is None else len(known.partitions)
            there: list[CommitPartition] = []
            unknown = known is None and self._by_id
            code = ErrorCode.UNKNOWN_TOPIC_ID if unknown else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for partition in topic.partitions:
                await STEP
                index = partition.partition_index
                if 0 <= index < count:
                    there.append(partition)
                else:
                    self._add(topic.name, topic.topic_id, index, code)
            if known is not None and there:
                valid.append(CommitTopic(known.name, known.topic_id, there))
        return valid

    def _add(self, name: str, topic_id: bytes, index: int, code: ErrorCode) -> None:
        key = topic_id if self._by_id else name
        partitions = self._entries.get(key)
        if partitions is None:
            partitions = self._entries[key] = []
            named = {"name": "", "topic_id": topic_id} if self._by_id else {"name": name, "topic_id": NO_ID}
            self.topics.append(self._topic(partitions=partitions, **named))
        partitions.append(self._partition(partition_index=index, error_code=code))
