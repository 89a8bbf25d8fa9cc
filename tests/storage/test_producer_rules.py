"""State x input: each row of the producer rules, by the seed or KIP it comes from.

`kafka` is what Apache Kafka 4.3.1 was recorded to do; `kip` is what KIP-360 and KAFKA-5793 say.
"""

import contextlib

import pytest
from producers import KAFKA, KIP, NOW, PID, Partition, control, data, marker_header

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import ControlRecord, ControlType
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import ProducerRules, ProducerStateManager

OOO = "OUT_OF_ORDER_SEQUENCE_NUMBER"
DUP = "DUPLICATE_SEQUENCE_NUMBER"
UNKNOWN = "UNKNOWN_PRODUCER_ID"
STALE_EPOCH = "INVALID_PRODUCER_EPOCH"
TXN = "INVALID_TXN_STATE"
MAX = 2**31 - 1

# name, what was appended before ((sequence, count, epoch) …), the batch, Kafka's answer, the KIPs' answer
SEQUENCES = [
    ("360-10 first batch at 0", [], (0, 2, 0), "@0", "@0"),
    ("oos-1 unknown producer, sequence 7", [], (7, 1, 0), "@0", UNKNOWN),
    ("360-10 unknown producer, epoch 5, sequence 3", [], (3, 1, 5), "@0", UNKNOWN),
    ("KIP-98 next in sequence", [(0, 2, 0)], (2, 1, 0), "@2", "@2"),
    ("oos-5 a real gap", [(0, 2, 0)], (5, 1, 0), OOO, OOO),
    ("oos-5 a gap of one", [(0, 2, 0)], (3, 1, 0), OOO, OOO),
    ("oos-4 remembered, newest", [(0, 2, 0)], (0, 2, 0), "dup@0", "dup@0"),
    ("oos-4 remembered, fifth", [(n, 1, 0) for n in range(5)], (0, 1, 0), "dup@0", "dup@0"),
    ("oos-4 sixth oldest is forgotten", [(n, 1, 0) for n in range(6)], (0, 1, 0), OOO, DUP),
    ("oos-4 same start, other length", [(0, 2, 0)], (0, 1, 0), OOO, DUP),
    ("oos-4 partial overlap past the end", [(0, 2, 0)], (1, 3, 0), OOO, DUP),
    ("oos-4 two remembered batches as one", [(0, 1, 0), (1, 1, 0)], (0, 2, 0), OOO, DUP),
    ("oos-4 stale across the wrap", [(MAX - 1, 4, -1), (MAX - 1, 4, 0)], (MAX, 1, 0), OOO, DUP),
    ("oos-4 stale by half of all sequences", [(1 << 30, 1, 0)], (1, 1, 0), OOO, DUP),
    ("oos-5 a gap of nearly half of all sequences", [(0, 1, 0)], (1 << 30, 1, 0), OOO, OOO),
    ("360-11 higher epoch starts at 0", [(0, 5, 0)], (0, 1, 1), "@5", "@5"),
    ("oos-5 higher epoch not at 0", [(0, 5, 0)], (5, 1, 1), OOO, UNKNOWN),
    ("360-2 epoch jumps", [(0, 1, 0)], (0, 1, 9), "@1", "@1"),
    ("588-5 lower epoch", [(0, 1, 3)], (0, 1, 2), STALE_EPOCH, STALE_EPOCH),
    ("588-5 lower epoch, exact duplicate of the past", [(0, 1, 2), (0, 1, 3)], (0, 1, 2), STALE_EPOCH, STALE_EPOCH),
    ("epoch -1 of a known producer", [(0, 1, 0)], (1, 1, -1), STALE_EPOCH, STALE_EPOCH),
    ("epoch -1 of an unknown producer", [], (0, 1, -1), "@0", "@0"),
    ("epoch -1 knows no order", [(7, 1, -1)], (3, 1, -1), "@1", "@1"),
    ("epoch -2 of an unknown producer", [], (0, 1, -2), STALE_EPOCH, STALE_EPOCH),
    ("epoch 32767", [(0, 1, 32767)], (1, 1, 32767), "@1", "@1"),
    ("epoch 32766 after 32767", [(0, 1, 32767)], (0, 1, 32766), STALE_EPOCH, STALE_EPOCH),
]


