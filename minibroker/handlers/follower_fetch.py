"""Fetch as a follower sends it (replica id >= 0, v13+): replication.

The fetch offset shows how far the follower has come, which moves the high watermark and the in-sync set (durability.md
of the facts: ReplicaManager.readFromLog, Partition.fetchRecords and updateFollowerFetchState). Errors per partition:
UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; top level FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH.
"""

from __future__ import annotations

from typing import Any

from minibroker.broker.fetch_sessions import INITIAL_EPOCH, INVALID_SESSION_ID, FetchTarget
from minibroker.broker.replica_sessions import ReplicaSession, TargetKey
from minibroker.kernel.deferred import Deferred, mapped
from minibroker.kernel.waiting import with_timeout
from minibroker.partitions.partition import Partition
from minibroker.requests.context import RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse

_PartitionData = FetchResponse.PartitionData
_Answers = list[tuple[FetchTarget, FetchResponse.PartitionData]]


def handle(ctx: RequestContext, request: FetchRequest) -> FetchResponse | Deferred[FetchResponse]:
    state = request.replica_state
    assert state is not None
    sessions = ctx.broker.replication.sessions
    try:
        if request.session_epoch == INITIAL_EPOCH:
            session = sessions.create(state.replica_id, state.replica_epoch)
        else:
            session = sessions.resume(state.replica_id, request.session_id, request.session_epoch)
    except ApiError as error:
        return FetchResponse(error_code=error.code, session_id=INVALID_SESSION_ID)
    failed: _Answers = []
    session.begin()
    for target, log_start_offset in _targets(ctx, request):
        session.update(target)
        error_of = _progress(ctx, session, target, log_start_offset)
        if error_of is not None:
            failed.append((target, error_of))
    answers = failed + _read_ready(ctx, session, request)
    if request.max_wait_ms <= 0 or any(_urgent(data) for _, data in answers):
        return _respond(session, answers)
    return _wait(ctx, session, request, answers)


def _targets(ctx: RequestContext, request: FetchRequest) -> list[tuple[FetchTarget, int]]:
    """The partitions that the follower fetches, each with the start of the follower's log."""
    targets = []
    for topic in request.topics:
        image = ctx.broker.image.topic_by_id(topic.topic_id)
        name = image.name if image is not None else ""
        targets += [
            (
                FetchTarget(
                    name,
                    topic.topic_id,
                    p.partition,
                    p.fetch_offset,
                    p.partition_max_bytes,
                    p.current_leader_epoch,
                    p.last_fetched_epoch,
                ),
                p.log_start_offset,
            )
            for p in topic.partitions
        ]
    return targets


def _progress(
    ctx: RequestContext, session: ReplicaSession, target: FetchTarget, log_start_offset: int
) -> FetchResponse.PartitionData | None:
    """Note how far the follower has come; an error answer when it may not fetch this partition here."""
    key = (target.topic_id, target.index)
    try:
        if not target.topic:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        partition = ctx.broker.partition(target.topic, target.index)
        session.watch(key, partition)
        partition.check_leader_epoch(target.current_leader_epoch)
        diverging_epoch = diverging(partition, target)
        if diverging_epoch is not None:
            # The logs differ before the fetch offset, so it does not show how far the follower has come.
            session.ready.pop(key, None)
            return _data(partition, target, diverging=diverging_epoch)
        if not partition.log_start_offset <= target.fetch_offset <= partition.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition}: offset {target.fetch_offset}")
        partition.follower_fetched(session.node_id, target.fetch_offset, session.broker_epoch, log_start_offset)
    except ApiError as error:
        session.ready.pop(key, None)
        return refused(target.index, error)
    return None


def diverging(partition: Partition, target: FetchTarget) -> FetchResponse.EpochEndOffset | None:
    """Where the fetcher's last epoch ended in this log, when that is before the offset it asks for (KIP-595)."""
    if target.last_fetched_epoch < 0:
        return None
    epoch, end_offset = (-1, -1)
    if partition.has_log:
        epoch, end_offset = partition.log.end_offset_for_epoch(target.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: last fetched epoch {target.last_fetched_epoch}, latest {partition.latest_epoch}",
        )
    if epoch < target.last_fetched_epoch or end_offset < target.fetch_offset:
        return FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def refused(
    index: int, error: ApiError, aborted: list[FetchResponse.AbortedTransaction] | None = None
) -> FetchResponse.PartitionData:
    """An error answer for one partition."""
    return _PartitionData(
        partition_index=index, error_code=error.code, high_watermark=-1, aborted_transactions=aborted, records=b""
    )


def _data(
    partition: Partition,
    target: FetchTarget,
    *,
    records: Any = b"",
    diverging: FetchResponse.EpochEndOffset | None = None,
) -> FetchResponse.PartitionData:
    return _PartitionData(
        partition_index=target.index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.log.last_stable_offset if partition.has_log else 0,
        log_start_offset=partition.log_start_offset,
        diverging_epoch=diverging,
        aborted_transactions=None,
        records=records,
    )


def _read_ready(ctx: RequestContext, session: ReplicaSession, request: FetchRequest) -> _Answers:
    """Answers for the partitions with news; those beyond the byte limit stay ready."""
    answers: _Answers = []
    bytes_left = request.max_bytes
    keys: list[TargetKey] = list(session.ready)
    session.ready.clear()
    for position, key in enumerate(keys):
        target = session.targets.get(key)
        if target is None:
            continue
        if bytes_left <= 0:
            session.ready.update(dict.fromkeys(keys[position:]))
            session.wake()
            break
        data = _read_one(ctx, session, target, min(bytes_left, target.max_bytes), first=not answers)
        if data is not None:
            answers.append((target, data))
            bytes_left -= len(data.records or b"")
    return answers


def _read_one(
    ctx: RequestContext, session: ReplicaSession, target: FetchTarget, max_bytes: int, *, first: bool
) -> FetchResponse.PartitionData | None:
    try:
        partition = ctx.broker.partition(target.topic, target.index)
        partition.check_leader_epoch(target.current_leader_epoch)
        records: Any = b""
        if target.fetch_offset < partition.log_end_offset:
            log = partition.log
            records = log.read(target.fetch_offset, max_bytes, bound=log.log_end_offset, min_one_message=first).records
            if not len(records):
                session.ready[(target.topic_id, target.index)] = None
        data = _data(partition, target, records=records)
    except ApiError as error:
        return refused(target.index, error)
    if (
        len(records)
        or data.high_watermark != target.known_high_watermark
        or data.log_start_offset != target.known_log_start
    ):
        target.known_high_watermark = data.high_watermark
        target.known_log_start = data.log_start_offset
        return data
    return None


def _urgent(data: FetchResponse.PartitionData) -> bool:
    return data.error_code != 0 or data.diverging_epoch is not None or bool(len(data.records or b""))


def _wait(
    ctx: RequestContext, session: ReplicaSession, request: FetchRequest, answers: _Answers
) -> Deferred[FetchResponse]:
    def read(_: bool) -> FetchResponse:
        session.begin()
        later = _read_ready(ctx, session, request)
        newer = {id(target) for target, _ in later}
        return _respond(session, [entry for entry in answers if id(entry[0]) not in newer] + later)

    return mapped(with_timeout(ctx.broker.timers, session.news(), request.max_wait_ms), read)


def _respond(session: ReplicaSession, answers: _Answers) -> FetchResponse:
    topics: dict[bytes, list[FetchResponse.PartitionData]] = {}
    for target, data in answers:
        topics.setdefault(target.topic_id, []).append(data)
    return FetchResponse(
        session_id=session.id,
        responses=[
            FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )
