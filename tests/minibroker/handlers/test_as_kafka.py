"""Single answers of a live Kafka that a random run in lockstep found to be other ones here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from minibroker.requests.dispatch import CloseConnection
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import INVALID_REQUEST_TEXT, ApiError, ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.origin import Origin

UNKNOWN, NO_TOPIC, NOT_LEADER, ILLEGAL, UNSUPPORTED, INVALID, FENCED, UPDATE = -1, 3, 6, 17, 35, 42, 74, 95


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster(topics={"t": 2}, config={"auto.create.topics.enable": "false"})
    ask(made, m.FindCoordinatorRequest(key="g", key_type=0), 3)  # which makes the topic of the groups
    yield made
    made.stop()


def ask(cluster: MemoryCluster, request: Request, version: int) -> Any:
    cluster.broker.refusals.clear()  # the reason of an error is its own, not that of one before
    answer = cluster.send(request, version)
    cluster.timers.advance(1)
    return answer.result()


def test_coordinators(cluster: MemoryCluster) -> None:
    found = ask(cluster, m.FindCoordinatorRequest(key="g", key_type=0), 3)
    assert (found.error_code, found.error_message) == (0, "NONE")
    found = ask(cluster, m.FindCoordinatorRequest(key="g", key_type=7), 3)
    assert (found.error_code, found.error_message) == (INVALID, INVALID_REQUEST_TEXT)


def test_a_join_with_a_wrong_session_timeout_repeats_the_member(cluster: MemoryCluster) -> None:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        member_id="A",
        protocol_type="c",
        protocols=[protocol],
    )
    answer = ask(cluster, request, 5)
    assert (answer.error_code, answer.member_id) == (26, "A")


def test_groups(cluster: MemoryCluster) -> None:
    deleted = ask(cluster, m.DeleteGroupsRequest(groups_names=["no", "no"]), 2)
    assert [(r.group_id, r.error_code) for r in deleted.results] == [("no", 69)]
    both = ["no", "", "other"]
    told = ask(cluster, m.DescribeGroupsRequest(groups=both), 5).groups
    assert [(g.group_id, g.error_code, g.group_state) for g in told] == [
        ("", 0, "Dead"), ("no", 0, "Dead"), ("other", 0, "Dead")
    ]  # fmt: skip
    described = ask(
        cluster, m.ConsumerGroupDescribeRequest(group_ids=both, include_authorized_operations=False), 1
    ).groups
    assert [(g.group_id, g.error_code) for g in described] == [("", 24), ("no", 69), ("other", 69)]
    deleted = ask(cluster, m.DeleteGroupsRequest(groups_names=both), 2).results
    assert [(r.group_id, r.error_code) for r in deleted] == [("", 69), ("no", 69), ("other", 69)]
    described = ask(cluster, m.DescribeGroupsRequest(groups=["no"], include_authorized_operations=True), 6)
    assert described.groups[0].authorized_operations == -(1 << 31)


def test_metadata(cluster: MemoryCluster) -> None:
    topic = m.MetadataRequest.MetadataRequestTopic
    request = m.MetadataRequest(
        topics=[topic(name="no")], allow_auto_topic_creation=False, include_topic_authorized_operations=True
    )
    (found,) = ask(cluster, request, 9).topics
    assert (found.error_code, found.topic_authorized_operations) == (NO_TOPIC, 3576)
    (found,) = ask(cluster, m.MetadataRequest(topics=[topic(name=None, topic_id=b"i" * 16)]), 12).topics
    assert (found.error_code, found.name, found.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, b"i" * 16)
    named = ask(cluster, m.MetadataRequest(topics=[topic(name=name) for name in ("t", "no", "t")]), 12).topics
    assert [(one.name, one.error_code) for one in named] == [("t", 0), ("no", NO_TOPIC)]
    by_id = [topic(name="no"), topic(name=None, topic_id=named[0].topic_id), topic(name=None, topic_id=b"i" * 16)]
    found = ask(cluster, m.MetadataRequest(topics=[*by_id, *by_id]), 12).topics
    assert [(one.name, one.error_code) for one in found] == [(None, ErrorCode.UNKNOWN_TOPIC_ID), ("t", 0)]
    named = ask(cluster, m.MetadataRequest(topics=[topic(name=name) for name in ("no", "t", "a b")]), 12).topics
    assert [one.name for one in named] == ["t", "no", "a b"]
    answer = ask(cluster, m.MetadataRequest(topics=[topic(name="t", topic_id=b"i" * 16)]), 11)
    assert (answer.topics[0].error_code, answer.brokers, answer.controller_id) == (INVALID, [], -1)


@pytest.mark.parametrize(("topic", "partition"), [("u", 0), ("t", -1)])
def test_a_cursor_on_nothing_that_was_asked_for(cluster: MemoryCluster, topic: str, partition: int) -> None:
    kind = m.DescribeTopicPartitionsRequest
    cursor = kind.Cursor(topic_name=topic, partition_index=partition)
    request = kind(topics=[kind.TopicRequest(name="t")], response_partition_limit=2000, cursor=cursor)
    answer = ask(cluster, request, 0)
    assert [(t.name, t.error_code, t.partitions) for t in answer.topics] == [("t", INVALID, [])]


def test_a_timestamp_of_a_later_version_is_refused_before_the_partition_is_looked_for(cluster: MemoryCluster) -> None:
    kind = m.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-5)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="no", partitions=[partition])])
    assert ask(cluster, request, 7).topics[0].partitions[0].error_code == UNSUPPORTED


def test_a_topic_without_partitions_or_named_twice_in_list_offsets(cluster: MemoryCluster) -> None:
    kind = m.ListOffsetsRequest

    def topic(name: str, *partitions: int) -> Any:
        wanted = [kind.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in partitions]
        return kind.ListOffsetsTopic(name=name, partitions=wanted)

    request = kind(replica_id=-1, topics=[topic("t", 0), topic("no"), topic("t", 0, 1)])
    found = ask(cluster, request, 7).topics
    assert [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in found] == [
        ("t", [(0, INVALID), (1, 0)])
    ]


def test_a_state_that_is_none_is_told_once(cluster: MemoryCluster) -> None:
    answer = ask(cluster, m.ListTransactionsRequest(state_filters=["a", "Empty", "a"], producer_id_filters=[]), 0)
    assert answer.unknown_state_filters == ["a"]


@pytest.mark.parametrize("field", ["group_id", "member_id", "instance_id", "rack_id"])
@pytest.mark.parametrize("blank", ["", " ", "\t \n"])
def test_a_blank_name_in_a_heartbeat(cluster: MemoryCluster, field: str, blank: str) -> None:
    join = m.ConsumerGroupHeartbeatRequest(
        group_id="blank", member_id="A", member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"],
        topic_partitions=[],
    )  # fmt: skip
    setattr(join, field, blank)
    answer = ask(cluster, join, 1)
    name = "".join(word.capitalize() for word in field.split("_"))
    assert (answer.error_code, answer.error_message) == (INVALID, f"{name} can't be empty.")


def test_an_isolation_level_that_is_none(cluster: MemoryCluster) -> None:
    kind = m.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = kind(replica_id=-1, isolation_level=2, topics=[kind.ListOffsetsTopic(name="t", partitions=[partition])])
    assert ask(cluster, request, 7).topics[0].partitions[0].error_code == UNKNOWN


def test_markers_of_no_producer(cluster: MemoryCluster) -> None:
    kind = m.WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9])
    for producer_id, epoch in ((-1, 0), (5, -1)):
        marker = kind.WritableTxnMarker(
            producer_id=producer_id, producer_epoch=epoch, transaction_result=True, topics=[topic], coordinator_epoch=0
        )
        (answer,) = ask(cluster, kind(markers=[marker]), 1).markers
        assert [p.error_code for p in answer.topics[0].partitions] == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("times", [2, 40], ids=["a short list", "a long one"])
def test_offsets_of_a_partition_that_is_named_twice_are_refused_once(cluster: MemoryCluster, times: int) -> None:
    kind = m.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="t", partitions=[partition] * times)])
    (answered,) = ask(cluster, request, 7).topics
    assert [(one.partition_index, one.error_code) for one in answered.partitions] == [(0, ErrorCode.INVALID_REQUEST)]


@pytest.mark.parametrize(("timestamp", "epoch"), [(-1, 7), (-2, 0), (-4, 0)], ids=["latest", "earliest", "local"])
def test_the_first_offset_has_the_epoch_of_its_batch(timestamp: int, epoch: int) -> None:
    """And the end has that of the leader (UnifiedLog.fetchOffsetByTimestamp)."""
    cluster = MemoryCluster(topics={"t": 1})
    partition = cluster.broker.partition("t", 0)
    partition.append(build_batch([Record(0, 0, None, b"v")]), origin=Origin.CLIENT, api_version=9)
    partition.leader_epoch = 7
    kind = m.ListOffsetsRequest
    wanted = kind.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="t", partitions=[wanted])])
    assert ask(cluster, request, 9).topics[0].partitions[0].leader_epoch == epoch
    cluster.stop()


def test_an_epoch_below_minus_one_is_an_old_one(cluster: MemoryCluster) -> None:
    kind = m.OffsetForLeaderEpochRequest
    partition = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-2, leader_epoch=0)
    request = kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic="t", partitions=[partition])])
    assert ask(cluster, request, 4).topics[0].partitions[0].error_code == 74


def test_features(cluster: MemoryCluster) -> None:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey
    for name, level, kind, reason in [
        ("nope", 1, 1, "Local controller 1 does not support this feature."),
        ("group.version", 2, 1, "Local controller 1 only supports versions 0-1"),
        ("group.version", 0, 9, "The controller does not support the given upgrade type."),
        ("group.version", 0, 1, ("Can't downgrade the version of this feature without setting the upgrade type "
                                "to either safe or unsafe downgrade.")),
    ]:  # fmt: skip
        request = m.UpdateFeaturesRequest(
            timeout_ms=1, feature_updates=[update(feature=name, max_version_level=level, upgrade_type=kind)]
        )
        answer = ask(cluster, request, 1)
        told = f"Invalid update version {level} for feature {name}. {reason}"
        prefix = "The update failed for all features since the following feature had an error: "
        assert (answer.error_code, answer.error_message, answer.results) == (UPDATE, prefix + told, [])


def test_elections_and_reassignments(cluster: MemoryCluster) -> None:
    answer = ask(cluster, m.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1), 2)
    assert ("t", []) in [(r.topic, r.partition_result) for r in answer.replica_election_results]
    kind = m.AlterPartitionReassignmentsRequest
    partition = kind.ReassignablePartition(partition_index=9, replicas=[1])
    topics = [kind.ReassignableTopic(name=name, partitions=[partition]) for name in ("no", "t")]
    told = ask(cluster, kind(timeout_ms=1, topics=topics), 1).responses
    assert [t.partitions[0].error_message for t in told] == [
        "Unable to find a topic named no.",
        "Unable to find partition t:9.",
    ]


def test_producers_of_a_topic_that_cannot_be(cluster: MemoryCluster) -> None:
    kind = m.DescribeProducersRequest
    request = kind(topics=[kind.TopicRequest(name="a b", partition_indexes=[0])])
    assert ask(cluster, request, 0).topics[0].partitions[0].error_code == ILLEGAL


def test_the_answer_of_the_brokers_names_their_endpoint(cluster: MemoryCluster) -> None:
    answer = ask(cluster, m.DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2), 2)
    assert answer.endpoint_type == 1


def test_the_operations_of_the_cluster_are_told_to_who_asks(cluster: MemoryCluster) -> None:
    for asked, told in ((False, -(1 << 31)), (True, 8096)):
        request = m.DescribeClusterRequest(include_cluster_authorized_operations=asked)
        assert ask(cluster, request, 1).cluster_authorized_operations == told


def test_a_topic_that_is_not_there_ends_no_page(cluster: MemoryCluster) -> None:
    kind = m.DescribeTopicPartitionsRequest
    request = kind(topics=[kind.TopicRequest(name=name) for name in ("no", "t")], response_partition_limit=2000)
    answer = ask(cluster, request, 0)
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [("no", NO_TOPIC, 0), ("t", 0, 2)]


def test_an_empty_name_fails_the_whole_page(cluster: MemoryCluster) -> None:
    kind = m.DescribeTopicPartitionsRequest
    topics = [kind.TopicRequest(name=name) for name in ("t", "")]
    answer = ask(cluster, kind(topics=topics, response_partition_limit=1), 0)
    assert [(t.name, t.error_code, t.partitions) for t in answer.topics] == [("t", UNKNOWN, []), ("", UNKNOWN, [])]
    cursor = kind.Cursor(topic_name="t", partition_index=1)
    answer = ask(cluster, kind(topics=topics, response_partition_limit=1, cursor=cursor), 0)
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [("t", 0, 1)]
    cursor = kind.Cursor(topic_name="", partition_index=0)
    answer = ask(cluster, kind(topics=topics, response_partition_limit=9, cursor=cursor), 0)
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [("", 17, 0), ("t", 0, 2)]


@pytest.mark.parametrize(("kind", "name"), [(2, "t"), (2, "no"), (2, ""), (4, "1"), (4, "77"), (8, "77"), (99, "x")])
def test_a_config_that_is_named_twice_is_refused_before_all_else(cluster: MemoryCluster, kind: int, name: str) -> None:
    said = (INVALID, "Error due to duplicate config keys")
    old, new = m.AlterConfigsRequest, m.IncrementalAlterConfigsRequest
    twice = [new.AlterableConfig(name="root", config_operation=0, value="INFO")] * 2
    resource: Any = new.AlterConfigsResource(resource_type=kind, resource_name=name, configs=twice)
    (one,) = ask(cluster, new(resources=[resource], validate_only=False), 1).responses
    assert (one.error_code, one.error_message) == said
    configs = [old.AlterableConfig(name="root", value="1")] * 2
    resource = old.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (one,) = ask(cluster, old(resources=[resource], validate_only=False), 2).responses
    assert (one.error_code, one.error_message) == said


@pytest.mark.parametrize(("replica_id", "endpoints"), [(-1, [1]), (1, [])])
def test_a_follower_is_told_no_endpoints(cluster: MemoryCluster, replica_id: int, endpoints: list[int]) -> None:
    epoch = 0 if replica_id < 0 else -1
    partition = FetchRequest.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=epoch
    )
    topic = FetchRequest.FetchTopic(topic_id=cluster.broker.image.topics["t"].topic_id, partitions=[partition])
    state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=-1)
    leader = cluster.broker.partition("t", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(leader), "check_leader_epoch", _fenced)
        answer = ask(
            cluster, FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, replica_state=state, topics=[topic]), 17
        )
    assert answer.responses[0].partitions[0].error_code in (NOT_LEADER, FENCED)
    assert [node.node_id for node in answer.node_endpoints] == endpoints


@pytest.mark.parametrize("version", [14, 15, 17])
@pytest.mark.parametrize(("node", "error"), [(-1, ErrorCode.NONE), (9, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_a_replica_says_who_it_is_as_its_version_has_it(
    cluster: MemoryCluster, version: int, node: int, error: int
) -> None:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topic = FetchRequest.FetchTopic(topic_id=cluster.broker.image.topics["t"].topic_id, partitions=[partition])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[topic])
    if version < 15:
        request.replica_id = node
    else:
        request.replica_state = FetchRequest.ReplicaState(replica_id=node, replica_epoch=-1)
    assert ask(cluster, request, version).responses[0].partitions[0].error_code == error


def _fenced(*_: object) -> None:
    raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, "of an older leader")


def test_a_protocol_that_a_member_names_three_times_is_one(cluster: MemoryCluster) -> None:
    """Kafka never answers the join; the group must not come to harm by it."""
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = m.JoinGroupRequest(
        group_id="thrice", session_timeout_ms=6000, rebalance_timeout_ms=100, member_id="", protocol_type="consumer",
        protocols=[protocol] * 3,
    )  # fmt: skip
    answer = ask(cluster, request, 3)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")


def batch(count: int, timestamp: int = 5, *, transactional: bool = False, producer_id: int = 5) -> bytes:
    producer = (producer_id, 0, 0) if transactional else (-1, -1, -1)
    return build_batch(
        [Record(key=None, value=b"v", timestamp=timestamp)] * count, producer_id=producer[0],
        producer_epoch=producer[1], base_sequence=producer[2], transactional=transactional,
    )  # fmt: skip


def produce(cluster: MemoryCluster, *parts: tuple[str, int, bytes], transactional_id: str | None = None) -> Any:
    """(partition, error, base offset, log start) of each answer, by topic."""
    kind = ProduceRequest
    topics = [
        kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=index, records=records)])
        for topic, index, records in parts
    ]
    answer = ask(cluster, kind(transactional_id=transactional_id, acks=-1, timeout_ms=9, topic_data=topics), 9)
    return [
        (t.name, p.index, p.error_code, p.base_offset, p.log_start_offset)
        for t in answer.responses
        for p in t.partition_responses
    ]


def test_a_transactional_batch_and_its_id() -> None:
    """An empty id is the coordinator's to refuse, and only for the batches of a transaction; no id refuses them all."""
    cluster = MemoryCluster(topics={"t": 1, "u": 1})
    ask(cluster, m.FindCoordinatorRequest(key="x", key_type=1), 3)
    both = ("t", 0, batch(1, transactional=True)), ("u", 0, batch(1))
    assert produce(cluster, *both, transactional_id="") == [("t", 0, INVALID, -1, -1), ("u", 0, 0, 0, 0)]
    assert produce(cluster, *both) == [("t", 0, 53, -1, -1), ("u", 0, 53, -1, -1)]
    cluster.stop()


