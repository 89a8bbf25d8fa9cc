"""Makes a partition lose an active producer's state.

The log is changed as by retention, DeleteRecords or a broken disk; a client can tell these apart by its last
acknowledged offset and the partition's log start offset (KIP-360, KAFKA-5793).
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from minibroker.partitions.partition import Partition
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import rebuild_producers_from_log

Cause = Literal["expiration", "retention", "delete-records", "lost-tail"]

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)


def lose_producers(partition: Partition, cause: Cause, *, now_ms: int, offset: int | None = None) -> list[int]:
    """Make `partition` lose producers; returns the ids it no longer knows.

    expiration: every idle producer, the records stay. retention: all segments go. delete-records: the log start moves
    to `offset` (default: the high watermark). lost-tail: records from `offset` on are lost, acknowledged ones too
    (required). After the last three the partition knows the producers that its log still shows, as a replica made by
    reassignment does. Such a replica leads in a new epoch: the caller has to begin it (`Cluster.elect_again`).

    Raises ApiError as `Partition` and its log do, ValueError for an unknown cause, a missing `offset`, or a
    partition with followers, which would not lose the same records.
    """
    if cause not in CAUSES:
        raise ValueError(f"{cause!r} is none of {', '.join(CAUSES)}")
    if len(partition.replicas) > 1 and cause != "expiration":
        raise ValueError(f"{partition} has followers, which would keep what it loses")
    if cause == "lost-tail" and offset is None:
        raise ValueError("a lost tail begins at an offset")
    log = partition.log
    before = {producer.producer_id for producer in log.producers.active()}
    if cause == "expiration":
        log.producers.forget_idle()
    else:
        if cause == "lost-tail":
            assert offset is not None
            partition.lose_tail(offset)
        elif cause == "delete-records":
            log.delete_records(-1 if offset is None else offset)
        else:
            log.delete_records(-1)
            log.roll(now_ms)
            delete_old_segments(log, now_ms)
        rebuild_producers_from_log(log, now_ms=now_ms)
        partition.notify()
    return sorted(before - {producer.producer_id for producer in log.producers.active()})
