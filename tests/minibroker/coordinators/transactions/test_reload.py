"""A reload gives back what was encoded: the live state minus its volatile part, whatever happened before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import search
from transaction_coordinator import ID, CoordinatorDouble, as_reloaded, refusal

from minibroker.coordinators.transactions.metadata import Volatile
from minibroker.coordinators.transactions.shard import TransactionConfig
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, COMPLETE_COMMIT, PREPARE_COMMIT, PREPARED
from minibroker.releases.semantics import KAFKA, KIP, Semantics
from minibroker_protocol.errors import ApiError, ErrorCode

AS_4_3 = replace(KAFKA, persist_last_epoch=False)

STEPS = st.tuples(
    st.sampled_from(["init", "add", "commit", "abort", "commit5", "abort5", "timeouts", "expire", "markers", "reload"]),
    st.sampled_from(["x", "y"]),
    st.sampled_from([None, 0, -1, 3]),  # offered epoch: none, or relative to the current one
    st.booleans(),  # the append fails
    st.integers(0, 4000),  # milliseconds that pass
)


def _step(coordinator: CoordinatorDouble, what: str, name: str, relative: int | None, fail: bool) -> None:
    entry = coordinator.shard.entries.get(name)
    current = (0, 0) if entry is None else (entry.metadata.producer_id, entry.epoch)
    offered = (current[0], current[1] + (relative or 0))
    coordinator.fail_next = ErrorCode.COORDINATOR_NOT_AVAILABLE if fail and what != "markers" else None
    match what:
        case "init":
            coordinator.init(None if relative is None else offered, timeout_ms=3000, name=name)
        case "add":
            coordinator.add(offered, [("t", relative or 0), ("u", 1)], name=name)
        case "commit" | "abort":
            coordinator.end(offered, commit=what == "commit", name=name)
        case "commit5" | "abort5":
            coordinator.end(offered, commit=what == "commit5", version=2, name=name)
        case "timeouts":
            coordinator.sweep_timeouts()
        case "expire":
            coordinator.sweep_expired()
        case "markers":
            if name in coordinator.due:
                coordinator.write_markers(name)
        case "reload":
            coordinator.reload()


def _check(coordinator: CoordinatorDouble) -> None:
    config = coordinator.config
    expected = {
        name: as_reloaded(
            metadata,
            value_version=min(config.transaction_version, 1),
            with_last_epoch=config.semantics.persist_last_epoch,
        )
        for name, metadata in coordinator.durable().items()
    }
    other = CoordinatorDouble(config, hold_markers=True)
    other.log = list(coordinator.log)
    other.reload()
    assert other.durable() == expected
    for name, entry in other.shard.entries.items():
        fresh = Volatile()
        if entry.metadata.state in PREPARED:
            fresh.pending_state = COMPLETE_COMMIT if entry.metadata.state is PREPARE_COMMIT else COMPLETE_ABORT
            fresh.missing_markers = set(entry.metadata.partitions)
            assert name in other.due
        assert entry.volatile == fresh


@search(120)
@given(
    version=st.sampled_from([0, 1, 2]),
    semantics=st.sampled_from([KAFKA, AS_4_3, KIP]),
    hold=st.booleans(),
    steps=st.lists(STEPS, max_size=25),
)
def test_reload_is_live_minus_volatile(
    version: int, semantics: Semantics, hold: bool, steps: list[tuple[str, str, int | None, bool, int]]
) -> None:
    config = TransactionConfig(semantics=semantics, transaction_version=version, id_expiration_ms=6000)
    coordinator = CoordinatorDouble(config, hold_markers=hold)
    for what, name, relative, fail, passes in steps:
        coordinator.now_ms += passes
        try:
            _step(coordinator, what, name, relative, fail)
        except ApiError as error:
            if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                raise
        coordinator.fail_next = None
        _check(coordinator)


# -- what a coordinator failover means to a producer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("semantics", "version", "survives"),
    [(KAFKA, 2, True), (KAFKA, 1, True), (KAFKA, 0, False), (AS_4_3, 2, False), (AS_4_3, 1, False), (KIP, 1, True)],
)
def test_a_retried_bump_over_a_failover(semantics: Semantics, version: int, survives: bool) -> None:
    coordinator = CoordinatorDouble(TransactionConfig(semantics=semantics, transaction_version=version))
    producer = coordinator.init()
    bumped = coordinator.init(producer)
    coordinator.reload()
    if survives:
        assert coordinator.init(producer) == bumped
    else:
        assert refusal(lambda: coordinator.init(producer)) is ErrorCode.PRODUCER_FENCED


def test_markers_are_due_again_after_a_failover() -> None:
    coordinator = CoordinatorDouble(hold_markers=True)
    producer = coordinator.init()
    coordinator.add(producer, [("t", 0), ("u", 3)])
    coordinator.end(producer, commit=True, version=2)
    prepared = coordinator.metadata
    coordinator.reload()
    assert coordinator.due == [ID]
    assert coordinator.shard.coordinator_epoch == 1
    assert coordinator.metadata.producer == prepared.producer, "the same marker epoch"
    assert refusal(lambda: coordinator.add((producer.producer_id, 1))) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.metadata.state is COMPLETE_COMMIT


def test_both_value_versions_load_before_and_after_a_change_of_level() -> None:
    coordinator = CoordinatorDouble(TransactionConfig(transaction_version=0))
    coordinator.add(coordinator.init(name="old"), name="old")
    for level in (2, 0):
        coordinator.config = coordinator.shard.config = TransactionConfig(transaction_version=level)
        coordinator.add(coordinator.init(name=f"at{level}"), name=f"at{level}")
    versions = {value[:2] for _, value in coordinator.log if value is not None}
    assert versions == {b"\x00\x00", b"\x00\x01"}
    for level in (0, 1, 2):
        coordinator.reload(TransactionConfig(transaction_version=level))
        assert set(coordinator.shard.entries) == {"old", "at2", "at0"}
