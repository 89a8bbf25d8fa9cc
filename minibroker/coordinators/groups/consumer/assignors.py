"""Server-side assignors: which member owns which partition (KIP-848: uniform and range).

An assignor is a function of the members, in a stable order, and of the topics' partition counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minibroker.coordinators.groups.consumer.member import Target


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as assignors see it; `current` is its target so far, `topics` only holds topics that exist."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    current: Target


Assignment = dict[str, dict[bytes, frozenset[int]]]
"""member id -> topic id -> partitions; topics without partitions are left out."""

Assignor = Callable[[Sequence[Candidate], Mapping[bytes, int]], Assignment]
TopicPartition = tuple[bytes, int]


def range_assignor(members: Sequence[Candidate], counts: Mapping[bytes, int]) -> Assignment:
    """Consecutive partitions of every topic, so that equally partitioned topics are assigned alike.

    Static members come first, by instance id, so that they keep their share when they come back.
    """
    ordered = sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    for member in ordered:
        for topic_id in member.topics:
            subscribers[topic_id].append(member.member_id)
    assignment: Assignment = {member.member_id: {} for member in members}
    for topic_id, ids in subscribers.items():
        share, extra = divmod(counts[topic_id], len(ids))
        start = 0
        for position, member_id in enumerate(ids):
            end = start + share + (position < extra)
            if end > start:
                assignment[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return assignment


def uniform_assignor(members: Sequence[Candidate], counts: Mapping[bytes, int]) -> Assignment:
    """Equal numbers of partitions, moving as few as possible."""
    # With the same topics for all, equal numbers need no search (UniformHomogeneousAssignmentBuilder).
    if len({member.topics for member in members}) <= 1:
        return _uniform_alike(members, counts)
    return _uniform_mixed(members, counts)


def _uniform_alike(members: Sequence[Candidate], counts: Mapping[bytes, int]) -> Assignment:
    """All members subscribe to the same topics: each may keep up to its share, the rest goes round."""
    if not members:
        return {}
    free = {(topic_id, p): None for topic_id in sorted(members[0].topics) for p in range(counts[topic_id])}
    share, extra = divmod(len(free), len(members))
    keep: dict[str, list[TopicPartition]] = {}
    room: dict[str, int] = {}
    for member in members:
        quota = share + (extra > 0)
        extra -= extra > 0
        kept = keep[member.member_id] = []
        for topic_id, partitions in member.current.items():
            for partition in sorted(partitions):
                if len(kept) < quota and (topic_id, partition) in free:
                    del free[topic_id, partition]
                    kept.append((topic_id, partition))
        room[member.member_id] = quota - len(kept)
    unassigned = iter(free)
    for member_id, kept in keep.items():
        kept += [next(unassigned) for _ in range(room[member_id])]
    return {member_id: _by_topic(kept) for member_id, kept in keep.items()}


def _uniform_mixed(members: Sequence[Candidate], counts: Mapping[bytes, int]) -> Assignment:
    """Members subscribe to different topics: keep what is legal, give the rest to those with least, then balance."""
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    for member in members:
        for topic_id in member.topics:
            subscribers[topic_id].append(member.member_id)
    owner: dict[TopicPartition, str] = {}
    load = {member.member_id: 0 for member in members}
    for member in members:
        for topic_id, partitions in member.current.items():
            for partition in sorted(partitions):
                legal = topic_id in member.topics and partition < counts[topic_id]
                if legal and (topic_id, partition) not in owner:
                    owner[topic_id, partition] = member.member_id
                    load[member.member_id] += 1
    # Topics with few subscribers first: they have the least choice.
    for topic_id in sorted(subscribers, key=lambda t: (len(subscribers[t]), t)):
        for partition in range(counts[topic_id]):
            if (topic_id, partition) not in owner:
                taker = min(subscribers[topic_id], key=load.__getitem__)
                owner[topic_id, partition] = taker
                load[taker] += 1
    _even_out(owner, load, subscribers)
    owned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    for partition_, member_id in owner.items():
        owned[member_id].append(partition_)
    return {member_id: _by_topic(partitions) for member_id, partitions in owned.items()}


def _even_out(
    owner: dict[TopicPartition, str], load: dict[str, int], subscribers: Mapping[bytes, Sequence[str]]
) -> None:
    """Move partitions to subscribers with at least two fewer until the assignment is balanced."""
    moved = True
    while moved:
        moved = False
        for (topic_id, partition), member_id in owner.items():
            least = min(subscribers[topic_id], key=load.__getitem__)
            if load[least] + 1 < load[member_id]:
                owner[topic_id, partition] = least
                load[member_id] -= 1
                load[least] += 1
                moved = True


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[bytes, frozenset[int]]:
    topics: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform_assignor, "range": range_assignor}
