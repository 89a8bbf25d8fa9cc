"""Every API, one row each: versions, handler, rights, whether brokers send it, whether the controller answers it.

ApiVersions, rights, forwarding, faults between brokers, the table of docs/reference/served.md and the fuzz tests read
it; nothing registers itself. An API that is not here is not served: a request for it closes the connection, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from minibroker.handlers import fetch, find_coordinator, list_offsets, metadata, produce
from minibroker.handlers.api_versions import ApiVersions, unsupported
from minibroker.requests import forwarded, rights, special_rights
from minibroker.requests.api import Api
from minibroker.requests.chain import Later
from minibroker.requests.context import Handler, RequestContext
from minibroker.requests.dispatch import Dispatcher
from minibroker.requests.kinds import WHOLE, Each, Kind
from minibroker.requests.refusal_reasons import Explain
from minibroker.requests.rights import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    ItemRight,
    RequestRight,
    Right,
)
from minibroker.requests.slices import Slices
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
    *needs: Right,
    kind: Kind = WHOLE,
    free: bool = False,
    min_version: int | None = None,
    advertised_min: int | None = None,
    advertised: bool = True,
    unstable_from: int | None = None,
    reads_answer: bool = True,
    between_brokers: bool = False,
    clients: bool = True,
) -> Api:
    """needs: the rights that the client must have, in the order in which they are checked; `free` states that there are
    none. The rest is as in `Api`."""
    if bool(needs) == (free or not clients):
        raise TypeError(f"{request.__name__}: a row says either which rights it needs, or that it is free")
    low, high = request.__versions__
    return Api(
        key=request.__api_key__,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=registry()[request.__api_key__][1],
        handler=handler,
        min_version=low if min_version is None else min_version,
        max_version=high,
        advertised_min=advertised_min,
        advertised=advertised,
        unstable_from=unstable_from,
        rights=needs,
        controller=handler is forwarded.handle,
        between_brokers=between_brokers or handler is forwarded.handle,
        clients=clients,
        reads_answer=reads_answer,
        kind=kind,
    )


def _later(module: str, name: str) -> Handler:
    """A handler of a module that only some brokers need: groups are a seventh of what a start would import."""
    return Later(lambda: getattr(import_module(f"minibroker.handlers.{module}"), name))


def _only_brokers(_: RequestContext, request: Any) -> Any:
    raise AssertionError(f"{type(request).__name__} is sent on, not handled here")


def _rows(api_versions: ApiVersions) -> list[Api]:
    """One row for each API; how to add one: docs/how-to/developers/add-an-api.md."""
    on_controller = forwarded.handle
    return [
        # Produce is listed from version 0 because librdkafka looks for that (KAFKA-18659).
        _row(m.ProduceRequest, produce.handle,
             RequestRight(WRITE, TRANSACTIONAL_ID, rights.id_of_transactional_batches),
             ItemRight(WRITE, TOPIC, unless=rights.transactional_without_id),
             min_version=_PRODUCE_MIN, advertised_min=0, reads_answer=False),
        # Looks itself at every topic of the session, named in the request or not.
        _row(m.FetchRequest, fetch.handle, free=True, reads_answer=False, between_brokers=True),
        _row(m.ListOffsetsRequest, list_offsets.handle, ItemRight(DESCRIBE, TOPIC), between_brokers=True),
        _row(m.MetadataRequest, metadata.handle,
             ItemRight(DESCRIBE, TOPIC), ItemRight(CREATE, TOPIC, cluster=CREATE, applies=rights.would_be_made),
             special_rights.DESCRIBED_TOPICS, rights.ServedWithoutItems(min_version=1)),
        _row(m.OffsetCommitRequest, _later("offsets", "offset_commit"),
             RequestRight(READ, GROUP), ItemRight(READ, TOPIC)),
        _row(m.OffsetFetchRequest, _later("offsets", "offset_fetch"),
             RequestRight(DESCRIBE, GROUP, rights.old_group), ItemRight(DESCRIBE, GROUP),
             special_rights.OFFSETS_OF_DESCRIBED_TOPICS, special_rights.OFFSETS_OF_NO_GROUP),
        _row(m.FindCoordinatorRequest, find_coordinator.handle, *rights.COORDINATORS, kind=Each("coordinator_keys")),
        _row(m.JoinGroupRequest, _later("groups", "join_group"), RequestRight(READ, GROUP)),
        _row(m.HeartbeatRequest, _later("groups", "heartbeat"), RequestRight(READ, GROUP)),
        _row(m.LeaveGroupRequest, _later("groups", "leave_group"), RequestRight(READ, GROUP)),
        _row(m.SyncGroupRequest, _later("groups", "sync_group"), RequestRight(READ, GROUP)),
        _row(m.DescribeGroupsRequest, _later("group_admin", "describe_groups"), ItemRight(DESCRIBE, GROUP),
             kind=Each("groups")),
        _row(m.ListGroupsRequest, _later("group_admin", "list_groups"), special_rights.DESCRIBED_GROUPS),
        _row(m.SaslHandshakeRequest, _later("security", "sasl_handshake"), free=True),
        _row(m.ApiVersionsRequest, api_versions.handle, free=True),
        _row(m.CreateTopicsRequest, on_controller, ItemRight(CREATE, TOPIC, cluster=CREATE),
             special_rights.CONFIGS_OF_CREATED),
        _row(m.DeleteTopicsRequest, on_controller,
             ItemRight(DELETE, TOPIC, cluster=DELETE, applies=rights.may_be_deleted), special_rights.KNOWN_NAMES),
        _row(m.DeleteRecordsRequest, _later("partitions", "delete_records"), ItemRight(DELETE, TOPIC),
             kind=Each("topics.partitions", changes=True)),
        _row(m.InitProducerIdRequest, _later("init_producer_id", "handle"), RequestRight(WRITE, TRANSACTIONAL_ID),
             special_rights.IDEMPOTENT,
             unstable_from=_INIT_PRODUCER_ID_UNSTABLE),
        _row(m.OffsetForLeaderEpochRequest, _later("partitions", "offset_for_leader_epoch"),
             ItemRight(DESCRIBE, TOPIC, cluster=CLUSTER_ACTION), kind=Each("topics.partitions")),
        # The handler has the rest: one topic that may not be written to leaves all untried.
        _row(m.AddPartitionsToTxnRequest, _later("transactions", "handle_add_partitions"),
             RequestRight(CLUSTER_ACTION, CLUSTER, rights.of_brokers),
             RequestRight(WRITE, TRANSACTIONAL_ID, rights.v3_transactional_id), special_rights.NO_TRANSACTIONS,
             between_brokers=True),
        _row(m.AddOffsetsToTxnRequest, _later("transactions", "handle_add_offsets"),
             RequestRight(WRITE, TRANSACTIONAL_ID), RequestRight(READ, GROUP)),
        _row(m.EndTxnRequest, _later("transactions", "handle_end_txn"), RequestRight(WRITE, TRANSACTIONAL_ID)),
        _row(m.WriteTxnMarkersRequest, _later("write_txn_markers", "handle"), RequestRight(CLUSTER_ACTION, CLUSTER,
             instead=ALTER),
             between_brokers=True),
        _row(m.TxnOffsetCommitRequest, _later("txn_offset_commit", "handle"),
             RequestRight(WRITE, TRANSACTIONAL_ID), RequestRight(READ, GROUP), ItemRight(READ, TOPIC)),
        _row(m.DescribeAclsRequest, _later("acls", "describe"), RequestRight(DESCRIBE, CLUSTER)),
        _row(m.CreateAclsRequest, on_controller, RequestRight(ALTER, CLUSTER)),
        _row(m.DeleteAclsRequest, on_controller, RequestRight(ALTER, CLUSTER)),
        _row(m.DescribeConfigsRequest, _later("configs", "describe"), *rights.configs(DESCRIBE_CONFIGS)),
        _row(m.AlterConfigsRequest, on_controller, *rights.configs(ALTER_CONFIGS)),
        _row(m.DescribeLogDirsRequest, _later("administration", "describe_log_dirs"), RequestRight(DESCRIBE, CLUSTER)),
        _row(m.SaslAuthenticateRequest, _later("security", "sasl_authenticate"), free=True),
        _row(m.CreatePartitionsRequest, on_controller, ItemRight(ALTER, TOPIC)),
        _row(m.DeleteGroupsRequest, _later("group_admin", "delete_groups"), ItemRight(DELETE, GROUP),
             kind=Each("groups_names", once=True, changes=True)),
        _row(m.IncrementalAlterConfigsRequest, on_controller, *rights.configs(ALTER_CONFIGS)),
        _row(m.ElectLeadersRequest, on_controller, RequestRight(ALTER, CLUSTER)),
        _row(m.AlterPartitionReassignmentsRequest, on_controller, RequestRight(ALTER, CLUSTER)),
        _row(m.ListPartitionReassignmentsRequest, on_controller, RequestRight(DESCRIBE, CLUSTER),
             special_rights.NO_REASSIGNMENTS),
        _row(m.OffsetDeleteRequest, _later("offsets", "offset_delete"),
             RequestRight(DELETE, GROUP), ItemRight(READ, TOPIC),
             special_rights.NO_TOPICS),
        _row(m.DescribeClientQuotasRequest, _later("administration", "describe_client_quotas"),
             RequestRight(DESCRIBE_CONFIGS, CLUSTER),
             special_rights.NO_QUOTAS),
        _row(m.DescribeUserScramCredentialsRequest, _later("security", "describe_user_scram_credentials"),
             RequestRight(DESCRIBE, CLUSTER), special_rights.NO_CREDENTIALS),
        _row(m.AlterUserScramCredentialsRequest, on_controller, RequestRight(ALTER, CLUSTER),
             special_rights.EACH_USER_ONCE),
        _row(m.DescribeQuorumRequest, _later("administration", "describe_quorum"), RequestRight(DESCRIBE, CLUSTER),
             special_rights.NO_TOPICS),
        _row(m.AlterPartitionRequest, _only_brokers, clients=False, between_brokers=True),
        _row(m.UpdateFeaturesRequest, on_controller, RequestRight(ALTER, CLUSTER), special_rights.NO_RESULTS),
        _row(m.DescribeClusterRequest, metadata.describe_cluster, free=True),
        _row(m.DescribeProducersRequest, _later("partitions", "describe_producers"), ItemRight(READ, TOPIC),
             kind=Each("topics.partition_indexes")),
        _row(m.BrokerHeartbeatRequest, _only_brokers, clients=False, between_brokers=True),
        _row(m.UnregisterBrokerRequest, on_controller, RequestRight(ALTER, CLUSTER)),
        _row(m.DescribeTransactionsRequest, _later("describe_transactions", "handle_describe"),
             ItemRight(DESCRIBE, TRANSACTIONAL_ID), kind=Each("transactional_ids")),
        _row(m.ListTransactionsRequest, _later("describe_transactions", "handle_list"),
             special_rights.DESCRIBED_TRANSACTIONS),
        _row(m.AllocateProducerIdsRequest, _only_brokers, clients=False, between_brokers=True),
        _row(m.ConsumerGroupHeartbeatRequest, _later("consumer_groups", "handle_heartbeat"),
             RequestRight(READ, GROUP), RequestRight(DESCRIBE, TOPIC), special_rights.NO_MEMBER),
        _row(m.ConsumerGroupDescribeRequest, _later("consumer_groups", "handle_describe"), ItemRight(DESCRIBE, GROUP),
             special_rights.GROUPS_OF_DESCRIBED_TOPICS, kind=Each("group_ids")),
        _row(m.ListConfigResourcesRequest, _later("configs", "list_resources"), RequestRight(DESCRIBE_CONFIGS,
             CLUSTER)),
        _row(m.DescribeTopicPartitionsRequest, metadata.describe_topic_partitions, ItemRight(DESCRIBE, TOPIC)),
        # Looks itself: its answers are in order and have no names.
        _row(m.DescribeTransactionStateRequest, _later("describe_transaction_state", "handle"), free=True,
             kind=Each("transactional_ids"), advertised=False,
             between_brokers=True),
    ]  # fmt: skip


def rows() -> dict[int, Api]:
    """Every row by API key, including requests that only brokers send; not bound to a broker."""
    return {api.key: api for api in _rows(ApiVersions())}


@cache
def apis_of_brokers() -> dict[int, Api]:
    """The requests that a broker sends to others, to itself or to the controller, for itself or for a client."""
    return {key: api for key, api in rows().items() if api.between_brokers}


def apis() -> dict[int, Api]:
    """The rows that are served to clients, by API key, for docs and tests; not bound to a broker."""
    return {key: api for key, api in rows().items() if api.clients}


def as_release(table: Mapping[int, Api], max_versions: Mapping[str, int]) -> dict[int, Api]:
    """The part of `table` that a release had, by its highest versions. The lowest versions stay those of this broker:
    versions that Kafka 4 dropped (KIP-896) are not served as any release."""
    served = {}
    for key, api in table.items():
        highest = min(max_versions.get(api.name, -1), api.max_version)
        if not api.advertised:
            served[key] = api
        elif highest >= api.min_version:
            served[key] = api._replace(max_version=highest, unstable_from=None)
    return served


def make_dispatcher(broker: Broker) -> Dispatcher:
    """The table bound to one broker."""
    api_versions = ApiVersions()
    table = {api.key: api for api in _rows(api_versions) if api.clients}
    advertised = broker.semantics.advertised
    served = table if advertised is None else as_release(table, advertised.max_versions)
    api_versions.describe(
        served,
        unstable=broker.settings.get_boolean("unstable.api.versions.enable"),
        unlisted=broker.semantics.advertise_describe_transaction_state,
    )
    rights_link = None
    if broker.authorizer is not None:
        from minibroker.requests.authorization import Rights

        rights_link = Rights()
    not_yet = None
    if broker.settings.get_boolean("minibroker.not.yet.answers"):
        from minibroker.requests.not_yet import NotYet

        not_yet = NotYet()
    highest = served[m.ApiVersionsRequest.__api_key__].max_version
    return Dispatcher(
        broker,
        served,
        lambda: unsupported(highest),
        apis_of_brokers=table,
        explain=Explain(),
        rights=rights_link,
        not_yet=not_yet,
        slices=Slices(),
    )
