"""What tools ask of any cluster, answered as by a Kafka without security (recorded from Apache Kafka 4.3.1)."""

from __future__ import annotations

import pytest
from memory_cluster import MemoryCluster

from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

Users = m.DescribeUserScramCredentialsRequest
Quorum = m.DescribeQuorumRequest


@pytest.mark.parametrize("version", [0, 1])
def test_a_plaintext_listener_wants_no_handshake(version: int) -> None:
    answer = MemoryCluster().call(m.SaslHandshakeRequest(mechanism="PLAIN"), m.SaslHandshakeResponse, version)
    assert answer == m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_plaintext_listener_authenticates_nobody(version: int) -> None:
    answer = MemoryCluster().call(m.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), m.SaslAuthenticateResponse, version)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert answer.error_message == "SaslAuthenticate request received after successful authentication"


@pytest.mark.parametrize(
    ("names", "results"),
    [
        (None, []),
        ([], []),
        (["x"], [("x", 91, "Attempt to describe a user credential that does not exist: x")]),
        (
            ["x", "y", "x"],
            [
                ("x", 92, "Cannot describe SCRAM credentials for the same user twice in a single request: x"),
                ("y", 91, "Attempt to describe a user credential that does not exist: y"),
            ],
        ),
    ],
)
def test_nobody_has_credentials(names: list[str] | None, results: list[tuple[str, int, str]]) -> None:
    request = Users(users=None if names is None else [Users.UserName(name=name) for name in names])
    answer = MemoryCluster().call(request, m.DescribeUserScramCredentialsResponse, 0)
    assert (answer.error_code, answer.error_message) == (0, "")
    assert [(r.user, r.error_code, r.error_message) for r in answer.results] == results


def quorum(cluster: MemoryCluster, *asked: tuple[str, int], version: int = 2) -> m.DescribeQuorumResponse:
    topics = [Quorum.TopicData(topic_name=t, partitions=[Quorum.PartitionData(partition_index=i)]) for t, i in asked]
    return cluster.call(Quorum(topics=topics), m.DescribeQuorumResponse, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_controller_is_a_quorum_of_one(version: int) -> None:
    cluster = MemoryCluster()
    answer = quorum(cluster, ("__cluster_metadata", 0), version=version)
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (answer.error_code, partition.error_code) == (0, 0)
    assert [voter.replica_id for voter in partition.current_voters] == [partition.leader_id]
    assert partition.leader_id == cluster.broker.image.controller_id
    assert partition.high_watermark == cluster.broker.image.offset > 0
    assert partition.observers == []
    if version >= 1:
        assert partition.current_voters[0].last_caught_up_timestamp == cluster.broker.clock.now_ms()
    assert [node.node_id for node in answer.nodes] == ([partition.leader_id] if version >= 2 else [])


def test_a_quorum_has_no_other_partition() -> None:
    for asked in [("orders", 0)], [("__cluster_metadata", 1)]:
        ((partition,),) = [topic.partitions for topic in quorum(MemoryCluster(), *asked).topics]
        assert (partition.error_code, partition.error_message) == (3, "This server does not host this topic-partition.")
        assert (partition.leader_id, partition.current_voters) == (0, [])
    assert quorum(MemoryCluster()).topics == []


def test_there_are_no_quotas() -> None:
    request = m.DescribeClientQuotasRequest(components=[], strict=False)
    answer = MemoryCluster().call(request, m.DescribeClientQuotasResponse, 1)
    assert (answer.error_code, answer.error_message, answer.entries) == (0, "", [])


Alter = m.AlterUserScramCredentialsRequest
UNACCEPTABLE, TWICE, UNKNOWN, MISSING = 93, 92, 33, 91
SAME_USER = "A user credential cannot be altered twice in the same request"
NOT_THERE = "Attempt to delete a user credential that does not exist"


def removal(user: str, mechanism: int = 1) -> Alter.ScramCredentialDeletion:
    return Alter.ScramCredentialDeletion(name=user, mechanism=mechanism)


def password(
    user: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = bytes(16), salted: bytes = b"p" * 32
) -> Alter.ScramCredentialUpsertion:
    return Alter.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def altered(cluster: MemoryCluster, *changes: object) -> dict[str, tuple[int, str | None]]:
    request = Alter(
        deletions=[change for change in changes if isinstance(change, Alter.ScramCredentialDeletion)],
        upsertions=[change for change in changes if isinstance(change, Alter.ScramCredentialUpsertion)],
    )
    results = cluster.call(request, m.AlterUserScramCredentialsResponse, 0).results
    assert len({result.user for result in results}) == len(results)
    return {result.user: (result.error_code, result.error_message) for result in results}


def credentials(cluster: MemoryCluster) -> dict[str, list[tuple[int, int]]]:
    answer = cluster.call(Users(users=None), m.DescribeUserScramCredentialsResponse, 0)
    return {r.user: [(info.mechanism, info.iterations) for info in r.credential_infos] for r in answer.results}


@pytest.mark.parametrize(
    ("changes", "results"),
    [
        ([], {}),
        ([removal("x")], {"x": (MISSING, NOT_THERE)}),
        ([removal("x"), removal("x"), password("x")], {"x": (MISSING, NOT_THERE)}),
        ([removal("there"), removal("there", 2)], {"there": (TWICE, SAME_USER)}),
        ([removal("there"), password("there"), password("a")], {"there": (TWICE, SAME_USER), "a": (0, None)}),
        ([password("a"), password("a", 2), password("a")], {"a": (TWICE, SAME_USER)}),
        ([password("a", iterations=1), password("a")], {"a": (UNACCEPTABLE, "Too few iterations")}),
        ([password("a", iterations=4095)], {"a": (UNACCEPTABLE, "Too few iterations")}),
        ([password("a", iterations=16385)], {"a": (UNACCEPTABLE, "Too many iterations")}),
        ([password("a", 2, 16384)], {"a": (0, None)}),
        ([password("", 7), removal("", 7)], {"": (UNACCEPTABLE, "Username must not be empty")}),
        ([password("a", 0), removal("b", 3)], dict.fromkeys("ab", (UNKNOWN, "Unknown SCRAM mechanism"))),
        ([password("a", salt=b"s" * 11)], {"a": (UNACCEPTABLE, "minibroker takes no salt below 12 bytes")}),
        ([password("a", salted=b"")], {"a": (-1, None)}),
        ([removal("there"), password("a")], {"there": (0, None), "a": (0, None)}),
    ],
)
def test_credentials_are_changed_as_kafka_changes_them(
    changes: list[object], results: dict[str, tuple[int, str | None]]
) -> None:
    """But for the order of the results, which is that of a hash map, and for short salts, which Kafka takes."""
    cluster = MemoryCluster()
    assert altered(cluster, password("there")) == {"there": (0, None)}
    assert altered(cluster, *changes) == results
    expected = {"there", *(user for user, (code, _) in results.items() if code == 0)}
    if removal("there") in changes and results["there"][0] == 0:
        expected.remove("there")
    known = credentials(cluster)
    assert set(known) == expected
    cluster.stop()
    again = MemoryCluster(disk=cluster.disk, now_ms=1_700_000_100_000, seed=8)
    assert credentials(again) == known