def test_of_the_batches_for_one_partition_the_last_is_written() -> None:
    cluster = MemoryCluster(topics={"t": 2})
    assert produce(cluster, ("t", 0, batch(1)), ("t", 0, batch(3)), ("t", 1, batch(2))) == [
        ("t", 0, 0, 0, 0), ("t", 1, 0, 0, 0),
    ]  # fmt: skip
    assert produce(cluster, ("t", 0, batch(1)), ("t", 1, batch(1))) == [("t", 0, 0, 3, 0), ("t", 1, 0, 2, 0)]
    assert produce(cluster, ("t", 0, b""), ("t", 0, batch(1))) == [("t", 0, 87, -1, -1)]
    assert produce(cluster, ("t", 0, b"\0" * 3)) == [("t", 0, 87, -1, -1)]
    cluster.stop()


def test_batches_of_two_producers_in_a_transaction() -> None:
    """A partition that is not there is told, and its producer does not count; of several producers none is told."""
    cluster = MemoryCluster(topics={"t": 2})
    ask(cluster, m.FindCoordinatorRequest(key="x", key_type=1), 3)

    mixed = 49
    first, second = (batch(1, transactional=True, producer_id=producer_id) for producer_id in (1, 2))
    two = ("t", 0, first), ("t", 1, second)
    assert produce(cluster, *two, transactional_id="x") == [("t", 0, mixed, -1, -1), ("t", 1, mixed, -1, -1)]
    missing = ("t", 7, first), ("u", 0, second)
    assert produce(cluster, *missing, transactional_id="x") == [("t", 7, 3, -1, -1), ("u", 0, 3, -1, -1)]
    all_mixed = [("t", 0, mixed, -1, -1), ("t", 1, mixed, -1, -1), ("u", 0, mixed, -1, -1)]
    assert produce(cluster, *two, ("u", 0, first), transactional_id="x") == all_mixed
    later = build_batch(
        [Record(key=None, value=b"v", timestamp=5)],
        producer_id=1,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    assert produce(cluster, two[0], ("t", 1, later), transactional_id="x")[1][2] == mixed
    nobody = build_batch([Record(key=None, value=b"v", timestamp=5)], transactional=True)
    assert produce(cluster, two[0], ("t", 1, nobody), transactional_id="x")[1] == ("t", 1, 0, 0, 0)
    cluster.stop()


BROKEN = batch(1)[:-1] + bytes([batch(1)[-1] ^ 1])


@pytest.mark.parametrize(
    ("records", "code", "written"),
    [
        ((b"", batch(2)), 87, 2),
        ((batch(2), b""), 87, 2),
        ((batch(1) + batch(1), batch(3)), 87, 3),
        ((batch(3), batch(1) + batch(1)), 87, 3),
        ((batch(1)[:-1], batch(2)), 87, 2),
        ((BROKEN, batch(3)), 0, 3),
        ((batch(3), BROKEN), 2, 0),
        ((None, batch(3)), 0, 3),
        ((b"", b""), 87, 0),
    ],
    ids=[
        "none first",
        "none last",
        "two first",
        "two last",
        "half first",
        "CRC first",
        "CRC last",
        "null",
        "none at all",
    ],
)
@pytest.mark.parametrize("acks", [-1, 0])
def test_beside_records_that_are_no_batch(records: tuple[Any, ...], code: int, written: int, acks: int) -> None:
    """Kafka 4.4.0 writes the other one, and answers with the refusal."""
    cluster = MemoryCluster(topics={"t": 1})
    kind = ProduceRequest
    data = [kind.PartitionProduceData(index=0, records=each) for each in records]
    topics = [kind.TopicProduceData(name="t", partition_data=data)]
    request = kind(transactional_id=None, acks=acks, timeout_ms=9, topic_data=topics)
    if acks == 0 and code:
        with pytest.raises(CloseConnection):
            ask(cluster, request, 9)
    elif acks == 0:
        assert ask(cluster, request, 9) is None
    else:
        ((answer,),) = [topic.partition_responses for topic in ask(cluster, request, 9).responses]
        assert (answer.error_code, answer.base_offset) == (code, -1 if code else 0)
        assert answer.log_start_offset == (-1 if code else 0)
    assert cluster.broker.partition("t", 0).log.log_end_offset == written
    cluster.stop()


def test_the_largest_timestamp_of_records_without_one() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    kind = m.ListOffsetsRequest
    partition = kind.ListOffsetsPartition(partition_index=0, timestamp=-3)
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name="t", partitions=[partition])])

    def asked() -> tuple[int, int, int]:
        found = ask(cluster, request, 8).topics[0].partitions[0]
        return found.timestamp, found.offset, found.leader_epoch

    assert asked() == (-1, -1, -1)
    for _ in range(2):
        produce(cluster, ("t", 0, batch(3, -1)))
        assert asked() == (-1, 0, 0)
    produce(cluster, ("t", 0, batch(2, 0)))
    assert asked() == (0, 6, 0)
    cluster.stop()


