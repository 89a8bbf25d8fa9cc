"""Produce (key 0): append record batches to partitions.

Versions 3-13 (0-2 are advertised only, KAFKA-18659). v3 transactional id and batches of magic 2; v5 log start offset;
v8 record errors; v10 current leader; v11 TRANSACTION_ABORTABLE; v12 implicit AddPartitionsToTxn (KIP-890); v13 topic
ids. Kafka: KafkaApis.handleProduceRequest, ReplicaManager.handleProduceAppend.

Errors per partition: those of `PartitionLog.append_as_leader`, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
NOT_LEADER_OR_FOLLOWER, INVALID_TOPIC_EXCEPTION (internal topic), INVALID_REQUIRED_ACKS, NOT_ENOUGH_REPLICAS,
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRODUCER_ID_MAPPING, REQUEST_TIMED_OUT, those of the verifier.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from minibroker.coordinator_runtime.transactional_write import Write
from minibroker.coordinator_runtime.unknown_producer_check import refusal_of_unknown
from minibroker.kernel.deferred import Deferred, mapped, started, when_all_done
from minibroker.kernel.turns import STEPS_AT_ONCE
from minibroker.kernel.waiting import sleep, with_timeout
from minibroker.metadata.image import INTERNAL_TOPICS
from minibroker.partitions.partition import Partition
from minibroker.releases.features import TRANSACTION_VERSION
from minibroker.releases.semantics import PRODUCE
from minibroker.requests.answers import follow
from minibroker.requests.context import Answer, CloseConnection, RequestContext
from minibroker.requests.slices import in_slices
from minibroker.requests.transactional_batches import is_transactional
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import UNHURRIED, Brief, Pace, TakesLong
from minibroker_protocol.records.batch import LOG_OVERHEAD
from minibroker_storage.log import AppendInfo
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import VerificationGuard
from minibroker_storage.validator import CheckedBatch, client_batch

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker


_CURRENT_LEADER_VERSION = 10
IMPLICIT_ADD_VERSION = 12
ADMIN_CLIENT_ID = "__admin_client"

# Refusals that come before the log was reached, or that say nothing about it, carry no log start offset
# (ReplicaManager.appendRecordsToLeader).
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

_OF_THE_REQUEST = frozenset(
    {ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNKNOWN_SERVER_ERROR}
)
"""Codes of `client_batch` that the log gives for other mistakes too."""

_PartitionResponse = ProduceResponse.PartitionProduceResponse
_producer_fields = struct.Struct(">qhi")  # producer id, epoch, base sequence, at byte 43 of a batch
_PRODUCER_FIELDS_AT = 43
_STEPS_PER_APPEND = 64
_STEPS_PER_OPEN = 1024
"""The cost of an append without the walk over its records, in records; the second if it creates or opens the log."""


class _Entry:
    """One partition of the request and what came of it."""

    __slots__ = (
        "error", "guard", "index", "info", "partition", "records", "replicated", "topic", "topic_id",
        "verification_over",
    )  # fmt: skip

    def __init__(self, topic: str, topic_id: bytes, index: int, records: memoryview | None) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.records = records
        self.partition: Partition | None = None
        self.guard: VerificationGuard | None = None
        self.info: AppendInfo | None = None
        self.replicated: Deferred[None] | None = None
        self.error: ApiError | None = None
        self.verification_over: Callable[[], None] | None = None

    @property
    def key(self) -> _Key:
        return (self.topic, self.topic_id, self.index)


def handle(ctx: RequestContext, request: ProduceRequest) -> Answer:
    """Answers at once where possible: one replica, no verification needed."""
    topics = request.topic_data
    if len(topics) <= STEPS_AT_ONCE:
        return _produce(ctx, request, _entries(ctx, topics))
    entries: list[_Entry] = []
    return in_slices(
        ctx, topics, lambda few: entries.extend(_entries(ctx, few)), lambda: _produce(ctx, request, entries)
    )


def _produce(ctx: RequestContext, request: ProduceRequest, entries: list[_Entry]) -> Answer:
    if len(entries) > 1:
        entries, refused = _each_once(entries, ctx.api_version)
        if refused:
            return _produce_beside_refused(ctx, request, entries, refused)
    transactional = []
    for entry in entries:  # as a loop: a comprehension is one call more, before Python 3.12
        if is_transactional(entry.records):
            transactional.append(entry)  # noqa: PERF401
    if transactional:
        if request.transactional_id is None:
            refusal = ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional batches without a transactional id"
            )
            for entry in entries:
                entry.error, entry.partition = refusal, None
            return _respond(ctx, request, entries)
        return started(_produce_verified(ctx, request, entries, transactional))
    return _append_all(ctx, request, entries)


_Key = tuple[str, bytes, int]


def _each_once(entries: list[_Entry], api_version: int) -> tuple[list[_Entry], dict[_Key, ApiError]]:
    """One entry for each partition, and the refusals of further entries of the same partition.

    If several entries of a partition are batches, the last is written, because Kafka keeps them in a map. Entries that
    are not batches go to a map of refusals, which the answer contains. Null records are skipped beside others.
    """
    last_of_key = {entry.key: entry for entry in entries}
    if len(last_of_key) == len(entries):
        return entries, {}
    counts = Counter(entry.key for entry in entries)
    refused: dict[_Key, ApiError] = {}
    batches: dict[_Key, _Entry] = {}
    for entry in entries:
        if counts[entry.key] > 1 and entry.records is not None:
            error = entry.error or _no_batch(entry.records, api_version)
            if error is None:
                batches[entry.key] = entry
            else:
                refused[entry.key] = error
    last_of_key.update(batches)
    return list(last_of_key.values()), {key: error for key, error in refused.items() if key in batches}


def _no_batch(records: memoryview, api_version: int) -> ApiError | None:
    try:
        client_batch(records, api_version)
    except ApiError as error:
        return error.with_traceback(None)
    return None


def _produce_beside_refused(
    ctx: RequestContext, request: ProduceRequest, entries: list[_Entry], refused: dict[_Key, ApiError]
) -> Answer:
    """Write the remaining entries of partitions that the request names more than once, and answer with the refusals."""
    return follow(_produce(ctx, request, entries), lambda response: _with_refused(ctx, response, refused))


def _with_refused(
    ctx: RequestContext, response: ProduceResponse | None, refused: dict[_Key, ApiError]
) -> ProduceResponse | None:
    for (topic, _, index), error in refused.items():
        ctx.refused(f"{topic}-{index}", error)
        if response is None:
            raise CloseConnection(f"Produce with acks=0 to {topic}-{index} refused: {error.code.name}")
    for topic_response in response.responses if response is not None else ():
        for number, partition in enumerate(topic_response.partition_responses):
            refusal = refused.get((topic_response.name, topic_response.topic_id, partition.index))
            if refusal is not None:
                topic_response.partition_responses[number] = _PartitionResponse(
                    index=partition.index, error_code=refusal.code, base_offset=-1, error_message=refusal.message
                )
    return response


async def _produce_verified(
    ctx: RequestContext, request: ProduceRequest, entries: list[_Entry], transactional: list[_Entry]
) -> Answer:
    broker = ctx.broker
    # "Will not be used until the inter-broker version supports it" (KIP-360), which came with transaction.version 1.
    if broker.semantics.check_unknown_producer and broker.image.feature(TRANSACTION_VERSION) >= 1:
        await _check_unknown(broker, request.transactional_id or "", transactional)
    try:
        verification = _begin_verification(ctx, transactional)
        if verification.producers:
            await verification.end(ctx, request, entries)
        answer = _append_all(ctx, request, entries)
        # A batch that is checked on a thread is appended later, and its verification holds until then.
        return await answer if isinstance(answer, Deferred) else answer
    finally:
        for entry in transactional:
            if entry.verification_over is not None:
                entry.verification_over()


def _entries(ctx: RequestContext, topics: Sequence[ProduceRequest.TopicProduceData]) -> list[_Entry]:
    """Resolve every partition; what cannot be written to gets its error here."""
    broker = ctx.broker
    by_id = ctx.api_version >= 13
    internal_allowed = ctx.client_id == ADMIN_CLIENT_ID
    entries = []
    for topic in topics:
        name, unknown = topic.name, None
        if by_id:
            image = broker.image.topic_by_id(topic.topic_id)
            if image is None:
                unknown = ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            else:
                name = image.name
        for data in topic.partition_data:
            entry = _Entry(name, topic.topic_id, data.index, data.records)  # type: ignore[arg-type]
            entries.append(entry)
            if unknown is not None:
                entry.error = unknown
                continue
            try:
                entry.partition = broker.partition(name, data.index)
                if name in INTERNAL_TOPICS and not internal_allowed:
                    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
                if data.records is None or len(data.records) < LOG_OVERHEAD:
                    raise ApiError(ErrorCode.INVALID_RECORD, "Produce requests must have exactly one record batch")
            except ApiError as error:
                entry.error = error.with_traceback(None)  # or the two would hold each other
                entry.partition = None
    return entries


async def _check_unknown(broker: Broker, transactional_id: str, transactional: list[_Entry]) -> None:
    """Ask the coordinator about a producer that begins at sequence 0 where nothing is known of it (KIP-360's draft)."""
    producers: dict[tuple[int, int], list[_Entry]] = {}
    for entry in transactional:
        assert entry.records is not None
        producer_id, epoch, sequence = _producer_fields.unpack_from(entry.records, _PRODUCER_FIELDS_AT)
        if entry.error is None and producer_id >= 0 and sequence == 0 and _is_unknown(entry, producer_id):
            producers.setdefault((producer_id, epoch), []).append(entry)
    for (producer_id, epoch), unknown in producers.items():
        refusal = await refusal_of_unknown(broker, transactional_id, producer_id, epoch)
        for entry in unknown:
            # In the meantime another batch may have made the producer known: then its state decides.
            if refusal is not None and _is_unknown(entry, producer_id):
                _refuse(broker, entry, refusal)


def _is_unknown(entry: _Entry, producer_id: int) -> bool:
    return entry.partition is not None and not entry.partition.log.producers.knows(producer_id)


class _Verification:
    """What the transaction coordinator is to be asked about the transactional batches of a request (KIP-890).

    producers: ids and epochs of the producers of the batches.
    epoch: that of the last one.
    unverified: partitions without an open transaction of this epoch.
    stale: refusals of an older epoch; only the coordinator knows whether it is that of a transaction that has timed
        out.
    """

    __slots__ = ("epoch", "producers", "stale", "unverified")

    def __init__(self) -> None:
        self.producers: set[tuple[int, int]] = set()
        self.epoch = -1
        self.unverified: list[_Entry] = []
        self.stale: list[tuple[_Entry, ApiError]] = []

    async def end(self, ctx: RequestContext, request: ProduceRequest, entries: list[_Entry]) -> None:
        """Ask the coordinator, and refuse what may not be written."""
        if len(self.producers) > 1:
            mixed = ApiError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional batches of more than one producer id"
            )
            for entry in entries:  # also those that are not there: it is an exception in Kafka
                entry.error, entry.partition = mixed, None
            return
        assert request.transactional_id is not None
        ((producer_id, _),) = self.producers
        if self.unverified:
            partitions = [(entry.topic, entry.index) for entry in self.unverified]
            write = Write(request.transactional_id, producer_id, self.epoch, partitions)
            codes = await ctx.broker.coordinators.verifier.verify(write, ctx.api_version)
            for entry in self.unverified:
                code = codes.get((entry.topic, entry.index), ErrorCode.NONE)
                if code != ErrorCode.NONE:
                    self._refuse(ctx.broker, request.transactional_id, entry, code)
        if self.stale:
            await self._refuse_stale(ctx, request.transactional_id, producer_id)

    def _refuse(self, broker: Broker, transactional_id: str, entry: _Entry, code: ErrorCode) -> None:
        if code == ErrorCode.INVALID_TXN_STATE:
            refusal = ApiError(code, "Partition was not added to the transaction")  # Kafka's text
        else:
            subject = f"{entry.topic}-{entry.index} for {transactional_id}"
            refusal = ApiError(code, f"the transaction coordinator refused {subject}: {code.name}")
        if code == ErrorCode.INVALID_PRODUCER_EPOCH:
            self.stale.append((entry, refusal))
        else:
            _refuse(broker, entry, refusal)
        entry.partition = None  # nothing is known of the log: no log start offset in the answer

    async def _refuse_stale(self, ctx: RequestContext, transactional_id: str, producer_id: int) -> None:
        first = self.stale[0][0]
        verifier = ctx.broker.coordinators.verifier
        write = Write(transactional_id, producer_id, self.epoch, [(first.topic, first.index)])
        code = await verifier.code_of_timed_out(write, PRODUCE, ctx.api_version)
        for entry, refusal in self.stale:
            _refuse(ctx.broker, entry, refusal if code is None else verifier.timed_out(code, refusal))


