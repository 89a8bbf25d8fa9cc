"""The group coordinator of one broker: shards on their logs, session timers, and sweeps on the broker clock."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.config.settings import Settings
from minibroker.coordinator_runtime.coordinator_host import APPEND_ERRORS, CoordinatorHost
from minibroker.coordinator_runtime.ports import CoordinatingBroker
from minibroker.coordinator_runtime.transaction_verifier import TransactionVerifier
from minibroker.coordinator_runtime.transactional_write import Write
from minibroker.coordinator_runtime.unused_lookups import UnusedLookups
from minibroker.coordinators.groups.commits import Commit, Committed
from minibroker.coordinators.groups.consumer.heartbeat import validate
from minibroker.coordinators.groups.environment import ClientInfo, Environment, GroupConfig, TimerKey
from minibroker.coordinators.groups.shard import GroupShard
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.clock import TimerHandle, Timers
from minibroker.kernel.deferred import Deferred, spawn
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker.partitions.partition import Partition
from minibroker.releases.semantics import TXN_OFFSET_COMMIT, Semantics
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import NO_SEQUENCE

if TYPE_CHECKING:
    from minibroker_storage.producer_verification import VerificationGuard


IMPLICIT_ADD_VERSION: Final = 5
"""First TxnOffsetCommit version that adds the offsets partition to the transaction by itself (KIP-890)."""
_TOMBSTONES_PER_BATCH: Final = 500
_MINUTE_MS: Final = 60_000


class _Armed(NamedTuple):
    handle: TimerHandle
    left_ms: float
    fire: Callable[[], None]


class ShardTimers:
    """Timers of one shard, in real time; what an operation decides is made durable at once."""

    def __init__(self, timers: Timers, execute: Callable[[CoordinatorResult[None]], None]) -> None:
        self._timers = timers
        self._execute = execute
        self._armed: dict[TimerKey, _Armed] = {}
        self._closed = False

    def schedule(self, key: TimerKey, delay_ms: float, operation: Callable[[], CoordinatorResult[None]]) -> None:
        """Arm a timer. Does nothing after `close`, when results of another thread may still arrive."""
        self.cancel(key)
        if self._closed:
            return

        def fire() -> None:
            del self._armed[key]
            self._execute(operation())

        self._armed[key] = _Armed(self._timers.call_later(delay_ms, fire), delay_ms, fire)

    def schedule_if_absent(
        self, key: TimerKey, delay_ms: float, operation: Callable[[], CoordinatorResult[None]]
    ) -> None:
        """As `schedule`, but a wait under way stays as it is."""
        if key not in self._armed:
            self.schedule(key, delay_ms, operation)

    def cancel(self, key: TimerKey) -> None:
        armed = self._armed.pop(key, None)
        if armed is not None:
            armed.handle.cancel()

    def pass_time(self, ms: float) -> None:
        """Act as if `ms` passed at once without a request of any member. Time that passed before this call does not
        count."""
        for key, armed in sorted(self._armed.items(), key=lambda item: item[1].left_ms):
            if self._armed.get(key) is not armed:
                continue  # another timer has cancelled it, or armed it again
            armed.handle.cancel()
            left_ms = armed.left_ms - ms
            if left_ms <= 0:
                armed.fire()
            else:
                self._armed[key] = _Armed(self._timers.call_later(left_ms, armed.fire), left_ms, armed.fire)

    def close(self) -> None:
        self._closed = True
        for armed in self._armed.values():
            armed.handle.cancel()
        self._armed.clear()


_SMALLEST_COMMIT_BYTES = 40
"""Bytes of one offset in the log, with the shortest possible names."""


_GROUP_ERRORS = {
    **APPEND_ERRORS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def group_error(code: ErrorCode) -> ErrorCode:
    """The group coordinator's error code when its append is refused (Kafka's CoordinatorOperationExceptionHelper)."""
    return _GROUP_ERRORS.get(code, code)


class GroupService:
    """Every method that takes a group id raises ApiError NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS, beside what
    the decision itself raises."""

    def __init__(self, broker: CoordinatingBroker, verifier: TransactionVerifier) -> None:
        self._broker = broker
        self._verifier = verifier
        self._settings: Settings | None = None
        self._config = GroupConfig()
        self.host: CoordinatorHost[GroupShard] = CoordinatorHost(
            CONSUMER_OFFSETS_TOPIC,
            lambda: broker.partition_count(CONSUMER_OFFSETS_TOPIC, "offsets.topic.num.partitions"),
            self._make_shard,
            broker.clock,
            broker.timers,
            GroupShard.perform,
            replay_on_append=True,
            base_sequence=0,  # as CoordinatorRuntime writes them
            write_timeout_ms=lambda _: broker.settings.get_int("offsets.commit.timeout.ms"),
            say_refused=broker.refused_appends.say,
            map_error=group_error,
        )
        self.effects = self.host.effects
        self._lookups = UnusedLookups()
        #: Partition of ``__consumer_offsets`` that holds a group, and its shard.
        self.partition_for, self.shard_for = self.host.partition_for, self.host.shard_for
        self._timers: dict[int, ShardTimers] = {}
        #: By group, the last of the heartbeats that are decided on another thread.
        self._deciding: dict[str, Deferred[m.ConsumerGroupHeartbeatResponse]] = {}
        self._sweep: TimerHandle | None = None

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sweep for expired offsets."""
        interval_ms = self._broker.settings.get_int("offsets.retention.check.interval.ms")
        self._sweep = self._broker.clock.call_later(interval_ms, self._swept)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for timers in self._timers.values():
            timers.close()
        self.host.close()

    def elected(self, partition: Partition, epoch: int) -> None:
        """This broker leads `partition` of ``__consumer_offsets`` now."""
        self.host.elected(partition, epoch)

    def resigned(self, index: int) -> None:
        timers = self._timers.pop(index, None)
        if timers is not None:
            timers.close()
        self.host.resigned(index)

    def pass_time(self, ms: float) -> None:
        """End the sessions and rebalance timeouts of up to `ms`, as if no member had sent a request."""
        for timers in list(self._timers.values()):
            timers.pass_time(ms)

    def reconfigure(self) -> None:
        """Settings are read when they are needed."""

    def _make_shard(self, index: int, epoch: int) -> GroupShard:
        before = self._timers.get(index)
        if before is not None:
            before.close()
        timers = ShardTimers(self._broker.timers, lambda outcome: self._execute_quietly(index, outcome))
        self._timers[index] = timers
        return GroupShard(
            Environment(
                config=self.config,
                clock=self._broker.clock,
                timers=timers,
                new_uuid=self._new_uuid,
                new_id=self._new_id,
                image=lambda: self._broker.image,
                aside=lambda work: self._broker.executor.compute(lambda _: work()),
            )
        )

    def config(self) -> GroupConfig:
        """The settings as they are now."""
        settings = self._broker.settings
        if settings is not self._settings:
            self._config, self._settings = _read_config(settings, self._broker.semantics), settings
        return self._config

    def _new_uuid(self) -> str:
        bits = self._broker.random.getrandbits(128) & ~(0xF000 << 64 | 0xC000 << 48) | 0x4000 << 64 | 0x8000 << 48
        digits = f"{bits:032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _new_id(self) -> str:
        """A random id that, as in Kafka, never looks like an option on a command line."""
        while (text := base64.urlsafe_b64encode(self._broker.random.randbytes(16)).rstrip(b"=").decode()).startswith(
            "-"
        ):
            pass
        return text

    # -- classic members -------------------------------------------------------------------------------------------

    def join(self, client: ClientInfo, request: m.JoinGroupRequest) -> Deferred[m.JoinGroupResponse]:
        index, shard = self.shard_for(request.group_id)
        answer: Deferred[m.JoinGroupResponse] = Deferred()
        self._execute_quietly(index, shard.join(client, request, answer))
        return answer

    def sync(self, request: m.SyncGroupRequest) -> Deferred[m.SyncGroupResponse]:
        index, shard = self.shard_for(request.group_id)
        answer: Deferred[m.SyncGroupResponse] = Deferred()
        self._execute_quietly(index, shard.sync(request, answer))
        return answer

    def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
        return self.shard_for(request.group_id)[1].heartbeat(request)

    def leave(self, request: m.LeaveGroupRequest) -> Deferred[m.LeaveGroupResponse]:
        index, shard = self.shard_for(request.group_id)
        return self.host.execute(index, shard.leave(request))

    # -- KIP-848 members -------------------------------------------------------------------------------------------

    def consumer_heartbeat(
        self, client: ClientInfo, request: m.ConsumerGroupHeartbeatRequest
    ) -> Deferred[m.ConsumerGroupHeartbeatResponse]:
        """Decided at once, or on another thread if many partitions must be assigned, for one member of a group at a
        time."""
        validate(request, client.api_version, self.config().consumer_assignors)
        index, shard = self.shard_for(request.group_id)
        if request.group_id not in self._deciding and not shard.consumers.takes_long(request):
            return self.host.execute(index, shard.consumers.heartbeat(client, request))
        before = self._deciding.get(request.group_id)
        mine = self._deciding[request.group_id] = spawn(self._decide_aside(before, client, request))
        mine.then(partial(self._aside_over, request.group_id))
        return mine

    async def _decide_aside(
        self,
        before: Deferred[m.ConsumerGroupHeartbeatResponse] | None,
        client: ClientInfo,
        request: m.ConsumerGroupHeartbeatRequest,
    ) -> m.ConsumerGroupHeartbeatResponse:
        if before is not None:
            with suppress(Exception):  # which is that request's
                await before
        while True:
            index, shard = self.shard_for(request.group_id)
            if not shard.consumers.takes_long(request):
                return await self.host.execute(index, shard.consumers.heartbeat(client, request))
            decide, accept = shard.consumers.aside(client, request)
            outcome = await self._broker.executor.compute(lambda _: decide())  # noqa: B023
            if self.shard_for(request.group_id)[1] is shard:
                accepted = accept(outcome)
                if accepted is not None:
                    return await self.host.execute(index, accepted)

    def _aside_over(self, group_id: str, done: Deferred[m.ConsumerGroupHeartbeatResponse]) -> None:
        if self._deciding.get(group_id) is done:
            del self._deciding[group_id]

    # -- offsets ---------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> Deferred[Committed]:
        index, shard = self.shard_for(commit.group_id)
        self._check_fits(commit, index)
        return self.host.execute(index, shard.commit(commit))

    def _check_fits(self, commit: Commit, index: int) -> None:
        """The offsets of one commit are one batch. A commit that is too large for the log is refused with the log's
        error before the batch is built, which would take one long turn of the loop. Raises ApiError."""
        most = self._broker.partition(CONSUMER_OFFSETS_TOPIC, index).log.config.max_message_bytes
        count = sum(len(topic.partitions) for topic in commit.topics)
        if count * _SMALLEST_COMMIT_BYTES > most:
            code = group_error(ErrorCode.RECORD_LIST_TOO_LARGE)
            raise ApiError(code, f"{count} offsets do not go into a batch of {most} bytes (max.message.bytes)")

    def commit_in_transaction(self, commit: Commit, transactional_id: str) -> Deferred[Committed]:
        """Commit as part of a transaction, which the transaction coordinator must know of (KIP-890).

        Raises ApiError, beside the group's own refusals: INVALID_TXN_STATE, TRANSACTION_ABORTABLE,
        INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS.
        """
        index, _ = self.shard_for(commit.group_id)
        self._check_fits(commit, index)
        return spawn(self._commit_after_verifying(commit, transactional_id, index))

    async def _commit_after_verifying(self, commit: Commit, transactional_id: str, index: int) -> Committed:
        try:
            return await self._commit_verified(commit, transactional_id, index)
        except ApiError as error:
            if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            write = _write_of(commit, transactional_id, index)
            code = await self._verifier.code_of_timed_out(write, TXN_OFFSET_COMMIT, commit.api_version)
            raise error if code is None else self._verifier.timed_out(code, error) from None

    async def _commit_verified(self, commit: Commit, transactional_id: str, index: int) -> Committed:
        guard: VerificationGuard | None = None
        try:
            producer_state = self._broker.partition(CONSUMER_OFFSETS_TOPIC, index).log.producers
            adds = commit.api_version >= IMPLICIT_ADD_VERSION
            if adds or producer_state.rules.verification_enabled:
                guard = producer_state.start_verification(
                    commit.producer_id,
                    commit.producer_epoch,
                    NO_SEQUENCE,
                    adds,
                    self._broker.clock.now_ms(),
                )
        except ApiError as error:
            raise ApiError(group_error(error.code), error.message) from None
        try:
            if guard is not None:
                write = _write_of(commit, transactional_id, index)
                code = await self._verifier.verify_offset_commit(write, commit.api_version)
                if code != ErrorCode.NONE:
                    refused = f"the transaction coordinator refused {transactional_id}: {code.name}"
                    raise ApiError(group_error(code), refused)
            _, shard = self.shard_for(commit.group_id)  # it may have moved while the coordinator was asked
            outcome = shard.commit(commit)
            outcome.guard = guard
            written = self.host.execute(index, outcome)
        finally:
            if guard is not None:
                producer_state.end_verification(commit.producer_id, commit.producer_epoch, NO_SEQUENCE, guard)
        return await written

    def delete_offsets(
        self, group_id: str, topics: Iterable[tuple[str, Sequence[int]]]
    ) -> Deferred[list[list[tuple[int, ErrorCode]]]]:
        index, shard = self.shard_for(group_id)
        return self.host.execute(index, shard.decisions.delete_offsets(group_id, topics))

    def delete_group(self, group_id: str) -> Deferred[None]:
        """Raises ApiError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP and the coordinator's."""
        index, shard = self.shard_for(group_id)
        return self.host.execute(index, shard.delete_group(group_id))

    def complete_transaction(
        self, partition_index: int, producer_id: int, producer_epoch: int, committed: bool
    ) -> None:
        """A marker was written to ``__consumer_offsets``: pending offsets become the groups' offsets, or vanish."""
        self.host.shard(partition_index).replay_marker(
            producer_id=producer_id, producer_epoch=producer_epoch, committed=committed
        )

    def topic_deleted(self, name: str) -> None:
        """Forget the offsets of a deleted topic."""
        for index, shard in self.host.shards():
            self._bury(index, shard.decisions.topic_deleted(name))

    def _swept(self) -> None:
        """Forget offsets that outlived their retention, and groups that have nothing left."""
        try:
            for index, shard in self.host.shards():
                self._bury(index, shard.decisions.expire())
        finally:
            self.start()

    def _bury(self, index: int, outcome: CoordinatorResult[None]) -> None:
        """Write tombstones in batches that fit any message size limit."""
        for first in range(0, len(outcome.records), _TOMBSTONES_PER_BATCH):
            self._execute_quietly(
                index, CoordinatorResult(None, outcome.records[first : first + _TOMBSTONES_PER_BATCH])
            )

    def looked_up(self, client_id: str | None, group: str) -> None:
        """A client asked for the coordinator of a group, which is this broker."""
        if not self._exists(group):
            self._lookups.add(client_id, group)

    def unused_lookups(self) -> list[tuple[str | None, str]]:
        """Client id and group of lookups that no member, and no offset, has followed."""
        return [(client_id, group) for client_id, group in self._lookups if not self._exists(group)]

    def _exists(self, group: str) -> bool:
        try:
            _, shard = self.shard_for(group)
        except ApiError:  # it is being loaded, or has moved
            return True
        return group in shard.groups or bool(shard.offsets.group(group))

    # -- making it durable -----------------------------------------------------------------------------------------

    def _execute_quietly(self, index: int, outcome: CoordinatorResult[None]) -> None:
        """For outcomes whose answers are sent elsewhere: after a refused append all waiting members already have an
        error."""
        self.host.execute(index, outcome).then(_ignore_refusal)


