"""Who may send which request: the handler table as a whole."""

from __future__ import annotations

from minibroker.handlers.table import apis, apis_of_brokers

# Kafka's broker passes these on to the controller (KIP-590).
FORWARDED = {
    "AlterConfigs", "AlterPartitionReassignments", "AlterUserScramCredentials", "CreateAcls", "CreatePartitions",
    "CreateTopics", "DeleteAcls", "DeleteTopics", "ElectLeaders", "IncrementalAlterConfigs",
    "ListPartitionReassignments", "UnregisterBroker", "UpdateFeatures",
}  # fmt: skip
ONLY_BROKERS = {"AllocateProducerIds", "AlterPartition", "BrokerHeartbeat"}
OF_COORDINATORS = {"AddPartitionsToTxn", "DescribeTransactionState", "WriteTxnMarkers"}
OF_FOLLOWERS = {"Fetch", "ListOffsets"}


def test_what_brokers_send_and_what_is_for_clients() -> None:
    sent = {api.name for api in apis_of_brokers().values()}
    assert sent == FORWARDED | ONLY_BROKERS | OF_COORDINATORS | OF_FOLLOWERS
    served = list(apis().values())
    assert {api.name for api in served if api.controller} == FORWARDED
    assert sent - {api.name for api in served} == ONLY_BROKERS
    assert {api.name for api in served if not api.reads_answer} == {"Fetch", "Produce"}
    assert {api.name for api in served if not api.advertised} == {"DescribeTransactionState"}
