"""Records of `__consumer_offsets`, byte for byte as Kafka 4.3.1 writes them."""

from __future__ import annotations

import uuid

import pytest
from group_client import GroupClient
from member_client import Members

from minibroker.coordinators.groups import records
from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.offsets import commit_value
from minibroker_protocol.coordinator_records import GroupMetadataValue
from minibroker_protocol.errors import Malformed
from minibroker_protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse
from minibroker_protocol.records import Record, build_batch, decode_records, iter_batches, parse_header
from minibroker_storage.origin import Origin

STAMP = 0x0000019_0000000A
STAMP_HEX = "000000190000000a"
TOPIC_ID = bytes(range(16))

SAMPLES = {
    # The key and both values were recorded on a live broker (their time stamps and topic id are ours).
    "transactional offset": (
        records.offset_commit("g1", "t3", 0, commit_value(5, -1, "m", commit_timestamp=STAMP)),
        "0001 0002 6731 0002 7433 00000000",
        f"0004 0000000000000005 ffffffff 02 6d {STAMP_HEX} 00",
    ),
    "plain offset": (
        records.offset_commit("g1", "t3", 0, commit_value(3, -1, "", commit_timestamp=STAMP, topic_id=TOPIC_ID)),
        "0001 0002 6731 0002 7433 00000000",
        f"0004 0000000000000003 ffffffff 01 {STAMP_HEX} 01 00 10 {TOPIC_ID.hex()}",
    ),
    "offset with its own end": (
        records.offset_commit(
            "g", "t", 1, commit_value(3, 7, None, commit_timestamp=STAMP, expire_timestamp=255, topic_id=TOPIC_ID)
        ),
        "0001 0001 67 0001 74 00000001",
        f"0001 0000000000000003 0000 {STAMP_HEX} 00000000000000ff",
    ),
    "offset tombstone": (records.offset_tombstone("g", "t", 1), "0001 0001 67 0001 74 00000001", None),
    "group": (
        records.group_metadata(
            "g",
            GroupMetadataValue(
                protocol_type="consumer",
                generation=1,
                protocol="range",
                leader="m",
                current_state_timestamp=STAMP,
                members=[
                    GroupMetadataValue.MemberMetadata(
                        member_id="m",
                        group_instance_id=None,
                        client_id="c",
                        client_host="/h",
                        rebalance_timeout=2,
                        session_timeout=3,
                        subscription=b"s",
                        assignment=b"a",
                    )
                ],
            ),
        ),
        "0002 0001 67",
        "0003 0008 636f6e73756d6572 00000001 0005 72616e6765 0001 6d " + STAMP_HEX + " 00000001 0001 6d ffff 0001 63"
        " 0002 2f68 00000002 00000003 00000001 73 00000001 61",
    ),
    "empty group": (
        records.group_metadata(
            "g",
            GroupMetadataValue(
                protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=STAMP, members=[]
            ),
        ),
        "0002 0001 67",
        f"0003 0000 00000000 ffff ffff {STAMP_HEX} 00000000",
    ),
    "group tombstone": (records.group_tombstone("g"), "0002 0001 67", None),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes(name: str) -> None:
    record, key, value = SAMPLES[name]
    assert record.key_bytes() == bytes.fromhex(key)
    assert record.value_bytes() == (None if value is None else bytes.fromhex(value))


@pytest.mark.parametrize("name", SAMPLES)
def test_reading_gives_back_what_was_written(name: str) -> None:
    record = SAMPLES[name][0]
    read = records.decode(record.key_bytes(), record.value_bytes())
    assert read is not None
    assert (type(read.key), read.key) == (type(record.key), record.key)
    assert read.value_bytes() == record.value_bytes()


@pytest.mark.parametrize("key", ["0063 0001 67", "0009 00", "0012 0001 67"])
def test_types_of_others_are_skipped(key: str) -> None:
    assert records.decode(bytes.fromhex(key), b"\0\0rest") is None


def test_a_version_of_the_future_is_skipped() -> None:
    record = SAMPLES["group"][0]
    assert records.decode(record.key_bytes(), b"\x00\x63anything") is None


@pytest.mark.parametrize(
    ("key", "value"), [("00", None), ("0001 0001", None), ("0002 0001 67", "0003 00"), ("000f 00", None)]
)
def test_broken_bytes(key: str, value: str | None) -> None:
    with pytest.raises(Malformed):
        records.decode(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


@pytest.mark.parametrize("stamp", [-1, 0, STAMP])
def test_a_classic_group_writes_what_it_was_read_from(stamp: int) -> None:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m", group_instance_id="i", client_id="c", client_host="/h", rebalance_timeout=2, session_timeout=3,
        subscription=b"s", assignment=b"a",
    )  # fmt: skip
    for members in ([], [member]):
        value = GroupMetadataValue(
            protocol_type="consumer", generation=4, protocol="range", leader="m" if members else None,
            current_state_timestamp=stamp, members=members,
        )  # fmt: skip
        assert ClassicGroup.from_value("g", value, now_ms=9).metadata_value() == value


def written(client: GroupClient) -> list[tuple[bytes, bytes | None]]:
    log = client.broker.partition("__consumer_offsets", client.broker.coordinators.groups.partition_for("g")).log
    data = log.read(0, 1 << 20, bound=log.log_end_offset, min_one_message=True).records
    found = []
    for position, _ in iter_batches(data):
        for record in decode_records(data, position, parse_header(data, position), max_bytes=1 << 20):
            assert record.key is not None
            found.append((bytes(record.key), None if record.value is None else bytes(record.value)))
    return found


def test_what_a_life_of_a_group_leaves_in_the_log() -> None:
    client = GroupClient()
    member = client.stable()
    client.commit({("t", 0): 7}, member, 1)
    client.leave((member, None))
    log = written(client)
    types = [(int.from_bytes(key[:2], "big"), value and int.from_bytes(value[:2], "big")) for key, value in log]
    # The new group, its first generation, an offset, the empty group.
    assert types == [(2, 3), (2, 3), (1, 4), (2, 3)]
    _, new = log[0]
    assert new is not None
    assert int.from_bytes(new[12:20], "big") == client.clock.now_ms(), "when it was made"
    [(_, value)] = [pair for pair in log if pair[0][1] == 1]
    assert value is not None
    assert value.endswith(b"\x01\x00\x10" + client.broker.image.topics["t"].topic_id)


def test_a_deleted_group_leaves_nothing_that_compaction_keeps() -> None:
    client = Members()
    client.enter("a")
    client.commit({("t", 0): 5}, "a", 2)
    client.beat("a", -1)
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert client.call(delete, DeleteGroupsResponse, 2).results[0].error_code == 0
    left = dict(written(client))
    assert {key[1] for key in left} == {1, 3, 4, 5, 6, 7, 8}
    assert {key: value for key, value in left.items() if value is not None} == {}


def test_records_that_nobody_knows_do_not_stop_a_load() -> None:
    client = GroupClient()
    client.commit({("t", 0): 7})
    partition = client.broker.partition("__consumer_offsets", client.broker.coordinators.groups.partition_for("g"))
    strange = [
        Record(i, 0, key, b"\0\0x", []) for i, key in enumerate((b"\0\x63", b"", b"\0\x02\0\xff", b"\0\x0b\0\0"))
    ]
    partition.append(build_batch(strange), origin=Origin.COORDINATOR)
    client.commit({("t", 1): 8})
    assert client.restart().fetch() == {("t", 0): 7, ("t", 1): 8}


def test_the_ids_that_a_coordinator_makes_are_uuids() -> None:
    client = GroupClient()
    for text in {client.join(group_id=f"g{n}").member_id.removeprefix("test-") for n in range(64)}:
        made = uuid.UUID(text)
        assert (str(made), made.version, made.variant) == (text, 4, uuid.RFC_4122)
