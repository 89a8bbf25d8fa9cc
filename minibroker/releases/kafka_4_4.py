"""Apache Kafka 4.4: the newest release this broker answers as, and so everything that it has."""

from __future__ import annotations

from typing import Final

from minibroker.releases.features import Feature
from minibroker.releases.release import Release

RELEASE: Final = Release(
    name="4.4",
    apis={
        "Produce": 13,
        "Fetch": 18,
        "ListOffsets": 11,
        "Metadata": 13,
        "OffsetCommit": 10,
        "OffsetFetch": 10,
        "FindCoordinator": 6,
        "JoinGroup": 9,
        "Heartbeat": 4,
        "LeaveGroup": 5,
        "SyncGroup": 5,
        "DescribeGroups": 6,
        "ListGroups": 5,
        "SaslHandshake": 1,
        "ApiVersions": 5,
        "CreateTopics": 7,
        "DeleteTopics": 6,
        "DeleteRecords": 2,
        "InitProducerId": 5,
        "OffsetForLeaderEpoch": 4,
        "AddPartitionsToTxn": 5,
        "AddOffsetsToTxn": 4,
        "EndTxn": 5,
        "WriteTxnMarkers": 2,
        "TxnOffsetCommit": 6,
        "DescribeAcls": 3,
        "CreateAcls": 3,
        "DeleteAcls": 3,
        "DescribeConfigs": 4,
        "AlterConfigs": 2,
        "DescribeLogDirs": 5,
        "SaslAuthenticate": 2,
        "CreatePartitions": 3,
        "DeleteGroups": 3,
        "ElectLeaders": 2,
        "IncrementalAlterConfigs": 1,
        "AlterPartitionReassignments": 1,
        "ListPartitionReassignments": 0,
        "OffsetDelete": 0,
        "DescribeClientQuotas": 1,
        "DescribeUserScramCredentials": 0,
        "DescribeQuorum": 2,
        "UpdateFeatures": 2,
        "DescribeCluster": 2,
        "DescribeProducers": 0,
        "UnregisterBroker": 0,
        "DescribeTransactions": 0,
        "ListTransactions": 2,
        "ConsumerGroupHeartbeat": 1,
        "ConsumerGroupDescribe": 1,
        "ListConfigResources": 1,
        "DescribeTopicPartitions": 0,
    },
    features={
        "group.version": Feature(0, 1, 1),
        "metadata.version": Feature(7, 33, 33),
        "transaction.version": Feature(0, 2, 2),
    },
    # No release so far logs it (KAFKA-20357).
    behaviours={"persist_last_epoch": False},
    does_otherwise=("the last epoch is not in the log: a retried InitProducerId is fenced after a failover",),
)
