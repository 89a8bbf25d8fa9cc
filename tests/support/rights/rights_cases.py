"""The requests of the matrix of rights: every API that is served, and every shape of request with rules of its own.

What a request may do where it is allowed changes nothing that a later one asks about: it names what is not there, only
validates, or has a topic, group or transactional id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rights_world import (
    CLOSED,
    USERS,
    Ask,
    Names,
    Side,
    add_partitions,
    as_shown,
    grant,
    heartbeat,
    make_topics,
    offset_commit,
    produce_to,
    revoke,
    topic_ids,
)

from minibroker_protocol import messages as m
from minibroker_protocol.fields import NO_ID

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
"""ConfigResource types."""
STRANGER = 987_654
"""A producer id that is not that of the transactional id it comes with."""
TOPICS = ("a", "b", "ax", "bx")


UNLIKE = {
    "Metadata that makes topics v9": "a topic that was just made is there at once; Kafka says 3 until it is",
    "CreateTopics v7": "Kafka makes an id up for a topic that is only validated",
}
"""Cases whose answers differ from Kafka's for other reasons than rights. For these it is compared which users are
answered alike."""


@dataclass(frozen=True)
class Case:
    """One request. own_topics: prefixes of topics that are made for each user. silent: no answer is asked for."""

    name: str
    version: int
    ask: Ask
    own_topics: tuple[str, ...] = ()
    silent: bool = False

    @property
    def key(self) -> str:
        return f"{self.name} v{self.version}"

    def own(self, user: str) -> str:
        """Letters that only this case and user have in names."""
        return f"{CASES.index(self)}.{user}"


def _produce(transactional_id: str | None = None, acks: int = -1, *, in_transaction: bool = False) -> Ask:
    def ask(_: Names) -> Any:
        topics = ["ax", "bx"] if in_transaction else list(TOPICS)
        return produce_to(topics, transactional_id=transactional_id, acks=acks, in_transaction=in_transaction)

    return ask


def _produce_by_id(names: Names) -> Any:
    request = produce_to(["a", "b"])
    for topic in request.topic_data:
        topic.topic_id = names.ids[topic.name]
    return request


def fetch(
    names: Names,
    topics: Any = ("a", "b", "ax"),
    *,
    session: tuple[int, int] = (0, -1),
    replica: int = -1,
    offset: int = 0,
    forget: tuple[str, ...] = (),
) -> m.FetchRequest:
    request = m.FetchRequest
    partition = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return request(
        replica_id=replica,
        max_wait_ms=0,
        min_bytes=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            request.FetchTopic(topic=name, topic_id=names.ids.get(name, bytes(15) + b"\7"), partitions=[partition])
            for name in topics
        ],
        forgotten_topics_data=[
            request.ForgottenTopic(topic=name, topic_id=names.ids[name], partitions=[0]) for name in forget
        ],
    )


def _list_offsets(_: Names) -> Any:
    kind = m.ListOffsetsRequest
    entry = kind.ListOffsetsPartition(partition_index=0, timestamp=-2)
    return kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name=name, partitions=[entry]) for name in TOPICS])


def _metadata(*topics: str, create: bool = False, operations: bool = False) -> Ask:
    kind = m.MetadataRequest

    def ask(names: Names) -> Any:
        named = [names.mine(name[0]) if name.endswith(".own") else name for name in topics]
        return kind(
            topics=[kind.MetadataRequestTopic(name=name) for name in named] if topics else None,
            allow_auto_topic_creation=create,  # always asked for before version 4
            include_cluster_authorized_operations=operations,
            include_topic_authorized_operations=operations,
        )

    return ask


def _metadata_by_id(names: Names) -> Any:
    kind = m.MetadataRequest
    ids = [names.ids["a"], names.ids["b"], bytes(15) + b"\7"]
    return kind(
        topics=[kind.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids],
        allow_auto_topic_creation=False,
    )


def _offset_commit(version: int) -> Ask:
    def ask(names: Names) -> Any:
        topics = TOPICS if version < 10 else ("a", "b")
        return offset_commit(names.mine("g"), topics, names.ids)

    return ask


def _offset_fetch(version: int, *, everything: bool = False) -> Ask:
    kind = m.OffsetFetchRequest

    def ask(names: Names) -> Any:
        if version < 8:
            old = [kind.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in TOPICS]
            return kind(group_id="g", topics=None if everything else old)
        topics = TOPICS if version < 10 else ("a", "b")
        named = [
            kind.OffsetFetchRequestTopics(name=n, topic_id=names.ids.get(n, NO_ID), partition_indexes=[0])
            for n in topics
        ]
        return kind(
            groups=[
                kind.OffsetFetchRequestGroup(group_id=group, topics=None if everything else named)
                for group in ("g", "h")
            ]
        )

    return ask


def _find(key_type: int, *keys: str) -> Ask:
    def ask(_: Names) -> Any:
        if len(keys) == 1:
            return m.FindCoordinatorRequest(key=keys[0], key_type=key_type)
        return m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))

    return ask


def _join(names: Names) -> Any:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return m.JoinGroupRequest(
        group_id=names.mine("g"),
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )


def _leave(names: Names) -> Any:
    kind = m.LeaveGroupRequest
    return kind(group_id=names.mine("g"), member_id="m", members=[kind.MemberIdentity(member_id="m")])


def _create_topics(names: Names) -> Any:
    kind = m.CreateTopicsRequest
    return kind(
        topics=[
            kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            for name in (names.mine("a"), names.mine("b"), "a", "b")
        ],
        timeout_ms=30_000,
        validate_only=True,
    )


def _delete_topics_by_name(names: Names) -> Any:
    return m.DeleteTopicsRequest(topic_names=[names.mine("a"), names.mine("b"), "ax", "bx"], timeout_ms=30_000)


def _delete_topics(*, by_id: bool, both: bool = False) -> Ask:
    kind = m.DeleteTopicsRequest.DeleteTopicState

    def ask(names: Names) -> Any:
        own = (names.mine("a"), names.mine("b"))
        states = [
            kind(name=name if both or not by_id else None, topic_id=names.ids[name] if by_id else NO_ID) for name in own
        ]
        if not both and by_id:
            states.append(kind(name=None, topic_id=bytes(15) + b"\7"))
        return m.DeleteTopicsRequest(topics=states, timeout_ms=30_000)

    return ask


def _delete_records(_: Names) -> Any:
    kind = m.DeleteRecordsRequest
    entry = kind.DeleteRecordsPartition(partition_index=0, offset=0)
    return kind(topics=[kind.DeleteRecordsTopic(name=name, partitions=[entry]) for name in TOPICS], timeout_ms=30_000)


def _init(transactional_id: bool, *, two_phase: bool = False) -> Ask:
    def ask(names: Names) -> Any:
        name = names.mine("x") if transactional_id else None
        return m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000, enable2_pc=two_phase)

    return ask


def _leader_epoch(_: Names) -> Any:
    kind = m.OffsetForLeaderEpochRequest
    entry = kind.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic=name, partitions=[entry]) for name in TOPICS])


def _add_partitions(*topics: str, partitions: Iterable[int] = (0,)) -> Ask:
    return lambda names: add_partitions("x", (STRANGER, 0), topics, partitions)


def _add_partitions_in_batch(names: Names) -> Any:
    kind = m.AddPartitionsToTxnRequest
    return kind(
        transactions=[
            kind.AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=STRANGER,
                producer_epoch=0,
                verify_only=True,
                topics=[kind.AddPartitionsToTxnTopic(name=topic, partitions=[0]) for topic in ("a", "b")],
            )
            for name in ("x", "y")
        ]
    )


def _add_offsets(group: str) -> Ask:
    return lambda _: m.AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=STRANGER, producer_epoch=0, group_id=group
    )


def _end(transactional_id: str) -> Ask:
    return lambda _: m.EndTxnRequest(
        transactional_id=transactional_id, producer_id=STRANGER, producer_epoch=0, committed=True
    )


def _markers(_: Names) -> Any:
    kind = m.WriteTxnMarkersRequest
    topics = [kind.WritableTxnMarkerTopic(name=name, partition_indexes=[0, 1]) for name in ("ax", "bx")]
    return kind(
        markers=[
            kind.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=0,
                transaction_result=True,
                topics=topics,
                coordinator_epoch=0,
            )
            for producer_id in (STRANGER, STRANGER + 1)
        ]
    )


def _txn_offset_commit(*topics: str) -> Ask:
    kind = m.TxnOffsetCommitRequest
    entry = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    return lambda names: kind(
        transactional_id="x",
        group_id=names.mine("g"),
        producer_id=STRANGER,
        producer_epoch=0,
        topics=[
            kind.TxnOffsetCommitRequestTopic(
                name=name, topic_id=names.ids.get(name, bytes(15) + b"\7"), partitions=[entry]
            )
            for name in topics
        ],
    )


_NOBODY: dict[str, Any] = {"principal_filter": "User:nobody", "host_filter": None, "operation": 1, "permission_type": 1}


def _describe_acls(_: Names) -> Any:
    return m.DescribeAclsRequest(resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, **_NOBODY)


def _create_acls(_: Names) -> Any:
    kind = m.CreateAclsRequest
    made = [
        kind.AclCreation(
            resource_type=2,
            resource_name=name,
            principal="User:a friend",
            host="*",
            operation=3,
            permission_type=3,
        )
        for name in ("a", "b")
    ]
    return kind(creations=made)


def _delete_acls(_: Names) -> Any:
    kind = m.DeleteAclsRequest
    chosen = [
        kind.DeleteAclsFilter(resource_type_filter=2, resource_name_filter=n, pattern_type_filter=3, **_NOBODY)
        for n in ("a", "b")
    ]
    return kind(filters=chosen)


RESOURCES = ((TOPIC, "a"), (TOPIC, "b"), (BROKER, "1"), (BROKER, ""))
SOME_CONFIG = {TOPIC: ("retention.ms", "-1"), BROKER: ("log.cleaner.threads", "1")}


def _describe_configs(*resources: tuple[int, str]) -> Ask:
    kind = m.DescribeConfigsRequest
    keys = {TOPIC: ["retention.ms"], BROKER: ["auto.create.topics.enable"]}
    return lambda _: kind(
        resources=[
            kind.DescribeConfigsResource(
                resource_type=code, resource_name=name, configuration_keys=keys.get(code, ["none"])
            )
            for code, name in resources
        ]
    )


def _alter_configs(*resources: tuple[int, str]) -> Ask:
    kind = m.AlterConfigsRequest
    return lambda _: kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=code,
                resource_name=name,
                configs=[kind.AlterableConfig(name=n, value=v) for n, v in (SOME_CONFIG[code],)],
            )
            for code, name in resources
        ],
        validate_only=True,
    )


def _alter_incrementally(*resources: tuple[int, str]) -> Ask:
    kind = m.IncrementalAlterConfigsRequest
    return lambda _: kind(
        resources=[
            kind.AlterConfigsResource(
                resource_type=code,
                resource_name=name,
                configs=[
                    kind.AlterableConfig(name=n, config_operation=0, value=v)
                    for n, v in (SOME_CONFIG.get(code, ("none", "1")),)
                ],
            )
            for code, name in resources
        ],
        validate_only=True,
    )


def _create_partitions(_: Names) -> Any:
    kind = m.CreatePartitionsRequest
    return kind(
        topics=[kind.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in TOPICS],
        timeout_ms=30_000,
        validate_only=True,
    )


def _elect(*topics: str) -> Ask:
    kind = m.ElectLeadersRequest
    named = [kind.TopicPartitions(topic=name, partitions=[0]) for name in topics]
    return lambda _: kind(election_type=0, topic_partitions=named or None, timeout_ms=30_000)


def _reassign(_: Names) -> Any:
    kind = m.AlterPartitionReassignmentsRequest
    entry = kind.ReassignablePartition(partition_index=0, replicas=None)
    return kind(topics=[kind.ReassignableTopic(name=name, partitions=[entry]) for name in TOPICS], timeout_ms=30_000)


def _list_reassignments(_: Names) -> Any:
    kind = m.ListPartitionReassignmentsRequest
    return kind(
        topics=[kind.ListPartitionReassignmentsTopics(name=name, partition_indexes=[0]) for name in ("a", "b")],
        timeout_ms=30_000,
    )


def _offset_delete(_: Names) -> Any:
    kind = m.OffsetDeleteRequest
    entry = kind.OffsetDeleteRequestPartition(partition_index=7)
    return kind(group_id="g", topics=[kind.OffsetDeleteRequestTopic(name=name, partitions=[entry]) for name in TOPICS])


def _describe_producers(_: Names) -> Any:
    kind = m.DescribeProducersRequest
    return kind(topics=[kind.TopicRequest(name=name, partition_indexes=[0]) for name in TOPICS])


def _quorum(_: Names) -> Any:
    kind = m.DescribeQuorumRequest
    part = kind.PartitionData(partition_index=0)
    return kind(topics=[kind.TopicData(topic_name="__cluster_metadata", partitions=[part])])


def _scram_of(user: str) -> Any:
    kind = m.DescribeUserScramCredentialsRequest
    return kind(users=[kind.UserName(name=user)])


def _alter_scram(_: Names) -> Any:
    kind = m.AlterUserScramCredentialsRequest
    return kind(
        deletions=[kind.ScramCredentialDeletion(name=name, mechanism=1) for name in ("nobody", "other", "nobody")],
        upsertions=[
            kind.ScramCredentialUpsertion(name="few", mechanism=1, iterations=1, salt=bytes(16), salted_password=b"p")
        ],
    )


def _update_features(_: Names) -> Any:
    kind = m.UpdateFeaturesRequest
    entry = kind.FeatureUpdateKey(feature="no.such.feature", max_version_level=1, upgrade_type=1)
    return kind(timeout_ms=30_000, feature_updates=[entry], validate_only=True)


def _topic_partitions(*topics: str) -> Ask:
    kind = m.DescribeTopicPartitionsRequest
    return lambda _: kind(topics=[kind.TopicRequest(name=name) for name in topics])


def _cluster_of(version: int) -> Case:
    return Case(
        "DescribeCluster",
        version,
        lambda _: m.DescribeClusterRequest(include_cluster_authorized_operations=True, include_fenced_brokers=True),
    )


CASES: list[Case] = [
    Case("Produce", 3, _produce()),
    Case("Produce", 9, _produce()),
    Case("Produce with ids", 13, _produce_by_id),
    Case("Produce of a transactional id", 9, _produce("x")),
    Case("Produce of another's transactional id", 9, _produce("y")),
    Case("Produce of a transactional batch", 9, _produce("x", in_transaction=True)),
    Case("Produce of another's transactional batch", 9, _produce("y", in_transaction=True)),
    Case("Produce of a transactional batch without an id", 9, _produce(in_transaction=True)),
    Case("Produce without an answer", 9, _produce(acks=0), silent=True),
    Case("Fetch", 4, fetch),
    Case("Fetch", 11, fetch),
    Case("Fetch with ids", 16, fetch),
    Case("Fetch in a new session", 11, lambda names: fetch(names, session=(0, 0))),
    Case("Fetch in a new session with ids", 16, lambda names: fetch(names, session=(0, 0))),
    Case("Fetch as a replica", 11, lambda names: fetch(names, replica=1)),
    Case("Fetch as a replica with ids", 14, lambda names: fetch(names, replica=1)),
    Case("Fetch as a replica that is not there", 11, lambda names: fetch(names, replica=1, topics=("ax", "bx"))),
    Case("ListOffsets", 1, _list_offsets),
    Case("ListOffsets", 7, _list_offsets),
    Case("Metadata", 0, _metadata("a", "b", "bx")),
    Case("Metadata", 1, _metadata("a", "b", "bx")),
    Case("Metadata with operations", 8, _metadata("a", "b", operations=True)),
    Case("Metadata", 12, _metadata(*TOPICS)),
    Case("Metadata of all topics", 12, _metadata()),
    Case("Metadata with ids", 12, _metadata_by_id),
    Case("Metadata that makes topics", 9, _metadata("a.own", "b.own", create=True)),
    *(Case("OffsetCommit", version, _offset_commit(version)) for version in (7, 9, 10)),
    *(Case("OffsetFetch", version, _offset_fetch(version)) for version in (1, 7, 9, 10)),
    *(Case("OffsetFetch of all", version, _offset_fetch(version, everything=True)) for version in (2, 9, 10)),
    Case("FindCoordinator of a group", 3, _find(0, "g")),
    Case("FindCoordinator of a transactional id", 3, _find(1, "x")),
    Case("FindCoordinator of groups", 4, _find(0, "g", "h")),
    Case("FindCoordinator of transactional ids", 5, _find(1, "x", "y")),
    Case("JoinGroup", 5, _join),
    Case("JoinGroup", 9, _join),
    Case("Heartbeat", 4, lambda names: m.HeartbeatRequest(group_id=names.mine("g"), generation_id=1, member_id="m")),
    Case("LeaveGroup", 1, _leave),
    Case("LeaveGroup", 4, _leave),
    Case(
        "SyncGroup",
        5,
        lambda names: m.SyncGroupRequest(
            group_id=names.mine("g"),
            generation_id=1,
            member_id="m",
            protocol_type="c",
            protocol_name="p",
            assignments=[],
        ),
    ),
    Case("DescribeGroups", 5, lambda _: m.DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True)),
    Case("ListGroups", 4, lambda _: m.ListGroupsRequest()),
    Case("SaslHandshake", 1, lambda _: m.SaslHandshakeRequest(mechanism="PLAIN")),
    Case("SaslAuthenticate", 1, lambda _: m.SaslAuthenticateRequest(auth_bytes=b"\0admin\0a")),
    Case("CreateTopics", 4, _create_topics),
    Case("CreateTopics", 7, _create_topics),
    Case("DeleteRecords", 2, _delete_records),
    Case("InitProducerId", 1, _init(False)),
    Case("InitProducerId", 4, _init(False)),
    Case("InitProducerId of a transactional id", 5, _init(True)),
    Case("OffsetForLeaderEpoch", 2, _leader_epoch),
    Case("OffsetForLeaderEpoch", 4, _leader_epoch),
    Case("AddPartitionsToTxn", 0, _add_partitions("a", "b")),
    Case("AddPartitionsToTxn", 3, _add_partitions("a", "b", "ax")),
    Case("AddPartitionsToTxn of one topic", 3, _add_partitions("a")),
    Case("AddPartitionsToTxn of an internal topic", 3, _add_partitions("a", "b", "__consumer_offsets")),
    Case("AddPartitionsToTxn of an internal topic alone", 3, _add_partitions("a", "__transaction_state")),
    Case("AddPartitionsToTxn of missing partitions", 3, _add_partitions("a", "b", partitions=(0, 7))),
    Case("AddPartitionsToTxn in batches", 4, _add_partitions_in_batch),
    Case("AddOffsetsToTxn", 3, _add_offsets("g")),
    Case("AddOffsetsToTxn of another's group", 4, _add_offsets("h")),
    Case("EndTxn", 3, _end("x")),
    Case("EndTxn", 5, _end("x")),
    Case("EndTxn of another's", 5, _end("y")),
    Case("WriteTxnMarkers", 1, _markers),
    Case("TxnOffsetCommit", 3, _txn_offset_commit("a", "b")),
    Case("TxnOffsetCommit", 4, _txn_offset_commit("a", "b", "ax")),
    Case("TxnOffsetCommit of one topic", 3, _txn_offset_commit("a")),
    Case("DescribeAcls", 3, _describe_acls),
    Case("CreateAcls", 3, _create_acls),
    Case("DeleteAcls", 3, _delete_acls),
    Case("DescribeConfigs", 4, _describe_configs(*RESOURCES)),
    Case("DescribeConfigs of groups", 4, _describe_configs((GROUP, "g"), (GROUP, "h"))),
    Case("DescribeConfigs of client metrics", 4, _describe_configs((CLIENT_METRICS, "m"), (TOPIC, "a"))),
    Case("AlterConfigs", 2, _alter_configs(*RESOURCES[:3])),
    Case("IncrementalAlterConfigs", 1, _alter_incrementally(*RESOURCES)),
    Case("IncrementalAlterConfigs of groups", 1, _alter_incrementally((GROUP, "g"), (GROUP, "h"))),
    Case("DescribeLogDirs", 4, lambda _: m.DescribeLogDirsRequest(topics=[])),
    Case("CreatePartitions", 3, _create_partitions),
    *(
        Case("DeleteGroups", version, lambda names: m.DeleteGroupsRequest(groups_names=list(map(names.mine, "gh"))))
        for version in (2,)
    ),
    Case("ElectLeaders", 2, _elect("a", "b")),
    Case("ElectLeaders of all", 2, _elect()),
    Case("AlterPartitionReassignments", 1, _reassign),
    Case("ListPartitionReassignments", 0, _list_reassignments),
    Case("OffsetDelete", 0, _offset_delete),
    Case("DescribeClientQuotas", 1, lambda _: m.DescribeClientQuotasRequest(components=[], strict=False)),
    # Not of all users: a refusal of that ends in a NullPointerException in Kafka, and is never sent.
    Case("DescribeUserScramCredentials", 0, lambda _: _scram_of("nobody")),
    Case("AlterUserScramCredentials", 0, _alter_scram),
    Case("DescribeQuorum", 2, _quorum),
    Case("UpdateFeatures", 1, _update_features),
    Case("UpdateFeatures", 2, _update_features),
    _cluster_of(1),
    _cluster_of(2),
    Case("DescribeProducers", 0, _describe_producers),
    Case("UnregisterBroker", 0, lambda _: m.UnregisterBrokerRequest(broker_id=99)),
    Case("DescribeTransactions", 0, lambda _: m.DescribeTransactionsRequest(transactional_ids=["x", "y", "xx"])),
    Case("ListTransactions", 1, lambda _: m.ListTransactionsRequest(state_filters=[], producer_id_filters=[])),
    Case("ConsumerGroupHeartbeat", 0, lambda names: heartbeat(names.mine("g"), ["a"])),
    Case("ConsumerGroupHeartbeat of two topics", 1, lambda names: heartbeat(names.mine("g"), ["a", "b"])),
    # What it matches is found out later by Kafka: the stories tell of that.
    Case("ConsumerGroupHeartbeat of an expression", 1, lambda names: heartbeat(names.mine("g"), None, regex="zz.*")),
    Case(
        "ConsumerGroupDescribe",
        1,
        lambda _: m.ConsumerGroupDescribeRequest(group_ids=["gc", "gd", "h"], include_authorized_operations=True),
    ),
    Case("ListConfigResources", 0, lambda _: m.ListConfigResourcesRequest()),
    Case("ListConfigResources", 1, lambda _: m.ListConfigResourcesRequest(resource_types=[BROKER])),
    Case("DescribeTopicPartitions", 0, _topic_partitions(*TOPICS)),
    Case("DescribeTopicPartitions of all", 0, _topic_partitions()),
    Case("ApiVersions", 3, lambda _: m.ApiVersionsRequest(client_software_name="t", client_software_version="1")),
    # Last, so that lists of all topics are short.
    Case("DeleteTopics", 3, _delete_topics_by_name, own_topics=("a", "b")),
    Case("DeleteTopics", 6, _delete_topics(by_id=False), own_topics=("a", "b")),
    Case("DeleteTopics with ids", 6, _delete_topics(by_id=True), own_topics=("a", "b")),
    Case("DeleteTopics with a name and an id", 6, _delete_topics(by_id=True, both=True), own_topics=("a", "b")),
]

Table = dict[str, list[tuple[Any, list[str]]]]
"""Case → what was answered, each with the users who got it."""

_PING = m.ApiVersionsRequest(client_software_name="t", client_software_version="1")


def ask(side: Side, case: Case, user: str, names: Names) -> Any:
    """What the answer to one user says."""
    mine = Names(names.ids, case.own(user))
    if case.silent:
        closed = side.ask(user, case.ask(mine), case.version) == CLOSED
        return CLOSED if closed or side.ask(user, _PING, 3) == CLOSED else "silent"
    answer = as_shown(side.ask(user, case.ask(mine), case.version), mine)
    if case.name == "ApiVersions":
        return answer["error_code"]
    return answer


def run(side: Side, names: Names, cases: list[Case] | None = None) -> Table:
    """The whole matrix."""
    chosen = CASES if cases is None else cases
    grant(side, {user: entries for user, entries in USERS.items() if entries})
    ask(side, CASES[0], "revoked", names)  # its connection is there before its rights go
    revoke(side, "revoked")
    table: Table = {}
    for case in chosen:
        rows: list[tuple[Any, list[str]]] = []
        own = [f"{prefix}.{case.own(user)}" for user in USERS for prefix in case.own_topics]
        if own:
            make_topics(side, own)
            names = Names(topic_ids(side, own))
        for user in USERS:
            answer = ask(side, case, user, names)
            for known, users in rows:
                if known == answer:
                    users.append(user)
                    break
            else:
                rows.append((answer, [user]))
        table[case.key] = rows
    return table