@pytest.mark.parametrize("semantics", ["kafka", "kip"])
@pytest.mark.parametrize(("before", "batch", "kafka", "kip"), [r[1:] for r in SEQUENCES], ids=[r[0] for r in SEQUENCES])
def test_sequences(
    semantics: str, before: list[tuple[int, int, int]], batch: tuple[int, int, int], kafka: str, kip: str
) -> None:
    partition = Partition(KAFKA if semantics == "kafka" else KIP)
    for sequence, count, epoch in before:
        # History comes through replication, which takes it in any shape.
        partition.append(sequence, count, epoch=epoch, origin=Origin.REPLICATION)
    end = partition.end
    answer = partition.append(batch[0], batch[1], epoch=batch[2])
    assert answer.replace(f"@{end}", "@end") == (kafka if semantics == "kafka" else kip).replace(f"@{end}", "@end")
    assert partition.end == (end + batch[1] if answer.startswith("@") else end)


@pytest.mark.parametrize(
    ("last", "batch", "following"),
    [
        ((MAX - 1, 2), (0, 1), 1),
        ((MAX, 1), (0, 3), 3),
        ((MAX - 1, 4), (2, 1), 3),
        ((MAX - 3, 2), (MAX - 1, 5), 3),
    ],
)
@pytest.mark.parametrize("rules", [KAFKA, KIP], ids=["kafka", "kip"])
def test_sequences_wrap_after_the_largest(
    rules: ProducerRules, last: tuple[int, int], batch: tuple[int, int], following: int
) -> None:
    partition = Partition(rules)
    partition.append(*last, origin=Origin.REPLICATION)
    assert partition.append(*batch) == f"@{last[1]}"
    assert partition.append(*last) == "dup@0"
    assert partition.append(*batch) == f"dup@{last[1]}"
    assert partition.append(following + 1) == OOO
    assert partition.append(following) == f"@{last[1] + batch[1]}"


@pytest.mark.parametrize("rules", [KAFKA, KIP], ids=["kafka", "kip"])
def test_preparing_a_batch_changes_no_state(rules: ProducerRules) -> None:
    for name, before, (sequence, count, epoch), _, _ in SEQUENCES:
        partition = Partition(rules)
        for earlier, records, older in before:
            partition.append(earlier, records, epoch=older, origin=Origin.REPLICATION)
        producers = partition.producers
        state = producers.snapshot(), producers.active(), producers.entry(PID)
        with contextlib.suppress(ApiError):
            producers.prepare(data(partition.end, sequence, count, epoch=epoch), origin=Origin.CLIENT)
        assert (producers.snapshot(), producers.active(), producers.entry(PID)) == state, name


def test_reasons_say_what_was_expected_and_what_came() -> None:
    partition = Partition()
    for sequence in range(154, 159):
        partition.append(sequence)
    with pytest.raises(ApiError) as refused:
        partition.producers.prepare(data(5, 162), origin=Origin.CLIENT)
    assert "expected sequence 159, got 162" in refused.value.message
    assert "154-154@0, 155-155@1" in refused.value.message
    with pytest.raises(ApiError, match="expected epoch 0 or higher, got -1"):
        partition.producers.prepare(data(5, 159, epoch=-1), origin=Origin.CLIENT)


def test_duplicate_keeps_offset_and_timestamp_of_the_original() -> None:
    partition = Partition()
    partition.append(0, 3, timestamp=4711)
    duplicate = partition.producers.find_duplicate(data(99, 0, 3, timestamp=1))
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.last_offset, duplicate.timestamp) == (0, 2, 4711)


def test_the_coordinator_is_asked_about_no_producer_id_too() -> None:
    producers = ProducerStateManager(KAFKA)
    for pid in (-1, -2):
        assert producers.start_verification(pid, -1, -1, False, NOW) is not None


def test_no_producer_id_is_not_looked_at() -> None:
    producers = ProducerStateManager(KAFKA)
    for pid in (-1, -2):
        assert producers.find_duplicate(data(0, 0, pid=pid, txn=True)) is None
        assert producers.prepare(data(0, 0, pid=pid, txn=True), origin=Origin.CLIENT) is None
    assert producers.active() == []


