"""Requests of clients that may not do everything: what is refused, with which code, and what is served all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.client.connection import ConnectionClosed
from minibroker.client.security import Security
from minibroker.handlers.table import apis
from minibroker.kernel.addresses import parse_address
from minibroker.requests.answered_errors import errors_in
from minibroker.security.create_authorizer import STANDARD
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import registry

CONFIG = {
    "minibroker.security.protocol": "SASL_PLAINTEXT",
    "minibroker.sasl.users": "admin:a,alice:a",
    "authorizer.class.name": STANDARD,
    "super.users": "User:admin",
}
RECORD = Record(offset=0, timestamp=0, key=b"k", value=b"v", headers=[])
TOPIC, GROUP, CLUSTER, TXN = 2, 3, 4, 5
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS = 3, 4, 5, 6, 7, 8, 9, 10
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TXN_DENIED = 29, 30, 31, 53


class Client:
    """Asks as one user, and looks for the reason of every error among the broker's refusals."""

    def __init__(self, broker: Minibroker, user: str) -> None:
        self._broker = broker
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}
        self._security = Security.of({**login, "sasl.password": "a"})
        self._address = parse_address(broker.bootstrap_servers)
        self._connection = self._security.connect(self._address, 10)

    def ask(self, request: Request, version: int) -> Any:
        kind = type(request)
        self._connection.correlation_id += 1
        header = RequestHeader(
            request_api_key=kind.__api_key__,
            request_api_version=version,
            correlation_id=self._connection.correlation_id,
            client_id="t",
        )
        flexible = version >= first_flexible_version(kind.__api_key__)
        self._connection.send_frame(header.encode(2 if flexible else 1) + request.encode(version))
        frame = self._connection.receive(10)
        answer = registry()[kind.__api_key__][1].decode(frame, version, 5 if flexible else 4)
        codes = {error.code for error in errors_in(answer)}
        if codes:
            told = {r.code for r in self._broker.refusals() if r.reason != "no reason given"}
            assert codes <= told, f"{kind.__name__}: no reason for {codes - told}"
        return answer

    def close(self) -> None:
        self._connection.close()


class World:
    def __init__(self, broker: Minibroker) -> None:
        self.broker = broker
        self.admin, self.alice = Client(broker, "admin"), Client(broker, "alice")

    def wait_for_coordinators(self) -> None:
        """Both have loaded every partition; until then they answer NOT_COORDINATOR."""
        for key_type in (0, 1):
            while self.admin.ask(m.FindCoordinatorRequest(key="k", key_type=key_type), 3).error_code:
                time.sleep(0.01)
        while self.admin.ask(m.DescribeGroupsRequest(groups=["k"]), 5).groups[0].error_code:
            time.sleep(0.01)
        while self.admin.ask(m.DescribeTransactionsRequest(transactional_ids=["k"]), 0).transaction_states[
            0
        ].error_code in (14, 16):
            time.sleep(0.01)

    def allow(self, kind: int, name: str, operation: int, *, prefixed: bool = False) -> None:
        creation = m.CreateAclsRequest.AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=4 if prefixed else 3,
            principal="User:alice",
            host="*",
            operation=operation,
            permission_type=3,
        )
        (result,) = self.admin.ask(m.CreateAclsRequest(creations=[creation]), 3).results
        assert result.error_code == 0, result.error_message


@contextmanager
def running(**more: Any) -> Iterator[World]:
    with Minibroker(config=CONFIG, topics={"mine": 1, "other": 1}, **more) as broker:
        world = World(broker)
        try:
            world.wait_for_coordinators()
            yield world
        finally:
            world.admin.close()
            world.alice.close()


@pytest.fixture
def world() -> Iterator[World]:
    with running(ephemeral=True) as found:
        yield found


def test_only_these_apis_need_no_right_of_their_row() -> None:
    # They tell nothing, or what the client itself has, or their handlers look item by item.
    free = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster", "Fetch",
            "DescribeTransactionState"}  # fmt: skip
    assert {api.name for api in apis().values() if not api.rights} == free