def fetch(cluster: MemoryCluster, *indexes: int, version: int = 12, **fields: Any) -> Any:
    """(error, has a session, (partition, error, high watermark, aborted transactions) of each)."""
    kind = FetchRequest
    one = {"partition_max_bytes": 9999, "fetch_offset": 0} | fields.pop("partition", {})
    partitions = [kind.FetchPartition(partition=index, **one) for index in indexes]
    topics = [kind.FetchTopic(topic="f", partitions=partitions)] if partitions else []
    asked = kind(max_wait_ms=0, min_bytes=0, topics=topics, **{"max_bytes": 9999, "session_epoch": 0} | fields)
    answer = ask(cluster, asked, version)
    found = [
        (p.partition_index, p.error_code, p.high_watermark, p.aborted_transactions)
        for t in answer.responses
        for p in t.partitions
    ]
    return answer.error_code, answer.session_id, found


def test_odd_fetches() -> None:
    cluster = MemoryCluster(topics={"f": 2})
    produce(cluster, ("f", 0, batch(6)))
    forgotten = [FetchRequest.ForgottenTopic(topic="f", partitions=[0])]
    _, session, found = fetch(cluster)
    assert session > 0
    assert found == []
    assert fetch(cluster, 0, session_id=session, session_epoch=1) == (0, session, [(0, 0, 6, None)])
    last = fetch(cluster, 0, session_id=session, session_epoch=2, forgotten_topics_data=forgotten)
    assert last == (0, 0, [(0, 0, 6, None)])  # the session is over, what is named is answered
    assert fetch(cluster, session_id=session, session_epoch=3) == (70, 0, [])
    none = {"partition_max_bytes": -1}
    assert fetch(cluster, 0, 1, partition=none)[2] == [(0, UNKNOWN, -1, None), (1, 0, 0, None)]
    assert fetch(cluster, 0, isolation_level=2) == (UNKNOWN, 0, [(0, UNKNOWN, -1, [])])
    assert fetch(cluster, 0, isolation_level=2, session_id=77) == (UNKNOWN, 77, [(0, UNKNOWN, -1, [])])
    assert fetch(cluster, isolation_level=2)[0] == fetch(cluster, 9, isolation_level=2)[0] == 0  # nothing is read
    # Only what is read first meets the whole answer's limit below zero.
    produce(cluster, ("f", 1, batch(2)))
    assert fetch(cluster, 0, 1, max_bytes=-1)[2] == [(0, UNKNOWN, -1, None), (1, 0, 2, None)]
    diverging = {"fetch_offset": 99, "last_fetched_epoch": 0}
    assert fetch(cluster, 0, isolation_level=1, partition=diverging)[2] == [(0, 0, 6, None)]
    cluster.stop()


