"""A transaction marker in one partition that this broker leads: for coordinators elsewhere and for its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minibroker.coordinator_runtime.ports import CoordinatingBroker
from minibroker.kernel.deferred import DONE, Deferred
from minibroker.kernel.waiting import within
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import end_txn_marker
from minibroker_storage.origin import Origin

if TYPE_CHECKING:
    from minibroker.coordinator_runtime.group_service import GroupService
    from minibroker.coordinator_runtime.transaction_markers import Marker
    from minibroker.coordinators.transactions.metadata import TopicPartition

_NONE = -1
"""Value of a missing producer id, epoch or transaction version in a marker."""


def append_marker(
    broker: CoordinatingBroker, groups: Callable[[], GroupService], marker: Marker, target: TopicPartition
) -> Deferred[None]:
    """End the transaction of a producer in `target`; resolved when the marker is below the high watermark.

    groups: the group coordinator, asked for only where `target` is one of its partitions.

    Raises ApiError, and fails with it: what `Partition.append` refuses, UNKNOWN_TOPIC_OR_PARTITION,
    NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, UNKNOWN_SERVER_ERROR without a producer id, epoch or transaction
    version, for ``__consumer_offsets`` its coordinator's error while it is not ready, and REQUEST_TIMED_OUT when the
    replicas do not have the marker after request.timeout.ms (it stays in the log).
    """
    topic, index = target
    partition = broker.partition(topic, index)
    if _NONE in (marker.producer_id, marker.producer_epoch, marker.transaction_version):
        # Kafka fails on them while it builds or checks the batch; other values below zero are checked as numbers.
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "a marker needs a producer id, an epoch and a transaction version: "
            f"{marker.producer_id}, {marker.producer_epoch}, {marker.transaction_version}",
        )
    now_ms = broker.clock.now_ms()
    batch = end_txn_marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=now_ms,
    )
    if topic == CONSUMER_OFFSETS_TOPIC:
        groups().host.shard(index)  # raises while its coordinator is not ready to take the marker
    info = partition.append(
        batch,
        origin=Origin.COORDINATOR,
        # Kafka's CoordinatorPartitionWriter writes the group coordinator's partitions, markers too, with acks=1.
        required_acks=1 if topic == CONSUMER_OFFSETS_TOPIC else -1,
        now_ms=now_ms,
        transaction_version=marker.transaction_version,
    )
    if topic == CONSUMER_OFFSETS_TOPIC:
        groups().complete_transaction(index, marker.producer_id, marker.producer_epoch, marker.commit)
    if info.replicated:
        return DONE
    late = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{partition}: not all in-sync replicas have the marker in time")
    replicated = partition.when_high_watermark(info.last_offset + 1)
    return within(broker.timers, replicated, broker.settings.get_int("request.timeout.ms"), late)