def test_metadata_names_what_may_be_described(world: World) -> None:
    assert world.alice.ask(m.MetadataRequest(topics=None), 9).topics == []
    world.allow(TOPIC, "mine", DESCRIBE)
    assert [t.name for t in world.alice.ask(m.MetadataRequest(topics=None), 9).topics] == ["mine"]
    topic = m.MetadataRequest.MetadataRequestTopic
    asked = m.MetadataRequest(topics=[topic(name="mine"), topic(name="other"), topic(name="none")])
    answer = world.alice.ask(asked, 9)
    assert {t.name: t.error_code for t in answer.topics} == {"mine": 0, "other": TOPIC_DENIED, "none": TOPIC_DENIED}
    assert answer.brokers
    # Nobody learned that one of them is there, and nothing was made.
    world.allow(TOPIC, "none", DESCRIBE)
    assert [t.error_code for t in world.alice.ask(m.MetadataRequest(topics=[topic(name="none")]), 9).topics] == [
        TOPIC_DENIED
    ]
    asked = m.MetadataRequest(topics=[topic(name="none")], allow_auto_topic_creation=False)
    assert [t.error_code for t in world.alice.ask(asked, 4).topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    world.allow(TOPIC, "none", CREATE)
    assert [t.error_code for t in world.alice.ask(m.MetadataRequest(topics=[topic(name="none")]), 9).topics] == [0]


def test_metadata_of_version_0_does_not_turn_a_refusal_into_all_topics(world: World) -> None:
    topic = m.MetadataRequest.MetadataRequestTopic
    world.allow(TOPIC, "mine", DESCRIBE)
    answer = world.alice.ask(m.MetadataRequest(topics=[topic(name="other")]), 0)
    assert [(t.name, t.error_code) for t in answer.topics] == [("other", TOPIC_DENIED)]
    assert answer.brokers


def produce(*topics: str, transactional_id: str | None = None, acks: int = 1) -> m.ProduceRequest:
    """With a transactional id, of a transactional batch."""
    request = m.ProduceRequest
    batch = (
        build_batch([RECORD])
        if transactional_id is None
        else build_batch([RECORD], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    )
    return request(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=5000,
        topic_data=[
            request.TopicProduceData(
                name=name,
                partition_data=[request.PartitionProduceData(index=0, records=batch)],
            )
            for name in topics
        ],
    )


def codes(answer: Any) -> dict[str, int]:
    return {t.name: t.partition_responses[0].error_code for t in answer.responses}


def test_produce_writes_what_may_be_written_and_refuses_the_rest(world: World) -> None:
    world.allow(TOPIC, "mi", WRITE, prefixed=True)
    assert codes(world.alice.ask(produce("other", "mine"), 9)) == {"mine": 0, "other": TOPIC_DENIED}
    assert codes(world.alice.ask(produce("other"), 9)) == {"other": TOPIC_DENIED}
    assert any("User:alice may not WRITE TOPIC other" in refusal.reason for refusal in world.broker.refusals())


def test_produce_without_an_answer_closes_the_connection(world: World) -> None:
    with pytest.raises(ConnectionClosed):
        world.alice.ask(produce("other", acks=0), 9)


def test_produce_without_an_answer_writes_what_may_be_written_and_closes_the_connection(world: World) -> None:
    world.allow(TOPIC, "mine", WRITE)
    with pytest.raises(ConnectionClosed):
        world.alice.ask(produce("other", "mine", acks=0), 9)
    for name, end in {"mine": 1, "other": 0}.items():
        assert world.admin.ask(produce(name), 9).responses[0].partition_responses[0].base_offset == end


def test_a_transactional_batch_needs_its_id_as_a_whole(world: World) -> None:
    world.allow(TOPIC, "mine", WRITE)
    assert codes(world.alice.ask(produce("mine", transactional_id="x"), 9)) == {"mine": TXN_DENIED}


def fetch(topic: str) -> m.FetchRequest:
    request = m.FetchRequest
    partition = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return request(max_wait_ms=5000, min_bytes=1, topics=[request.FetchTopic(topic=topic, partitions=[partition])])


def test_fetch_needs_read(world: World) -> None:
    (topic,) = world.alice.ask(fetch("mine"), 11).responses
    assert topic.partitions[0].error_code == TOPIC_DENIED
    world.allow(TOPIC, "mine", READ)
    world.allow(TOPIC, "mine", WRITE)
    assert codes(world.alice.ask(produce("mine"), 9)) == {"mine": 0}
    (topic,) = world.alice.ask(fetch("mine"), 11).responses
    assert topic.partitions[0].error_code == 0
    assert topic.partitions[0].records


def test_producer_ids(world: World) -> None:
    idempotent = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    transactional = m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    assert world.alice.ask(idempotent, 4).error_code == CLUSTER_DENIED
    assert world.alice.ask(transactional, 4).error_code == TXN_DENIED
    world.allow(TOPIC, "mine", WRITE)
    assert world.alice.ask(idempotent, 4).error_code == 0
    world.allow(TXN, "x", WRITE)
    assert world.alice.ask(transactional, 4).error_code == 0


def add_partitions(*names: str) -> m.AddPartitionsToTxnRequest:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic(name=name, partitions=[0]) for name in names],
    )


