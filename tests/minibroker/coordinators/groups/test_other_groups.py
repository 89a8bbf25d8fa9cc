"""Ids of share groups and streams groups that a real Kafka left: as on Kafka 4.4.0, no consumer gets them."""

from __future__ import annotations

import pytest
from member_client import Members

from minibroker.coordinators.groups.other_groups import OtherGroup, in_words
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.origin import Origin

SHARE = {"group": 11, "member": 10, "target": 12}
STREAMS = {"group": 17, "member": 19, "topology": 23}


def written(
    client: Members, group_id: str, types: dict[str, int], *names: str, value: bytes | None = b"\0\0x"
) -> Members:
    """The client of a broker that starts over what Kafka wrote of such a group: the records of these names."""
    keys = [types[name].to_bytes(2, "big") + len(group_id).to_bytes(2, "big") + group_id.encode() for name in names]
    keys = [key + (b"\0\1m" if name in ("member", "target") else b"") for key, name in zip(keys, names, strict=True)]
    partition = client.broker.partition("__consumer_offsets", client.broker.coordinators.groups.partition_for(group_id))
    partition.append(
        build_batch([Record(i, 0, key, value, []) for i, key in enumerate(keys)]), origin=Origin.COORDINATOR
    )
    return client.restart()


def listed(client: Members) -> list[tuple[str, str, str, str]]:
    groups = client.call(m.ListGroupsRequest(), m.ListGroupsResponse, 5).groups
    return [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in groups]


def deleted(client: Members) -> ErrorCode:
    request = m.DeleteGroupsRequest(groups_names=["g"])
    return ErrorCode(client.call(request, m.DeleteGroupsResponse, 2).results[0].error_code)


@pytest.mark.parametrize(("kind", "types"), [("share", SHARE), ("streams", STREAMS)])
def test_consumers_are_refused(kind: str, types: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    client = written(Members(), "g", types, *types)
    assert f"refused to consumers: g ({kind})" in caplog.text
    assert "skipped a record" not in caplog.text
    assert client.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    joined = client.enter("a")
    assert (joined.error_code, joined.error_message) == (69, "Group g is not a consumer group.")
    assert client.commit({("t", 0): 1}) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert client.fetch() == {}
    described = client.call(
        m.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False),
        m.ConsumerGroupDescribeResponse,
        1,
    ).groups[0]
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert listed(client) == [("g", kind, "Empty", kind)]
    assert deleted(client) == ErrorCode.NONE
    assert listed(client) == []
    assert client.enter("a").error_code == ErrorCode.NONE


def test_a_streams_group_without_members_gives_way_to_classic_consumers() -> None:
    """With its offsets, as on Kafka; a share group without members does not."""
    client = Members()
    client.commit({("t", 0): 7})
    client = written(client, "g", STREAMS, "group", "topology")
    assert client.fetch() == {("t", 0): 7}
    assert client.commit({("t", 1): 8}) == [ErrorCode.NONE]
    assert listed(client) == [("g", "streams", "Empty", "streams")]
    client.stable()
    client = client.restart()
    assert [group[1:] for group in listed(client)] == [("consumer", "Stable", "classic")]
    assert client.fetch() == {("t", 0): 7, ("t", 1): 8}
    assert written(Members(), "g", SHARE, "group").join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_tombstones_free_the_id() -> None:
    client = written(written(Members(), "g", SHARE, *SHARE), "g", SHARE, *SHARE, value=None)
    assert listed(client) == []
    assert client.enter("a").error_code == ErrorCode.NONE


def test_many_are_counted() -> None:
    said = in_words(OtherGroup(f"g{number}", "share") for number in range(23))
    assert "g19 (share) and 3 more" in said
