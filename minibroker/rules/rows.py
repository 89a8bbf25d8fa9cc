"""The rows that the exactly-once rules judge: plain tuples, made from segment files, fetched batches or a simulation.

Offsets, sequences and byte positions are as Kafka counts them; a `last_` is inclusive. Times are ms since 1970.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import NamedTuple

from minibroker_protocol.records import BatchHeader

NONE = -1
"""No offset, sequence, id or time, as in Kafka's own files."""

EVERYTHING = 1 << 62
"""As a cleaned offset: any batch may be missing."""

COMMIT = "COMMIT"
ABORT = "ABORT"
LOST = "LOST"
"""Outcome of a transaction whose marker a replica missed, of which its log has told."""

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
COORDINATOR_TOPICS = frozenset({TRANSACTION_STATE, CONSUMER_OFFSETS, "__share_group_state", "__cluster_metadata"})
"""Written by the brokers themselves, whose batches carry no meaningful sequences."""


class Log(NamedTuple):
    """One replica of a partition. `root` names the data directory, so that replicas are told apart; without a topic it
    is the directory itself."""

    root: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}" if self.topic else self.root or "the data directory"


class LogFacts(NamedTuple):
    """What the rules must know of a log besides its batches.

    Below `start_offset` records were deleted lawfully. Below `cleaned_offset` compaction may have taken any of them: no
    checkpoint promises where, so it is 0 or EVERYTHING until `judge_log` has seen where batches are missing.

    compacts: cleanup.policy says so, and what is missing is not worth a notice.
    cleaner_offset: the cleaner's own checkpoint. `first_offset` is where the oldest file begins.
    clean: the directory was closed, so nothing may be torn; of one that was not, opening trusts what is below
        `recovery_point`.
    indexed: files of aborted transactions and snapshots were looked for (they cannot be fetched).
    settled_offset: for a coordinator's log of a running cluster: the records below it were written before any other log
        was read.
    hole_end: where the last place ends at which compaction took batches, once `judge_log` has seen it; 0: none.
    marked_ms: the time of the log's last marker, likewise.
    """

    log: Log
    start_offset: int = 0
    first_offset: int = 0
    cleaned_offset: int = 0
    clean: bool = True
    indexed: bool = True
    recovery_point: int = 0
    settled_offset: int = EVERYTHING
    compacts: bool = False
    cleaner_offset: int = 0
    hole_end: int = 0
    marked_ms: int = NONE

    @property
    def whole(self) -> bool:
        """Every batch ever written is there."""
        return self.start_offset == 0 and self.first_offset == 0 and self.cleaned_offset == 0


class Run(NamedTuple):
    """Data batches of one producer that follow one another in sequence within one file; a single batch is a run of one.

    A run ends where the epoch, the transactional bit or the sequence breaks, at the producer's markers, and where a
    snapshot was taken. Its last batch begins at `last_base_offset`. `transactional` without a producer id is kept too.
    """

    log: Log
    file: str
    position: int
    first_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    transactional: bool
    batches: int
    records: int
    first_timestamp: int
    last_timestamp: int
    last_base_offset: int
    bytes: int


class Marker(NamedTuple):
    """A transaction marker; `outcome` is COMMIT, ABORT, or empty where compaction left the batch without its record."""

    log: Log
    file: str
    position: int
    offset: int
    producer_id: int
    producer_epoch: int
    outcome: str
    coordinator_epoch: int
    timestamp: int


class Hole(NamedTuple):
    """Offsets [first_offset, end_offset) of which `missing` are missing: all of them, unless several holes were made
    one."""

    first_offset: int
    end_offset: int
    missing: int


MAX_HOLES = 1000
"""A span keeps up to twice as many holes, then the nearest ones become one until so many are left."""


def fewer_holes(holes: tuple[Hole, ...]) -> tuple[Hole, ...]:
    """The holes of a span within their bound: those that are the farthest apart stay exact."""
    if len(holes) <= 2 * MAX_HOLES:
        return holes
    nearest = sorted(range(1, len(holes)), key=lambda at: holes[at].first_offset - holes[at - 1].end_offset)
    edges = [0, *sorted(nearest[1 - MAX_HOLES :]), len(holes)]
    return tuple(
        Hole(holes[at].first_offset, holes[end - 1].end_offset, sum(hole.missing for hole in holes[at:end]))
        for at, end in pairwise(edges)
    )


class Span(NamedTuple):
    """Offsets [first_offset, end_offset) of one file and leader epoch that follow one another without a hole, but for
    `holes` of compaction, and so many batches at [first_thinned, thinned_end) that are `thinned`, which have fewer
    records than offsets."""

    log: Log
    file: str
    position: int
    first_offset: int
    end_offset: int
    epoch: int = NONE
    thinned: int = 0
    first_thinned: int = NONE
    thinned_end: int = NONE
    holes: tuple[Hole, ...] = ()

    def joined(self, following: Span) -> Span:
        """The two as one, what lies between them missing."""
        first, end = self.end_offset, following.first_offset
        between = (Hole(first, end, end - first),) if first < end else ()
        return self._replace(
            end_offset=following.end_offset,
            thinned=self.thinned + following.thinned,
            first_thinned=self.first_thinned if self.thinned else following.first_thinned,
            thinned_end=max(self.thinned_end, following.thinned_end),
            holes=fewer_holes(self.holes + between + following.holes),
        )


