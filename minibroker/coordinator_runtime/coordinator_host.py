"""Runs a coordinator over the partitions of its internal topic: load, append, replay, answer.

One shard per partition that this broker leads. The host decodes what the log holds when it becomes leader, appends what
a `CoordinatorResult` asks for, waits until the high watermark has passed it, and has the shard replay it; the effects
wait in its `EffectQueue`. As Kafka's TransactionStateManager and CoordinatorRuntime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from minibroker.coordinator_runtime.effect_queue import EffectQueue
from minibroker.coordinators.hashing import partition_for
from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult, Effect, Pending
from minibroker.kernel.clock import Clock, Timers
from minibroker.kernel.deferred import Deferred, failed, resolved, spawn
from minibroker.kernel.logs import get_logger
from minibroker.kernel.waiting import sleep, within
from minibroker.partitions.partition import Partition
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import (
    MARKERS,
    ControlType,
    decode_records,
    iter_batches,
    parse_control,
    parse_header,
)
from minibroker_storage.origin import Origin

R = TypeVar("R")

log = get_logger(__name__)

LOAD_CHUNK_BYTES = 128 * 1024
"""Bytes replayed in one turn of the loop; a larger partition needs several and answers 14 until it is loaded."""
_MAX_RECORDS_BYTES = 1 << 30


class Shard(Protocol):
    """State of one partition of an internal topic."""

    def decode(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """Typed record, or None for a type or version this code does not know (skipped with a warning)."""

    def replay(
        self, record: CoordinatorRecord, *, offset: int, producer_id: int, producer_epoch: int, transactional: bool
    ) -> None:
        """Apply a record, durable or not yet (`replay_on_append`): the only way from the log into the state."""

    def replay_marker(self, *, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Apply a transaction marker found in the log."""

    def note(self, pending: Pending) -> None:
        """What is about to be appended: volatile bookkeeping, ended by `replay` or `refused`."""

    def refused(self, pending: Pending, code: ErrorCode) -> None:
        """The append of what was noted was refused, with the code that a client gets."""

    def loaded(self) -> Iterable[Effect]:
        """The whole log was replayed; requests may be served. Returns what is still to be done."""

    def resigned(self) -> None:
        """This broker no longer leads the partition: cancel timers, answer parked requests."""


S = TypeVar("S", bound=Shard)


APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The error codes that every coordinator answers with when an append to its log is refused."""


def append_error(code: ErrorCode) -> ErrorCode:
    """The transaction coordinator's error code when its append is refused (Kafka's appendTransactionToLog)."""
    return APPEND_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


class _Hosted(Generic[S]):
    __slots__ = ("leader_epoch", "loading", "partition", "shard")

    def __init__(self, shard: S, partition: Partition, leader_epoch: int) -> None:
        self.shard = shard
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.loading = True


class CoordinatorHost(Generic[S]):
    """All shards of one coordinator on one broker.

    partition_count: the topic's number of partitions, or the number that it will be created with; a key's partition
        depends on it.
    make_shard: called with partition index and leader epoch, builds an empty shard.
    replay_on_append: apply records when they are written and hold only the answer (the group coordinator), else apply
        them once they are below the high watermark (the transaction coordinator).
    base_sequence: what each batch has, with and without a producer id.
    say_refused: logs that a partition could not be written.
    write_timeout_ms: how long an append may wait for its replicas (real time); then the answer has the error, and the
        records stay in the log.
    map_error: the error code for a client when the log refuses an append.
    perform: called with a shard and an effect, has the effect.
    load_chunk_bytes: bytes that one turn of a load reads.
    """

    def __init__(
        self,
        topic: str,
        partition_count: Callable[[], int],
        make_shard: Callable[[int, int], S],
        clock: Clock,
        timers: Timers,
        perform: Callable[[S, Effect], None],
        *,
        replay_on_append: bool,
        base_sequence: int,
        write_timeout_ms: Callable[[CoordinatorResult[Any]], int],
        say_refused: Callable[[object, ApiError], None],
        map_error: Callable[[ErrorCode], ErrorCode] = append_error,
        load_chunk_bytes: int = LOAD_CHUNK_BYTES,
    ) -> None:
        self.topic = topic
        self._partition_count = partition_count
        self._make_shard = make_shard
        self._clock = clock
        self._timers = timers
        self._replay_on_append = replay_on_append
        self._base_sequence = base_sequence
        self._write_timeout_ms = write_timeout_ms
        self._say_refused = say_refused
        self._map_error = map_error
        self.load_chunk_bytes = load_chunk_bytes
        self.effects = EffectQueue(timers, perform)
        self._hosted: dict[int, _Hosted[S]] = {}

    # -- which shard -----------------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        return self._partition_count()

    def partition_for(self, key: str) -> int:
        return partition_for(key, self._partition_count())

    def shard_for(self, key: str) -> tuple[int, S]:
        """(partition index, shard) that owns `key`.

        Raises ApiError: NOT_COORDINATOR when another broker leads it, COORDINATOR_LOAD_IN_PROGRESS while it is read.
        """
        index = partition_for(key, self._partition_count())
        return index, self.shard(index)

    def shard(self, index: int) -> S:
        """The shard of one partition; raises as `shard_for`."""
        hosted = self._hosted.get(index)
        if hosted is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is not led by this broker")
        if hosted.loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{index} is being loaded")
        return hosted.shard

    def shards(self) -> list[tuple[int, S]]:
        """Every loaded shard with its partition index."""
        return [(i, h.shard) for i, h in sorted(self._hosted.items()) if not h.loading]

    @property
    def loading(self) -> bool:
        return any(h.loading for h in self._hosted.values())

    @property
    def never_written(self) -> bool:
        """Whether the log of no partition that this broker leads has a record."""
        return not any(h.partition.has_log for h in self._hosted.values())

    # -- leadership ------------------------------------------------------------------------------------------------

    def elected(self, partition: Partition, leader_epoch: int) -> None:
        """This broker now leads `partition`: read it from its start to its end and serve it."""
        self.resigned(partition.index)
        hosted = _Hosted(self._make_shard(partition.index, leader_epoch), partition, leader_epoch)
        self._hosted[partition.index] = hosted
        spawn(self._load(hosted)).then(lambda done: self._loaded(hosted, done))

    def _loaded(self, hosted: _Hosted[S], done: Deferred[None]) -> None:
        try:
            done.result()
        except Exception:
            # As in Kafka, a partition that cannot be read stays in loading until another broker leads it.
            log.exception("%s cannot be loaded", hosted.partition)
            return
        if self._hosted.get(hosted.partition.index) is hosted:
            hosted.loading = False
            self.effects.add(hosted.shard, hosted.shard.loaded())

    def resigned(self, index: int) -> None:
        hosted = self._hosted.pop(index, None)
        if hosted is not None:
            self.effects.drop(hosted.shard)
            hosted.shard.resigned()

    def close(self) -> None:
        for index in list(self._hosted):
            self.resigned(index)

    async def _load(self, hosted: _Hosted[S]) -> None:
        partition = hosted.partition
        if not partition.has_log:  # never written: nothing to read, and no reason to create its files
            return
        offset = partition.log.log_start_offset
        end = partition.log.log_end_offset
        while offset < end:
            chunk = partition.log.read(offset, self.load_chunk_bytes, bound=end, min_one_message=True).records
            after = offset
            for position, header in iter_batches(chunk):
                if header.next_offset > offset:
                    self._replay_batch(hosted.shard, chunk, position)
                after = max(after, header.next_offset)
            if after == offset:
                break
            offset = after
            if offset < end:
                await sleep(self._timers, 0)
                if self._hosted.get(partition.index) is not hosted:
                    return

    def _replay_batch(self, shard: S, chunk: bytes | bytearray | memoryview, position: int) -> None:
        header = parse_header(chunk, position)
        records = decode_records(chunk, position, header, max_bytes=_MAX_RECORDS_BYTES)
        if header.is_control:
            for record in records:
                control = parse_control(record)
                if control.type in MARKERS:
                    shard.replay_marker(
                        producer_id=header.producer_id,
                        producer_epoch=header.producer_epoch,
                        committed=control.type == ControlType.COMMIT,
                    )
            return
        for record in records:
            if record.key is None:
                continue
            typed = shard.decode(bytes(record.key), None if record.value is None else bytes(record.value))
            if typed is None:
                log.warning("skipped a record of unknown type or version in %s at offset %d", self.topic, record.offset)
                continue
            shard.replay(
                typed,
                offset=record.offset,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                transactional=header.is_transactional,
            )

    # -- results ---------------------------------------------------------------------------------------------------

    def execute(self, index: int, result: CoordinatorResult[R], now_ms: int | None = None) -> Deferred[R]:
        """Carry out a decision of the shard of partition `index`; resolves to the response that may then be sent.

        now_ms: when it was decided; None reads the clock.
        """
        hosted = self._hosted.get(index)
        if not result.records:
            if hosted is not None:
                self.effects.add(hosted.shard, result.effects)
            return resolved(result.response)
        if hosted is None or hosted.loading:
            return self._refusal(result, ErrorCode.NOT_COORDINATOR)
        for pending in result.pending:
            hosted.shard.note(pending)
        if now_ms is None:
            now_ms = self._clock.now_ms()
        try:
            info = hosted.partition.append(
                result.batch(now_ms, self._base_sequence),
                origin=Origin.COORDINATOR,
                # The transaction coordinator writes with acks=all, the group coordinator waits for replicas itself.
                required_acks=1 if self._replay_on_append else -1,
                leader_epoch=hosted.leader_epoch,
                now_ms=now_ms,
                guard=result.guard,
            )
        except ApiError as error:
            self._say_refused(hosted.partition, error)
            return self._give_up(hosted, result, self._map_error(error.code))
        if self._replay_on_append:
            self._replay(hosted, result, info.base_offset)
        if result.on_append:
            self.effects.add(hosted.shard, result.on_append)
        if info.replicated:
            return self._replay_and_answer(hosted, result, info.base_offset)
        answer: Deferred[R] = Deferred()
        late = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{hosted.partition}: not all in-sync replicas have it in time")
        replicated = hosted.partition.when_high_watermark(info.last_offset + 1)
        within(self._timers, replicated, self._write_timeout_ms(result), late).then(
            lambda done: self._after_wait(hosted, result, info.base_offset, done).then(answer.take)
        )
        return answer

    def _after_wait(
        self, hosted: _Hosted[S], result: CoordinatorResult[R], base_offset: int, durable: Deferred[None]
    ) -> Deferred[R]:
        """The records are durable, or the wait for that has failed."""
        resigned = self._hosted.get(hosted.partition.index) is not hosted
        try:
            durable.result()
        except ApiError as error:  # not synced or too late, the partition was dropped, or is led elsewhere now
            if not resigned and error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._say_refused(hosted.partition, error)
            # The group coordinator waits for replicas itself, and ends its waits when it resigns (CoordinatorRuntime).
            ended = self._replay_on_append and resigned
            return self._give_up(hosted, result, ErrorCode.NOT_COORDINATOR if ended else self._map_error(error.code))
        if resigned:
            return self._give_up(hosted, result, ErrorCode.NOT_COORDINATOR)
        return self._replay_and_answer(hosted, result, base_offset)

    def _replay_and_answer(self, hosted: _Hosted[S], result: CoordinatorResult[R], base_offset: int) -> Deferred[R]:
        """The records are durable: the state and the caller may have them, then the effects are due."""
        if not self._replay_on_append:
            self._replay(hosted, result, base_offset)
        if result.effects:
            self.effects.add(hosted.shard, result.effects)
        return resolved(result.response)

    def _give_up(self, hosted: _Hosted[S], result: CoordinatorResult[R], code: ErrorCode) -> Deferred[R]:
        for pending in result.pending:
            hosted.shard.refused(pending, code)
        return self._refusal(result, code)

    def _refusal(self, result: CoordinatorResult[R], code: ErrorCode) -> Deferred[R]:
        if result.refused is not None:
            return resolved(result.refused(code))
        return failed(ApiError(code, f"the append to {self.topic} was refused"))

    def _replay(self, hosted: _Hosted[S], result: CoordinatorResult[R], base_offset: int) -> None:
        for delta, record in enumerate(result.records):
            hosted.shard.replay(
                record,
                offset=base_offset + delta,
                producer_id=result.producer_id,
                producer_epoch=result.producer_epoch,
                transactional=result.transactional,
            )
