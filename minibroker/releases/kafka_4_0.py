"""Apache Kafka 4.0: no topic ids in Produce (KIP-516), no transaction version in markers (KIP-1228)."""

from __future__ import annotations

from typing import Final

from minibroker.releases import kafka_4_3 as newer
from minibroker.releases.features import Feature
from minibroker.releases.release import Release

RELEASE: Final = Release(
    name="4.0",
    next=newer.RELEASE,
    apis={
        "Produce": 12,
        "Fetch": 17,
        "ListOffsets": 10,
        "OffsetCommit": 9,
        "OffsetFetch": 9,
        "WriteTxnMarkers": 1,
        "DescribeLogDirs": 4,
        "AlterPartitionReassignments": 0,
        "ListTransactions": 1,
        "ListConfigResources": 0,
    },
    features={"metadata.version": Feature(7, 25, 25)},
    behaviours={"stale_epoch_is_verified": True},
    does_otherwise=(
        "Produce has no topic ids",
        "a refused batch of a zombie, at an older epoch, makes the next ones of the owner OUT_OF_ORDER_SEQUENCE_NUMBER",
    ),
    not_emulated=(
        "markers without the transaction version (KIP-1228)",
        "a first batch of Produce v12 from an unknown producer begins at any sequence",
        "the first join of a consumer group (KIP-848) makes epoch 1",
        "DescribeGroups of a classic group whose first member has not synced is Dead",
        "OffsetFetch of no groups has no answer",
    ),
)
