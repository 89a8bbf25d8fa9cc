"""Timeouts of transactions and expiration of transactional ids."""

from __future__ import annotations

from math import inf

import pytest
from transaction_coordinator import ID, CoordinatorDouble, refusal

from minibroker.coordinators.transactions.expiry import expired, forget, next_timeout_ms
from minibroker.coordinators.transactions.metadata import NEVER_TIMES_OUT_MS
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, DEAD, ONGOING, PREPARE_ABORT
from minibroker_protocol.errors import ApiError, ErrorCode

FENCED = ErrorCode.PRODUCER_FENCED
OK = ErrorCode.NONE


def _timed_out(version: int) -> tuple[CoordinatorDouble, tuple[int, int]]:
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=version))
    producer = coordinator.init(timeout_ms=1000)
    coordinator.add(producer)
    coordinator.now_ms += 1001
    assert coordinator.sweep_timeouts() == [ID]
    return coordinator, producer


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_transaction_past_its_timeout_is_aborted_with_one_bump(version: int) -> None:
    coordinator, producer = _timed_out(version)
    assert coordinator.metadata.state is COMPLETE_ABORT
    assert coordinator.metadata.producer == (producer[0], 1)
    assert coordinator.metadata.last_producer_epoch == (0 if version == 2 else -1)
    assert coordinator.sweep_timeouts() == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_what_the_old_producer_is_told(version: int) -> None:
    coordinator, producer = _timed_out(version)
    assert refusal(lambda: coordinator.add(producer)) is FENCED
    assert refusal(lambda: coordinator.end(producer, commit=False)) is FENCED
    assert refusal(lambda: coordinator.end(producer, commit=True, version=2)) is ErrorCode.INVALID_TXN_STATE
    assert coordinator.end(producer, commit=False, version=2) == (producer[0], 1)
    if version == 2:
        assert coordinator.init(producer) == (producer[0], 1)
        assert coordinator.init(producer) == (producer[0], 1)
    else:
        assert refusal(lambda: coordinator.init(producer)) is FENCED
    assert coordinator.init() == (producer[0], 2)
    assert refusal(lambda: coordinator.init(producer)) is FENCED


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after a newer instance"])
def test_the_reason_tells_a_timeout_from_a_newer_instance(later: bool) -> None:
    coordinator, producer = _timed_out(2)
    if later:
        coordinator.init()
    with pytest.raises(ApiError) as caught:
        coordinator.end(producer, commit=True)
    why = "does not have the current epoch" if later else "timed out after 1000 ms"
    assert f"producer id {producer[0]} epoch 0 {why}: {ID} is " in str(caught.value)


def test_the_reason_of_end_txn_v5_names_the_timeout_too() -> None:
    coordinator, producer = _timed_out(2)
    with pytest.raises(ApiError, match=rf"{ID} cannot commit in .*, timed out after 1000 ms$"):
        coordinator.end(producer, commit=True, version=2)


def test_end_txn_v5_abort_recovers_even_after_a_reload() -> None:
    coordinator, producer = _timed_out(1)
    coordinator.reload()
    assert coordinator.end(producer, commit=False, version=2) == (producer[0], 1)


def test_the_limit_is_not_part_of_the_timeout() -> None:
    coordinator = CoordinatorDouble()
    producer = coordinator.init(timeout_ms=1000)
    coordinator.add(producer)
    coordinator.now_ms += 1000
    assert coordinator.sweep_timeouts() == []
    coordinator.add(producer, [("t", 1)])
    coordinator.now_ms += 1
    assert coordinator.sweep_timeouts() == [ID], "later partitions do not prolong it"


def test_an_idle_producer_and_a_two_phase_commit_id_never_time_out() -> None:
    coordinator = CoordinatorDouble()
    coordinator.init(timeout_ms=1)
    coordinator.add(coordinator.init(timeout_ms=NEVER_TIMES_OUT_MS, name="2pc"), name="2pc")
    coordinator.now_ms += NEVER_TIMES_OUT_MS + 2
    assert coordinator.sweep_timeouts() == []


def test_a_transaction_that_is_ending_does_not_time_out() -> None:
    coordinator = CoordinatorDouble(hold_markers=True)
    producer = coordinator.init(timeout_ms=1000)
    coordinator.add(producer)
    coordinator.end(producer, commit=False, version=2)
    coordinator.now_ms += 5000
    assert coordinator.sweep_timeouts() == []
    assert coordinator.metadata.state is PREPARE_ABORT


def test_the_timeout_survives_a_reload() -> None:
    coordinator = CoordinatorDouble()
    coordinator.add(coordinator.init(timeout_ms=1000))
    coordinator.reload()
    coordinator.now_ms += 1001
    assert coordinator.sweep_timeouts() == [ID]


# -- expiration --------------------------------------------------------------------------------------------------------


def _expiring() -> CoordinatorDouble:
    return CoordinatorDouble(TransactionConfig(id_expiration_ms=5000))


def test_an_idle_id_is_forgotten_and_then_begins_anew() -> None:
    coordinator = _expiring()
    producer = coordinator.init()
    coordinator.now_ms += 4999
    assert coordinator.sweep_expired() == []
    coordinator.now_ms += 1
    assert coordinator.sweep_expired() == [ID]
    assert coordinator.shard.entries == {}
    assert coordinator.log[-1][1] is None
    assert refusal(lambda: coordinator.add(producer)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    coordinator.reload()
    assert coordinator.shard.entries == {}
    again = coordinator.init(producer)
    assert again == (producer.producer_id + 1, 0)
    assert refusal(lambda: coordinator.init(producer)) is FENCED, "another id holds the mapping"


@pytest.mark.parametrize("ending", [True, False, None])
def test_only_settled_ids_expire(ending: bool | None) -> None:
    coordinator = _expiring()
    producer = coordinator.init(timeout_ms=900_000)
    coordinator.add(producer)
    if ending is not None:
        coordinator.end(producer, commit=ending)
    coordinator.now_ms += 10_000
    assert coordinator.sweep_expired() == ([] if ending is None else [ID])


def test_an_id_that_is_being_forgotten_is_not_claimed_in_between() -> None:
    coordinator = _expiring()
    coordinator.init()
    coordinator.now_ms += 5000
    coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refusal(coordinator.sweep_expired) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.entry.volatile.pending_state is None
    assert coordinator.init() == (1000, 1), "still there"
    assert coordinator.metadata.state is not ONGOING


def test_the_first_time_at_which_one_times_out() -> None:
    coordinator = CoordinatorDouble(TransactionConfig())
    assert next_timeout_ms(coordinator.shard) == inf
    coordinator.add(coordinator.init(timeout_ms=1000))
    assert next_timeout_ms(coordinator.shard) == coordinator.now_ms + 1001


def test_an_id_that_could_not_be_forgotten_expires_later() -> None:
    coordinator = _expiring()
    coordinator.init()
    later = coordinator.now_ms + coordinator.shard.config.id_expiration_ms
    assert expired(coordinator.shard, later) == [ID]
    outcome = forget(coordinator.shard, [ID])
    assert [pending.state for pending in outcome.pending] == [DEAD]  # type: ignore[attr-defined]
    coordinator.shard.note(outcome.pending[0])
    assert expired(coordinator.shard, later) == []
    coordinator.shard.refused(outcome.pending[0], ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert expired(coordinator.shard, later) == [ID]
