"""Offsets of the stream source `kafka-topics` as they lie in Spark's checkpoint, and what became of them since.

`{"orders-0": {"offset": 5, "leaderEpoch": 0, "topicId": "…"}}`. Checkpoints of earlier releases have `{"orders-0": 5}`.

Spark writes no initial offset down: it asks for it again when a query starts whose first batch was not committed. So an
initial offset is marked with `"@initial": true`, and the end of the batch that begins there has it as `"@start"`. No
topic has such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from minibroker.client.topics import NO_EPOCH, Position, Span
from minibroker_pipeline.files import NotReadable
from minibroker_storage.partition_metadata import topic_id_from_text, topic_id_text

OLD_FORM: Final = (
    "the checkpoint is of an earlier release and has no topic ids: a topic that was deleted and made again before this "
    "batch is not noticed, as long as its log reaches the old offset; the next batch writes ids"
)


_INITIAL: Final = "@initial"
_START: Final = "@start"


@dataclass(frozen=True)
class TopicOffsets:
    """Where each partition of a topic is.

    topic_id: None where the cluster, or the checkpoint, has no ids.
    """

    topic_id: bytes | None
    partitions: Mapping[int, Position]

    def is_other(self, topic_id: bytes | None) -> bool:
        """Whether the id is that of another topic with the same name."""
        return None not in (self.topic_id, topic_id) and self.topic_id != topic_id


Offsets = dict[str, TopicOffsets]


def to_json(offsets: Offsets) -> dict[str, Any]:
    """In one order, so that equal offsets are equal text."""
    return {
        f"{topic}-{partition}": {
            "offset": at.offset,
            "leaderEpoch": at.leader_epoch,
            "topicId": None if of.topic_id is None else topic_id_text(of.topic_id),
        }
        for topic, of in sorted(offsets.items())
        for partition, at in sorted(of.partitions.items())
    }


def initial(offsets: Offsets) -> dict[str, Any]:
    """Where a stream without a checkpoint begins."""
    return {_INITIAL: True, **to_json(offsets)}


def end_of_batch(start: Mapping[str, Any], end: Offsets) -> dict[str, Any]:
    """The end of the batch that begins at `start`; equal to `start` if the batch is empty."""
    content = to_json(end)
    if content == _plain(start):
        return dict(start)
    return {_START: _plain(start), **content} if _INITIAL in start else content


def start_of_batch(start: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the batch begins, which Spark says begins at `start`: where it began when it was planned first."""
    if start == end or _INITIAL in end:
        return _plain(end)
    planned: Mapping[str, Any] = end.get(_START, start)
    return _plain(planned)


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in (_INITIAL, _START)}


def from_json(content: Mapping[str, Any]) -> Offsets:
    """Raises NotReadable for what this source has not written."""
    ids: dict[str, bytes | None] = {}
    partitions: dict[str, dict[int, Position]] = {}
    try:
        for name, value in _plain(content).items():
            topic, _, partition = name.rpartition("-")
            if _is_old(value):
                at, text = Position(value), None
            else:
                at, text = Position(int(value["offset"]), int(value["leaderEpoch"])), value["topicId"]
            ids[topic] = None if text is None else topic_id_from_text(text)
            partitions.setdefault(topic, {})[int(partition)] = at
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NotReadable(f"kafka-topics has not written these offsets: {content}") from None
    return {topic: TopicOffsets(ids[topic], of) for topic, of in partitions.items()}