def _write_of(commit: Commit, transactional_id: str, index: int) -> Write:
    partition = (CONSUMER_OFFSETS_TOPIC, index)
    return Write(transactional_id, commit.producer_id, commit.producer_epoch, [partition])


def _ignore_refusal(done: Deferred[None]) -> None:
    """`CoordinatorHost` has logged it."""
    with suppress(ApiError):
        done.result()


def _read_config(settings: Settings, semantics: Semantics) -> GroupConfig:
    return GroupConfig(
        initial_rebalance_delay_ms=settings.get_int("group.initial.rebalance.delay.ms"),
        min_session_timeout_ms=settings.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=settings.get_int("group.max.session.timeout.ms"),
        max_size=settings.get_int("group.max.size"),
        offset_metadata_max_chars=settings.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=settings.get_int("offsets.retention.minutes") * _MINUTE_MS,
        consumer_session_timeout_ms=settings.get_int("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=settings.get_int("group.consumer.heartbeat.interval.ms"),
        consumer_max_size=settings.get_int("group.consumer.max.size"),
        consumer_assignors=tuple(settings.get_list("group.consumer.assignors")),
        consumer_migration_policy=settings.get_string("group.consumer.migration.policy"),
        consumer_assignment_interval_ms=settings.get_int("group.consumer.assignment.interval.ms"),
        consumer_regex_refresh_interval_ms=settings.get_int("group.consumer.regex.refresh.interval.ms"),
        consumer_enabled="consumer" in settings.get_list("group.coordinator.rebalance.protocols"),
        unreadable_subscription=ErrorCode[semantics.unreadable_subscription],
        assignor_bumps_epoch=semantics.assignor_bumps_epoch,
        empty_group_is_assigned=semantics.empty_group_is_assigned,
    )
