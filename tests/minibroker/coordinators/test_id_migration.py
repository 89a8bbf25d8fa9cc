"""Which records move to the partition where Kafka has their id, and as what."""

from __future__ import annotations

from minibroker.coordinators.groups import records as groups
from minibroker.coordinators.groups.offsets import commit_value
from minibroker.coordinators.id_migration import Appends, StoredRecord, StoredState, batches, migrations
from minibroker.coordinators.transactions import records as transactions
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TransactionMetadata
from minibroker.coordinators.transactions.states import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionState,
)

OFFSETS = "__consumer_offsets"
# With four partitions Kafka has "orders" in 3, where 0.1.0 has 1, and "payments" is in 1 for both.
ORDERS_WAS, ORDERS_IS, COUNT = 1, 3, 4
PRODUCER = ProducerIdAndEpoch(7, 2)


def offset(
    at: int, value: int | None, group: str = "orders", producer: ProducerIdAndEpoch | None = None
) -> StoredRecord:
    if value is None:
        record = groups.offset_tombstone(group, "t", 0)
    else:
        record = groups.offset_commit(group, "t", 0, commit_value(value, -1, "", commit_timestamp=5))
    return StoredRecord(at, 1000 + at, record.key_bytes(), record.value_bytes(), producer)


def transaction(
    state: TransactionState, partitions: frozenset[tuple[str, int]], *, name: str = "payments", version: int = 1
) -> StoredRecord:
    metadata = TransactionMetadata(
        transactional_id=name,
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.producer_epoch,
        timeout_ms=1000,
        last_update_ms=2,
        start_ms=1,
        state=state,
        partitions=partitions,
    )
    record = transactions.record_of(metadata, value_version=version, with_last_epoch=False)
    return StoredRecord(0, 0, record.key_bytes(), record.value_bytes())


def state(*stored: StoredRecord) -> StoredState:
    built = StoredState()
    for one in stored:
        built.record(one)
    return built


def placed(states: dict[int, StoredState], of: dict[int, StoredState] | None = None) -> tuple[Appends, Appends]:
    return migrations(of or {}, COUNT, states, COUNT, offsets_topic=OFFSETS, layout="kafka")


def arriving(appends: Appends) -> dict[int, list[tuple[bytes | None, ProducerIdAndEpoch | None]]]:
    return {index: [(one.value, one.producer) for one in stored] for index, stored in appends.arriving.items()}


def test_the_record_that_counts_moves_and_leaves_tombstones_of_offset_and_group() -> None:
    first, last, other = offset(0, 1), offset(1, 2), offset(2, 9, "payments")
    _, moved = placed({ORDERS_WAS: state(first, last, other)})
    assert moved.arriving == {ORDERS_IS: [last]}
    assert moved.leaving == {ORDERS_WAS: [last.key, groups.group_tombstone("orders").key_bytes()]}
    assert moved.ids == 1


def test_what_was_deleted_stays_deleted() -> None:
    gone = offset(1, None)
    assert placed({ORDERS_WAS: state(offset(0, 1), gone)})[1].partitions == set()
    # Kafka wrote it where it belongs, and 0.1.0 deleted it where it looked.
    _, moved = placed({ORDERS_WAS: state(gone), ORDERS_IS: state(offset(0, 1))})
    assert (moved.arriving, moved.leaving) == ({ORDERS_IS: [gone]}, {})


def test_an_id_that_no_rule_put_there_stays() -> None:
    assert placed({0: state(offset(0, 1)), 2: state(offset(0, 1, "payments"))})[1].partitions == set()


def test_offsets_of_a_running_transaction_stay_in_it_and_it_names_both_partitions() -> None:
    plain, waiting = offset(0, 1), offset(1, 2, producer=PRODUCER)
    named = frozenset({("t", 0), (OFFSETS, ORDERS_WAS)})
    for version in (0, 1):
        running = transaction(ONGOING, named, version=version)
        changed, moved = placed({ORDERS_WAS: state(plain, waiting)}, {1: state(running)})
        assert arriving(moved) == {ORDERS_IS: [(plain.value, None), (waiting.value, PRODUCER)]}
        ((only,),) = changed.arriving.values()
        read = transactions.decode(only.key, only.value)
        assert read is not None
        assert read.metadata is not None
        assert read.value_version == version
        assert read.metadata.partitions == named | {(OFFSETS, ORDERS_IS)}
        assert (changed.leaving, changed.ids) == ({}, 0)


def test_a_transaction_names_both_partitions_before_it_has_offsets() -> None:
    changed, moved = placed({}, {1: state(transaction(ONGOING, frozenset({(OFFSETS, ORDERS_WAS)})))})
    assert changed.partitions == {1}
    assert moved.partitions == set()


def test_a_decided_transaction_moves_as_decided() -> None:
    """Its marker may be in the new partition already, with an epoch that refuses the batch of the old one."""
    plain, waiting = offset(0, 1), offset(1, 2, producer=PRODUCER)
    for decided, value in ((PREPARE_COMMIT, waiting.value), (PREPARE_ABORT, plain.value)):
        of = {1: state(transaction(decided, frozenset({(OFFSETS, ORDERS_WAS)})))}
        changed, moved = placed({ORDERS_WAS: state(plain, waiting)}, of)
        assert arriving(moved) == {ORDERS_IS: [(value, None)]}
        assert changed.partitions == set()


def test_a_hanging_transaction_hangs_on() -> None:
    waiting = offset(0, 2, producer=PRODUCER)
    of = {1: state(transaction(COMPLETE_COMMIT, frozenset()))}
    _, moved = placed({ORDERS_WAS: state(waiting)}, of)
    assert moved.arriving == {ORDERS_IS: [waiting]}


def test_a_commit_that_is_later_than_a_transaction_s_stands() -> None:
    held = state(offset(0, 1, producer=PRODUCER), offset(1, 5))
    held.end(PRODUCER.producer_id, committed=True)
    _, moved = placed({ORDERS_WAS: held})
    assert arriving(moved) == {ORDERS_IS: [(offset(0, 5).value, None)]}


def test_the_misplaced_state_of_an_id_is_the_newer_one() -> None:
    old = transaction(COMPLETE_COMMIT, frozenset(), name="orders")
    new = transaction(ONGOING, frozenset({("t", 0)}), name="orders")
    for order in ((ORDERS_WAS, ORDERS_IS), (ORDERS_IS, ORDERS_WAS)):
        of = {index: state(new if index == ORDERS_WAS else old) for index in order}
        changed, _ = placed({}, of)
        assert changed.arriving == {ORDERS_IS: [new]}
        assert (changed.leaving, changed.ids) == ({ORDERS_WAS: [new.key]}, 1)


def test_records_of_unknown_kinds_and_broken_ones_stay() -> None:
    odd = [StoredRecord(i, 0, key, b"\0\1") for i, key in enumerate((b"", b"\0", b"\0\1", b"\0\x11orders", b"\7\7"))]
    changed, moved = placed({ORDERS_WAS: state(*odd)}, {ORDERS_WAS: state(*odd)})
    assert (changed.partitions, moved.partitions) == (set(), set())


def test_batches_end_where_another_transaction_begins_and_at_their_size() -> None:
    plain, other = offset(0, 1), offset(1, 1, producer=PRODUCER)
    assert list(batches([plain, plain, other, plain], 1000)) == [[plain, plain], [other], [plain]]
    assert list(batches([plain, plain, plain], 2 * len(plain.key) + 2 * len(plain.value or b""))) == [
        [plain, plain],
        [plain],
    ]
    assert list(batches([plain, plain], 1)) == [[plain], [plain]]