def test_add_partitions_adds_all_or_nothing(world: World) -> None:
    def outcome() -> dict[str, int]:
        answer = world.alice.ask(add_partitions("mine", "other"), 3)
        return {t.name: t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below}

    assert outcome() == {"mine": TXN_DENIED, "other": TXN_DENIED}
    world.allow(TXN, "x", WRITE)
    world.allow(TOPIC, "mine", WRITE)
    assert outcome() == {"mine": ErrorCode.OPERATION_NOT_ATTEMPTED, "other": TOPIC_DENIED}


def test_the_rest_of_a_transaction(world: World) -> None:
    ids = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
    add_offsets = m.AddOffsetsToTxnRequest(**ids, group_id="g")
    end = m.EndTxnRequest(**ids, committed=True)
    assert world.alice.ask(add_offsets, 3).error_code == TXN_DENIED
    assert world.alice.ask(end, 3).error_code == TXN_DENIED
    world.allow(TXN, "x", WRITE)
    assert world.alice.ask(add_offsets, 3).error_code == GROUP_DENIED
    assert world.alice.ask(end, 3).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_what_is_known_of_a_transactional_id(world: World) -> None:
    world.allow(TXN, "y", DESCRIBE)
    described = world.alice.ask(m.DescribeTransactionsRequest(transactional_ids=["x", "y"]), 0)
    found = {s.transactional_id: s.error_code for s in described.transaction_states}
    assert found == {"y": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "x": TXN_DENIED}
    states = world.alice.ask(m.DescribeTransactionStateRequest(transactional_ids=["x", "y", "x"]), 0)
    assert [s.error for s in states.transaction_states] == [
        TXN_DENIED,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        TXN_DENIED,
    ]


def test_find_coordinator_alone_and_in_batches(world: World) -> None:
    world.allow(GROUP, "g", DESCRIBE)
    assert world.alice.ask(m.FindCoordinatorRequest(key="g", key_type=0), 3).error_code == 0
    assert world.alice.ask(m.FindCoordinatorRequest(key="h", key_type=0), 3).error_code == GROUP_DENIED
    assert world.alice.ask(m.FindCoordinatorRequest(key="g", key_type=1), 3).error_code == TXN_DENIED
    answer = world.alice.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"]), 4)
    assert {c.key: c.error_code for c in answer.coordinators} == {"g": 0, "h": GROUP_DENIED}