def test_an_internal_topic_is_one_before_there_is_any() -> None:
    cluster = MemoryCluster(config={"auto.create.topics.enable": "false"})
    asked = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="__transaction_state")])
    [told] = ask(cluster, asked, 12).topics
    assert (told.error_code, told.is_internal) == (3, True)
    cluster.stop()


def test_an_election_that_there_is_not(cluster: MemoryCluster) -> None:
    kind = m.ElectLeadersRequest

    def told(partitions: list[Any] | None) -> tuple[int, list[tuple[str, int, int]]]:
        answer = ask(cluster, kind(election_type=2, topic_partitions=partitions, timeout_ms=1), 2)
        return answer.error_code, [
            (t.topic, p.partition_id, p.error_code) for t in answer.replica_election_results for p in t.partition_result
        ]

    assert told([kind.TopicPartitions(topic="no", partitions=[0, 3])]) == (42, [("no", 0, 42), ("no", 3, 42)])
    assert told([]) == (0, [])
    assert told(None) == (42, [])


def test_an_incremental_fetch_names_only_what_is_news() -> None:
    cluster = MemoryCluster(topics={"f": 2})
    produce(cluster, ("f", 0, batch(6)))
    at_end = {"fetch_offset": 6}
    _, session, found = fetch(cluster, 0, partition=at_end)
    assert found == [(0, 0, 6, None)]
    told = [fetch(cluster, 1, session_id=session, session_epoch=epoch)[2] for epoch in (1, 2)]
    assert told == [[(1, 0, 0, None)], []]
    produce(cluster, ("f", 1, batch(2)), ("f", 0, batch(1)))
    both = [(0, 0, 7, None), (1, 0, 2, None)]
    assert sorted(fetch(cluster, session_id=session, session_epoch=3)[2]) == both  # and their records
    again = fetch(cluster, 0, session_id=session, session_epoch=4, partition={"fetch_offset": 7})[2]
    assert again == [(1, 0, 2, None)]
    produce(cluster, ("f", 0, batch(1)), ("f", 1, batch(1)))
    both = [(0, 0, 8, None), (1, 0, 3, None)]
    # One of them has no records, as the answer is full: its high watermark is news.
    assert sorted(fetch(cluster, session_id=session, session_epoch=5, max_bytes=1)[2]) == both
    cluster.stop()


