"""Read commands for tests: records, committed offsets, transactions, requests.

Each command takes and gives what JSON can hold. Bytes are text where they are UTF-8, ``{"base64": …}`` elsewhere.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from fnmatch import fnmatchcase
from glob import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.faults.operations import held_markers, leading_partition
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.waiting import sleep
from minibroker.kernel.words import counted, near
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.records import decode_records, iter_batches

if TYPE_CHECKING:
    from minibroker.cluster.cluster import Cluster
    from minibroker.coordinators.transactions.metadata import TransactionEntry
    from minibroker.kernel.clock import Timers
    from minibroker.partitions.partition import Partition
    from minibroker_storage.log import PartitionLog

READ_COMMITTED: Final = "read_committed"
ISOLATIONS: Final = ("read_uncommitted", READ_COMMITTED)

_SLICE_BYTES = 1024 * 1024
_LOOK_MS = 10
_MAX_WAIT_MS = 3_600_000
_SHOWN = 5


class Readable(NamedTuple):
    """What the commands read."""

    cluster: Cluster
    timers: Timers


async def records(
    at: Readable, *, topic: str, partition: int | None = None, isolation: str = ISOLATIONS[0]
) -> list[dict[str, Any]]:
    """What a consumer with this isolation reads of a topic, or of one partition, from its start to its end."""
    rows: list[dict[str, Any]] = []
    for led in _partitions(at.cluster, topic, partition, isolation):
        log, offset = led.log, led.log.log_start_offset
        bound = _bound(log, isolation)
        while offset < bound:
            some, offset = _slice(log, topic, led.index, offset, bound, isolation)
            rows += some
            await sleep(at.timers, 0)
    return rows


async def wait_for_records(
    at: Readable,
    *,
    topic: str,
    count: int = 1,
    partition: int | None = None,
    isolation: str = ISOLATIONS[0],
    timeout_ms: int = 10_000,
) -> list[dict[str, Any]]:
    """`records`, once there are at least `count` of them."""
    if count < 1:
        raise FaultError(f"count is 1 or more, not {count}")
    rows: list[dict[str, Any]] = []
    seen: object = None
    missing: ApiError | None = None
    for _ in range(_looks(timeout_ms)):
        try:
            ends = [_bound(led.log, isolation) for led in _partitions(at.cluster, topic, partition, isolation)]
        except ApiError as error:  # a topic that a client is about to create, or a leader about to be elected
            missing, ends = error, []
        if ends != seen:
            seen = ends
            missing = None if ends else missing
            rows = await records(at, topic=topic, partition=partition, isolation=isolation) if ends else []
            if len(rows) >= count:
                return rows
        await sleep(at.timers, _LOOK_MS)
    last = ", ".join(str(record["value"]) for record in rows[-_SHOWN:])
    why = missing.message if missing else f"{topic} has {len(rows)} of {counted(count, 'record')} ({isolation})"
    raise ApiError(
        ErrorCode.REQUEST_TIMED_OUT, f"{why} after {timeout_ms} ms" + (f"; the last: {last}" if last else "")
    )


def committed(at: Readable, *, group: str) -> list[dict[str, Any]]:
    """Committed offsets of a group; not those of a transaction that has not ended."""
    node = at.cluster.coordinator("group", group)
    broker = None if node is None else at.cluster.brokers.get(node)
    if broker is None:
        return []
    _, shard = broker.coordinators.groups.shard_for(group)
    return [
        {"topic": topic, "partition": index, "offset": committed.offset, "metadata": committed.metadata}
        for topic, partitions in sorted(shard.offsets.group(group).items())
        for index, committed in sorted(partitions.items())
    ]


async def wait_for_committed(
    at: Readable, *, group: str, topic: str, offset: int, partition: int = 0, timeout_ms: int = 10_000
) -> list[dict[str, Any]]:
    """`committed`, once the group has committed `offset` or a later one of the partition."""
    place = f"{topic}-{partition}"
    why = ""
    for _ in range(_looks(timeout_ms)):
        try:
            offsets = committed(at, group=group)
            here = [row["offset"] for row in offsets if (row["topic"], row["partition"]) == (topic, partition)]
            if here and here[0] >= offset:
                return offsets
            has = f"offset {here[0]}" if here else "no offset"
            why = f"group {group} has committed {has} of {place}, not {offset}"
        except ApiError as error:  # its coordinator moves
            why = error.message
        await sleep(at.timers, _LOOK_MS)
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{why} after {timeout_ms} ms{_open_with_offsets(at)}")


def _open_with_offsets(at: Readable) -> str:
    """Transactions that have not ended and have offsets, as what is committed in one shows only after it."""
    try:
        open_ones = [
            transaction["transactional_id"]
            for transaction in transactions(at)
            if any(topic == CONSUMER_OFFSETS_TOPIC for topic, _ in transaction["partitions"])
        ]
    except ApiError:
        return ""
    return (
        f"; offsets of transactions that have not ended do not count: {', '.join(open_ones[:_SHOWN])}"
        if open_ones
        else ""
    )


def transactions(at: Readable, *, transactional_id: str | None = None) -> list[dict[str, Any]]:
    """Transactional ids, all or those that match (``*`` and ``?``), with the state of their last transaction."""
    from minibroker.coordinators.transactions import queries

    entries = {
        name: entry
        for broker in at.cluster.brokers.values()
        if broker.node_id not in at.cluster.paused_brokers
        if (service := broker.coordinators.transactions_if_any) is not None
        for name, entry in service.entries()
        if not queries.forgotten(entry) and (transactional_id is None or fnmatchcase(name, transactional_id))
    }
    return [_transaction(name, entry) for name, entry in sorted(entries.items())]


async def wait_for_transaction(
    at: Readable, *, transactional_id: str, state: str, timeout_ms: int = 10_000
) -> dict[str, Any]:
    """The transactional id with its last transaction, once that is in `state`, such as CompleteCommit."""
    from minibroker.coordinators.transactions.states import BY_LABEL

    if state not in BY_LABEL:
        raise FaultError(f"there is no state {state!r}{near(state, BY_LABEL) or '; states are ' + ', '.join(BY_LABEL)}")
    why = ""
    for _ in range(_looks(timeout_ms)):
        try:
            known = {
                entry["transactional_id"]: entry
                for entry in transactions(at, transactional_id=escape(transactional_id))
            }
            if transactional_id not in known:
                why = f"there is no transactional id {transactional_id!r}"
            elif known[transactional_id]["state"] == state:
                return known[transactional_id]
            else:
                why = f"{transactional_id} is {known[transactional_id]['state']}, not {state},"
        except ApiError as error:  # its coordinator moves
            why = error.message
        await sleep(at.timers, _LOOK_MS)
    held = transactional_id in held_markers(at.cluster)
    raise ApiError(
        ErrorCode.REQUEST_TIMED_OUT, f"{why} after {timeout_ms} ms" + ("; its markers are held" if held else "")
    )


def _looks(timeout_ms: int) -> int:
    return max(1, min(timeout_ms, _MAX_WAIT_MS) // _LOOK_MS)


def _partitions(cluster: Cluster, topic: str, partition: int | None, isolation: str) -> list[Partition]:
    if isolation not in ISOLATIONS:
        raise FaultError(f"isolation is {' or '.join(ISOLATIONS)}, not {isolation!r}")
    known = {image.name: image for image in cluster.image.topics.values()}
    if topic not in known:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}{near(topic, known)}")
    indexes = [image.index for image in known[topic].partitions]
    if partition is not None and partition not in indexes:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
    try:
        return [leading_partition(cluster, topic, i) for i in sorted(indexes) if partition in (None, i)]
    except FaultError as error:
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)) from None


def _bound(log: PartitionLog, isolation: str) -> int:
    return log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark


def _slice(
    log: PartitionLog, topic: str, partition: int, offset: int, bound: int, isolation: str
) -> tuple[list[dict[str, Any]], int]:
    """Records of the batches of one read, and the offset after them."""
    result = log.read(offset, _SLICE_BYTES, bound=bound)
    aborted = log.aborted_transactions(result) if isolation == READ_COMMITTED else []
    rows: list[dict[str, Any]] = []
    after = offset
    try:
        for position, header in iter_batches(result.records):
            after = header.last_offset + 1
            if header.is_control or (
                header.is_transactional
                and any(
                    txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset <= txn.last_offset
                    for txn in aborted
                )
            ):
                continue
            for record in decode_records(result.records, position, header):
                if not offset <= record.offset < bound:
                    continue
                rows.append(
                    {
                        "topic": topic,
                        "partition": partition,
                        "offset": record.offset,
                        "timestamp_ms": record.timestamp,
                        "key": _as_json(record.key),
                        "value": _as_json(record.value),
                        "headers": [[_as_json(name), _as_json(value)] for name, value in record.headers],
                        "producer_id": header.producer_id,
                        "producer_epoch": header.producer_epoch,
                        "transactional": header.is_transactional,
                    }
                )
    except Malformed as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{topic}-{partition}: {error}") from None
    return rows, after if after > offset else bound


def _as_json(data: Any) -> Any:
    if data is None or isinstance(data, str):
        return data
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _transaction(transactional_id: str, entry: TransactionEntry) -> dict[str, Any]:
    from minibroker.coordinators.transactions.queries import partitions_of, start_of

    metadata, started = entry.metadata, start_of(entry)
    return {
        "transactional_id": transactional_id,
        "state": metadata.state.label,
        "producer_id": metadata.producer_id,
        "producer_epoch": entry.epoch,
        "timeout_ms": metadata.timeout_ms,
        "started_ms": None if started < 0 else started,
        "partitions": [[topic, index] for topic, indexes in partitions_of(entry) for index in indexes],
    }


READS: Final[dict[str, Callable[..., Any]]] = {
    f"read.{function.__name__}": function
    for function in (
        records, wait_for_records, committed, wait_for_committed, transactions, wait_for_transaction
    )
}  # fmt: skip