def test_groups(world: World) -> None:
    join = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert world.alice.ask(join, 3).error_code == GROUP_DENIED
    world.allow(GROUP, "g", READ)
    assert world.alice.ask(join, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    described = world.alice.ask(m.DescribeGroupsRequest(groups=["g", "h"]), 4)
    assert {g.group_id: g.error_code for g in described.groups} == {"g": 0, "h": GROUP_DENIED}
    deleted = world.alice.ask(m.DeleteGroupsRequest(groups_names=["g"]), 2)
    assert [r.error_code for r in deleted.results] == [GROUP_DENIED]
    twice = world.alice.ask(m.DeleteGroupsRequest(groups_names=["g", "h", "g"]), 2)  # Kafka looks at distinct names
    assert [(r.group_id, r.error_code) for r in twice.results] == [("g", GROUP_DENIED), ("h", GROUP_DENIED)]


def commit(group: str, *topics: str) -> m.OffsetCommitRequest:
    topic, partition = (
        m.OffsetCommitRequest.OffsetCommitRequestTopic,
        m.OffsetCommitRequest.OffsetCommitRequestPartition,
    )
    return m.OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[
            topic(name=name, partitions=[partition(partition_index=0, committed_offset=3, committed_metadata="m")])
            for name in topics
        ],
    )


@pytest.mark.parametrize("version", [7, 8])
def test_offsets_of_a_group(world: World, version: int) -> None:
    assert world.admin.ask(commit("g", "mine", "other"), 7).topics[0].partitions[0].error_code == 0
    world.allow(GROUP, "g", READ)
    world.allow(TOPIC, "mine", READ)
    answer = world.alice.ask(commit("g", "mine", "other"), 7)
    assert {t.name: t.partitions[0].error_code for t in answer.topics} == {"mine": 0, "other": TOPIC_DENIED}
    asked = m.OffsetFetchRequest
    if version < 8:
        named: Any = [asked.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("mine", "other")]
        some, everything = asked(group_id="g", topics=named), asked(group_id="g", topics=None)
    else:
        named = [asked.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("mine", "other")]
        some = asked(groups=[asked.OffsetFetchRequestGroup(group_id="g", topics=named)])
        everything = asked(groups=[asked.OffsetFetchRequestGroup(group_id="g", topics=None)])

    def found(request: Any) -> dict[str, tuple[int, int, str]]:
        answer = world.alice.ask(request, version)
        topics = answer.topics if version < 8 else answer.groups[0].topics
        first = {t.name: t.partitions[0] for t in topics}
        return {name: (one.error_code, one.committed_offset, one.metadata) for name, one in first.items()}

    assert found(some) == {"mine": (0, 3, "m"), "other": (TOPIC_DENIED, -1, "")}
    assert found(everything) == {"mine": (0, 3, "m")}


def test_topics_are_made_and_deleted_by_whoever_may(world: World) -> None:
    def topic(name: str) -> Any:
        kind = m.CreateTopicsRequest.CreatableTopic
        return kind(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])

    create = m.CreateTopicsRequest(
        topics=[topic("a"), topic("b")],
        timeout_ms=5000,
    )
    world.allow(TOPIC, "a", CREATE)

    def made() -> list[tuple[Any, ...]]:
        """Names, errors and, as KIP-525 has them, what the topics are like."""
        topics = world.alice.ask(create, 5).topics
        return [(t.name, t.error_code, t.topic_config_error_code, t.num_partitions, bool(t.configs)) for t in topics]

    assert made() == [("a", 0, TOPIC_DENIED, -1, False), ("b", TOPIC_DENIED, 0, -1, False)]
    delete = m.DeleteTopicsRequest(topic_names=["a", "mine"], timeout_ms=5000)
    world.allow(TOPIC, "mine", DELETE)
    assert {t.name: t.error_code for t in world.alice.ask(delete, 4).responses} == {"a": TOPIC_DENIED, "mine": 0}
    world.allow(CLUSTER, "kafka-cluster", CREATE)
    world.allow(TOPIC, "b", DESCRIBE_CONFIGS)
    assert made() == [("a", ErrorCode.TOPIC_ALREADY_EXISTS, 0, -1, False), ("b", 0, 0, 1, True)]


