"""Apache Kafka 3.9: before transaction.version 2 (KIP-890) and KIP-848 by default."""

from __future__ import annotations

from typing import Final

from minibroker.releases import kafka_4_0 as newer
from minibroker.releases.features import Feature
from minibroker.releases.release import ABSENT, Release

RELEASE: Final = Release(
    name="3.9",
    next=newer.RELEASE,
    apis={
        "Produce": 11,
        "ListOffsets": 9,
        "Metadata": 12,
        "DescribeGroups": 5,
        "EndTxn": 4,
        "TxnOffsetCommit": 4,
        "UpdateFeatures": 1,
        "DescribeCluster": 1,
        "ConsumerGroupHeartbeat": 0,
        "ConsumerGroupDescribe": 0,
    },
    features={
        "group.version": ABSENT,
        "metadata.version": Feature(1, 21, 21),
        "transaction.version": ABSENT,
    },
    settings={"group.coordinator.rebalance.protocols": "classic"},
    behaviours={
        "join_while_ending": "refused after its producer",
        "leaders_add_for_version": 0,
        "stale_epoch_is_verified": False,
    },
    does_otherwise=(
        "the protocol of consumer groups (KIP-848) is off: group.coordinator.rebalance.protocols is classic",
        "transaction.version 0: no end of a transaction bumps the epoch",
        "while a transaction ends, joins at another epoch or for another producer id are told so",
        "a zombie's refused batch holds nobody back",
    ),
    not_emulated=(
        "versions of its APIs that Kafka 4 does not serve any more (KIP-896)",
        "ListOffsets answers a partition that is asked for twice twice",
        "OffsetCommit v9 of a member of no group is ILLEGAL_GENERATION",
        "the last stable offset is the log start where records of an open transaction were deleted",
        "DescribeGroups answers authorized operations without those on configs: 328",
        "a tie of two members' votes for an assignor goes to another one",
    ),
)
