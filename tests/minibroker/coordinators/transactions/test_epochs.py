"""Epochs of a transactional id: bumps, retries, exhaustion, rotation and fencing (KIP-360, KIP-588, KIP-890)."""

from __future__ import annotations

import pytest
from transaction_coordinator import ID, CoordinatorDouble, refusal

from minibroker.coordinators.transactions.metadata import TransactionEntry
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, ONGOING, PREPARE_ABORT
from minibroker_protocol.errors import ApiError, ErrorCode

FENCED = ErrorCode.PRODUCER_FENCED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
OK = ErrorCode.NONE


def _at_epoch(epoch: int, version: int = 2, *, hold_markers: bool = False) -> tuple[CoordinatorDouble, int]:
    """An id whose current epoch is `epoch`, and its producer id."""
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=version), hold_markers=hold_markers)
    producer_id, _ = coordinator.init()
    coordinator.set_epoch(epoch)
    return coordinator, producer_id


def test_a_new_instance_bumps_and_forgets_the_last_epoch() -> None:
    coordinator = CoordinatorDouble()
    producer_id, epoch = coordinator.init()
    assert epoch == 0
    assert coordinator.init() == (producer_id, 1)
    assert coordinator.metadata.last_producer_epoch == -1
    assert refusal(lambda: coordinator.init((producer_id, 0))) is FENCED
    assert coordinator.init((producer_id, 1)) == (producer_id, 2)


def test_a_lost_answer_is_given_again_any_number_of_times() -> None:
    coordinator = CoordinatorDouble()
    producer_id, _ = coordinator.init()
    assert coordinator.init((producer_id, 0)) == (producer_id, 1)
    for _ in range(3):
        assert coordinator.init((producer_id, 0)) == (producer_id, 1)
    assert coordinator.init((producer_id, 1)) == (producer_id, 2)
    assert refusal(lambda: coordinator.init((producer_id, 0))) is FENCED


def test_the_timeout_of_the_last_claim_counts() -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init(timeout_ms=60_000)
    coordinator.init(producer, timeout_ms=900)
    assert coordinator.metadata.timeout_ms == 900


def test_rotation_without_an_epoch() -> None:
    coordinator, producer_id = _at_epoch(32766)
    rotated, epoch = coordinator.init()
    assert (rotated != producer_id, epoch) == (True, 0)
    assert coordinator.metadata.last_producer_epoch == -1
    assert coordinator.metadata.previous_producer_id == producer_id


def test_rotation_is_answered_again() -> None:
    coordinator, producer_id = _at_epoch(32766)
    rotated = coordinator.init((producer_id, 32766))
    assert rotated.producer_epoch == 0
    assert coordinator.metadata.last_producer_epoch == 32766
    assert coordinator.init((producer_id, 32766)) == rotated
    assert refusal(lambda: coordinator.init((producer_id, 32765))) is FENCED
    assert coordinator.init(rotated) == (rotated.producer_id, 1)
    assert refusal(lambda: coordinator.init((producer_id, 32766))) is FENCED


def test_an_exhausted_id_with_a_wrong_epoch_is_kafkas_illegal_state() -> None:
    coordinator, producer_id = _at_epoch(32766)
    assert refusal(lambda: coordinator.init((producer_id, 5))) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_answer_that_gave_the_last_epoch_is_not_given_again() -> None:
    """Kafka's prepareIncrementProducerEpoch. After a timeout that epoch is claimed with the one before it."""
    coordinator, producer_id = _at_epoch(32765)
    assert coordinator.init((producer_id, 32765)) == (producer_id, 32766)
    assert refusal(lambda: coordinator.init((producer_id, 32765))) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_v5_bumps_and_is_answered_again(commit: bool) -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init()
    coordinator.add(producer)
    following = (producer.producer_id, 1)
    assert coordinator.end(producer, commit=commit, version=2) == following
    assert coordinator.end(producer, commit=commit, version=2) == following
    assert refusal(lambda: coordinator.end(producer, commit=not commit, version=2)) is INVALID
    assert coordinator.init(producer) == following, "the old epoch is the last one"


def test_abort_of_nothing_bumps_and_starts_now() -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init()
    coordinator.now_ms += 500
    assert coordinator.end(producer, commit=False, version=2) == (producer.producer_id, 1)
    assert coordinator.metadata.state is COMPLETE_ABORT
    assert coordinator.metadata.start_ms == coordinator.now_ms
    assert coordinator.end(producer, commit=False, version=2) == (producer.producer_id, 1)
    assert coordinator.end((producer.producer_id, 1), commit=False, version=2) == (producer.producer_id, 2)


def test_end_txn_v5_at_the_last_epoch_hands_out_a_new_producer_id() -> None:
    coordinator, producer_id = _at_epoch(32766, hold_markers=True)
    coordinator.add((producer_id, 32766), version=2)
    following = coordinator.end((producer_id, 32766), commit=True, version=2)
    assert following.producer_id != producer_id
    assert following.producer_epoch == 0
    assert coordinator.metadata.producer == (producer_id, 32767), "the marker's epoch"
    assert coordinator.metadata.next_producer_id == following.producer_id
    coordinator.write_markers()
    assert coordinator.metadata.producer == following
    assert coordinator.metadata.last_producer_epoch == 32766
    assert coordinator.end((producer_id, 32766), commit=True, version=2) == following
    assert coordinator.init((producer_id, 32766)) == following