class LogFault(NamedTuple):
    """Bytes that do not hold together: `rule` is the id of the rule they break. The batch is in no run and no span
    unless `readable`, when only its records are at odds with the header, or another file is.

    mended: opening the log puts it right.
    """

    log: Log
    file: str
    position: int
    first_offset: int
    last_offset: int
    rule: str
    message: str
    readable: bool = False
    mended: bool = False


class LogStart(NamedTuple):
    """The log starts at `offset` now: retention or DeleteRecords was faster than its reader."""

    log: Log
    offset: int


class EpochStart(NamedTuple):
    """An entry of `leader-epoch-checkpoint`: the epoch begins at this offset."""

    log: Log
    file: str
    epoch: int
    offset: int


class TimeClaims(NamedTuple):
    """One part of a file that is read in parts: its largest timestamp, and the first of the time index's entries about
    this part, at byte `entry`: timestamp and offset (-1: there is none)."""

    log: Log
    file: str
    position: int
    largest: int
    index_file: str
    entry: int
    timestamp: int
    offset: int


class AbortedTxn(NamedTuple):
    """An entry of a `.txnindex` file."""

    log: Log
    file: str
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class SnapshotEntry(NamedTuple):
    """A producer in a `.snapshot` file."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


class Snapshot(NamedTuple):
    """The producers as they were before `offset`."""

    log: Log
    file: str
    offset: int
    entries: tuple[SnapshotEntry, ...]


class Transaction(NamedTuple):
    """A transaction as one partition shows it. Without data first and last offset are -1, without a marker
    `marker_offset` is and `outcome` is empty or LOST."""

    log: Log
    file: str
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    marker_offset: int
    marker_epoch: int
    outcome: str
    coordinator_epoch: int
    start_timestamp: int
    end_timestamp: int


class TxnState(NamedTuple):
    """A record of `__transaction_state`; `state` is Kafka's name, empty for a tombstone.

    timestamp: when the record was written. A complete state was prepared before the markers were sent and has that as
        its `update_timestamp`.
    """

    log: Log
    offset: int
    leader_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: str
    partitions: tuple[tuple[str, int], ...]
    start_timestamp: int
    update_timestamp: int
    timestamp: int = NONE


class CommittedOffset(NamedTuple):
    """An offset commit in `__consumer_offsets`; `committed` is -1 for a tombstone. Within a transaction it has a
    producer id."""

    log: Log
    offset: int
    producer_id: int
    producer_epoch: int
    group: str
    topic: str
    partition: int
    committed: int


class GroupMember(NamedTuple):
    """A record of `__consumer_offsets` that says whether a group has a member; `member` is empty for the members of a
    classic group, which are written together."""

    log: Log
    offset: int
    group: str
    member: str
    present: bool


class Finding(NamedTuple):
    """A broken promise: which rule, where (offsets inclusive, -1 none), what was seen."""

    rule: str
    severity: str
    log: Log
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    file: str
    position: int
    transactional_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.described()}"

    def described(self) -> str:
        """Rule, place (where there is one) and message, without a verdict."""
        if not self.log.topic:
            return f"{self.rule}: {self.message}"
        where = f"{self.log}" if self.first_offset < 0 else f"{self.log} offsets {self.first_offset}-{self.last_offset}"
        return f"{self.rule}: {where}: {self.message}"


class Content(NamedTuple):
    """The content of a record, by which the same one is recognised when it comes twice: `key` is a digest, or what the
    user names."""

    log: Log
    offset: int
    producer_id: int
    producer_epoch: int
    key: Hashable


class Sent(NamedTuple):
    """What a client knows of a record it sent: `transaction` is its own number for it (None outside), `acknowledged`
    whether a success came back. `key` names the record in the whole history."""

    client: str
    topic: str
    partition: int
    key: Hashable
    acknowledged: bool
    transaction: Hashable | None = None


class Seen(NamedTuple):
    """A record that a reader was given, or that a log holds in the end."""

    reader: str
    topic: str
    partition: int
    offset: int
    key: Hashable


class Marks(NamedTuple):
    """A log's offsets at one moment, as `reader` saw them."""

    reader: str
    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


def run_of(log: Log, file: str, position: int, header: BatchHeader) -> Run:
    """The run of one batch."""
    return Run(
        log,
        file,
        position,
        header.base_offset,
        header.last_offset,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        header.is_transactional,
        1,
        header.record_count,
        header.max_timestamp,
        header.max_timestamp,
        header.base_offset,
        header.size,
    )


def span_of(log: Log, file: str, position: int, header: BatchHeader) -> Span:
    """The span of one batch."""
    first, end = header.base_offset, header.next_offset
    span = Span(log, file, position, first, end, header.partition_leader_epoch)
    if not 0 <= header.record_count <= header.last_offset_delta:
        return span
    return span._replace(thinned=1, first_thinned=first, thinned_end=end)