def _begin_verification(ctx: RequestContext, transactional: list[_Entry]) -> _Verification:
    """Look for the batches whose partition has no open transaction of this epoch, and guard their appends."""
    broker = ctx.broker
    implicit_add = ctx.api_version >= IMPLICIT_ADD_VERSION
    verification = _Verification()
    for entry in transactional:
        assert entry.records is not None
        producer_id, epoch, sequence = _producer_fields.unpack_from(entry.records, _PRODUCER_FIELDS_AT)
        verification.epoch = epoch
        # Any other error is one that Kafka finds before it looks for the partition's leader.
        if producer_id < 0 or (entry.error is not None and entry.error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER):
            continue
        verification.producers.add((producer_id, epoch))
        if entry.error is not None or entry.partition is None:
            continue
        try:
            producer_state = entry.partition.log.producers
            if not implicit_add and not producer_state.rules.verification_enabled:
                continue
            entry.guard = producer_state.start_verification(
                producer_id, epoch, sequence, implicit_add, broker.clock.now_ms()
            )
        except ApiError as error:
            if error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
                verification.stale.append((entry, error))
            else:
                _refuse(broker, entry, error)
            entry.partition = None  # Kafka refuses before it looks at the log: no log start offset in the answer
            continue
        if entry.guard is not None:
            verification.unverified.append(entry)
            entry.verification_over = partial(
                producer_state.end_verification, producer_id, epoch, sequence, entry.guard
            )
    return verification


