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
        "DescribeQuorum": ABSENT,
        "UpdateFeatures": 1,
        "DescribeCluster": 1,
        "UnregisterBroker": ABSENT,
        "ConsumerGroupHeartbeat": 0,
        "ConsumerGroupDescribe": 0,
        "ListConfigResources": ABSENT,
        "DescribeTopicPartitions": ABSENT,
    },
    features={
        "group.version": ABSENT,
        "metadata.version": Feature(1, 21, 21),
        "transaction.version": ABSENT,
    },
    behaviours={"join_while_ending": "refused after its producer"},
    does_otherwise=(
        "transaction.version 0: no end of a transaction bumps the epoch",
        "while a transaction ends, joins at another epoch or for another producer id are told so",
    ),
    not_emulated=(
        "versions of its APIs that Kafka 4 does not serve any more (KIP-896)",
        "AddPartitionsToTxn from v4 on of a client, which none sends",
        "ListOffsets answers a partition that is asked for twice twice",
        "OffsetCommit v9 of a member of no group is ILLEGAL_GENERATION",
    ),
)