# Origins


def test_coordinator_batches_carry_no_order() -> None:
    partition = Partition()
    for n in range(3):
        assert partition.append(0, origin=Origin.COORDINATOR) == f"@{n}"
    assert partition.append(5, origin=Origin.COORDINATOR) == "@3"


def test_replication_accepts_what_the_leader_did() -> None:
    partition = Partition()
    assert partition.append(5, epoch=3, origin=Origin.REPLICATION) == "@0"
    assert partition.append(99, epoch=3, origin=Origin.REPLICATION) == "@1"
    assert partition.append(0, epoch=1, origin=Origin.REPLICATION) == "@2"
    assert partition.append(0, epoch=1, txn=True, origin=Origin.REPLICATION) == "@3"
    assert partition.mark(epoch=0, coordinator_epoch=-1, origin=Origin.REPLICATION) is not None
    entry = partition.producers.entry(PID)
    assert entry is not None
    assert entry.epoch == 0


@pytest.mark.parametrize("origin", list(Origin))
def test_non_transactional_batch_inside_a_transaction(origin: Origin) -> None:
    partition = Partition()
    assert partition.append(0, txn=True, origin=Origin.REPLICATION) == "@0"
    assert partition.append(1, origin=origin) == TXN


def test_batches_of_one_append_see_each_other() -> None:
    producers = ProducerStateManager(KAFKA)
    first = producers.prepare(data(0, 0, 2), origin=Origin.CLIENT)
    assert first is not None
    second = producers.prepare(data(2, 2), origin=Origin.CLIENT, after=[first])
    assert second is not None
    with pytest.raises(ApiError, match="expected sequence 2, got 3"):
        producers.prepare(data(2, 3), origin=Origin.CLIENT, after=[first])
    assert producers.active() == []
    producers.commit(first, NOW)
    producers.commit(second, NOW)
    assert producers.active()[0].last_sequence == 2


# Transactions


def open_txn(partition: Partition, sequence: int = 0, *, pid: int = PID, epoch: int = 0, tv2: bool = False) -> str:
    return partition.append(sequence, pid=pid, epoch=epoch, txn=True, verify=True, tv2=tv2)


def test_transaction_needs_verification() -> None:
    partition = Partition()
    assert partition.append(0, txn=True) == TXN
    stranger = partition.producers.start_verification(8, 0, 0, False, NOW)
    assert partition.append(0, txn=True, guard=stranger) == TXN
    assert partition.producers.active() == []
    assert open_txn(partition) == "@0"
    assert partition.append(1, txn=True) == "@1", "inside the open transaction no guard is needed"


def test_guard_of_an_earlier_verification() -> None:
    partition = Partition()
    old = partition.producers.start_verification(PID, 0, 0, False, NOW)
    partition.mark(commit=False)
    new = partition.producers.start_verification(PID, 0, 0, False, NOW)
    assert partition.append(0, txn=True, guard=old) == TXN
    assert partition.append(0, txn=True, guard=new) == "@1"


def test_open_transaction_of_the_old_epoch_verifies_nothing_for_the_new_one() -> None:
    partition = Partition()
    open_txn(partition)
    assert partition.append(0, epoch=1, txn=True) == TXN
    assert open_txn(partition, 0, epoch=1) == "@1"
    assert partition.producers.open_transactions() == {0: PID}, "it is the same transaction to readers"


def test_verification_can_be_switched_off() -> None:
    partition = Partition(ProducerRules(verification_enabled=False))
    assert partition.append(0, txn=True) == "@0"