def test_entries_are_described_deleted_and_kept(tmp_path: Path) -> None:
    everything = {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    described = m.DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, **everything
    )
    with running(data_dir=str(tmp_path)) as world:
        assert world.alice.ask(described, 3).error_code == CLUSTER_DENIED
        world.allow(TOPIC, "mine", READ)
        world.allow(TOPIC, "mine", WRITE)
        world.allow(GROUP, "g", READ)
        world.allow(GROUP, "g", READ)
    with running(data_dir=str(tmp_path)) as world:
        found = world.admin.ask(described, 3).resources
        assert {(r.resource_name, len(r.acls)) for r in found} == {("mine", 2), ("g", 1)}
        chosen = m.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=TOPIC, resource_name_filter="mine", pattern_type_filter=2, **everything
        )
        (result,) = world.admin.ask(m.DeleteAclsRequest(filters=[chosen]), 3).filter_results
        assert {acl.operation for acl in result.matching_acls} == {READ, WRITE}
        assert [r.resource_name for r in world.admin.ask(described, 3).resources] == ["g"]


def test_each_filter_of_a_request_deletes_from_what_was_there(world: World) -> None:
    world.allow(TOPIC, "mine", READ)

    def chosen(kind: int = 1, pattern: int = 1, operation: int = 1, name: str | None = "mine") -> Any:
        return m.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=pattern,
            principal_filter=None,
            host_filter=None,
            operation=operation,
            permission_type=1,
        )

    filters = [chosen(), chosen(kind=8), chosen(pattern=5), chosen(operation=16), chosen(name="other"), chosen()]
    results = world.admin.ask(m.DeleteAclsRequest(filters=filters), 3).filter_results
    assert [(r.error_message, len(r.matching_acls)) for r in results] == [
        (None, 1),
        ("Unknown patternFilter.", 0),
        ("Unknown patternFilter.", 0),
        ("Unknown entryFilter.", 0),
        (None, 0),
        (None, 1),
    ]
    (again,) = world.admin.ask(m.DeleteAclsRequest(filters=[chosen()]), 3).filter_results
    assert not again.matching_acls


def test_operations_tell_what_may_be_done(world: World) -> None:
    world.allow(TOPIC, "mine", READ)
    topic = m.MetadataRequest.MetadataRequestTopic
    request = m.MetadataRequest(topics=[topic(name="mine")], include_topic_authorized_operations=True)
    assert world.alice.ask(request, 9).topics[0].topic_authorized_operations == (1 << READ) | (1 << DESCRIBE)
    assert world.admin.ask(request, 9).topics[0].topic_authorized_operations == 0b110111111000


@pytest.mark.parametrize(
    "request_",
    [
        m.DescribeLogDirsRequest(topics=None),
        m.DescribeClientQuotasRequest(components=[], strict=False),
        m.UpdateFeaturesRequest(timeout_ms=1, feature_updates=[]),
    ],
    ids=lambda request: type(request).__name__,
)
def test_the_cluster_is_not_everybodys(world: World, request_: Any) -> None:
    _, high = type(request_).__versions__
    assert world.alice.ask(request_, high).error_code == CLUSTER_DENIED
    assert world.admin.ask(request_, high).error_code != CLUSTER_DENIED


def test_without_an_authorizer_entries_are_refused_in_kafkas_words() -> None:
    config = {name: value for name, value in CONFIG.items() if name not in ("authorizer.class.name", "super.users")}
    everything: dict[str, Any] = {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    creation = m.CreateAclsRequest.AclCreation(
        resource_type=TOPIC, resource_name="t", principal="User:a", host="*", operation=READ, permission_type=3
    )
    chosen = m.DeleteAclsRequest.DeleteAclsFilter(resource_type_filter=1, resource_name_filter=None, **everything)
    with Minibroker(config=config, ephemeral=True) as broker:
        client = Client(broker, "alice")
        described = client.ask(
            m.DescribeAclsRequest(resource_type_filter=1, resource_name_filter=None, **everything), 3
        )
        (created,) = client.ask(m.CreateAclsRequest(creations=[creation]), 3).results
        (deleted,) = client.ask(m.DeleteAclsRequest(filters=[chosen]), 3).filter_results
        client.close()
    told = "No Authorizer is configured"
    for answer, words in ((described, f"{told} on the broker"), (created, f"{told}."), (deleted, f"{told}.")):
        assert (answer.error_code, answer.error_message) == (ErrorCode.SECURITY_DISABLED, words)
