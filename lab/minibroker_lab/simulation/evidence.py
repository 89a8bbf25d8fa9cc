"""Facts that known holes need as evidence, noted when they happen, by name, place and time.

A hole explains a finding only if its facts were noted, so that no bug of minibroker hides behind Kafka's holes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.metadata.image import NO_LEADER, MetadataImage, PartitionImage

TopicPartition = tuple[str, int]
Identity = tuple[int, int]
"""Producer id and epoch."""


class Fact:
    """Circumstances of a client when it is refused."""

    LATE_END = "a late EndTxn ended its transaction"
    LATE_MARKER = "a late marker ended its transaction"
    LATE_INIT = "a late InitProducerId came after its last one, or one of an older epoch"
    LATE_JOIN = "a late AddPartitionsToTxn or AddOffsetsToTxn came since its transaction before ended"
    OVERRUN = "five later batches were sent to the partition before this one was acknowledged"
    LATE_WRITE = "a late copy of what it wrote came"
    BEHIND = "the broker is cut off from the controller, or was until a moment ago"
    DEPOSED = "the broker that answered it, or took its partitions, is not its coordinator any more, and does not know"
    RETRY = "the batch was sent before"
    NEW_LEADER = "the partition had another leader, or life of it, since the batch before"
    UNCLEAN = "the partition had an unclean election"
    FORGOTTEN = "the coordinator that may have served it had a successor"
    EARLY = "its coordinator answered from what was not committed"


class Dropped(NamedTuple):
    """A marker that a coordinator dropped because the partition had no leader."""

    place: TopicPartition
    producer_id: int
    transactional_id: str


@dataclass
class Evidence:
    """Times are ms since the beginning.

    late: client and API -> when a request was served that the client had given up. ended, marked: transaction -> the
    producer that an EndTxn or a marker of an earlier transaction reached while it ran. idle_markers: late markers
    that found no transaction, and where. dropped: markers. rewound: the transactions of a producer from the one that
    sent a late TxnOffsetCommit to the one that it reached. led: when a partition got a leader, or a new life of it.
    unclean: where a replica became leader that was not eligible. powerless: machines that lost power; uncut: with a
    truncated log that was not synced since; forgotten: with a log that lacks writes whose sync had failed, though the
    system had them. own_records: node and partition, where a follower had a record of its own just below its leader's
    log start and went on from there. early: transactional id -> when a coordinator took up a request of it while what
    it had loaded was not committed; early_producers, early_transactions: what such requests were about. hung: at the
    end, partition -> producers whose transaction is open there. deleted: node and partition -> producers whose records
    had been deleted when all brokers stopped in the end, so that nothing was left to rebuild them from. found_again:
    those that a truncation or a start had made it forget then, and that have records below the log start in its files;
    cut_inside: where its log ended then, and where the last batch did that a truncation had left. facts: message of a
    refusal -> what was true then.
    """

    late: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[Hashable, Identity] = field(default_factory=dict)
    marked: dict[Hashable, Identity] = field(default_factory=dict)
    idle_markers: set[tuple[TopicPartition, Identity]] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)
    led: dict[TopicPartition, list[float]] = field(default_factory=lambda: defaultdict(list))
    rewound: set[Hashable] = field(default_factory=set)
    uncut: set[tuple[int, TopicPartition]] = field(default_factory=set)
    forgotten: set[tuple[int, TopicPartition]] = field(default_factory=set)
    own_records: set[tuple[int, TopicPartition]] = field(default_factory=set)
    unclean: set[TopicPartition] = field(default_factory=set)
    powerless: set[int] = field(default_factory=set)
    early: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    early_producers: set[int] = field(default_factory=set)
    early_transactions: set[Hashable] = field(default_factory=set)
    hung: dict[TopicPartition, set[int]] = field(default_factory=dict)
    deleted: dict[tuple[int, TopicPartition], set[int]] = field(default_factory=dict)
    found_again: dict[tuple[int, TopicPartition], set[int]] = field(default_factory=dict)
    cut_inside: dict[tuple[int, TopicPartition], tuple[int, int]] = field(default_factory=dict)
    facts: dict[str, frozenset[str]] = field(default_factory=dict)

    def late_since(self, client: str, api: str, since_ms: float) -> bool:
        """Whether such a request of this client came at or after that time."""
        return any(at >= since_ms for at in self.late.get((client, api), ()))

    def led_since(self, place: TopicPartition, since_ms: float) -> bool:
        return any(at >= since_ms for at in self.led.get(place, ()))

    def early_since(self, transactional_id: str, since_ms: float) -> bool:
        return any(at >= since_ms for at in self.early.get(transactional_id, ()))

    def changed(self, before: PartitionImage | None, topic: str, after: PartitionImage, at_ms: float) -> None:
        """The controller changed a partition."""
        if before is None or after.leader_epoch != before.leader_epoch:
            self.led[topic, after.index].append(at_ms)
        if before is None or after.leader in (NO_LEADER, before.leader):
            return
        if after.leader not in (*before.isr, *before.elr, *before.last_known_elr, *after.adding):
            self.unclean.add((topic, after.index))


class PartitionWatch:
    """Follows the controller's decisions: one call for each change of its metadata."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, PartitionImage] = {}

    def changes(
        self, image: MetadataImage, topics: tuple[str, ...]
    ) -> list[tuple[str, PartitionImage | None, PartitionImage]]:
        """(topic, before, after) of every partition that changed."""
        changes = []
        for name in topics:
            topic = image.topics.get(name)
            for after in topic.partitions if topic is not None else ():
                before = self._known.get((name, after.index))
                if before is not after:
                    self._known[name, after.index] = after
                    changes.append((name, before, after))
        return changes
