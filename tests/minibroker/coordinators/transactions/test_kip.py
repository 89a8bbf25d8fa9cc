"""What the texts of KIP-360 and KIP-588 say where Kafka does otherwise: each field of the semantics on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transaction_coordinator import CoordinatorDouble, refusal

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch
from minibroker.coordinators.transactions.refusals import INIT_PRODUCER_ID, wire_code
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, ONGOING
from minibroker.semantics import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DRAFT_FENCED_CODE,
    DRAFT_TIMED_OUT_CODES,
    END_TXN,
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
    producer_id, _ = coordinator.init()
    for _ in range(32766):
        coordinator.init()
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
    assert "previous producer id" in KIP.problems(0)[0]
    assert "timed_out_codes" in replace(KIP, timeout_keeps_last_epoch="transaction.version 2").problems(1)[0]
    assert "90" in replace(KIP, timed_out_codes=DRAFT_TIMED_OUT_CODES).problems(1)[0]