def _is_old(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_initial(content: Mapping[str, Any]) -> bool:
    """Whether a stream begins there: nothing was read up to it."""
    return _INITIAL in content


def is_old_form(content: Mapping[str, Any]) -> bool:
    return any(map(_is_old, content.values()))


def kept_where_equal(start: Offsets, end: Offsets) -> Offsets:
    """`end`, with `start`'s position where the offset is the same: a new leader alone is nothing to read."""
    kept = {}
    for topic, of in end.items():
        known = start.get(topic)
        if known is not None and known.topic_id == of.topic_id:
            same = {p: known.partitions[p] for p, at in of.partitions.items() if _same_offset(known, p, at)}
            of = TopicOffsets(of.topic_id, {**of.partitions, **same})
        kept[topic] = of
    return kept


def _same_offset(known: TopicOffsets, partition: int, at: Position) -> bool:
    return partition in known.partitions and known.partitions[partition].offset == at.offset


def not_before(start: Offsets, end: Offsets, *, begins: bool) -> Offsets:
    """`end`, with `start`'s position where the end lies before it although nothing was cut: it was asked for earlier
    than the start, or with another isolation level.

    begins: whether the stream begins at `start`, which has no leader epoch where it is an offset of the options.
    """
    return {topic: _not_before(start.get(topic), of, begins) for topic, of in end.items()}


def not_after(wanted: Offsets, end: Offsets) -> Offsets:
    """`wanted`, cut to `end` where it has the same topic."""
    cut = {}
    for topic, of in wanted.items():
        known = end.get(topic)
        if known is not None and not known.is_other(of.topic_id):
            ends = known.partitions
            of = TopicOffsets(of.topic_id, {p: min(at, ends.get(p, at)) for p, at in of.partitions.items()})
        cut[topic] = of
    return cut


def _not_before(known: TopicOffsets | None, of: TopicOffsets, begins: bool) -> TopicOffsets:
    if known is None or known.is_other(of.topic_id) or not (begins or known.topic_id == of.topic_id is not None):
        return of
    moved = dict(of.partitions)
    for partition, at in of.partitions.items():
        before = known.partitions.get(partition)
        if before is None or before.offset <= at.offset:
            continue
        # Only a leader with a higher epoch can have cut the log.
        if NO_EPOCH < at.leader_epoch <= before.leader_epoch or (begins and before.leader_epoch == NO_EPOCH):
            moved[partition] = before
    return TopicOffsets(of.topic_id, moved)


def readable_topics(
    start: Offsets, end: Offsets, now: Mapping[str, bytes | None], lost: Callable[[str], None]
) -> Iterator[str]:
    """The topics of `end` that can be read; `lost` is called for topics and partitions that cannot.

    now: topic → its present id, of those that the cluster has.
    """
    for topic in sorted(start.keys() - end.keys()):
        missing = "is not read any more" if topic in now else "is not in the cluster: it was deleted"
        lost(f"topic {topic}, which was read up to {_ends(start[topic])}, {missing}")
    for topic, of in sorted(end.items()):
        if topic not in now:
            which = "was read" if start.get(topic) == of else "is to be read"
            lost(f"topic {topic}, which {which} up to {_ends(of)}, is not in the cluster: it was deleted")
        elif of.is_other(now[topic]):
            lost(
                f"topic {topic}, which is to be read up to {_ends(of)}, was deleted and made again: its id was "
                f"{_text(of.topic_id)}, it is {_text(now[topic])}"
            )
        else:
            if topic in start and start[topic].is_other(of.topic_id):
                lost(
                    f"topic {topic} was deleted and made again: its id was {_text(start[topic].topic_id)} when it was "
                    f"read up to {_ends(start[topic])}, it is {_text(of.topic_id)}; what was written to the old one "
                    "after that is gone, and the new one is to be read from its start"
                )
            elif topic in start:
                # Kafka removes no partition of a topic: the query does not name it.
                for partition in sorted(start[topic].partitions.keys() - of.partitions.keys()):
                    offset = start[topic].partitions[partition].offset
                    lost(f"{topic}-{partition}, which was read up to offset {offset}, is not read any more")
            yield topic


class Changes:
    """What has become of a stream's topics since its last batch.

    lost: called with a sentence for each loss; it raises where losses end the query.
    first: a partition's first offset.
    truncated: as `ReadingClient.truncated`.
    """

    def __init__(
        self,
        lost: Callable[[str], None],
        first: Callable[[str, int], int],
        truncated: Callable[[str, int, Position], int | None],
    ) -> None:
        self._lost = lost
        self._first = first
        self._truncated = truncated

    def spans(self, start: Offsets, end: Offsets, now: Mapping[str, bytes | None]) -> Iterator[Span]:
        """What is to be read between two offsets. A new partition begins at its first offset.

        now: as in `readable_topics`.
        """
        for topic in readable_topics(start, end, now, self._lost):
            of = end[topic]
            known = start.get(topic)
            if known is not None and known.is_other(of.topic_id):
                known = None
            for partition, stop in sorted(of.partitions.items()):
                first = self._begin(topic, partition, known, stop)
                if first < stop.offset:
                    yield Span(topic, partition, first, stop.offset, stop.leader_epoch, of.topic_id)

    def _begin(self, topic: str, partition: int, known: TopicOffsets | None, stop: Position) -> int:
        name = f"{topic}-{partition}"
        if known is None:
            return self._first(topic, partition)
        if partition not in known.partitions:
            first = self._first(topic, partition)
            if first > 0:
                self._lost(f"{name}, a new partition, starts at offset {first}: the records before were deleted unread")
            return first
        at = known.partitions[partition]
        if at.offset == stop.offset:
            return at.offset
        # Only a new leader can have cut the log.
        cut = None if at.leader_epoch == stop.leader_epoch else self._truncated(topic, partition, at)
        if cut is not None:
            self._lost(
                f"{name} was read up to offset {at.offset}, but its log was truncated to offset {cut}, by an "
                f"unclean leader election or because the disk lost its end: the records from {cut} to {at.offset} that "
                "were read are not in the log any more, and others may have their offsets"
            )
            at = Position(cut)
        elif at.offset > stop.offset:
            self._lost(
                f"{name} was read up to offset {at.offset}, but its log ends at {stop.offset}: it was truncated, or "
                "the topic was deleted and made again; it is to be read from its start"
            )
            at = Position(self._first(topic, partition))
        first = self._first(topic, partition)
        if at.offset < first:
            self._lost(
                f"{name} is to be read from offset {at.offset}, but its log starts at {first}: retention or "
                f"DeleteRecords has deleted {first - at.offset} offsets unread"
            )
            return first
        return at.offset


def _ends(of: TopicOffsets) -> str:
    """As 0@100, 1@97, at most a few."""
    shown = [f"{partition}@{at.offset}" for partition, at in sorted(of.partitions.items())]
    return "offset " + ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _text(topic_id: bytes | None) -> str:
    return "unknown" if topic_id is None else topic_id_text(topic_id)
