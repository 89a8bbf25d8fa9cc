"""``__transaction_state`` records, byte for byte as a live Kafka 4.3.1 wrote them."""

from __future__ import annotations

import pytest
from transaction_coordinator import CoordinatorDouble, as_reloaded, refusal

from minibroker.coordinators.transactions import records
from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionState,
)
from minibroker_protocol.errors import ErrorCode, Malformed

UPDATED_MS = 0x01A1FE4E68D0
STAMP = "000001a1fe4e68d0"
NO_STAMP = "ffffffffffffffff"


def _metadata(state: TransactionState, **changes: object) -> TransactionMetadata:
    fields: dict[str, object] = {
        "transactional_id": "open1",
        "producer_id": 3,
        "producer_epoch": 0,
        "previous_producer_id": 3,
        "timeout_ms": 60_000,
        "state": state,
        "last_update_ms": UPDATED_MS,
        **changes,
    }
    return TransactionMetadata(**fields)  # type: ignore[arg-type]


_OPEN = {"partitions": frozenset({("t3", 4)}), "start_ms": UPDATED_MS, "client_transaction_version": 2}
_TAGS = "0008 0000000000000001 0108 0000000000000002 0202 0002"
_T3_4 = "02 037433 02 00000004 00"

SAMPLES = [
    (_metadata(EMPTY), f"0001 0000000000000003 0000 0000ea60 00 00 {STAMP} {NO_STAMP} 01 0008 0000000000000003"),
    (
        _metadata(ONGOING, **_OPEN),
        f"0001 0000000000000003 0000 0000ea60 01 {_T3_4} {STAMP} {STAMP} 02 0008 0000000000000003 0202 0002",
    ),
    (
        _metadata(PREPARE_ABORT, **{**_OPEN, "producer_epoch": 1}),
        f"0001 0000000000000003 0001 0000ea60 03 {_T3_4} {STAMP} {STAMP} 02 0008 0000000000000003 0202 0002",
    ),
    (
        _metadata(COMPLETE_ABORT, **{**_OPEN, "producer_epoch": 1, "partitions": frozenset()}),
        f"0001 0000000000000003 0001 0000ea60 05 01 {STAMP} {STAMP} 02 0008 0000000000000003 0202 0002",
    ),
    (
        _metadata(
            PREPARE_COMMIT,
            producer_id=1,
            previous_producer_id=1,
            next_producer_id=2,
            producer_epoch=32767,
            partitions=frozenset({("t3", 2)}),
            start_ms=UPDATED_MS,
            client_transaction_version=2,
        ),
        f"0001 0000000000000001 7fff 0000ea60 02 02 037433 02 00000002 00 {STAMP} {STAMP} 03 {_TAGS}",
    ),
]


@pytest.mark.parametrize(("metadata", "hexed"), SAMPLES, ids=[m.state.label for m, _ in SAMPLES])
def test_recorded_sample(metadata: TransactionMetadata, hexed: str) -> None:
    value = bytes.fromhex(hexed)
    record = records.record_of(metadata, value_version=1, with_last_epoch=False)
    assert record.key_bytes().hex() == "000000056f70656e31"
    assert record.value_bytes() == value
    decoded = records.decode(record.key_bytes(), value)
    assert decoded is not None
    assert decoded.metadata == metadata


def test_version_0_has_no_tags_and_loses_what_only_version_1_carries() -> None:
    opened = {**_OPEN, "client_transaction_version": 0}
    metadata = _metadata(ONGOING, **opened, last_producer_epoch=4, next_producer_id=7)
    record = records.record_of(metadata, value_version=0, with_last_epoch=True)
    assert record.value_bytes() == bytes.fromhex(
        f"0000 0000000000000003 0000 0000ea60 01 00000001 0002 7433 00000001 00000004 {STAMP} {STAMP}"
    )
    left = as_reloaded(metadata, value_version=0, with_last_epoch=True)
    assert left == _metadata(
        ONGOING, partitions=_OPEN["partitions"], start_ms=UPDATED_MS, previous_producer_id=-1, last_producer_epoch=-1
    )


