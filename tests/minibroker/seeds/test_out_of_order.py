"""The note on spurious OutOfOrderSequence errors row by row: state gone in every way, under both semantics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from seed_client import OK, SeedClient

from minibroker.partitions.producer_loss import CAUSES, Cause, lose_producers
from minibroker.releases.semantics import KIP
from minibroker_protocol.errors import ErrorCode

Start = Callable[..., SeedClient]
both = pytest.mark.parametrize("semantics", ["kafka", "kip"])
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
DUPLICATE = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def _lose(client: SeedClient, cause: Cause, offset: int | None = None) -> list[int]:
    partition = client.cluster.broker.partition("t", 0)
    return lose_producers(partition, cause, now_ms=client.cluster.clock.now_ms(), offset=offset)


@both
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.seed("oos-1", "oos-2", "oos-3", semantics="kafka kip")
def test_state_gone_in_every_way(start: Start, semantics: str, cause: Cause) -> None:
    client = start(semantics)
    held = client.new(name=None)
    last_acked = [client.produce(held, s, transactional=False).base_offset for s in range(3)][-1]
    assert _lose(client, cause, 0 if cause == "lost-tail" else None) == [held[0]]
    answer = client.produce(held, 3, transactional=False)
    if semantics == "kafka":
        assert answer.code == OK
        return
    assert answer.code == UNKNOWN
    # Truncated by retention or DeleteRecords: what was acknowledged lies before the log start. Lost: it does not.
    truncated = last_acked < answer.log_start_offset
    assert truncated == (cause in ("retention", "delete-records"))


@pytest.mark.seed("360-10", semantics="kafka kip")
def test_a_snapshot_does_not_bring_it_back(start: Start) -> None:
    """A new replica has no snapshots: what only they know of is gone too."""
    for semantics in ("kafka", "kip"):
        client = start(semantics)
        gone, stays = client.new(name=None), client.new(name=None)
        client.produce(gone, 0, transactional=False)
        client.produce(stays, 0, transactional=False)
        client.cluster.broker.partition("t", 0).log.roll(client.cluster.clock.now_ms())
        client.produce(stays, 1, transactional=False)
        assert _lose(client, "delete-records", 1) == [gone[0]]
        assert client.produce(stays, 1, transactional=False).base_offset == 2


@both
@pytest.mark.seed("oos-3", "oos-5", semantics="kafka kip")
def test_a_lost_tail_behind_known_batches_is_a_gap(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new(name=None)
    for sequence in range(3):
        client.produce(held, sequence, transactional=False)
    assert _lose(client, "lost-tail", 2) == []
    answer = client.produce(held, 3, transactional=False)
    assert (answer.code, answer.log_start_offset) == (OUT_OF_ORDER, 0)


@both
@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.seed("oos-1", "oos-5", semantics="kafka kip")
def test_a_transaction_on_a_partition_without_state(start: Start, semantics: str, version: int) -> None:
    client = start(semantics)
    held = client.new()
    client.add(held)
    code = client.produce(held, 3, version=version).code
    assert code == (UNKNOWN if semantics == "kip" else OUT_OF_ORDER if version == 12 else OK)


@both
@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.seed("oos-1", "oos-5", semantics="kafka kip")
def test_a_refused_first_batch_leaves_nothing(start: Start, semantics: str, version: int) -> None:
    """Refused by the coordinator, or by the log after the coordinator agreed. Kafka goes on to count it as waiting."""
    client = start(semantics)
    held = client.new()
    refused = ErrorCode.TRANSACTION_ABORTABLE if version == 11 else ErrorCode.INVALID_TXN_STATE
    assert client.produce(held, 3, version=version).code == refused
    client.add(held)
    if semantics == "kafka":
        assert client.produce(held, 5, version=version).code == OUT_OF_ORDER
    else:
        assert [client.produce(held, first, version=version).code for first in (5, 7)] == [UNKNOWN, UNKNOWN]
    assert client.produce(held, 0, version=version).code == OK


@both
@pytest.mark.parametrize("version", [4, 5, 8])
@pytest.mark.seed("oos-2", semantics="kafka kip")
def test_every_answer_has_the_log_start(start: Start, semantics: str, version: int) -> None:
    client = start(semantics)
    held = client.new(name=None)
    client.produce(held, 0, transactional=False)
    client.cluster.broker.partition("t", 0).log.delete_records(1)
    expected = -1 if version < 5 else 1
    assert client.produce(held, 1, version=version, transactional=False).log_start_offset == expected
    gap = client.produce(held, 7, version=version, transactional=False)
    assert (gap.code, gap.log_start_offset) == (OUT_OF_ORDER, expected)


@both
@pytest.mark.seed("oos-2", semantics="kafka kip")
def test_a_refusal_before_the_log_has_none(start: Start, semantics: str) -> None:
    """The stale epoch of a transactional batch is noticed before the log is looked at, that of a plain one after."""
    client = start(semantics)
    held = client.new()
    client.add(held)
    client.produce(held, 0)
    client.end(held, commit=True)
    client.produce(client.claim(held), 0, transactional=False)
    assert client.produce(held, 1).log_start_offset == -1
    assert client.produce(held, 1, transactional=False).log_start_offset == 0


@pytest.mark.seed("oos-2", semantics="kip")
def test_an_unknown_producer_is_told_the_log_start_whoever_says_so(start: Start) -> None:
    """Even where the coordinator's code, not the log, refuses."""
    from dataclasses import replace

    from minibroker.handlers import produce as handler
    from minibroker_protocol.errors import ApiError

    for promised, expected in ((True, 1), (False, -1)):
        client = start(replace(KIP, log_start_with_unknown_producer=promised))
        client.produce(client.new(name=None), 0, transactional=False)
        client.cluster.broker.partition("t", 0).log.delete_records(1)
        entry = handler._Entry("t", b"", 0, None)
        told = handler._log_start(client.cluster.broker, entry, ApiError(UNKNOWN, "elsewhere"))
        assert told == expected