def _append_all(ctx: RequestContext, request: ProduceRequest, entries: list[_Entry]) -> Answer:
    acks = request.acks
    if not -1 <= acks <= 1:
        invalid = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks} is not one of -1, 0, 1")
        for entry in entries:
            if entry.error is None:
                entry.error, entry.partition = invalid, None
        return _respond(ctx, request, entries)
    done = _append_some(ctx, request, entries, 0)
    if done == len(entries):
        return _answer(ctx, request, entries)
    return started(_append_in_turns(ctx, request, entries, done))


def _append_some(ctx: RequestContext, request: ProduceRequest, entries: list[_Entry], start: int) -> int:
    """Append the entries from number `start` on, as many as fit into a turn of the loop; how many are done then."""
    pace = Brief()
    for number in range(start, len(entries)):
        try:
            if number > start:  # the first has time in any case
                partition = entries[number].partition
                pace(_STEPS_PER_APPEND if partition is None or partition.is_open else _STEPS_PER_OPEN)
            _append(ctx, request, entries[number], pace=pace)
        except TakesLong:
            return number
    return len(entries)


async def _append_in_turns(ctx: RequestContext, request: ProduceRequest, entries: list[_Entry], done: int) -> Answer:
    """Append the entries that did not fit into the first turn of the loop. A batch that fills a turn by itself is
    checked on another thread; the check does not read the log, so that other requests may append to the partition."""
    alone = done == 0
    while done < len(entries):
        if alone:
            entry = entries[done]
            assert entry.partition is not None
            assert entry.records is not None
            try:
                # With acks=0 a producer need not wait for what it has sent.
                checked = await ctx.broker.executor.compute(
                    entry.partition.checking(entry.records, ctx.api_version),
                    ctx.wanted,
                    keep=request.acks == 0,
                    walk=True,
                )
            except ApiError as error:
                _refuse_append(ctx, entry, error)
            else:
                _append(ctx, request, entry, checked=checked)
            done += 1
        await sleep(ctx.broker.timers, 0)
        before, done = done, _append_some(ctx, request, entries, done)
        alone = done == before
    answer = _answer(ctx, request, entries)
    return await answer if isinstance(answer, Deferred) else answer


