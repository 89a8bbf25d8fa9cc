"""Rules on groups' committed offsets: their final values, and that they do not go back without a reset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from minibroker.rules import rows as r
from minibroker.rules.catalogue import finding, finding_at
from minibroker.rules.txn_rules import transaction_around

_BARS = "▁▂▃▄▅▆▇█"
_DRAWN = 40
"""Commits drawn around the first that went back."""


def settled(commits: Iterable[r.CommittedOffset], transactions: Iterable[r.Transaction]) -> Iterator[r.CommittedOffset]:
    """The committed offsets, tombstones included, without those of transactions that were not committed.

    transactions: those of `__consumer_offsets`.
    """
    by_place: dict[tuple[r.Log, int], list[r.Transaction]] = defaultdict(list)
    for txn in transactions:
        by_place[txn.log, txn.producer_id].append(txn)
    for commit in commits:
        if commit.producer_id >= 0:
            around = transaction_around(by_place.get((commit.log, commit.producer_id), ()), commit.offset)
            if around is None or around.outcome != r.COMMIT:
                continue
        yield commit


def final_offsets(
    commits: Iterable[r.CommittedOffset], transactions: Iterable[r.Transaction]
) -> list[r.CommittedOffset]:
    """Groups' offsets as they stand in the end: of all that was committed, tombstones included, what was written last
    (OffsetMetadataManager, which compares record offsets when a marker comes).

    transactions: those of `__consumer_offsets`.
    """
    # By partition of the group too: offsets of two logs do not compare.
    final: dict[tuple[int, str, str, int], r.CommittedOffset] = {}
    for commit in settled(commits, transactions):
        key = commit.log.partition, commit.group, commit.topic, commit.partition
        if key not in final or final[key].offset <= commit.offset:
            final[key] = commit
    return [commit for commit in final.values() if commit.committed >= 0]


def judge_committed_offsets(
    commits: Iterable[r.CommittedOffset], transactions: Iterable[r.Transaction], ends: Mapping[tuple[str, int], int]
) -> list[r.Finding]:
    """The last committed offsets of groups that lie past the end of their partition.

    `ends`: (topic, partition) -> end offset, of the partitions in the data.
    """
    offsets = [txn for txn in transactions if txn.log.topic == r.CONSUMER_OFFSETS]
    return [
        finding(
            "offset-end",
            commit.log,
            f"group {commit.group} committed {commit.committed} on {commit.topic}-{commit.partition}, "
            f"which ends at {ends[commit.topic, commit.partition]}",
            first_offset=commit.offset,
        )
        for commit in final_offsets(commits, offsets)
        if commit.committed > ends.get((commit.topic, commit.partition), commit.committed)
    ]


GroupPlace: TypeAlias = tuple[r.Log, str, str, int]
"""Log of `__consumer_offsets`, group, topic and partition."""


def judge_rewinds(
    commits: Iterable[r.CommittedOffset], members: Iterable[r.GroupMember], transactions: Iterable[r.Transaction]
) -> list[r.Finding]:
    """Offsets that went back while their group had members, all rows of a log of `__consumer_offsets` together."""
    return [*rewinds(commits, members, transactions).values()]


def rewinds(
    commits: Iterable[r.CommittedOffset], members: Iterable[r.GroupMember], transactions: Iterable[r.Transaction]
) -> dict[GroupPlace, r.Finding]:
    """`judge_rewinds`, by the place where the offset went back.

    An administrator resets the offsets of a group without members only, and a deletion leaves a tombstone. Whether a
    group that has never had members went back on purpose its log does not tell.
    """
    rows: list[r.CommittedOffset | r.GroupMember] = [*settled(commits, transactions), *members]
    present: dict[tuple[r.Log, str], set[str]] = defaultdict(set)
    paths: dict[GroupPlace, list[r.CommittedOffset]] = defaultdict(list)
    falls: dict[GroupPlace, list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.log, row.offset)):
        of_group = present[row.log, row.group]
        if isinstance(row, r.GroupMember):
            (of_group.add if row.present else of_group.discard)(row.member)
            continue
        place = row.log, row.group, row.topic, row.partition
        path = paths[place]
        if path and 0 <= row.committed < path[-1].committed and of_group:
            falls[place].append(len(path))
        path.append(row)
    return {place: _rewind(paths[place], at) for place, at in falls.items()}


def _rewind(path: Sequence[r.CommittedOffset], falls: Sequence[int]) -> r.Finding:
    before, first, last = path[falls[0] - 1], path[falls[0]], path[falls[-1]]
    times = "once" if len(falls) == 1 else f"{len(falls)} times"
    low = max(falls[0] - _DRAWN // 2, 0)
    reason = (
        f"group {first.group} on {first.topic}-{first.partition} went back {times} while it had members, first from "
        f"{before.committed} to {first.committed} {drawn([commit.committed for commit in path[low : low + _DRAWN]])}"
    )
    return finding_at("offset-rewind", first, reason, last_offset=last.offset)


def drawn(values: Sequence[int]) -> str:
    """Values as bars of text, the lowest value as the smallest bar; a blank for a missing value (below 0)."""
    known = [value for value in values if value >= 0]
    low, span = min(known), max(max(known) - min(known), 1)
    return "".join(" " if value < 0 else _BARS[(value - low) * (len(_BARS) - 1) // span] for value in values)