@pytest.mark.parametrize(("rules", "afterwards"), [(KAFKA, OOO), (KIP, UNKNOWN)], ids=["kafka", "kip"])
def test_what_a_batch_that_waited_leaves(rules: ProducerRules, afterwards: str) -> None:
    """oos-1, oos-5: requests wait with sequences 3, 5 and 7, and are answered one by one without a write."""
    partition = Partition(rules._replace(verification_enabled=True))
    producers = partition.producers
    guards = [producers.start_verification(PID, 0, sequence, False, NOW) for sequence in (3, 5, 7)]
    assert guards[0] is not None
    assert guards[0] is guards[1] is guards[2]
    for sequence in (3, 5, 7):
        told = partition.append(sequence + 1, txn=True, guard=guards[0])
        assert told == OOO, "this one, or one before it, waits still"
        producers.end_verification(PID, 0, sequence, guards[0])
    last = producers.start_verification(PID, 0, 9, False, NOW)
    assert (last is guards[0]) == (rules is KAFKA)
    assert partition.append(9, txn=True, guard=last) == afterwards


@pytest.mark.parametrize("verified", [False, True])
def test_a_refused_batch_of_a_zombie(verified: bool) -> None:
    """Kafka 4.0 asks the coordinator about it, and then holds its owner back until the transaction ends."""
    partition = Partition(KAFKA._replace(verification_enabled=True, stale_epoch_is_verified=verified))
    producers = partition.producers
    guard = producers.start_verification(PID, 1, 0, False, NOW)
    assert partition.append(0, epoch=1, txn=True, guard=guard) == "@0"
    if verified:
        zombie = producers.start_verification(PID, 0, 0, False, NOW)
        assert zombie is not None
        producers.end_verification(PID, 0, 0, zombie)
    else:
        with pytest.raises(ApiError, match="expected epoch 1 or higher, got 0"):
            producers.start_verification(PID, 0, 0, False, NOW)
    assert partition.append(1, epoch=1, txn=True) == (OOO if verified else "@1")
    partition.mark(epoch=1, commit=False)
    guard = producers.start_verification(PID, 1, 2 - verified, False, NOW)
    assert partition.append(2 - verified, epoch=1, txn=True, guard=guard) == ("@2" if verified else "@3")


def test_marker_between_verification_and_append_voids_the_guard() -> None:
    partition = Partition()
    guard = partition.producers.start_verification(PID, 0, 0, False, NOW)
    partition.mark(commit=False)
    assert partition.append(0, txn=True, guard=guard) == TXN


def test_marker_of_the_new_epoch_leaves_the_next_transaction_verified() -> None:
    """transaction.version 2: the marker carries the epoch in which the next transaction has already begun."""
    partition = Partition()
    open_txn(partition, tv2=True)
    guard = partition.producers.start_verification(PID, 1, 0, True, NOW)
    partition.mark(epoch=1, tv=2)
    assert partition.append(0, epoch=1, txn=True, guard=guard) == "@2"


def test_late_batch_of_the_epoch_before_does_not_end_a_verification() -> None:
    """transaction.version 2: the next transaction is being verified while the one before, whose marker has not come,
    gets a late batch. Kafka's rules refuse that one; where it is written, the verification stays all the same."""
    partitions = (
        Partition(KAFKA._replace(verification_enabled=True)),
        Partition(KIP._replace(verification_enabled=True)),
    )
    answers = []
    for partition in partitions:
        open_txn(partition, tv2=True)
        guard = partition.producers.start_verification(PID, 1, 0, True, NOW)
        late = partition.append(1, txn=True)
        partition.mark(epoch=1, tv=2)
        answers.append((late, partition.append(0, epoch=1, txn=True, guard=guard)))
    assert answers == [(OOO, "@2"), ("@1", "@3")]


@pytest.mark.parametrize(("rules", "answer"), [(KAFKA, TXN), (KIP, "@1")], ids=["kafka", "kip"])
def test_late_marker_of_an_epoch_before_meets_a_verification(rules: ProducerRules, answer: str) -> None:
    """A copy of a marker, on a partition that the transaction since had nothing on."""
    partition = Partition(rules._replace(verification_enabled=True))
    guard = partition.producers.start_verification(PID, 2, 0, True, NOW)
    partition.mark(epoch=1, commit=False, tv=2)
    assert partition.append(0, epoch=2, txn=True, guard=guard) == answer


def test_marker_of_the_new_epoch_clears_a_verification_by_an_older_request() -> None:
    partition = Partition()
    guard = partition.producers.start_verification(PID, 1, 0, False, NOW)
    partition.mark(epoch=1, tv=2)
    assert partition.append(0, epoch=1, txn=True, guard=guard) == TXN


