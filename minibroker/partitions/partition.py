"""One partition on one broker: its log, its role, and the requests that wait for it (Kafka's Partition).

A partition is led here, followed, or neither (its leader is unknown or on its way). The controller decides, with a
leader epoch that grows by one for each leader and a partition epoch for each change of the in-sync set; `follow` takes
what it decided. Older news than what is known is ignored.

* As leader: `append` writes, `in_sync` knows how far each follower is by its fetches. The high watermark is the
  smallest end of the in-sync replicas, and of the synced part where that is asked for. A follower that lags for
  replica.lag.time.max.ms is proposed to leave the set, one that has caught up to join it; until the controller has
  answered both sets count (the maximal ISR), so that no acknowledged record is lost.
* As follower: `replicate` appends what the leader sent, with its offsets; a new leader epoch is first asked where it
  begins, and the log cut there (KIP-101, `storage` truncation).

Waiters are resolved or failed, never lost: produce with acks=all and coordinators by `when_high_watermark`, syncs by
`when_synced`, fetches by `watch`. What ends the role (`_resign`, `dropped`, `lose_tail`) fails those it concerns with
the error that Kafka gives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Protocol

from minibroker.kernel.clock import Clock
from minibroker.kernel.deferred import DONE, Deferred
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import NO_LEADER, PartitionImage
from minibroker.partitions.in_sync import InSync
from minibroker.partitions.log_flush import LogFlush
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import UNHURRIED, Buffer, Pace, iter_batches
from minibroker_storage.config import LogConfig
from minibroker_storage.log import AppendInfo, PartitionLog
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import VerificationGuard
from minibroker_storage.truncation import truncate_fully_and_start_at, truncate_to
from minibroker_storage.validator import CheckedBatch, check_client_batch

log = get_logger(__name__)

OpenLog = Callable[[], PartitionLog]
MakeFlush = Callable[[PartitionLog, Callable[[], None], Callable[[ApiError], None]], LogFlush]
"""(log, told of every sync, told of every refused one) -> what syncs the log."""
Watcher = Callable[[], None]
ReplicaWatcher = Callable[[bool], None]
"""Called when there is news for a follower. True: answer its fetch at once; False: its next response is early
enough."""


class ReplicationRules(Protocol):
    """What a leader needs of its broker to maintain the in-sync set."""

    @property
    def tick(self) -> int:
        """Grows by one every half of replica.lag.time.max.ms."""

    def eligible(self, node_id: int, broker_epoch: int) -> bool:
        """Whether a broker may join an in-sync set: it serves, is not about to stop, and is still the one that fetched
        (KIP-903: what a restarted broker had before its end says nothing)."""

    def alive(self, node_id: int) -> bool:
        """Whether a broker is registered and not fenced."""

    def propose(self, partition: Partition, isr: frozenset[int]) -> None:
        """Ask the controller for another in-sync set."""


class Partition:
    """Leader or follower of one topic partition (Kafka's ``kafka.cluster.Partition``).

    The log is opened on first use: a partition that was never written has no files. `written` says that it has some
    from an earlier run.
    """

    __slots__ = (
        "_clock",
        "_flush",
        "_hw_count",
        "_hw_waiters",
        "_log",
        "_make_flush",
        "_open_log",
        "_replica_watchers",
        "_watchers",
        "_written",
        "broker_id",
        "in_sync",
        "index",
        "isr",
        "leader_epoch",
        "leader_id",
        "partition_epoch",
        "replicas",
        "replication",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        *,
        broker_id: int,
        image: PartitionImage,
        open_log: OpenLog,
        make_flush: MakeFlush,
        clock: Clock,
        replication: ReplicationRules,
        written: bool = False,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.replicas = image.replicas
        self.isr = image.isr
        self.leader_id = image.leader
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.replication = replication
        #: Followers and in-sync set; None unless this broker leads and there are other replicas.
        self.in_sync: InSync | None = None
        self._open_log = open_log
        self._make_flush = make_flush
        self._flush: LogFlush | None = None
        self._clock = clock
        self._written = written
        self._log: PartitionLog | None = None
        self._hw_waiters: list[tuple[int, int, Deferred[None]]] = []
        self._hw_count = 0
        self._watchers: set[Watcher] = set()
        self._replica_watchers: dict[int, ReplicaWatcher] = {}
        if self.is_leader:
            self._lead()

    @property
    def log(self) -> PartitionLog:
        """The log, opened now if it was not; raises ApiError(KAFKA_STORAGE_ERROR) when it cannot be."""
        if self._log is None:
            self._log = self._open_log()
            self._flush = self._make_flush(self._log, self._synced, self._sync_refused)
            if self.is_leader:
                self._begin_epoch(self._log)
                self._advance_high_watermark(self._log)
        return self._log

    @property
    def known_log(self) -> PartitionLog | None:
        """The log, opened now if it was not; None where nothing was ever written, and no file is made. Raises as `log`
        does."""
        log = self._log
        return log if log is not None or not self._written else self.log

    @property
    def has_log(self) -> bool:
        """False while nothing was ever written here and no file of it exists."""
        return self._written or self._log is not None

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    def append(
        self,
        records: bytes | bytearray | memoryview,
        *,
        origin: Origin,
        required_acks: int = 1,
        leader_epoch: int | None = None,
        now_ms: int | None = None,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
        api_version: int = -1,
        checked: CheckedBatch | None = None,
        pace: Pace = UNHURRIED,
    ) -> AppendInfo:
        """Append as leader; waiters and fetchers are woken. Raises ApiError with the reason of a refusal, with
        `required_acks` -1 also NOT_ENOUGH_REPLICAS, and TakesLong where `pace` ends the check of a client's batch: see
        `checking`. now_ms: None reads the clock."""
        if self.leader_id != self.broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} does not lead {self}")
        # A coordinator decided this with the state of an earlier term: it may lack what another leader wrote since.
        if leader_epoch is not None and leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"epoch {leader_epoch} is over, {self.leader_epoch} is")
        if required_acks == -1 and self.in_sync is not None:
            self._check_min_insync_replicas(self.in_sync)
        log = self._log or self.log
        info = log.append_as_leader(
            records,
            origin=origin,
            leader_epoch=self.leader_epoch,
            now_ms=self._clock.now_ms() if now_ms is None else now_ms,
            guard=guard,
            transaction_version=transaction_version,
            api_version=api_version,
            checked=checked,
            pace=pace,
        )
        if not info.duplicate:
            flush = self._flush
            if flush is not None and flush.active:
                flush.appended(info.base_offset)
            self._advance_high_watermark(log)
            if self._replica_watchers:
                self._tell_replicas(at_once=True)
        info.replicated = log.high_watermark > info.last_offset
        return info

    def checking(self, records: Buffer, api_version: int) -> Callable[[Pace], CheckedBatch]:
        """The check of a client's batch, to be done on another thread: it does not look at the log."""
        return partial(
            check_client_batch,
            records,
            now_ms=self._clock.now_ms(),
            config=self.log.config,
            api_version=api_version,
            partition=self,
        )

    def update_config(self, config: LogConfig) -> None:
        """The topic's configuration changed; a log that is not open reads it when it is."""
        if self._log is not None and self._flush is not None:
            self._log.update_config(config)
            self._flush.configure()

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose metadata is of another epoch (KIP-320); -1 means it does not say.

        Raises ApiError FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
        """
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH, f"{self}: leader epoch {current_leader_epoch} < {self.leader_epoch}"
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self}: leader epoch {current_leader_epoch} > {self.leader_epoch}"
        )

    @property
    def min_insync_replicas(self) -> int:
        """The effective minimum, which is never above the replica count."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def _check_min_insync_replicas(self, in_sync: InSync) -> None:
        if len(in_sync.isr) < self.min_insync_replicas:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self} has {len(in_sync.isr)} in-sync replicas")

    def _advance_high_watermark(self, log: PartitionLog) -> None:
        in_sync = self.in_sync
        flush = self._flush
        end = log.log_end_offset if flush is None or flush.held_from is None else flush.held_from
        if in_sync is None:
            # With one replica the high watermark is the log end.
            if log.update_high_watermark(end) and (self._hw_waiters or self._watchers):
                self._wake()
            return
        rules = self.replication
        offset = in_sync.high_watermark(end, self.min_insync_replicas, rules.tick, rules.eligible)
        # Never back: after an election the followers' ends are not known yet (UnifiedLog.maybeIncrementHighWatermark).
        if offset is not None and offset >= log.high_watermark and log.update_high_watermark(offset):
            self._wake()
            self._tell_replicas(at_once=False)

    def when_high_watermark(self, offset: int) -> Deferred[None]:
        """Resolved once the high watermark is at or past `offset`."""
        if (self._log or self.log).high_watermark >= offset:
            return DONE
        waiter: Deferred[None] = Deferred()
        self._hw_count += 1
        heapq.heappush(self._hw_waiters, (offset, self._hw_count, waiter))
        if self._flush is not None:
            self._flush.press()
        return waiter

    def is_synced(self, offset: int) -> bool:
        """Whether no record below `offset` waits for a sync that flush.messages asks for."""
        flush = self._flush
        return flush is None or flush.held_from is None or flush.held_from >= offset

    def when_synced(self, offset: int) -> Deferred[None]:
        """Resolved once `is_synced`; fails with KAFKA_STORAGE_ERROR when the sync is refused."""
        return DONE if self._flush is None else self._flush.when_synced(offset)

    def _synced(self) -> None:
        if self._log is not None and self.is_leader:
            self._advance_high_watermark(self._log)

    def _sync_refused(self, error: ApiError) -> None:
        """Fail the waits for unsynced records: the high watermark will not pass them for now."""
        flush = self._flush
        if flush is None or flush.held_from is None:
            return
        waiters, self._hw_waiters = self._hw_waiters, []
        for waiter in waiters:
            if waiter[0] > flush.held_from:
                waiter[2].fail(error)
            else:
                heapq.heappush(self._hw_waiters, waiter)

    def lose_tail(self, offset: int) -> None:
        """Truncate the log to `offset`, acknowledged records too. Requests that wait for the lost records fail, as at a
        leader that was replaced."""
        truncate_to(self.log, offset, now_ms=self._clock.now_ms())
        error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} was truncated to offset {offset}")
        if self._flush is not None:
            self._flush.truncated(offset, error)
        waiters, self._hw_waiters = self._hw_waiters, []
        for waiter in waiters:
            if waiter[0] > offset:
                waiter[2].fail(error)
            else:
                heapq.heappush(self._hw_waiters, waiter)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` whenever fetchable data, the last stable offset or the role changes."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def notify(self) -> None:
        """Wake all watchers: role, log start or configuration changed."""
        for watcher in tuple(self._watchers):
            watcher()
        self._tell_replicas(at_once=True)

    def _tell_replicas(self, *, at_once: bool) -> None:
        for tell in tuple(self._replica_watchers.values()):
            tell(at_once)

    def _wake(self) -> None:
        if self._hw_waiters:
            high_watermark = self.log.high_watermark
            while self._hw_waiters and self._hw_waiters[0][0] <= high_watermark:
                heapq.heappop(self._hw_waiters)[2].resolve(None)
        for watcher in tuple(self._watchers):
            watcher()

    # -- roles -------------------------------------------------------------------------------------------------------

    def follow(self, image: PartitionImage) -> bool:
        """Apply the controller's decision; True when the leader or its epoch changed."""
        if image.partition_epoch <= self.partition_epoch:
            return False  # known; a confirmed in-sync set can come here before the image that tells of it
        was_leader, epoch = self.is_leader, self.leader_epoch
        self.replicas, self.isr, self.partition_epoch = image.replicas, image.isr, image.partition_epoch
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        elected = self.is_leader and (not was_leader or image.leader_epoch != epoch)
        if elected:
            self._lead()
            if self._log is not None:
                self._begin_epoch(self._log)
        elif self.is_leader:
            self._follow_in_sync(image.isr)
        if was_leader and not self.is_leader:
            self._resign(f"{self} is led by broker {self.leader_id} now")
        elif self.is_leader and self._log is not None:
            self._advance_high_watermark(self._log)
            if self.in_sync is not None:
                self._expand_in_sync(self.in_sync)
        changed = image.leader_epoch != epoch
        if changed:
            self.notify()
        return changed

    def _begin_epoch(self, opened: PartitionLog) -> None:
        try:
            opened.assign_leader_epoch(self.leader_epoch)
        except ApiError as error:  # its disk fails; what else the controller said must be heard all the same
            log.error("%s: the leader epoch cannot be written: %s", self, error)
            opened.offline = error

    def _lead(self) -> None:
        self.in_sync = None
        if len(self.replicas) > 1:
            self.in_sync = InSync(self.broker_id, self.replicas, self.isr, self.replication.tick)

    def _follow_in_sync(self, isr: tuple[int, ...]) -> None:
        if self.in_sync is None:
            self._lead()
            return
        self.in_sync.set_replicas(self.replicas)
        self.in_sync.isr = frozenset(isr)
        self.in_sync.proposed = None
        if len(self.replicas) == 1:
            self.in_sync = None

    def _resign(self, reason: str, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        self.in_sync = None
        waiters, self._hw_waiters = self._hw_waiters, []
        for _, _, waiter in waiters:
            waiter.fail(ApiError(code, reason))

    # -- as leader of followers --------------------------------------------------------------------------------------

    def watch_replica(self, node_id: int, watcher: ReplicaWatcher) -> None:
        """Tell the fetch session of follower `node_id` about appends, role changes and the high watermark."""
        self._replica_watchers[node_id] = watcher

    def unwatch_replica(self, node_id: int, watcher: ReplicaWatcher) -> None:
        if self._replica_watchers.get(node_id) == watcher:
            del self._replica_watchers[node_id]

    def follower_fetched(self, node_id: int, offset: int, broker_epoch: int, log_start_offset: int = -1) -> None:
        """Follower `node_id` has everything from `log_start_offset` up to `offset`: it may join the in-sync set and
        move the high watermark.

        Raises ApiError NOT_LEADER_OR_FOLLOWER when this broker does not lead, UNKNOWN_LEADER_EPOCH when the node is no
        replica (it knows of a reassignment that has not come here yet).
        """
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} does not lead {self}")
        in_sync = self.in_sync
        follower = in_sync.followers.get(node_id) if in_sync is not None else None
        if in_sync is None or follower is None:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {node_id} is no replica of {self}")
        end = self.log_end_offset
        follower.broker_epoch = broker_epoch
        follower.fetch(offset, end, self.replication.tick)
        # In this order, as in Kafka: a follower that is about to join counts (the maximal ISR), so that the high
        # watermark does not pass it.
        self._expand_in_sync(in_sync)
        if self._log is not None:
            self._advance_high_watermark(self._log)
        # The low watermark, for which DeleteRecords waits, is the smallest of these.
        if log_start_offset != follower.log_start_offset:
            follower.log_start_offset = log_start_offset
            for watcher in tuple(self._watchers):
                watcher()

    def review_in_sync(self) -> None:
        """Ask for an in-sync set without followers that fell behind, or with those that can join it by now."""
        in_sync = self.in_sync
        if in_sync is None:
            return
        try:
            end = self.log_end_offset
        except ApiError:
            return  # the log cannot be opened: producers and followers get an error, and the next review tries again
        wanted = in_sync.lagging(end, self.replication.tick)
        if wanted is not None:
            self._propose(in_sync, wanted)
        self._expand_in_sync(in_sync)

    def _expand_in_sync(self, in_sync: InSync) -> None:
        # The leader is in the set and not among the followers: unless the set is larger, one of them is missing.
        if in_sync.proposed is None and len(in_sync.isr) <= len(in_sync.followers):
            wanted = in_sync.joining(self.high_watermark, self._epoch_start(), self.replication.eligible)
            if wanted is not None:
                self._propose(in_sync, wanted)

    def _propose(self, in_sync: InSync, wanted: frozenset[int]) -> None:
        in_sync.proposed = wanted
        self.replication.propose(self, wanted)

    def in_sync_answered(self, isr: tuple[int, ...] | None, partition_epoch: int = -1) -> None:
        """The controller confirmed an in-sync set, or with None refused the one that was asked for."""
        in_sync = self.in_sync
        if in_sync is None:
            return
        in_sync.proposed = None
        if isr is not None and partition_epoch > self.partition_epoch:
            self.isr, self.partition_epoch = isr, partition_epoch
            in_sync.isr = frozenset(isr)
        if self._log is not None:
            self._advance_high_watermark(self._log)
        if isr is not None:
            # A follower that caught up during the change is idle now, as there is nothing new to fetch. One that lagged
            # behind is not ready: the high watermark has just gone past it.
            self._expand_in_sync(in_sync)

    def _epoch_start(self) -> int:
        """Where this leader's epoch begins."""
        if not self.has_log:
            return 0
        entries = self.log.leader_epochs.entries
        return entries[-1][1] if entries and entries[-1][0] == self.leader_epoch else 0

    @property
    def lags_behind_epoch(self) -> bool:
        """Whether the high watermark has not reached the records of this leader's own epoch, so that the end that
        clients may read to is older than what the leader before had confirmed."""
        return self.in_sync is not None and self.log.high_watermark < self._epoch_start()

    # -- as follower -------------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """0 for a log that was never written; it is not created."""
        return self.log.log_end_offset if self.has_log else 0

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset if self.has_log else 0

    @property
    def low_watermark(self) -> int:
        """Up to where the records are gone from every live replica; raises NOT_LEADER_OR_FOLLOWER where this broker
        does not lead."""
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} does not lead {self}")
        start, in_sync = self.log_start_offset, self.in_sync
        return start if in_sync is None else in_sync.low_watermark(start, self.replication.alive)

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark if self.has_log else 0

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last record; -1 when there is none."""
        latest = self.log.leader_epochs.latest_epoch if self.has_log else None
        return -1 if latest is None else latest

    def stands_at(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether these are the limits of the log, which is neither opened nor created: False where it would be."""
        log = self._log
        if log is None:
            return not self._written and high_watermark == log_start_offset == 0
        return log.high_watermark == high_watermark and log.log_start_offset == log_start_offset

    def replicate(self, records: bytes | bytearray | memoryview, *, high_watermark: int, log_start_offset: int) -> None:
        """Append what the leader sent, then take over how far it is committed and where it starts.

        Raises ApiError when the bytes do not fit the end of the log or the disk refuses.
        """
        if not len(records) and not self.has_log and high_watermark <= 0 and log_start_offset <= 0:
            return
        log = self._log or self.log
        if len(records):
            self._begin_where_the_batch_does(log, records)
            base_offset = log.log_end_offset
            log.append_as_follower(records, self.leader_epoch, now_ms=self._clock.now_ms())
            if self._flush is not None and self._flush.active:
                self._flush.appended(base_offset)
        # A new leader's high watermark may be lower than the one its predecessor told us.
        if high_watermark > log.high_watermark:
            log.update_high_watermark(high_watermark)
        log.advance_log_start(min(log_start_offset, log.log_end_offset))

    def _begin_where_the_batch_does(self, log: PartitionLog, records: bytes | bytearray | memoryview) -> None:
        """A leader's log may begin within a batch (DeleteRecords), which it sends whole; an empty log that was to begin
        at that offset then begins where the batch does (Kafka's Partition.appendRecordsToFollowerOrFutureReplica)."""
        if log.log_end_offset == log.log_start_offset:
            for _, first in islice(iter_batches(records), 1):
                if first.base_offset < log.log_end_offset:
                    truncate_fully_and_start_at(log, first.base_offset, now_ms=self._clock.now_ms())

    # -- the end -----------------------------------------------------------------------------------------------------

    def dropped(self) -> None:
        """The topic was deleted: waiting requests fail with UNKNOWN_TOPIC_OR_PARTITION (getPartitionOrError)."""
        self._let_go()
        self._written = False
        self.leader_id = NO_LEADER
        self._resign(f"{self} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.notify()

    def abandon(self) -> None:
        """The broker was killed: close the files without writing."""
        held = self._let_go()
        if held is not None:
            held.abandon()
        self._open_log = self._gone
        self.leader_id = NO_LEADER
        self._resign(f"broker {self.broker_id} is gone")
        self._watchers.clear()
        self._replica_watchers.clear()

    def close(self) -> PartitionLog | None:
        """The log, if it was open, for the caller to close; this partition is done with it."""
        self.in_sync = None  # a pending review of the in-sync set then does nothing
        self._open_log = self._gone
        return self._let_go()

    def _let_go(self) -> PartitionLog | None:
        """The log, which is no longer this partition's; nothing syncs it any more."""
        if self._flush is not None:
            self._flush.stop()
            self._flush = None
        held, self._log = self._log, None
        return held

    def _gone(self) -> PartitionLog:
        # Work that waited for something when the broker ended must not open files again.
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"broker {self.broker_id} is gone")

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"