def test_partitions_that_are_not_read_come_last() -> None:
    cluster = MemoryCluster(topics={"f": 1})
    produce(cluster, ("f", 0, batch(6)))
    missing = (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, [])
    for asked in ((0, 7), (7, 0)):
        assert fetch(cluster, *asked)[2] == [(0, 0, 6, None), missing]
    cluster.stop()


def test_every_partition_of_a_topic_that_is_not_there_is_refused(cluster: MemoryCluster) -> None:
    kind = ProduceRequest
    parts = [kind.PartitionProduceData(index=index, records=batch(1)) for index in range(3)]
    topic = kind.TopicProduceData(topic_id=b"i" * 16, partition_data=parts)
    answer = ask(cluster, kind(transactional_id=None, acks=-1, timeout_ms=9, topic_data=[topic]), 13)
    told = [(p.index, p.error_code) for p in answer.responses[0].partition_responses]
    assert told == [(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in range(3)]


def test_acks_that_are_none_are_refused_for_each_partition(cluster: MemoryCluster) -> None:
    records = bytes(build_batch([Record(0, cluster.clock.now_ms(), None, b"v", [])]))
    data = [ProduceRequest.PartitionProduceData(index=index, records=records) for index in range(2)]
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=data)
    answer = ask(cluster, ProduceRequest(transactional_id=None, acks=7, timeout_ms=9, topic_data=[topic]), 9)
    told = [(p.error_code, p.base_offset) for p in answer.responses[0].partition_responses]
    assert told == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)] * 2