def _append(
    ctx: RequestContext,
    request: ProduceRequest,
    entry: _Entry,
    *,
    checked: CheckedBatch | None = None,
    pace: Pace = UNHURRIED,
) -> None:
    """Append one partition's batch, or keep why it was refused. Raises TakesLong where `pace` ends its check."""
    partition = entry.partition
    if entry.error is not None or partition is None:
        return
    try:
        info = entry.info = partition.append(
            entry.records,  # type: ignore[arg-type]
            origin=Origin.CLIENT,
            required_acks=request.acks,
            guard=entry.guard,
            api_version=ctx.api_version,
            checked=checked,
            pace=pace,
        )
    except ApiError as error:
        _refuse_append(ctx, entry, error)
        return
    if request.acks == -1 and not info.replicated:
        # In a later turn of the loop another leader may have written other records at these offsets.
        entry.replicated = partition.when_high_watermark(info.last_offset + 1)


def _refuse_append(ctx: RequestContext, entry: _Entry, error: ApiError) -> None:
    _refuse(ctx.broker, entry, error)
    if error.code in _OF_THE_REQUEST and entry.records is not None and _no_batch(entry.records, ctx.api_version):
        entry.partition = None  # Kafka refuses the request's bytes before it looks at the log


def _answer(ctx: RequestContext, request: ProduceRequest, entries: list[_Entry]) -> Answer:
    """Answer the appends once they are as durable as the request's acks demand."""
    acks = request.acks
    waiting = []
    for entry in entries if acks else ():  # as a loop: see `_produce`
        if entry.replicated is not None or (acks > 0 and entry.info is not None and not _synced(entry, entry.info)):
            waiting.append(entry)  # noqa: PERF401
    return _when_replicated(ctx, request, entries, waiting) if waiting else _respond(ctx, request, entries)


