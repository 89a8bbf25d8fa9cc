"""What the texts of KIP-360 and KIP-588 say where Kafka does otherwise: each field of the semantics on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transaction_coordinator import CoordinatorDouble, refusal

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch
from minibroker.coordinators.transactions.refusals import wire_code
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, EMPTY, ONGOING, PREPARE_ABORT
from minibroker.releases.semantics import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DRAFT_FENCED_CODE,
    DRAFT_TIMED_OUT_CODES,
    END_TXN,
    INIT_PRODUCER_ID,
    KAFKA,
    KIP,
    Semantics,
)
from minibroker_protocol.errors import ApiError, ErrorCode

FENCED = ErrorCode.PRODUCER_FENCED
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
DRAFT = replace(KIP, timed_out_codes=DRAFT_TIMED_OUT_CODES, fenced_code=DRAFT_FENCED_CODE)


def _coordinator(semantics: Semantics, version: int = 1) -> CoordinatorDouble:
    return CoordinatorDouble(TransactionConfig(semantics=semantics, transaction_version=version))


def _at_the_last_epoch(coordinator: CoordinatorDouble, **more: int) -> ProducerIdAndEpoch:
    """At epoch 32766, by a request that the log has."""
    producer_id, _ = coordinator.init(**more)
    coordinator.set_epoch(32_765)
    held = coordinator.init(**more)
    assert held == (producer_id, 32_766)
    return held


def _timed_out(semantics: Semantics) -> tuple[CoordinatorDouble, ProducerIdAndEpoch]:
    coordinator = _coordinator(semantics)
    producer = coordinator.init(timeout_ms=1000)
    coordinator.add(producer)
    coordinator.now_ms += 1001
    coordinator.sweep_timeouts()
    return coordinator, producer


def _code(coordinator: CoordinatorDouble, producer: tuple[int, int], api_key: int, version: int) -> int:
    with pytest.raises(ApiError) as caught:
        if api_key == END_TXN:
            coordinator.end(producer, commit=False)
        elif api_key == INIT_PRODUCER_ID:
            coordinator.init(producer)
        else:
            coordinator.add(producer)
    return wire_code(caught.value, coordinator.config.semantics, api_key, version)


def test_a_wrong_epoch_is_refused_at_once_and_touches_nothing() -> None:  # 360-4
    for semantics, untouched in ((KIP, True), (KAFKA, False)):
        coordinator = _coordinator(semantics)
        producer = coordinator.init(coordinator.init())
        coordinator.add(producer)
        before = coordinator.metadata
        code = refusal(lambda c=coordinator, p=producer: c.init((p.producer_id, 7)))  # type: ignore[misc]
        assert code is (FENCED if untouched else ErrorCode.CONCURRENT_TRANSACTIONS)
        assert (coordinator.metadata == before) is untouched
        assert coordinator.metadata.state is (ONGOING if untouched else COMPLETE_ABORT)


LEVELS = pytest.mark.parametrize("version", [0, 1, 2])
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
EVERY_LEVEL = replace(KIP, timed_out_codes=DRAFT_TIMED_OUT_CODES, fenced_code=91)


@LEVELS
def test_a_late_copy_of_a_bump_touches_nothing(version: int) -> None:  # 360-3
    coordinator = _coordinator(EVERY_LEVEL, version)
    held = coordinator.init()
    bumped = coordinator.init(held)
    coordinator.add(bumped)
    before, records = coordinator.metadata, len(coordinator.log)
    for _ in range(2):
        assert coordinator.init(held) == bumped
    assert (coordinator.metadata, len(coordinator.log)) == (before, records)
    coordinator.reload()
    # Version 0 of the message has no last epoch: the copy is refused, and touches nothing either.
    assert refusal(lambda: coordinator.init(held)) is (FENCED if version == 0 else ErrorCode.NONE)
    assert coordinator.metadata.state is ONGOING
    coordinator.end(bumped, commit=True, version=2 if version == 2 else 0)


@LEVELS
@pytest.mark.parametrize("reload_while", ["never", "PrepareAbort", "CompleteAbort"])
def test_the_owner_is_bumped_once_its_transaction_is_aborted(version: int, reload_while: str) -> None:  # 360-2
    config = TransactionConfig(semantics=EVERY_LEVEL, transaction_version=version)
    coordinator = CoordinatorDouble(config, hold_markers=True)
    held = coordinator.init()
    coordinator.add(held)
    assert refusal(lambda: coordinator.init(held)) is BUSY
    if reload_while == "PrepareAbort":
        coordinator.reload()
    assert coordinator.metadata.state is PREPARE_ABORT
    assert refusal(lambda: coordinator.init(held)) is BUSY
    coordinator.write_markers()
    if reload_while == "CompleteAbort":
        coordinator.reload()
    bumped = (held.producer_id, held.producer_epoch + 1)
    assert [coordinator.init(held) for _ in range(3)] == [bumped] * 3
    assert (coordinator.metadata.state is EMPTY, coordinator.metadata.last_producer_epoch) == (True, 0)
    coordinator.add(bumped)


@LEVELS
def test_the_owners_abort_is_no_timeout(version: int) -> None:  # 588-2
    coordinator, held = _at_epoch_1(version, hold_markers=True)
    assert refusal(lambda: coordinator.init(held)) is BUSY
    for _ in range(2):
        assert not coordinator.metadata.timed_out
        coordinator.reload()


@LEVELS
def test_the_owner_of_the_last_epoch_gets_a_new_producer_id(version: int) -> None:  # 360-2, 360-15
    coordinator = _coordinator(EVERY_LEVEL, version)
    producer_id, _ = held = _at_the_last_epoch(coordinator)
    coordinator.add(held)
    assert refusal(lambda: coordinator.init(held)) is BUSY
    fresh = coordinator.init(held)
    assert (fresh.producer_id != producer_id, fresh.producer_epoch) == (True, 0)
    assert coordinator.init(held) == fresh


@LEVELS
def test_an_abort_that_cannot_be_logged_leaves_the_owner_its_place(version: int) -> None:  # 360-2
    coordinator = _coordinator(EVERY_LEVEL, version)
    held = coordinator.init()
    coordinator.add(held)
    coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refusal(lambda: coordinator.init(held)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.metadata.state is ONGOING
    assert refusal(lambda: coordinator.init(held)) is BUSY
    assert coordinator.init(held) == (held.producer_id, 1)


@pytest.mark.parametrize(
    ("version", "who", "answers"),
    [  # as Apache Kafka 4.3.1 answers, twice the same request
        (0, "last", [BUSY, FENCED]),
        (1, "last", [BUSY, FENCED]),
        (2, "last", [BUSY, FENCED]),
        (0, "current", [BUSY, FENCED]),
        (1, "current", [BUSY, FENCED]),
        (2, "current", [BUSY, ErrorCode.NONE]),
    ],
)
def test_kafka_shuts_both_out(version: int, who: str, answers: list[ErrorCode]) -> None:
    coordinator = _coordinator(KAFKA, version)
    last = coordinator.init()
    current = coordinator.init(last)
    coordinator.add(current)
    asked = last if who == "last" else current
    assert [refusal(lambda: coordinator.init(asked)) for _ in range(2)] == answers


def test_an_offered_producer_is_remembered_and_answered_again() -> None:  # 360-6
    coordinator = _coordinator(KIP)
    answer = coordinator.init((7, 3))
    assert coordinator.init((7, 3)) == answer
    coordinator.reload()
    assert coordinator.init((7, 3)) == answer
    assert refusal(lambda: coordinator.init((8, 3))) is FENCED, "another producer holds the mapping"
    assert refusal(lambda: coordinator.init((7, 2))) is FENCED
    kafka = _coordinator(KAFKA)
    kafka.init((7, 3))
    assert refusal(lambda: kafka.init((7, 3))) is FENCED


def test_a_retried_rotation_is_answered_more_than_once_and_over_a_failover() -> None:  # 360-15
    coordinator = _coordinator(KIP)
    producer_id, _ = _at_the_last_epoch(coordinator)
    answer = coordinator.init((producer_id, 32766))
    assert answer.producer_id != producer_id
    for _ in range(2):
        assert coordinator.init((producer_id, 32766)) == answer
        coordinator.reload()


def test_a_timeout_keeps_the_last_epoch() -> None:  # 588-1, 588-3, 588-4
    coordinator, producer = _timed_out(KIP)
    assert coordinator.metadata.last_producer_epoch == 0
    coordinator.reload()
    assert coordinator.init(producer) == (producer.producer_id, 1)
    coordinator.add((producer.producer_id, 1))
    assert refusal(coordinator.init) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.metadata.last_producer_epoch == -1, "a new instance keeps nothing"
    assert coordinator.init() == (producer.producer_id, 3)
    for epoch in (0, 1, 2):
        assert refusal(lambda e=epoch: coordinator.init((producer.producer_id, e))) is FENCED  # type: ignore[misc]


@pytest.mark.parametrize(
    ("api_key", "version", "recoverable", "draft", "kafka"),
    [
        (ADD_PARTITIONS_TO_TXN, 0, MAPPING, EPOCH, EPOCH),
        (ADD_PARTITIONS_TO_TXN, 2, ErrorCode.UNKNOWN_PRODUCER_ID, 90, FENCED),
        (ADD_OFFSETS_TO_TXN, 1, ErrorCode.UNKNOWN_PRODUCER_ID, EPOCH, EPOCH),
        (ADD_OFFSETS_TO_TXN, 3, ErrorCode.UNKNOWN_PRODUCER_ID, 90, FENCED),
        (END_TXN, 1, MAPPING, EPOCH, EPOCH),
        (END_TXN, 4, MAPPING, 90, FENCED),
    ],
)
def test_the_code_for_a_timed_out_epoch(  # 588-2, 588-6, 588-7
    api_key: int, version: int, recoverable: int, draft: int, kafka: int
) -> None:
    for semantics, wanted in ((KIP, recoverable), (DRAFT, draft), (KAFKA, kafka)):
        coordinator, producer = _timed_out(semantics)
        assert _code(coordinator, producer, api_key, version) == wanted
        coordinator.reload()
        assert _code(coordinator, producer, api_key, version) == wanted


def test_only_the_epoch_that_timed_out_gets_it() -> None:  # 588-2
    coordinator = _coordinator(DRAFT)
    producer_id, _ = coordinator.init()
    running = coordinator.init((producer_id, 0), timeout_ms=1000)
    coordinator.add(running)
    coordinator.now_ms += 1001
    coordinator.sweep_timeouts()
    assert _code(coordinator, running, END_TXN, 2) == 90
    assert _code(coordinator, (producer_id, 0), END_TXN, 2) == 91
    assert _code(coordinator, (producer_id, 9), END_TXN, 2) == 91


def test_it_ends_when_the_epoch_is_claimed() -> None:  # 588-2
    coordinator, producer = _timed_out(DRAFT)
    assert _code(coordinator, producer, END_TXN, 2) == 90
    claimed = coordinator.init(producer)
    assert _code(coordinator, producer, END_TXN, 2) == 91
    assert _code(coordinator, (claimed.producer_id, 9), ADD_PARTITIONS_TO_TXN, 2) == 91


def test_it_ends_when_another_instance_fences() -> None:  # 588-2
    coordinator, producer = _timed_out(DRAFT)
    coordinator.init()
    assert _code(coordinator, producer, END_TXN, 2) == 91
    assert _code(coordinator, producer, INIT_PRODUCER_ID, 4) == 91
    assert _code(coordinator, producer, INIT_PRODUCER_ID, 3) == EPOCH


def test_combinations_that_cannot_hold_are_named() -> None:
    assert KAFKA.problems(2) == []
    assert KIP.problems(1) == []
    assert DRAFT.problems(1) == []
    assert KIP.problems(0) == []
    assert "timed_out_codes" in replace(KIP, timeout_keeps_last_epoch="transaction.version 2").problems(1)[0]
    assert "90" in replace(KIP, timed_out_codes=DRAFT_TIMED_OUT_CODES).problems(1)[0]


# -- what is a timeout and what is not ---------------------------------------------------------------------------------


def _at_epoch_1(version: int, *, hold_markers: bool = False) -> tuple[CoordinatorDouble, ProducerIdAndEpoch]:
    """Epoch 0 is the last one, epoch 1 has a transaction running."""
    config = TransactionConfig(semantics=EVERY_LEVEL, transaction_version=version)
    coordinator = CoordinatorDouble(config, hold_markers=hold_markers)
    held = coordinator.init(coordinator.init(timeout_ms=1000), timeout_ms=1000)
    coordinator.add(held)
    return coordinator, held


def _told_timed_out(coordinator: CoordinatorDouble) -> bool:
    """Whether EndTxn v2 tells the epoch before the current one that its transaction has timed out."""
    metadata = coordinator.metadata
    return _code(coordinator, (metadata.producer_id, metadata.producer_epoch - 1), END_TXN, 2) == 90


@pytest.mark.parametrize("hold_markers", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_timeout_is_told_from_every_other_abort(version: int, hold_markers: bool) -> None:  # 588-2
    coordinator, _ = _at_epoch_1(version, hold_markers=hold_markers)
    coordinator.now_ms += 1001
    coordinator.sweep_timeouts()
    assert _told_timed_out(coordinator)
    coordinator.reload()
    # The record of transaction.version 0 has no last epoch; that of 1 names the coordinator; that of 2 has the times.
    assert _told_timed_out(coordinator) is (version > 0)


@pytest.mark.parametrize("hold_markers", [False, True])
@pytest.mark.parametrize(("version", "end_version"), [(0, 0), (1, 0), (1, 2), (2, 0), (2, 2)])
def test_a_clients_own_abort_is_no_timeout(version: int, end_version: int, hold_markers: bool) -> None:
    coordinator, held = _at_epoch_1(version, hold_markers=hold_markers)
    coordinator.end(held, commit=False, version=end_version)
    assert coordinator.metadata.last_producer_epoch == held.producer_epoch - (end_version == 0)
    assert not _told_timed_out(coordinator)
    coordinator.reload()
    assert not _told_timed_out(coordinator)


@pytest.mark.parametrize("hold_markers", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_new_instance_is_no_timeout(version: int, hold_markers: bool) -> None:
    coordinator, _ = _at_epoch_1(version, hold_markers=hold_markers)
    assert refusal(coordinator.init) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.metadata.producer_epoch == 2
    assert not _told_timed_out(coordinator)
    coordinator.reload()
    assert not _told_timed_out(coordinator)


def test_what_a_reload_cannot_tell() -> None:
    """With transaction.version 2 a client's abort that came late, but before the sweep, is logged like a timeout."""
    coordinator, held = _at_epoch_1(2)
    coordinator.now_ms += 1001
    coordinator.end(held, commit=False, version=2)
    assert not _told_timed_out(coordinator)
    coordinator.reload()
    assert _told_timed_out(coordinator)
    coordinator.add((held.producer_id, 2))
    assert not _told_timed_out(coordinator), "the next transaction has begun"


def test_a_timeout_in_the_last_epoch_gives_a_new_producer_id() -> None:  # 588-3, 360-15
    coordinator = _coordinator(KIP)
    producer_id, _ = held = _at_the_last_epoch(coordinator, timeout_ms=1000)
    coordinator.add(held)
    coordinator.now_ms += 1001
    coordinator.sweep_timeouts()
    assert coordinator.metadata.producer_epoch == 32767
    claimed = coordinator.init(held)
    assert (claimed.producer_id != producer_id, claimed.producer_epoch) == (True, 0)
    coordinator.reload()
    assert coordinator.init(held) == claimed, "the answer was lost"