def test_take_over_at_the_last_epoch_with_transaction_version_2() -> None:
    coordinator, producer_id = _at_epoch(32766)
    coordinator.add((producer_id, 32766))
    assert refusal(coordinator.init) is BUSY
    rotated, epoch = coordinator.init()
    assert rotated != producer_id
    assert epoch == 1, "epoch 0 of the new id went to the aborted transaction's producer"


def test_take_over_at_the_last_epoch_below_transaction_version_2() -> None:
    coordinator, producer_id = _at_epoch(32766, version=1)
    coordinator.add((producer_id, 32766))
    assert refusal(coordinator.init) is BUSY
    assert coordinator.metadata.producer == (producer_id, 32767)
    rotated, epoch = coordinator.init()
    assert (rotated != producer_id, epoch) == (True, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_epoch_32767_is_fenced_by_itself(version: int) -> None:
    """No client holds it; a log may (TransactionMetadata.prepareFenceProducerEpoch, prepareAbortOrCommit)."""
    coordinator, producer_id = _at_epoch(32767, version)
    coordinator.shard.entries[ID] = TransactionEntry(coordinator.metadata._replace(state=ONGOING))
    assert refusal(coordinator.init) is BUSY
    rotated, _ = coordinator.init()
    assert rotated != producer_id


def test_a_transaction_in_epoch_32767_can_only_be_aborted() -> None:
    coordinator, producer_id = _at_epoch(32767)
    coordinator.shard.entries[ID] = TransactionEntry(coordinator.metadata._replace(state=ONGOING))
    for _ in range(2):
        commit = refusal(lambda: coordinator.end((producer_id, 32767), commit=True, version=2))
        assert (commit, coordinator.metadata.state) == (ErrorCode.UNKNOWN_SERVER_ERROR, ONGOING)
    assert coordinator.end((producer_id, 32767), commit=False, version=2).producer_epoch == 0


def test_after_a_rotation_only_the_epoch_that_was_rotated_is_claimed_again() -> None:
    coordinator, producer_id = _at_epoch(32766)
    rotated = coordinator.init((producer_id, 32766))
    assert refusal(lambda: coordinator.init((producer_id, 32767))) is FENCED
    assert coordinator.init((producer_id, 32766)) == rotated
    assert refusal(lambda: coordinator.init((producer_id, 32767))) is FENCED


# -- appends that fail -------------------------------------------------------------------------------------------------


def test_a_failed_fence_below_version_2_is_kept_in_memory_and_not_raised_again() -> None:
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=1))
    producer = coordinator.init()
    coordinator.add(producer)
    for _ in range(3):
        coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert refusal(coordinator.init) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert coordinator.entry.epoch == 1, "fenced in memory, once"
        assert coordinator.metadata.producer_epoch == 0, "the log knows nothing of it"
    assert refusal(lambda: coordinator.end(producer, commit=True)) is FENCED
    coordinator.reload()
    assert coordinator.entry.epoch == 0, "a reload forgets the fence"
    assert coordinator.end(producer, commit=True) == (-1, -1)


def test_a_failed_fence_that_is_logged_later_counts_once() -> None:
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=0))
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refusal(coordinator.init) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refusal(coordinator.init) is BUSY
    assert coordinator.metadata.producer == (producer.producer_id, 1)
    assert coordinator.init() == (producer.producer_id, 2)


def test_a_failed_fence_with_version_2_leaves_everything_as_it_was() -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refusal(coordinator.init) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.entry.epoch == 0
    assert coordinator.end(producer, commit=True, version=2) == (producer.producer_id, 1)


@pytest.mark.parametrize("version", [0, 2])
def test_a_failed_append_clears_the_pending_transition(version: int) -> None:
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=version))
    coordinator.fail_next = ErrorCode.NOT_COORDINATOR
    assert refusal(coordinator.init) is ErrorCode.NOT_COORDINATOR
    producer = coordinator.init()
    assert producer == (1000, 0), "the id created first is used"
    for step in (
        lambda: coordinator.add(producer),
        lambda: coordinator.end(producer, commit=True, version=version),
    ):
        coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert refusal(step) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert coordinator.entry.volatile.pending_state is None
        assert refusal(step) is OK


def test_a_transition_in_flight_is_waited_for() -> None:
    """The append is on its way: everyone else is told to come again."""
    coordinator = CoordinatorDouble(hold_markers=True)
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.end(producer, commit=False, version=2)
    assert coordinator.metadata.state is PREPARE_ABORT
    assert refusal(lambda: coordinator.add((producer.producer_id, 1))) is BUSY
    assert refusal(coordinator.init) is BUSY
    coordinator.write_markers()
    assert refusal(lambda: coordinator.add((producer.producer_id, 1))) is OK


def test_no_producer_id_at_hand() -> None:
    class Exhausted:
        def take(self) -> int:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the next block is on its way")

    coordinator = CoordinatorDouble()
    coordinator.producer_ids = Exhausted()  # type: ignore[assignment]
    assert refusal(coordinator.init) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not coordinator.shard.entries