def _synced(entry: _Entry, info: AppendInfo) -> bool:
    assert entry.partition is not None
    return entry.partition.is_synced(info.last_offset + 1)


def _when_replicated(
    ctx: RequestContext, request: ProduceRequest, entries: list[_Entry], waiting: list[_Entry]
) -> Deferred[ProduceResponse | None]:
    """Hold the answer until all in-sync replicas have the batches (acks=all), or until a sync that flush.messages asks
    for is done (acks=1), or the request's timeout has passed."""
    durable = []
    for entry in waiting:
        assert entry.info is not None
        assert entry.partition is not None
        durable.append(entry.replicated or entry.partition.when_synced(entry.info.last_offset + 1))
    _release_records(ctx, request, entries)

    def answer(_: bool) -> ProduceResponse | None:
        for entry, replicated in zip(waiting, durable, strict=True):
            if not replicated.done:
                entry.error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not all in-sync replicas have it in time")
                continue
            try:
                replicated.result()
            except ApiError as error:
                _refuse(ctx.broker, entry, error)
        return _respond(ctx, request, entries)

    return mapped(with_timeout(ctx.broker.timers, when_all_done(durable), request.timeout_ms), answer)


def _release_records(ctx: RequestContext, request: ProduceRequest, entries: list[_Entry]) -> None:
    """The records are in the logs (Kafka's ProduceRequest.clearPartitionRecords)."""
    if ctx.keeps_records:
        return
    for entry in entries:
        entry.records = None
    for known in (request, ctx.request):
        for topic in known.topic_data if isinstance(known, ProduceRequest) else ():
            for partition in topic.partition_data:
                partition.records = None
    ctx.release_frame()