def test_failed_append_keeps_the_verification() -> None:
    partition = Partition()
    partition.append(0)
    guard = partition.producers.start_verification(PID, 0, 5, False, NOW)
    assert partition.append(5, txn=True, guard=guard) == OOO
    assert partition.producers.start_verification(PID, 0, 1, False, NOW) is guard
    assert partition.append(1, txn=True, guard=guard) == "@1"


def test_stale_epoch_is_told_before_verification() -> None:
    partition = Partition()
    partition.append(0, epoch=3)
    with pytest.raises(ApiError) as refused:
        partition.producers.start_verification(PID, 2, 0, False, NOW)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.append(0, epoch=2, txn=True) == STALE_EPOCH


def test_lowest_waiting_sequence_goes_first() -> None:
    partition = Partition()
    producers = partition.producers
    late = producers.start_verification(PID, 0, 3, False, NOW)
    early = producers.start_verification(PID, 0, 0, False, NOW)
    assert late is early
    assert partition.append(3, txn=True, guard=late) == OOO
    assert partition.append(0, 3, txn=True, guard=early) == "@0"
    assert partition.append(3, txn=True, guard=late) == "@3"


def test_higher_epoch_forgets_the_lowest_waiting_sequence() -> None:
    partition = Partition()
    producers = partition.producers
    producers.start_verification(PID, 0, 0, False, NOW)
    guard = producers.start_verification(PID, 1, 4, False, NOW)
    producers.start_verification(PID, 0, 0, False, NOW)
    assert partition.append(4, epoch=1, txn=True, guard=guard) == "@0"


@pytest.mark.parametrize(("rules", "answer"), [(KAFKA, OOO), (KIP, "@2")], ids=["kafka", "kip"])
def test_duplicate_that_opened_the_verification(rules: ProducerRules, answer: str) -> None:
    """Kafka refuses the right next sequence until the transaction ends; oos-5 allows no such refusal."""
    partition = Partition(rules)
    partition.append(0)
    partition.append(1)
    assert partition.append(0, txn=True, verify=True) == "dup@0"
    guard = partition.producers.start_verification(PID, 0, 2, False, NOW)
    assert partition.append(2, txn=True, guard=guard) == answer
    assert partition.append(4, txn=True, guard=guard) in (OOO, TXN)


@pytest.mark.parametrize(("tv2", "rules", "answer"), [(False, KAFKA, "@0"), (True, KAFKA, OOO), (True, KIP, UNKNOWN)])
def test_first_transactional_batch_at_3(tv2: bool, rules: ProducerRules, answer: str) -> None:
    assert Partition(rules).append(3, txn=True, verify=True, tv2=tv2) == answer


def test_transaction_version_2_after_a_marker_starts_at_0() -> None:
    partition = Partition()
    open_txn(partition, tv2=True)
    partition.mark(epoch=1, tv=2)
    assert open_txn(partition, 1, epoch=1, tv2=True) == OOO
    assert open_txn(partition, 0, epoch=1, tv2=True) == "@2"


def test_same_epoch_goes_on_over_transactions() -> None:
    partition = Partition()
    open_txn(partition)
    partition.mark()
    assert partition.append(1, txn=True) == TXN
    assert open_txn(partition, 1) == "@2"
    assert partition.append(0, txn=True) == "dup@0"


@pytest.mark.parametrize(("rules", "answer"), [(KAFKA, OOO), (KIP, UNKNOWN)], ids=["kafka", "kip"])
def test_marker_only_entry_knows_no_sequence(rules: ProducerRules, answer: str) -> None:
    partition = Partition(rules)
    assert partition.mark(commit=False) is None
    assert partition.producers.active()[0].last_sequence == -1
    assert partition.append(3) == answer
    assert partition.append(0) == "@1"


# Markers: transaction version x epochs


def with_state(*, epoch: int, open_: bool, coordinator_epoch: int = 5) -> Partition:
    partition = Partition()
    partition.mark(epoch=epoch, coordinator_epoch=coordinator_epoch, origin=Origin.REPLICATION)
    if open_:
        partition.append(0, epoch=epoch, txn=True, origin=Origin.REPLICATION)
    return partition


