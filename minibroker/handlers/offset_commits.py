"""What OffsetCommit (8) and TxnOffsetCommit (28) have in common: which topics there are, and the shape of the answer.

Kafka: OffsetCommitResponse.Builder and TxnOffsetCommitResponse.Builder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from minibroker.coordinators.groups.commits import CommitPartition, Committed, CommitTopic
from minibroker.kernel.turns import STEP
from minibroker.metadata.image import MetadataImage
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID


class CommitAnswer:
    """Topics of the answer, one entry each however often the request names one; those that do not exist come first."""

    def __init__(self, topic: type[Any], partition: type[Any], *, by_id: bool) -> None:
        """topic, partition: the structs of the answer. by_id: the request's version names topics by their id."""
        self.topics: list[Any] = []
        self._entries: dict[str | bytes, list[Any]] = {}
        self._topic = topic
        self._partition = partition
        self._by_id = by_id

    async def existing(self, image: MetadataImage, topics: Iterable[Any]) -> list[CommitTopic]:
        """What of a request's topics exists; the rest is answered with UNKNOWN_TOPIC_ID or _OR_PARTITION."""
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

    async def told(
        self,
        topics: Iterable[CommitTopic],
        results: Committed,
        in_words_of_version: Callable[[ErrorCode], ErrorCode] = lambda code: code,
    ) -> None:
        """Add what became of `topics`, in their order."""
        for topic, codes in zip(topics, results, strict=True):
            for index, code in codes:
                await STEP
                self._add(topic.name, topic.topic_id, index, in_words_of_version(code))

    def _add(self, name: str, topic_id: bytes, index: int, code: ErrorCode) -> None:
        key = topic_id if self._by_id else name
        partitions = self._entries.get(key)
        if partitions is None:
            partitions = self._entries[key] = []
            named = {"name": "", "topic_id": topic_id} if self._by_id else {"name": name, "topic_id": NO_ID}
            self.topics.append(self._topic(partitions=partitions, **named))
        partitions.append(self._partition(partition_index=index, error_code=code))
