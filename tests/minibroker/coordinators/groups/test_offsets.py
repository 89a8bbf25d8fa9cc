"""Committed offsets: commit, fetch, delete, expire, survive."""

from __future__ import annotations

from typing import Any

import pytest
from group_client import GroupClient

from minibroker.coordinators.groups.classic.states import GroupState
from minibroker_protocol import messages as m
from minibroker_protocol.coordinator_records import ConsumerProtocolSubscription
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID

NONE = ErrorCode.NONE
DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
T0 = ("t", 0)


@pytest.fixture
def client() -> GroupClient:
    return GroupClient()


@pytest.fixture
def of_weeks() -> GroupClient:
    """Of all that it does every few minutes, only offsets matter here."""
    rarely = ("log.retention.check.interval.ms", "producer.id.expiration.check.interval.ms")
    return GroupClient(dict.fromkeys(rarely, str(DAY_MS)))


def subscription(*topics: str) -> bytes:
    """What a classic consumer says, version 1."""
    return b"\0\1" + ConsumerProtocolSubscription(topics=list(topics)).encode(1)


@pytest.mark.parametrize("version", range(2, 10))
def test_what_is_committed_is_fetched(client: GroupClient, version: int) -> None:
    assert client.commit({T0: 41, ("t", 3): 0, ("u", 1): 7}, version=version) == [NONE] * 3
    assert client.fetch(T0, ("t", 1), ("t", 3), ("u", 1)) == {T0: 41, ("t", 1): -1, ("t", 3): 0, ("u", 1): 7}
    assert client.fetch() == {T0: 41, ("t", 3): 0, ("u", 1): 7}
    assert client.commit({T0: 5}, version=version) == [NONE]  # nothing says that offsets only grow
    assert client.fetch(T0) == {T0: 5}


def by_id(client: GroupClient, name: str) -> bytes:
    return client.broker.image.topics[name].topic_id


def test_topics_by_id(client: GroupClient) -> None:
    topic_id, unknown = by_id(client, "t"), bytes(15) + b"\1"
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition
    request = m.OffsetCommitRequest(
        group_id="g",
        member_id="",
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(
                topic_id=each,
                partitions=[
                    partition(partition_index=0, committed_offset=4, committed_metadata=None),
                    partition(partition_index=9, committed_offset=4, committed_metadata=None),
                ],
            )
            for each in (topic_id, unknown)
        ],
    )
    told = client.call(request, m.OffsetCommitResponse, 10)
    codes = {(t.topic_id, p.partition_index): p.error_code for t in told.topics for p in t.partitions}
    assert codes == {
        (topic_id, 0): NONE,
        (topic_id, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (unknown, 0): ErrorCode.UNKNOWN_TOPIC_ID,
        (unknown, 9): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    wanted = [
        m.OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0])
        for each in (unknown, topic_id)
    ]
    for topics in (wanted, None):
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=topics)
        [answer] = client.call(m.OffsetFetchRequest(groups=[group]), m.OffsetFetchResponse, 10).groups
        found = {t.topic_id: (p.committed_offset, p.error_code) for t in answer.topics for p in t.partitions}
        expected = {topic_id: (4, NONE), unknown: (-1, ErrorCode.UNKNOWN_TOPIC_ID)}
        assert found == (expected if topics else {topic_id: (4, NONE)})
        assert answer.topics[0].topic_id == topic_id  # ids of no topic come last
    offset = client.shard().offsets.get("g", "t", 0)
    assert offset is not None
    assert (offset.topic_id, offset.metadata) == (topic_id, "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("m" * 4096, NONE),
        ("m" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("ä" * 4096, NONE),
        ("\U0001f40d" * 2048, NONE),  # two of Java's chars each
        ("\U0001f40d" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_limited_in_java_chars(client: GroupClient, text: str, code: ErrorCode) -> None:
    assert client.commit({T0: 1}, metadata=text) == [code]
    assert client.fetch(T0) == {T0: 1 if code == NONE else -1}


def test_partitions_that_do_not_exist(client: GroupClient) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit({T0: 1, ("t", 4): 1, ("t", -1): 1}) == [unknown, unknown, NONE]
    assert client.commit({("nowhere", 0): 1}) == [unknown]
    assert client.fetch(("nowhere", 0)) == {("nowhere", 0): -1}  # reading asks nobody whether it exists


def test_the_empty_group_id_is_a_group_for_offsets(client: GroupClient) -> None:
    assert client.commit({T0: 3}, group_id="") == [NONE]
    assert client.fetch(T0, group_id="") == {T0: 3}
    assert client.broker.coordinators.groups.shard_for("")[1].describe("").group_state == "Empty"


@pytest.mark.parametrize("version", range(1, 8))
def test_fetch_of_one_group(client: GroupClient, version: int) -> None:
    client.commit({T0: 9})
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    told = client.call(m.OffsetFetchRequest(group_id="g", topics=topics), m.OffsetFetchResponse, version)
    [topic] = told.topics
    assert [(p.partition_index, p.committed_offset, p.error_code) for p in topic.partitions] == [(0, 9, 0), (1, -1, 0)]
    if version >= 2:
        everything = client.call(m.OffsetFetchRequest(group_id="g", topics=None), m.OffsetFetchResponse, version)
        assert [(t.name, len(t.partitions)) for t in everything.topics] == [("t", 1)]


@pytest.mark.parametrize("version", [1, 2, 7, 8])
def test_fetch_from_a_broker_that_does_not_coordinate(client: GroupClient, version: int) -> None:
    client.broker.coordinators.groups.resigned(client.broker.coordinators.groups.partition_for("g"))
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = m.OffsetFetchRequest(group_id="g", topics=topics)
    if version >= 8:
        request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[])])
    told = client.call(request, m.OffsetFetchResponse, version)
    if version == 1:
        assert [p.error_code for t in told.topics for p in t.partitions] == [ErrorCode.NOT_COORDINATOR]
    else:
        code = told.error_code if version < 8 else told.groups[0].error_code
        assert (code, told.topics) == (ErrorCode.NOT_COORDINATOR, [])


