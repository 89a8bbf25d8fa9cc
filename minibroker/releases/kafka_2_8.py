"""Apache Kafka 2.8: before verification of transactional batches (KIP-890, part 1, came with 3.6)."""

from __future__ import annotations

from typing import Final

from minibroker.releases import kafka_3_9 as newer
from minibroker.releases.release import ABSENT, Release

RELEASE: Final = Release(
    name="2.8",
    next=newer.RELEASE,
    apis={
        "Produce": 9,
        "Fetch": 12,
        "ListOffsets": 6,
        "Metadata": 11,
        "OffsetCommit": 8,
        "OffsetFetch": 7,
        "FindCoordinator": 3,
        "JoinGroup": 7,
        "LeaveGroup": 4,
        "ListGroups": 4,
        "ApiVersions": 3,
        "InitProducerId": 4,
        "AddPartitionsToTxn": 3,
        "AddOffsetsToTxn": 3,
        "EndTxn": 3,
        "TxnOffsetCommit": 3,
        "DescribeAcls": 2,
        "CreateAcls": 2,
        "DeleteAcls": 2,
        "DescribeLogDirs": 2,
        "DescribeQuorum": ABSENT,
        "UpdateFeatures": 0,
        "DescribeCluster": 0,
        "DescribeTransactions": ABSENT,
        "ListTransactions": ABSENT,
        "ConsumerGroupHeartbeat": ABSENT,
        "ConsumerGroupDescribe": ABSENT,
        "UnregisterBroker": ABSENT,
        "ListConfigResources": ABSENT,
        "DescribeTopicPartitions": ABSENT,
    },
    features={"metadata.version": ABSENT},
    behaviours={"producer_state_expiration": "transactional.id.expiration.ms"},
    settings={"transaction.partition.verification.enable": "false"},
    does_otherwise=(
        "transactional batches are not verified with the coordinator (KIP-890 came with 3.6)",
        "producer state expires with transactional.id.expiration.ms",
    ),
    not_emulated=("finalized features of a cluster with ZooKeeper",),
)
