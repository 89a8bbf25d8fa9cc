"""Apache Kafka 2.3: before KIP-360, so no bump of an epoch by its producer, and state goes with its records."""

from __future__ import annotations

from typing import Final

from minibroker.releases import kafka_2_8 as newer
from minibroker.releases.release import ABSENT, Release

RELEASE: Final = Release(
    name="2.3",
    next=newer.RELEASE,
    apis={
        "Produce": 7,
        "Fetch": 11,
        "ListOffsets": 5,
        "Metadata": 8,
        "OffsetCommit": 7,
        "OffsetFetch": 5,
        "FindCoordinator": 2,
        "JoinGroup": 5,
        "Heartbeat": 3,
        "LeaveGroup": 2,
        "SyncGroup": 3,
        "DescribeGroups": 3,
        "ListGroups": 2,
        "ApiVersions": 2,
        "CreateTopics": 3,
        "DeleteTopics": 3,
        "DeleteRecords": 1,
        "InitProducerId": 1,
        "OffsetForLeaderEpoch": 3,
        "AddPartitionsToTxn": 1,
        "AddOffsetsToTxn": 1,
        "EndTxn": 1,
        "WriteTxnMarkers": 0,
        "TxnOffsetCommit": 2,
        "DescribeAcls": 1,
        "CreateAcls": 1,
        "DeleteAcls": 1,
        "DescribeConfigs": 2,
        "AlterConfigs": 1,
        "DescribeLogDirs": 1,
        "SaslAuthenticate": 1,
        "CreatePartitions": 1,
        "DeleteGroups": 1,
        "ElectLeaders": 0,
        "IncrementalAlterConfigs": 0,
        "AlterPartitionReassignments": ABSENT,
        "ListPartitionReassignments": ABSENT,
        "OffsetDelete": ABSENT,
        "DescribeClientQuotas": ABSENT,
        "DescribeUserScramCredentials": ABSENT,
        "AlterUserScramCredentials": ABSENT,
        "UpdateFeatures": ABSENT,
        "DescribeCluster": ABSENT,
        "DescribeProducers": ABSENT,
    },
    behaviours={"unknown_producer_sequence": "unknown_producer_id_before_2.4", "forget_with_records": True},
    does_otherwise=(
        "producer state goes with the last record; a non-zero sequence then gets UNKNOWN_PRODUCER_ID",
        "InitProducerId takes no producer id and epoch: clients cannot bump their epoch",
        "no request version knows PRODUCER_FENCED",
    ),
    not_emulated=("WriteTxnMarkers v0, and so the API", "throttling before the answer"),
)