def delete(client: GroupClient, *partitions: tuple[str, int], group_id: str = "g") -> tuple[ErrorCode, list[ErrorCode]]:
    topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = [
        topic_class(
            name=topic, partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)]
        )
        for topic, partition in partitions
    ]
    told = client.call(m.OffsetDeleteRequest(group_id=group_id, topics=topics), m.OffsetDeleteResponse, 0)
    return ErrorCode(told.error_code), [ErrorCode(p.error_code) for t in told.topics for p in t.partitions]


def test_offset_delete(client: GroupClient) -> None:
    assert delete(client, T0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete(client, T0, group_id="") == (ErrorCode.INVALID_GROUP_ID, [])
    member = client.stable(protocols=[("range", subscription("t"))])
    client.commit({T0: 1, ("u", 0): 2}, member, 1)
    told = delete(client, T0, ("u", 0), ("u", 1), ("nowhere", 0))
    gone, unknown = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == (NONE, [gone, NONE, NONE, unknown])
    assert client.fetch() == {T0: 1}


def test_offset_delete_in_a_group_of_another_protocol(client: GroupClient) -> None:
    member = client.stable(protocol_type="connect", protocols=[("default", b"x")])
    assert delete(client, T0) == (ErrorCode.NON_EMPTY_GROUP, [])
    client.leave((member, None))
    assert delete(client, T0) == (NONE, [NONE])


def test_a_commit_that_is_refused_as_a_whole_leaves_a_group_that_nobody_sees(client: GroupClient) -> None:
    """Recorded from Apache Kafka 4.4.0."""
    deletes = m.OffsetDeleteRequest(group_id="g", topics=[])

    def told() -> list[ErrorCode]:
        return [
            *client.commit({("t", 0): 3}, generation_id=1),
            ErrorCode(client.call(deletes, m.OffsetDeleteResponse, 0).error_code),
        ]

    missing = [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND]
    assert told() == missing
    assert client.commit({("t", 0): 3}, metadata="y" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert told() == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    described = client.call(m.DescribeGroupsRequest(groups=["g"]), m.DescribeGroupsResponse, 6).groups[0]
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.call(m.ListGroupsRequest(), m.ListGroupsResponse, 5).groups == []
    deleted = client.call(m.DeleteGroupsRequest(groups_names=["g"]), m.DeleteGroupsResponse, 2).results[0]
    assert deleted.error_code == ErrorCode.NONE
    assert told() == missing
    client.commit({("t", 0): 3}, metadata="y" * 4097)
    client.shard().decisions.expire()
    assert told() == missing
    client.commit({("t", 0): 3}, metadata="y" * 4097)
    assert client.commit({("t", 0): 3}) == [NONE]
    assert delete_groups(client, "g") == {"g": NONE}
    assert (client.fetch(T0), told()) == ({T0: -1}, missing)


def test_unreadable_subscriptions_count_as_every_topic(client: GroupClient) -> None:
    member = client.stable(protocols=[("range", b"m")])
    client.commit({T0: 1}, member, 1)
    assert delete(client, T0) == (NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])


def delete_groups(client: GroupClient, *groups: str) -> dict[str, ErrorCode]:
    told = client.call(m.DeleteGroupsRequest(groups_names=list(groups)), m.DeleteGroupsResponse, 2)
    return {result.group_id: ErrorCode(result.error_code) for result in told.results}


def test_delete_groups(client: GroupClient) -> None:
    member = client.stable()
    client.commit({T0: 1}, member, 1)
    client.commit({T0: 1}, group_id="simple")
    codes = delete_groups(client, "g", "simple", "none")
    assert codes == {"g": ErrorCode.NON_EMPTY_GROUP, "simple": NONE, "none": ErrorCode.GROUP_ID_NOT_FOUND}
    client.leave((member, None))
    assert delete_groups(client, "g") == {"g": NONE}
    assert client.fetch(T0) == client.fetch(T0, group_id="simple") == {T0: -1}
    again = client.restart()
    assert again.shard().groups.keys().isdisjoint({"g", "simple"})
    assert again.fetch(T0) == {T0: -1}


def test_a_restart_keeps_offsets(client: GroupClient) -> None:
    client.commit({T0: 1, ("t", 1): 2}, metadata="kept")
    client.commit({T0: 3})
    delete(client, ("t", 1))
    before = client.shard().durable()
    again = client.restart()
    assert again.shard().durable() == before
    assert again.fetch() == {T0: 3}


def test_a_deleted_topic_takes_its_offsets_along(client: GroupClient) -> None:
    client.commit({T0: 1, ("u", 0): 2})
    producer = client.producer()
    client.add_offsets(producer)
    client.commit_in_txn(producer, {("t", 1): 5})
    request = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=1000)
    assert client.send(request, 6).result().responses[0].error_code == NONE
    assert client.fetch() == {("u", 0): 2}
    client.end(producer, commit=True)
    assert client.fetch() == {("u", 0): 2}


