"""Records as a live Kafka 4.3.1 broker wrote them."""

from __future__ import annotations

import pytest

from minibroker_protocol import coordinator_records
from minibroker_protocol.coordinator_records import (
    ConsumerGroupMemberMetadataValue,
    EndTxnMarker,
    GroupMetadataKey,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.registry import all_messages

Partitions = TransactionLogValue.PartitionsSchema
UPDATED, STARTED = 0x1A1FE4E68D0, 0x1A1FE4E68CF

Classic = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


def member(classic: Classic | None) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex=None,
        rebalance_timeout_ms=3000,
        server_assignor=None,
        classic_member_metadata=classic,
    )


def transaction(status: int, topics: list[Partitions] | None, **values: int) -> TransactionLogValue:
    fields = {
        "producer_id": 3,
        "producer_epoch": 0,
        "transaction_timeout_ms": 60000,
        "transaction_last_update_timestamp_ms": UPDATED,
        "transaction_start_timestamp_ms": STARTED,
        "previous_producer_id": 3,
        **values,
    }
    return TransactionLogValue(transaction_status=status, transaction_partitions=topics, **fields)


SAMPLES = {
    "key": (TransactionLogKey(transactional_id="open1"), 0, "0005 6f70656e31"),
    "Empty": (
        transaction(0, None, transaction_start_timestamp_ms=-1),
        1,
        "0000000000000003 0000 0000ea60 00 00 000001a1fe4e68d0 ffffffffffffffff 01 0008 0000000000000003",
    ),
    "Ongoing": (
        transaction(1, [Partitions(topic="t3", partition_ids=[4])], client_transaction_version=2),
        1,
        (
            "0000000000000003 0000 0000ea60 01 02 037433 02 00000004 00 000001a1fe4e68d0 000001a1fe4e68cf"
            "02 0008 0000000000000003 0202 0002"
        ),
    ),
    "PrepareAbort": (
        transaction(3, [Partitions(topic="t3", partition_ids=[4])], producer_epoch=1, client_transaction_version=2),
        1,
        (
            "0000000000000003 0001 0000ea60 03 02 037433 02 00000004 00 000001a1fe4e68d0 000001a1fe4e68cf"
            "02 0008 0000000000000003 0202 0002"
        ),
    ),
    "CompleteAbort": (
        transaction(5, [], producer_epoch=1, client_transaction_version=2),
        1,
        "0000000000000003 0001 0000ea60 05 01 000001a1fe4e68d0 000001a1fe4e68cf 02 0008 0000000000000003 0202 0002",
    ),
    "PrepareCommit at the last epoch": (
        transaction(
            2,
            [Partitions(topic="t3", partition_ids=[2])],
            producer_id=1,
            producer_epoch=32767,
            previous_producer_id=1,
            next_producer_id=2,
            client_transaction_version=2,
        ),
        1,
        (
            "0000000000000001 7fff 0000ea60 02 02 037433 02 00000002 00 000001a1fe4e68d0 000001a1fe4e68cf"
            "03 0008 0000000000000001 0108 0000000000000002 0202 0002"
        ),
    ),
    "version 0": (
        transaction(1, [Partitions(topic="t3", partition_ids=[4])], previous_producer_id=-1),
        0,
        "0000000000000003 0000 0000ea60 01 00000001 0002 7433 00000001 00000004 000001a1fe4e68d0 000001a1fe4e68cf",
    ),
    "offset key": (OffsetCommitKey(group="g1", topic="t3", partition=0), 0, "0002 6731 0002 7433 00000000"),
    "transactional offset": (
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=UPDATED),
        4,
        "0000000000000005 ffffffff 02 6d 000001a1fe4e68d0 00",
    ),
    "offset": (
        OffsetCommitValue(offset=3, metadata="", commit_timestamp=UPDATED, topic_id=bytes(range(16))),
        4,
        "0000000000000003 ffffffff 01 000001a1fe4e68d0 01 00 10 000102030405060708090a0b0c0d0e0f",
    ),
    "offset with an expire time": (
        OffsetCommitValue(offset=3, metadata="", commit_timestamp=UPDATED, expire_timestamp=1),
        1,
        "0000000000000003 0000 000001a1fe4e68d0 0000000000000001",
    ),
    # Kafka writes the null of this tagged field, and takes a missing one for an empty struct.
    "member of the consumer protocol": (member(None), 0, "0000026302680202740000000bb800 01 00 01 00"),
    "classic member": (
        member(Classic(session_timeout_ms=5, supported_protocols=[])),
        0,
        "0000026302680202740000000bb800 01 00 07 01 00000005 01 00",
    ),
    "empty classic member": (
        member(Classic(session_timeout_ms=0, supported_protocols=[])),
        0,
        "0000026302680202740000000bb800 00",
    ),
    "marker": (EndTxnMarker(coordinator_epoch=7), 0, "00000007"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str) -> None:
    record, version, wire = SAMPLES[name]
    assert record.encode(version) == bytes.fromhex(wire)
    assert type(record).decode(bytes.fromhex(wire), version) == record


@pytest.mark.parametrize(
    ("topic", "numbers"), [("__transaction_state", {0}), ("__consumer_offsets", {0, 1, 2, 3, 4, 5, 6, 7, 8, 16})]
)
def test_every_record_type_of_a_topic_has_its_key_and_its_value(topic: str, numbers: set[int]) -> None:
    types = coordinator_records.record_types(topic)
    assert set(types) == numbers
    for number, (key, value) in types.items():
        assert key.__record_type__ == value.__record_type__ == number
        assert key.__name__.removesuffix("Key") == value.__name__.removesuffix("Value")
        assert (key is TransactionLogKey) == (topic == "__transaction_state")


def test_record_types_start_the_keys() -> None:
    assert (LegacyOffsetCommitKey.__record_type__, OffsetCommitKey.__record_type__) == (0, 1)
    assert (GroupMetadataKey.__record_type__, TransactionLogKey.__record_type__) == (2, 0)
    assert EndTxnMarker.__record_type__ == -1
    types = {
        m.__record_type__
        for m in all_messages()
        if issubclass(m, Data) and m.__name__.startswith("ConsumerGroup") and m.__name__.endswith("Key")
    }
    assert types == {3, 4, 5, 6, 7, 8, 16}


def test_version_0_cannot_carry_what_version_1_added() -> None:
    with pytest.raises(EncodeError, match="TransactionLogValue v0: previous_producer_id"):
        transaction(1, None).encode(0)