@both
@pytest.mark.seed("oos-4", semantics="kafka kip")
def test_what_is_not_remembered_any_more(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new(name=None)
    for sequence in range(7):
        client.produce(held, sequence, transactional=False)
    stale = DUPLICATE if semantics == "kip" else OUT_OF_ORDER
    for old in (0, 1):
        assert client.produce(held, old, transactional=False).code == stale
    for remembered in range(2, 7):
        assert client.produce(held, remembered, transactional=False).base_offset == remembered
    assert client.produce(held, 5, count=3, transactional=False).code == stale  # overlaps, and reaches beyond
    assert client.produce(held, 8, transactional=False).code == OUT_OF_ORDER
    assert client.produce(held, 7, transactional=False).code == OK


@both
@pytest.mark.seed("oos-5", semantics="kafka kip")
def test_a_bumped_epoch_that_does_not_begin_at_zero(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new(name=None)
    client.produce(held, 0, transactional=False)
    code = client.produce((held[0], 1), 1, transactional=False).code
    assert code == (UNKNOWN if semantics == "kip" else OUT_OF_ORDER)


@both
@pytest.mark.seed("oos-5", semantics="kafka kip")
def test_a_duplicate_that_opens_a_verification(start: Start, semantics: str) -> None:
    """Kafka then calls the right next sequence out of order."""
    client = start(semantics)
    held = client.new()
    client.add(held)
    client.produce(held, 0)
    client.produce(held, 1)
    client.end(held, commit=True)
    client.add(held)
    assert client.produce(held, 1).base_offset == 1
    assert client.produce(held, 2).code == (OK if semantics == "kip" else OUT_OF_ORDER)


def test_losses_that_make_no_sense(start: Start) -> None:
    client = start()
    with pytest.raises(ValueError, match="none of"):
        _lose(client, "fire")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="begins at an offset"):
        _lose(client, "lost-tail")