# -- expiration --------------------------------------------------------------------------------------------------------


def sweep(client: GroupClient, delta_ms: int) -> None:
    client.clock.freeze()
    client.clock.advance(delta_ms)


def test_an_empty_group_forgets_a_week_after_its_last_member(of_weeks: GroupClient) -> None:
    member = of_weeks.stable()
    of_weeks.commit({T0: 1}, member, 1)
    sweep(of_weeks, 10 * DAY_MS)
    assert of_weeks.fetch(T0) == {T0: 1}  # members are there, and what they read is not known
    of_weeks.leave((member, None))
    sweep(of_weeks, RETENTION_MS - 1)
    assert of_weeks.fetch(T0) == {T0: 1}
    sweep(of_weeks, 600_001)
    assert of_weeks.fetch(T0) == {T0: -1}
    assert "g" not in of_weeks.shard().groups


def test_how_often_expired_offsets_are_looked_for() -> None:
    client = GroupClient({"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "25000"})
    client.commit({T0: 1})
    for delta_ms, forgotten in ((74_999, False), (1, True)):
        sweep(client, delta_ms)
        assert (client.fetch(T0) == {T0: -1}) is forgotten
    client.stop()


def test_a_simple_group_forgets_a_week_after_each_commit(of_weeks: GroupClient) -> None:
    of_weeks.commit({T0: 1, ("t", 1): 1})
    sweep(of_weeks, RETENTION_MS // 2)
    of_weeks.commit({T0: 2})
    sweep(of_weeks, RETENTION_MS // 2 + 600_001)
    assert of_weeks.fetch() == {T0: 2}
    sweep(of_weeks, RETENTION_MS)
    assert of_weeks.fetch() == {}
    assert "g" not in of_weeks.shard().groups


def test_a_stable_group_forgets_topics_it_no_longer_reads(of_weeks: GroupClient) -> None:
    member = of_weeks.stable(protocols=[("range", subscription("t"))])
    of_weeks.commit({T0: 1, ("u", 0): 1}, member, 1)
    sweep(of_weeks, RETENTION_MS + 600_001)
    assert of_weeks.fetch() == {T0: 1}


def test_an_offset_with_its_own_end_goes_then(client: GroupClient) -> None:
    client.commit({T0: 1}, version=2, retention_ms=1000)
    client.commit({("t", 1): 1}, version=2)
    again = client.restart()
    assert again.fetch() == {T0: 1, ("t", 1): 1}
    sweep(again, 600_001)
    assert again.fetch() == {("t", 1): 1}


def test_nothing_is_forgotten_under_an_open_transaction() -> None:
    client = GroupClient({"offsets.retention.minutes": "1"})
    client.commit({T0: 1, ("t", 1): 1})
    producer = client.producer(timeout_ms=900_000)
    client.add_offsets(producer)
    client.commit_in_txn(producer, {T0: 2})
    sweep(client, 600_001)
    assert client.fetch() == {T0: 1}
    assert client.end(producer, commit=True) == NONE
    assert client.fetch() == {T0: 2}


@pytest.mark.parametrize(
    ("kept_by", "group"),
    [("nothing", False), ("a fresh offset", True), ("a member", True), ("a pending offset", True)],
)
def test_each_thing_alone_keeps_a_group(kept_by: str, group: bool) -> None:
    """Its other offset is older than the retention, and goes."""
    client = GroupClient({"offsets.retention.minutes": "5"})
    if kept_by == "a member":
        member = client.stable(protocols=[("range", subscription("u"))], session_timeout_ms=1_800_000)
        client.commit({T0: 1}, member, 1)
    else:
        client.commit({T0: 1})
    sweep(client, 500_000)
    if kept_by == "a fresh offset":
        client.commit({("t", 1): 2})
    if kept_by == "a pending offset":
        producer = client.producer(timeout_ms=900_000)
        client.add_offsets(producer)
        assert client.commit_in_txn(producer, {("t", 1): 2}) == [NONE]
    client.clock.advance(100_001)
    assert client.fetch(T0) == {T0: -1}
    assert ("g" in client.shard().groups) is group


# -- administration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe(client: GroupClient, version: int) -> None:
    member = client.stable()
    asked: Any = m.DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
    known, missing = client.call(asked, m.DescribeGroupsResponse, version).groups
    assert (known.error_code, known.group_state, known.protocol_type, known.protocol_data) == (
        NONE,
        "Stable",
        "consumer",
        "range",
    )
    [told] = known.members
    assert (told.member_id, told.client_id, told.member_metadata, told.member_assignment) == (
        member,
        "test",
        b"m",
        b"a",
    )
    if version >= 3:
        assert known.authorized_operations == 3400
    assert (missing.group_state, missing.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else NONE)


def test_describe_during_a_rebalance_shows_no_subscriptions(client: GroupClient) -> None:
    client.stable()
    client.join_later()
    [told] = client.call(m.DescribeGroupsRequest(groups=["g"]), m.DescribeGroupsResponse, 5).groups
    assert (told.group_state, told.protocol_data, len(told.members)) == ("PreparingRebalance", "", 2)
    assert {member.member_metadata for member in told.members} == {b""}


def listed(client: GroupClient, states: list[str], types: list[str]) -> set[tuple[str, str, str]]:
    request = m.ListGroupsRequest(states_filter=states, types_filter=types)
    told = client.call(request, m.ListGroupsResponse, 5)
    return {(group.group_id, group.group_state, group.group_type) for group in told.groups}


def test_list_filters(client: GroupClient) -> None:
    client.stable()
    client.commit({T0: 1}, group_id="simple")
    stable, simple = ("g", "Stable", "classic"), ("simple", "Empty", "classic")
    assert listed(client, [], []) == {stable, simple}
    assert listed(client, ["sTABLE"], []) == {stable}
    assert listed(client, ["Empty", "Dead"], ["Classic"]) == {simple}
    assert listed(client, [], ["consumer"]) == set()
    assert len(client.call(m.ListGroupsRequest(), m.ListGroupsResponse, 0).groups) == 2


def test_the_group_of_an_offset_is_empty_and_simple(client: GroupClient) -> None:
    client.commit({T0: 1})
    assert (client.classic().state, client.classic().protocol_type) == (GroupState.EMPTY, None)
    assert by_id(client, "t") != NO_ID


@pytest.mark.parametrize("named", [False, True])
def test_offsets_of_a_long_fetch_are_of_one_moment(named: bool) -> None:
    """KIP-447: what a transaction holds when it is looked up is unstable, also when it ends a turn later."""
    client = GroupClient({"transaction.state.log.num.partitions": "1"}, topics={"many": 600})
    for start in range(0, 600, 200):
        client.commit({("many", index): 10 for index in range(start, start + 200)})
    producer = client.producer()
    assert client.add_offsets(producer) == ErrorCode.NONE
    assert set(client.commit_in_txn(producer, {("many", 599): 20})) == {ErrorCode.NONE}
    kind = m.OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(name="many", partition_indexes=list(range(600)))] if named else None
    group = kind.OffsetFetchRequestGroup(group_id="g", topics=topics)
    answer = client.send(kind(groups=[group], require_stable=True), 9)
    assert not answer.done
    client.end(producer, commit=True)
    client.timers.advance(0)
    partitions = answer.result().groups[0].topics[0].partitions
    last = next(partition for partition in partitions if partition.partition_index == 599)
    assert (last.committed_offset, last.error_code) in ((-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), (20, ErrorCode.NONE))
    client.stop()