def test_the_last_epoch_goes_into_version_1_only_when_wanted() -> None:
    metadata = _metadata(EMPTY, last_producer_epoch=4)
    kept = as_reloaded(metadata, value_version=1, with_last_epoch=True)
    lost = as_reloaded(metadata, value_version=1, with_last_epoch=False)
    assert (kept.last_producer_epoch, lost.last_producer_epoch) == (4, -1)
    without = records.record_of(metadata, value_version=1, with_last_epoch=False).value_bytes()
    with_it = records.record_of(metadata, value_version=1, with_last_epoch=True).value_bytes()
    assert without is not None
    assert with_it is not None
    # Everything before the count of tags is the same, and so is every other tag.
    assert with_it == without[:-11] + bytes([2]) + without[-10:] + bytes.fromhex("0402 0004")


def test_tombstone() -> None:
    record = records.tombstone_of("open1")
    assert (record.key_bytes().hex(), record.value_bytes()) == ("000000056f70656e31", None)
    decoded = records.decode(record.key_bytes(), None)
    assert decoded is not None
    assert (decoded.transactional_id, decoded.metadata) == ("open1", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [("0001 0005 6f70656e31", "0001"), ("0000 0005 6f70656e31", "0002 0000"), ("0000 0005 6f70656e31", "7fff")],
)
def test_unknown_types_and_versions_are_skipped(key: str, value: str) -> None:
    assert records.decode(bytes.fromhex(key), bytes.fromhex(value)) is None


def test_broken_bytes_of_a_known_version_are_refused() -> None:
    key = bytes.fromhex("000000056f70656e31")
    good = records.record_of(_metadata(EMPTY), value_version=1, with_last_epoch=True).value_bytes()
    assert good is not None
    with pytest.raises(Malformed):
        records.decode(key, good[:-3])
    status_at = 2 + 8 + 2 + 4
    with pytest.raises(Malformed, match="unknown status 99"):
        records.decode(key, good[:status_at] + bytes([99]) + good[status_at + 1 :])


@pytest.mark.parametrize("level", [0, 1])
def test_the_coordinators_own_abort_is_logged_as_version_0_below_2(level: int) -> None:
    """As by Kafka, whose coordinator ends in the finalized version from 2 on only."""
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=level))
    coordinator.add(coordinator.init(timeout_ms=1000))
    coordinator.now_ms += 1001
    coordinator.sweep_timeouts()
    assert coordinator.metadata.state is COMPLETE_ABORT
    assert coordinator.metadata.client_transaction_version == 0
    coordinator.reload()
    assert coordinator.metadata.client_transaction_version == 0


@pytest.mark.parametrize("what", ["join", "end", "abort of nothing"])
def test_version_0_has_no_room_for_clients_of_transaction_version_2(what: str) -> None:
    """As with Kafka, where the transition is prepared by then: the id hangs in it until the coordinator moves."""
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=0))
    held = coordinator.init()
    if what == "end":
        coordinator.add(held)
    logged = len(coordinator.log)

    def ask() -> object:
        if what == "join":
            return coordinator.add(held, version=2)
        return coordinator.end(held, commit=what == "end", version=2)

    assert refusal(ask) is ErrorCode.UNSUPPORTED_VERSION
    assert refusal(lambda: coordinator.add(held)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(coordinator.log) == logged
    coordinator.reload()
    coordinator.add(held)
    coordinator.end(held, commit=True)


def test_tags_nobody_knows_are_skipped() -> None:
    """Another tag than ours for the last epoch, or one of a later release."""
    record = records.record_of(_metadata(ONGOING, **_OPEN), value_version=1, with_last_epoch=False)
    value = record.value_bytes()
    assert value is not None
    count = value.rindex(bytes.fromhex("02 00 08".replace(" ", "")))  # tags 0 and 2
    longer = (
        value[:count] + b"\x04" + value[count + 1 :] + bytes.fromhex("07020009 2c08000000000000000b".replace(" ", ""))
    )
    decoded = records.decode(record.key_bytes(), longer)
    assert decoded is not None
    assert decoded.metadata == records.decode(record.key_bytes(), value).metadata  # type: ignore[union-attr]