QUOTA_FILTERS = [
    ([], 0, ""),
    ([("user", 0, "a"), ("client-id", 1, None)], 0, ""),
    ([("ip", 2, None)], 0, ""),
    ([("", 0, "a")], INVALID, "Invalid empty entity type."),
    ([("user", 0, "a")] * 2, INVALID, "Entity type user cannot appear more than once in the filter."),
    ([("x", 0, "a")], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type x"),
    ([("user", 0, None)], INVALID, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
    ([("user", 1, "a")], INVALID, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
    ([("user", 2, "a")], INVALID, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
    ([("user", 3, None)], INVALID, "Unknown match type 3"),
    ([("ip", 0, "a"), ("user", 0, "a")], INVALID, "Invalid entity filter component combination"),
]


@pytest.mark.parametrize(("filters", "code", "said"), QUOTA_FILTERS)
def test_filters_of_quotas(
    cluster: MemoryCluster, filters: list[tuple[str, int, str | None]], code: int, said: str
) -> None:
    components = [
        m.DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=how, match=name)
        for kind, how, name in filters
    ]
    answer = ask(cluster, m.DescribeClientQuotasRequest(components=components, strict=False), 1)
    assert (answer.error_code, answer.error_message) == (code, said)
    assert answer.entries == ([] if code == 0 else None)


@pytest.mark.parametrize(
    ("version", "name", "said", "code"),
    [(3, "a-b.c", "1.0", 0), (3, "", "1.0", INVALID), (3, "a", "", INVALID), (3, "-a", "1", INVALID), (2, "", "", 0)],
)
def test_what_a_client_calls_itself(cluster: MemoryCluster, version: int, name: str, said: str, code: int) -> None:
    """From version 3 on (KIP-511)."""
    asked = m.ApiVersionsRequest(client_software_name=name, client_software_version=said)
    assert ask(cluster, asked, version).error_code == code


def created(cluster: MemoryCluster, *names: str, configs: dict[str, str] | None = None) -> list[Any]:
    kind = m.CreateTopicsRequest
    rows = [kind.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    topics = [
        kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=rows)
        for name in names
    ]
    return list(ask(cluster, kind(topics=topics, timeout_ms=1000), 7).topics)


def test_topics_of_one_request_do_not_collide_and_what_is_no_request_comes_last() -> None:
    cluster = MemoryCluster()
    answers = created(cluster, "__cluster_metadata", "a", "b.c", "b_c", "a")
    assert [(one.name, one.error_code) for one in answers] == [
        ("b.c", 0), ("b_c", 0), ("__cluster_metadata", INVALID), ("a", INVALID),
    ]  # fmt: skip
    assert [one.error_code for one in created(cluster, "b_c", "d", "d")] == [36, INVALID]
    cluster.stop()


def test_a_new_topic_shows_its_configs_as_they_were_given_and_by_name() -> None:
    cluster = MemoryCluster()
    given = {"retention.ms": " 77 ", "cleanup.policy": "compact,compact", "min.cleanable.dirty.ratio": "1e-3"}
    (answer,) = created(cluster, "c", configs=given)
    assert given.items() <= {one.name: one.value for one in answer.configs}.items()
    assert [one.name for one in answer.configs] == sorted(one.name for one in answer.configs)
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="c", configuration_keys=list(given)
    )
    request = m.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    shown = {one.name: one for one in ask(cluster, request, 4).results[0].configs}
    for name, value in {
        "retention.ms": "77",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
    }.items():
        assert (shown[name].value, shown[name].synonyms[0].value) == (value, value)
    cluster.stop()


@pytest.mark.parametrize(("version", "members"), [(0, 1), (1, 0), (9, 0)])
def test_only_the_first_version_of_a_join_has_the_session_timeout_for_its_rebalances(
    cluster: MemoryCluster, version: int, members: int
) -> None:
    """Minus one is a time that is over: who joined is gone before it can ask for its assignment."""
    group = f"late{version}"
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = m.JoinGroupRequest(
        group_id=group, session_timeout_ms=6000, rebalance_timeout_ms=-1, member_id="", protocol_type="consumer",
        protocols=[protocol],
    )  # fmt: skip
    answer = ask(cluster, request, version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        request.member_id = answer.member_id
        answer = ask(cluster, request, version)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    (found,) = ask(cluster, m.DescribeGroupsRequest(groups=[group]), 5).groups
    assert len(found.members) == members


def test_records_that_are_written_anew_need_an_epoch_if_they_have_a_producer() -> None:
    cluster = MemoryCluster()
    created(cluster, "g", configs={"compression.type": "gzip"})
    odd = build_batch([Record(key=None, value=b"v", timestamp=5)], producer_id=5, producer_epoch=-1, base_sequence=0)
    assert produce(cluster, ("g", 0, odd)) == [("g", 0, UNKNOWN, -1, 0)]
    assert produce(cluster, ("g", 0, batch(1))) == [("g", 0, 0, 0, 0)]
    cluster.stop()


@pytest.mark.parametrize(
    ("named", "codes"),
    [
        ([("__cluster_metadata", [0])], [[0]]),
        ([("__cluster_metadata", [1])], [[3]]),
        ([("__cluster_metadata", [0, 1])], [[3, 3]]),
        ([("__cluster_metadata", [0]), ("t", [0, 1])], [[3], [3, 3]]),
        ([("__cluster_metadata", [])], [[]]),
        ([], []),
    ],
)
def test_the_quorum_is_of_one_partition(
    cluster: MemoryCluster, named: list[tuple[str, list[int]]], codes: list[list[int]]
) -> None:
    one = m.DescribeQuorumRequest
    topics = [
        one.TopicData(topic_name=name, partitions=[one.PartitionData(partition_index=index) for index in indexes])
        for name, indexes in named
    ]
    answered = ask(cluster, one(topics=topics), 2).topics
    assert [(t.topic_name, [p.partition_index for p in t.partitions]) for t in answered] == named
    assert [[partition.error_code for partition in topic.partitions] for topic in answered] == codes
