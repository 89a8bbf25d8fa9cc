"""What OffsetCommit (8) and TxnOffsetCommit (28) have in common: which topics there are, the commit and its answer.

Kafka: OffsetCommitResponse.Builder and TxnOffsetCommitResponse.Builder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minibroker.coordinators.groups.commits import Commit, CommitPartition, Committed, CommitTopic, all_partitions
from minibroker.kernel.deferred import Deferred
from minibroker.metadata.image import TopicImage
from minibroker.requests.answers import outcome_of
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker_protocol.dsl import Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.offsets import OffsetCommitRequest
from minibroker_protocol.messages.transactions import TxnOffsetCommitRequest


class OffsetCommitting:
    """One request while it is served: its partitions are looked up in slices, its offsets are one batch, and its answer
    is made in slices.

    Missing topics come first in the answer; where there are some, a topic that is named twice is one.
    """

    def __init__(
        self,
        ctx: RequestContext,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        response: type[Any],
        topic: type[Any],
        partition: type[Any],
        *,
        by_id: bool,
        code: Callable[[ErrorCode], ErrorCode] = lambda code: code,
    ) -> None:
        """response, topic, partition: the structs of the answer.
        by_id: the request's version names topics by their id.
        code: the code that the version has for one of the coordinator's.
        """
        self._ctx = ctx
        self._request = request
        self._response = response
        self._topic = topic
        self._partition = partition
        self._by_id = by_id
        self._code = code
        self._image = ctx.broker.image
        #: existing topics with those of their partitions that exist
        self._valid: list[CommitTopic] = []
        #: topics of the answer, and the partitions of each
        self._topics: list[Any] = []
        self._entries: dict[str | bytes, list[Any]] = {}
        #: the current topic, what the image says of it, and its partitions that exist
        self._current: Any = None
        self._known: TopicImage | None = None
        self._there: list[CommitPartition] | None = None

    def answer(self, write: Callable[[Commit], Deferred[Committed]], **of_this_api: int) -> Answer:
        """Commit the offsets of existing topics with one call of `write`. Missing topics are answered without it.

        of_this_api: fields of `Commit` that the other API does not have.
        """
        named = [(topic, partition) for topic in self._request.topics for partition in topic.partitions]
        return in_slices(self._ctx, named, self._look_up, lambda: self._commit(write, of_this_api))

    def _look_up(self, named: Sequence[tuple[Any, CommitPartition]]) -> None:
        """Choose the partitions that exist; the others are answered with UNKNOWN_TOPIC_ID or _OR_PARTITION."""
        for topic, partition in named:
            if topic is not self._current:
                self._current, self._there = topic, None
                self._known = self._find(topic)
            known, index = self._known, partition.partition_index
            if known is None or not 0 <= index < len(known.partitions):
                unknown = known is None and self._by_id
                code = ErrorCode.UNKNOWN_TOPIC_ID if unknown else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self._add(topic.name, topic.topic_id, index, code)
                continue
            if self._there is None:
                self._there = []
                self._valid.append(CommitTopic(known.name, known.topic_id, self._there))
            self._there.append(partition)

    def _find(self, topic: Any) -> TopicImage | None:
        return self._image.topic_by_id(topic.topic_id) if self._by_id else self._image.topics.get(topic.name)

    def _commit(self, write: Callable[[Commit], Deferred[Committed]], of_this_api: Mapping[str, int]) -> Answer:
        if not self._valid:
            return self._made()
        request = self._request
        commit = Commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            self._valid,
            self._ctx.api_version,
            **of_this_api,
        )

        def refused(error: ApiError) -> Answer:
            self._ctx.refused(request.group_id, error)
            return self._committed(all_partitions(commit, error.code))

        return outcome_of(lambda: write(commit), self._committed, refused)

    def _committed(self, results: Committed) -> Answer:
        # Kafka's coordinator answers each topic that is named; they are merged only with topics missing before.
        apart = not self._topics
        self._current = None

        def answer(some: Sequence[tuple[CommitTopic, tuple[int, ErrorCode]]]) -> None:
            for topic, (index, code) in some:
                if apart and topic is not self._current:
                    self._entries, self._current = {}, topic
                self._add(topic.name, topic.topic_id, index, self._code(code))

        codes = [(topic, code) for topic, some in zip(self._valid, results, strict=True) for code in some]
        return in_slices(self._ctx, codes, answer, self._made)

    def _made(self) -> Response:
        made: Response = self._response(topics=self._topics)
        return made

    def _add(self, name: str, topic_id: bytes, index: int, code: ErrorCode) -> None:
        key = topic_id if self._by_id else name
        partitions = self._entries.get(key)
        if partitions is None:
            partitions = self._entries[key] = []
            named = {"name": "", "topic_id": topic_id} if self._by_id else {"name": name, "topic_id": NO_ID}
            self._topics.append(self._topic(partitions=partitions, **named))
        partitions.append(self._partition(partition_index=index, error_code=code))