@pytest.mark.parametrize(
    ("tv", "epoch", "open_", "marker_epoch", "answer"),
    [
        (0, 3, True, 3, "done"),
        (1, 3, True, 3, "done"),
        (0, 3, True, 4, "done"),
        (0, 3, True, 2, STALE_EPOCH),
        (0, 3, False, 3, "noted"),
        (0, 3, False, 2, STALE_EPOCH),
        (2, 3, True, 4, "done"),
        (2, 3, True, 3, STALE_EPOCH),
        (2, 3, True, 2, STALE_EPOCH),
        (2, 3, False, 4, "noted"),
        (2, 3, False, 3, "noted"),
        (2, 3, False, 2, STALE_EPOCH),
        (2, 32767, True, 32767, "done"),
        (2, 32767, False, 32767, "noted"),
    ],
)
def test_markers(tv: int, epoch: int, open_: bool, marker_epoch: int, answer: str) -> None:
    partition = with_state(epoch=epoch, open_=open_)
    end = partition.end
    result = partition.mark(epoch=marker_epoch, coordinator_epoch=5, tv=tv)
    assert (result if isinstance(result, str) else "noted" if result is None else "done") == answer
    assert partition.end == (end if answer == STALE_EPOCH else end + 1)


@pytest.mark.parametrize(("known", "sent", "refused"), [(5, 5, False), (5, 6, False), (5, 4, True), (-1, 0, False)])
def test_marker_of_an_older_coordinator(known: int, sent: int, refused: bool) -> None:
    partition = with_state(epoch=0, open_=True, coordinator_epoch=known)
    result = partition.mark(coordinator_epoch=sent)
    assert (result == "TRANSACTION_COORDINATOR_FENCED") is refused


def test_marker_without_a_transaction_version() -> None:
    producers = ProducerStateManager(KAFKA)
    with pytest.raises(ValueError, match="transaction version"):
        producers.prepare(marker_header(0), control(), origin=Origin.COORDINATOR, transaction_version=-1)
    assert producers.prepare(marker_header(0), control(), origin=Origin.REPLICATION, transaction_version=-1)


def test_marker_sets_the_entry() -> None:
    partition = Partition()
    open_txn(partition)
    partition.now += 5
    completed = partition.mark(commit=False, epoch=1, coordinator_epoch=2, tv=2)
    assert completed is not None
    assert not isinstance(completed, str)
    assert (completed.first_offset, completed.last_offset, completed.aborted) == (0, 1, True)
    (row,) = partition.producers.active()
    assert row.producer_epoch == 1
    assert row.last_sequence == -1, "a bumped epoch forgets the batches"
    assert (row.coordinator_epoch, row.last_timestamp, row.current_txn_start_offset) == (2, NOW + 5, -1)


def test_emptied_and_foreign_control_batches_change_nothing() -> None:
    producers = ProducerStateManager(KAFKA)
    producers.replay(marker_header(0, count=0), None, NOW)
    producers.replay(marker_header(1), ControlRecord(ControlType.UNKNOWN, 0, None), NOW)
    assert producers.active() == []
    assert producers.map_end_offset == 2


# Offsets


def test_first_unstable_offset_waits_for_the_marker_to_be_replicated() -> None:
    partition = Partition()
    producers = partition.producers

    def firsts() -> tuple[int | None, int | None]:
        return producers.first_unstable_offset, next(iter(producers.open_transactions()), None)

    assert firsts() == (None, None)
    open_txn(partition, pid=1)
    open_txn(partition, pid=2)
    assert firsts() == (0, 0)
    partition.mark(pid=1)
    assert firsts() == (0, 1)
    assert not producers.on_high_watermark(2), "the marker at 2 is not below 2"
    assert producers.first_unstable_offset == 0
    assert producers.on_high_watermark(3)
    assert producers.first_unstable_offset == 1
    partition.mark(pid=2)
    assert producers.on_high_watermark(4)
    assert producers.first_unstable_offset is None


def test_later_transaction_may_end_first() -> None:
    partition = Partition()
    producers = partition.producers
    open_txn(partition, pid=1)
    open_txn(partition, pid=2)
    partition.mark(pid=2)
    producers.on_high_watermark(3)
    assert producers.first_unstable_offset == 0