def _refuse(broker: Broker, entry: _Entry, error: ApiError) -> None:
    entry.error = error.with_traceback(None)  # or the two would hold each other
    if error.code == ErrorCode.KAFKA_STORAGE_ERROR and entry.partition is not None:
        broker.refused_appends.say(entry.partition, error)
    if error.code in _WITHOUT_LOG_START:
        entry.partition = None


def _respond(ctx: RequestContext, request: ProduceRequest, entries: Iterable[_Entry]) -> ProduceResponse | None:
    if request.acks == 0:
        _respond_nothing(ctx, entries)
        return None
    responses: list[ProduceResponse.TopicProduceResponse] = []
    current: ProduceResponse.TopicProduceResponse | None = None
    nodes: dict[int, ProduceResponse.NodeEndpoint] = {}
    for entry in entries:
        if current is None or current.name != entry.topic or current.topic_id != entry.topic_id:
            current = ProduceResponse.TopicProduceResponse(name=entry.topic, topic_id=entry.topic_id or NO_ID)
            responses.append(current)
        if entry.error is None:
            info = entry.info
            assert info is not None
            answer = _PartitionResponse(
                index=entry.index,
                base_offset=info.base_offset,
                log_append_time_ms=info.log_append_time_ms,
                log_start_offset=info.log_start_offset,
            )
        else:
            ctx.refused(f"{entry.topic}-{entry.index}", entry.error)
            answer = _refusal(ctx, entry, entry.error, nodes)
        current.partition_responses.append(answer)
    return ProduceResponse(responses=responses, node_endpoints=list(nodes.values()))


def _respond_nothing(ctx: RequestContext, entries: Iterable[_Entry]) -> None:
    """With acks=0 there is no answer: closing the connection is the only way to signal a refusal (KafkaApis)."""
    refused = [entry for entry in entries if entry.error is not None]
    for entry in refused:
        assert entry.error is not None
        ctx.refused(f"{entry.topic}-{entry.index}", entry.error)
    for entry in refused:
        assert entry.error is not None
        raise CloseConnection(f"Produce with acks=0 to {entry.topic}-{entry.index} refused: {entry.error.code.name}")


def _log_start(broker: Broker, entry: _Entry, error: ApiError) -> int:
    """-1 where the refusal did not come from the log, except where the semantics promise a producer the offset that
    tells it truncation from loss (KAFKA-5793)."""
    partition = entry.partition
    unknown = error.code == ErrorCode.UNKNOWN_PRODUCER_ID
    if partition is None and unknown and broker.semantics.log_start_with_unknown_producer:
        partition = broker.partition(entry.topic, entry.index)
    return -1 if partition is None else partition.log.log_start_offset


def _refusal(
    ctx: RequestContext, entry: _Entry, error: ApiError, nodes: dict[int, ProduceResponse.NodeEndpoint]
) -> ProduceResponse.PartitionProduceResponse:
    answer = _PartitionResponse(
        index=entry.index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=_log_start(ctx.broker, entry, error),
        record_errors=[
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ],
        error_message=error.message,
    )
    if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and ctx.api_version >= _CURRENT_LEADER_VERSION:
        broker = ctx.broker
        current = broker.image.partition(entry.topic, entry.index)
        leader = broker.image.brokers.get(current.leader) if current is not None else None
        if current is not None and leader is not None:
            answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
                leader_id=current.leader, leader_epoch=current.leader_epoch
            )
            nodes[leader.node_id] = ProduceResponse.NodeEndpoint(
                node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack
            )
    return answer
