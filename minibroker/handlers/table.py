"""Every API this broker serves, in one table: key → versions, request, handler.

ApiVersions, the README's table and the fuzz tests read it; nothing registers itself. An API that is not here is not
served: a request for it closes the connection, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from minibroker.handlers import (
    acls,
    administration,
    configs,
    describe_transaction_state,
    describe_transactions,
    fetch,
    find_coordinator,
    forwarded,
    init_producer_id,
    list_offsets,
    metadata,
    partitions,
    produce,
    transactions,
    write_txn_markers,
)
from minibroker.handlers.api_versions import ApiVersions, unsupported
from minibroker.handlers.context import Api, Handler, RequestContext
from minibroker.handlers.dispatch import Dispatcher
from minibroker.handlers.explained import explained
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.registry import registry

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker

_PRODUCE_MIN = 3
_INIT_PRODUCER_ID_UNSTABLE = 6


def _row(
    request: type[Request],
    handler: Handler,
    *,
    min_version: int | None = None,
    advertised_min: int | None = None,
    advertised: bool = True,
    unstable_from: int | None = None,
    reads_answer: bool = True,
) -> Api:
    """reads_answer: False for handlers that note every refusal themselves, and answer too often and too much to look
    through it again."""
    low, high = request.__versions__
    return Api(
        key=request.__api_key__,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=registry()[request.__api_key__][1],
        handler=explained(handler) if reads_answer else handler,
        min_version=low if min_version is None else min_version,
        max_version=high,
        advertised_min=advertised_min,
        advertised=advertised,
        unstable_from=unstable_from,
    )


def _later(module: str, name: str) -> Handler:
    """A handler whose module comes with its first request: groups are a seventh of what a start would import."""
    handler: Handler | None = None

    def handle(ctx: RequestContext, request: Any) -> Any:
        nonlocal handler
        if handler is None:
            handler = getattr(import_module(f"minibroker.handlers.{module}"), name)
        return handler(ctx, request)

    return handle


def _rows(api_versions: ApiVersions) -> list[Api]:
    return [
        # Produce is listed from version 0 because librdkafka looks for that (KAFKA-18659).
        _row(m.ProduceRequest, produce.handle, min_version=_PRODUCE_MIN, advertised_min=0, reads_answer=False),
        _row(m.FetchRequest, fetch.handle, reads_answer=False),
        _row(m.ListOffsetsRequest, list_offsets.handle),
        _row(m.MetadataRequest, metadata.handle),
        _row(m.OffsetCommitRequest, _later("offsets", "offset_commit")),
        _row(m.OffsetFetchRequest, _later("offsets", "offset_fetch")),
        _row(m.FindCoordinatorRequest, find_coordinator.handle),
        _row(m.JoinGroupRequest, _later("groups", "join_group")),
        _row(m.HeartbeatRequest, _later("groups", "heartbeat")),
        _row(m.LeaveGroupRequest, _later("groups", "leave_group")),
        _row(m.SyncGroupRequest, _later("groups", "sync_group")),
        _row(m.DescribeGroupsRequest, _later("group_admin", "describe_groups")),
        _row(m.ListGroupsRequest, _later("group_admin", "list_groups")),
        _row(m.SaslHandshakeRequest, _later("security", "sasl_handshake")),
        _row(m.ApiVersionsRequest, api_versions.handle),
        _row(m.CreateTopicsRequest, forwarded.handle),
        _row(m.DeleteTopicsRequest, forwarded.handle),
        _row(m.DeleteRecordsRequest, partitions.delete_records),
        _row(m.InitProducerIdRequest, init_producer_id.handle, unstable_from=_INIT_PRODUCER_ID_UNSTABLE),
        _row(m.OffsetForLeaderEpochRequest, partitions.offset_for_leader_epoch),
        _row(m.AddPartitionsToTxnRequest, transactions.handle_add_partitions),
        _row(m.AddOffsetsToTxnRequest, transactions.handle_add_offsets),
        _row(m.EndTxnRequest, transactions.handle_end_txn),
        _row(m.WriteTxnMarkersRequest, write_txn_markers.handle),
        _row(m.TxnOffsetCommitRequest, _later("txn_offset_commit", "handle")),
        _row(m.DescribeAclsRequest, acls.describe),
        _row(m.CreateAclsRequest, forwarded.handle),
        _row(m.DeleteAclsRequest, forwarded.handle),
        _row(m.DescribeConfigsRequest, configs.describe),
        _row(m.AlterConfigsRequest, forwarded.handle),
        _row(m.DescribeLogDirsRequest, administration.describe_log_dirs),
        _row(m.SaslAuthenticateRequest, _later("security", "sasl_authenticate")),
        _row(m.CreatePartitionsRequest, forwarded.handle),
        _row(m.DeleteGroupsRequest, _later("group_admin", "delete_groups")),
        _row(m.IncrementalAlterConfigsRequest, forwarded.handle),
        _row(m.ElectLeadersRequest, forwarded.handle),
        _row(m.AlterPartitionReassignmentsRequest, forwarded.handle),
        _row(m.ListPartitionReassignmentsRequest, forwarded.handle),
        _row(m.OffsetDeleteRequest, _later("offsets", "offset_delete")),
        _row(m.DescribeClientQuotasRequest, administration.describe_client_quotas),
        _row(m.DescribeUserScramCredentialsRequest, _later("security", "describe_user_scram_credentials")),
        _row(m.DescribeQuorumRequest, administration.describe_quorum),
        _row(m.UpdateFeaturesRequest, forwarded.handle),
        _row(m.DescribeClusterRequest, metadata.describe_cluster),
        _row(m.DescribeProducersRequest, partitions.describe_producers),
        _row(m.UnregisterBrokerRequest, forwarded.handle),
        _row(m.DescribeTransactionsRequest, describe_transactions.handle_describe),
        _row(m.ListTransactionsRequest, describe_transactions.handle_list),
        _row(m.ConsumerGroupHeartbeatRequest, _later("consumer_groups", "handle_heartbeat")),
        _row(m.ConsumerGroupDescribeRequest, _later("consumer_groups", "handle_describe")),
        _row(m.ListConfigResourcesRequest, configs.list_resources),
        _row(m.DescribeTopicPartitionsRequest, metadata.describe_topic_partitions),
        _row(m.DescribeTransactionStateRequest, describe_transaction_state.handle, advertised=False),
    ]


def apis() -> dict[int, Api]:
    """The table by API key, for docs and tests; it is not bound to a broker."""
    return {api.key: api for api in _rows(ApiVersions())}


def as_release(table: Mapping[int, Api], max_versions: Mapping[str, int]) -> dict[int, Api]:
    """What of `table` a release had, by its highest versions. Its lowest ones stay those of this broker: versions that
    Kafka 4 dropped (KIP-896) are not served as any release."""
    served = {}
    for key, api in table.items():
        highest = min(max_versions.get(api.name, -1), api.max_version)
        if not api.advertised:
            served[key] = api
        elif highest >= api.min_version:
            served[key] = replace(api, max_version=highest, unstable_from=None)
    return served


def make_dispatcher(broker: Broker) -> Dispatcher:
    """The table bound to one broker."""
    api_versions = ApiVersions()
    table = {api.key: api for api in _rows(api_versions)}
    advertised = broker.semantics.advertised
    served = table if advertised is None else as_release(table, advertised.max_versions)
    api_versions.describe(
        served,
        unstable=broker.settings.bool("unstable.api.versions.enable"),
        unlisted=broker.semantics.advertise_describe_transaction_state,
    )
    if broker.authorizer is not None:
        from minibroker.handlers.authorization import guarded

        # What the guard refuses has no other reason yet than that of the answer.
        rows = ((key, guarded(api)) for key, api in served.items())
        served = {key: replace(row, handler=explained(row.handler)) for key, row in rows}
    highest = served[m.ApiVersionsRequest.__api_key__].max_version
    return Dispatcher(broker, served, lambda: unsupported(highest), between_brokers=table)