def test_abort_index_last_stable_offset() -> None:
    partition = Partition()
    for pid in (1, 2, 3):
        open_txn(partition, pid=pid)
    stable = []
    for pid in (2, 1, 3):
        completed = partition.mark(pid=pid, commit=False)
        assert completed is not None
        assert not isinstance(completed, str)
        stable.append(completed.last_stable_offset)
    assert stable == [0, 2, 6], "oldest other open transaction, else the offset after the marker"


def test_log_start_lets_ended_transactions_go_and_keeps_producers() -> None:
    partition = Partition()
    open_txn(partition)
    partition.mark()
    partition.producers.on_log_start(2)
    assert partition.producers.first_unstable_offset is None
    assert partition.append(1) == "@2", "360-9: state outlives its records"


def test_starting_anew_forgets_the_log() -> None:
    partition = Partition()
    open_txn(partition, pid=1)
    open_txn(partition, pid=2)
    partition.mark(pid=1)
    partition.producers.clear(50)
    assert partition.producers.snapshot() == Partition().producers.snapshot()
    assert partition.producers.first_unstable_offset is None
    assert partition.producers.map_end_offset == 50


# Expiry


@pytest.mark.parametrize(
    ("expire_by", "timestamp", "age", "gone"),
    [
        ("record_timestamp", NOW, 999, False),
        ("record_timestamp", NOW, 1000, True),
        ("record_timestamp", 1000, 0, True),
        ("record_timestamp", NOW + 5000, 2000, False),
        ("arrival", 1000, 999, False),
        ("arrival", NOW + 5000, 1000, True),
    ],
)
def test_expiry(expire_by: str, timestamp: int, age: int, gone: bool) -> None:
    rules = ProducerRules(expire_by=expire_by, producer_id_expiration_ms=1000)  # type: ignore[arg-type]
    partition = Partition(rules)
    partition.append(0, timestamp=timestamp)
    assert partition.producers.expire(NOW + age) == ([PID] if gone else [])
    assert partition.append(0) == ("@1" if gone else "dup@0")


def test_open_transaction_never_expires() -> None:
    partition = Partition(ProducerRules(producer_id_expiration_ms=1))
    partition.append(0, txn=True, verify=True, timestamp=1000)
    assert partition.producers.expire(NOW * 10) == []
    partition.mark()
    assert partition.producers.expire(NOW * 10) == [PID]


def test_verification_expires_from_its_creation() -> None:
    partition = Partition(ProducerRules(producer_id_expiration_ms=1000))
    guard = partition.producers.start_verification(PID, 0, 0, False, NOW)
    partition.producers.expire(NOW + 999)
    assert partition.producers.start_verification(PID, 0, 0, False, NOW + 999) is guard
    partition.producers.expire(NOW + 1000)
    assert partition.append(0, txn=True, guard=guard) == TXN


def test_late_transaction() -> None:
    partition = Partition()
    assert not partition.producers.has_late_transaction(NOW * 100, 1000)
    open_txn(partition)
    limit = NOW + 1000 + 300_000
    assert not partition.producers.has_late_transaction(limit, 1000)
    assert partition.producers.has_late_transaction(limit + 1, 1000)


@pytest.mark.parametrize("rules", [KAFKA, KIP], ids=["kafka", "kip"])
def test_what_is_forgotten_on_demand(rules: ProducerRules) -> None:
    """Idle producers as if they had expired, which spares open transactions; or producers whatever they have open."""
    partition = Partition(rules._replace(verification_enabled=False))
    for pid, txn in ((1, False), (2, True), (3, True), (4, False)):
        assert partition.append(0, pid=pid, txn=txn) == f"@{pid - 1}"
    producers = partition.producers
    assert producers.forget_idle() == [1, 4]
    assert [known.producer_id for known in producers.active()] == [2, 3]
    assert producers.first_unstable_offset == 1
    assert producers.forget(2) == [2]
    assert producers.first_unstable_offset == 2
    assert producers.forget() == [3]
    assert (producers.active(), producers.first_unstable_offset) == ([], None)
