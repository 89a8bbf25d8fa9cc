"""KIP-588 row by row, in bytes, under both semantics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from seed_client import OK, SeedClient

from minibroker.releases.semantics import DRAFT_FENCED_CODE, DRAFT_TIMED_OUT_CODES, KAFKA, KIP
from minibroker_protocol.errors import ErrorCode

Start = Callable[..., SeedClient]
both = pytest.mark.parametrize("semantics", ["kafka", "kip"])

FENCED = ErrorCode.PRODUCER_FENCED
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
DRAFT = replace(KIP, timed_out_codes=DRAFT_TIMED_OUT_CODES, fenced_code=DRAFT_FENCED_CODE)


def _timed_out(client: SeedClient) -> tuple[int, int]:
    held = client.new()
    client.add(held)
    client.produce(held, 0)
    client.time_out()
    return held


@pytest.mark.parametrize(("semantics", "level"), [("kafka", 0), ("kafka", 1), ("kafka", 2), ("kip", 1), ("kip", 2)])
@pytest.mark.seed("588-1", "588-3", semantics="kafka kip")
def test_a_timeout_bumps_and_the_old_epoch_may_claim_it(start: Start, semantics: str, level: int) -> None:
    client = start(semantics, transaction_version=level)
    held = _timed_out(client)
    assert client.described().epoch == held[1] + 1
    code, claimed = client.init(held)
    if semantics == "kafka" and level < 2:
        assert code == FENCED
    else:
        assert (code, claimed) == (OK, (held[0], held[1] + 1))
        client.add(claimed)
        assert client.produce(claimed, 0).code == OK
        assert client.end(claimed, commit=True) == OK


@both
@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.seed("588-2", semantics="kafka kip")
def test_what_the_old_epoch_is_told(start: Start, semantics: str, version: int) -> None:
    client = start(semantics)
    held = _timed_out(client)
    kafka = EPOCH if version < 2 else FENCED
    told = (client.add(held, 1, version=version), client.add_offsets(held, version=version))
    ends = {client.end(held, commit=commit, version=version) for commit in (True, False)}  # NONE: it is aborted
    if semantics == "kafka":
        assert (*told, ends) == (kafka, kafka, {kafka})
    else:
        add = MAPPING if version < 2 else UNKNOWN
        assert (*told, ends) == (add, UNKNOWN, {MAPPING} if version < 2 else {MAPPING, OK})
    client.claim(held)
    after = (client.add(held, 1, version=version), client.end(held, commit=False, version=version))
    assert after == (kafka, kafka)  # once the epoch is claimed, the old one is fenced like any other


@both
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("version", range(6))
@pytest.mark.seed("588-2", "588-4", semantics="kafka kip")
def test_offsets_of_a_timed_out_epoch_and_of_a_fenced_one(
    start: Start, semantics: str, level: int, version: int
) -> None:
    """TxnOffsetCommit tells them apart: before the markers are written, after, and by a coordinator that has the log
    only. Whoever is fenced by another instance gets INVALID_PRODUCER_EPOCH."""
    client = start(semantics, transaction_version=level)
    effects = client.cluster.broker.coordinators.transactions.effects
    effects.hold()
    held = _timed_out(client)
    assert client.described().state == "PrepareAbort"
    told = [client.commit_offset(held, 7, version=version)]
    effects.release()
    assert client.described().state == "CompleteAbort"
    told.append(client.commit_offset(held, 7, version=version))
    client.reload_coordinator()
    told.append(client.commit_offset(held, 7, version=version))
    if semantics == "kip":
        assert told == [UNKNOWN if version < 4 else ErrorCode.TRANSACTION_ABORTABLE] * 3
    else:
        assert told == [ErrorCode.CONCURRENT_TRANSACTIONS if version == 5 else EPOCH, EPOCH, EPOCH]
    client.new()
    assert client.commit_offset(held, 7, version=version) == EPOCH


@pytest.mark.seed("588-2", "588-8", "588-9", semantics="kip")
def test_end_txn_v5_of_a_timed_out_epoch(start: Start) -> None:
    """A commit is told to abort, an abort is answered with the new epoch, which goes on: with the markers still on
    their way, after them, and by a coordinator that has the log only."""
    client = start("kip")
    effects = client.cluster.broker.coordinators.transactions.effects
    effects.hold()
    held = _timed_out(client)
    bumped = (held[0], held[1] + 1)
    told = (ErrorCode.TRANSACTION_ABORTABLE, (-1, -1))
    for step in (lambda: None, effects.release, client.reload_coordinator):
        step()
        assert client.end_and_go_on(held, commit=True) == told
        assert client.end_and_go_on(held, commit=False) == (OK, bumped)
    assert client.produce(bumped, 0, version=12).code == OK
    assert client.end_and_go_on(bumped, commit=True) == (OK, (held[0], held[1] + 2))
    assert client.end_and_go_on(held, commit=True)[0] == FENCED


@pytest.mark.seed("588-2", "360-15", semantics="kip")
def test_the_last_epoch_of_all_times_out(start: Start) -> None:
    """The timeout gives a new producer id; the old one is still told why, and finds its way to it."""
    client = start("kip")
    producer_id, _ = client.new()
    client.cluster.broker.coordinators.transactions.describe(
        "tx"
    ).metadata = client.cluster.broker.coordinators.transactions.describe("tx").metadata._replace(producer_epoch=32766)
    held = (producer_id, 32766)
    assert client.produce(held, 0, version=12).code == OK
    client.time_out()
    assert client.add(held) == UNKNOWN
    assert client.commit_offset(held, 7, version=5) == ErrorCode.TRANSACTION_ABORTABLE
    assert client.produce(held, 1, version=12).code == EPOCH
    assert client.end_and_go_on(held, commit=True)[0] == ErrorCode.TRANSACTION_ABORTABLE
    code, (new_id, epoch) = client.end_and_go_on(held, commit=False)
    assert (code, new_id != producer_id, epoch) == (OK, True, 0)
    assert client.claim(held) == (new_id, 0)


@pytest.mark.seed("588-2", "588-7", semantics="kip")
def test_the_draft_refuses_an_abort_in_every_version(start: Start) -> None:
    client = start(DRAFT)
    held = _timed_out(client)
    assert [client.end_and_go_on(held, commit=commit)[0] for commit in (True, False)] == [90, 90]
    assert client.commit_offset(held, 7) == EPOCH  # the text does not list it


ENDS_THE_SAMPLE = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,  # Java's exception for it extends that of the one above
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@pytest.mark.parametrize("level", [0, 1, 2])
@both
@pytest.mark.seed("588-10", semantics="kafka kip")
def test_no_answer_to_produce_ends_the_sample_in_its_callback(start: Start, semantics: str, level: int) -> None:
    """Before the timeout is noticed, after it, after the epoch was claimed, and for the claimer."""
    for version in range(3, 12 if level < 2 else 13):
        client = start(semantics, transaction_version=level)
        held = _timed_out(client)
        told = client.produce(held, 1, version=version).code
        assert told in ({EPOCH, MAPPING} if semantics == "kip" else {EPOCH}), version
        assert told not in ENDS_THE_SAMPLE
        code, claimed = client.init(held)
        assert (code == OK) is (semantics == "kip" or level == 2)
        if code == OK:
            assert client.produce(held, 1, version=version).code == EPOCH
            client.add(claimed)
            assert client.produce(claimed, 0, version=version).code == OK


@pytest.mark.seed("588-2", "588-9", semantics="kafka")
def test_end_txn_v5_finds_its_way_back(start: Start) -> None:
    client = start("kafka")
    held = _timed_out(client)
    assert client.end_and_go_on(held, commit=True)[0] == ErrorCode.INVALID_TXN_STATE
    assert client.end_and_go_on(held, commit=False) == (OK, (held[0], held[1] + 1))


@both
@pytest.mark.seed("588-4", semantics="kafka kip")
def test_a_later_instance_fences_both_epochs(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = _timed_out(client)
    bumped = (held[0], held[1] + 1)
    newcomer = client.new()
    assert newcomer == (held[0], held[1] + 2)
    for old in (held, bumped):
        assert client.init(old)[0] == FENCED
        assert client.add(old) == FENCED
        assert client.end(old, commit=False) == FENCED
        assert client.produce(old, 0).code == EPOCH


@both
@pytest.mark.parametrize("version", [3, 8, 10, 11, 12])
@pytest.mark.seed("588-5", semantics="kafka kip")
def test_produce_from_the_old_epoch(start: Start, semantics: str, version: int) -> None:
    """Below version 11 kip has another code: librdkafka, which speaks those, would end for good on the text's."""
    client = start(semantics)
    held = _timed_out(client)
    expected = MAPPING if semantics == "kip" and version < 11 else EPOCH
    assert client.produce(held, 1, version=version).code == expected
    assert client.produce(held, 0, version=version, partition=1).code == expected  # where it never wrote
    client.claim(held)
    assert client.produce(held, 1, version=version).code == EPOCH  # once the new epoch is claimed
    draft = start(DRAFT)
    held = _timed_out(draft)
    assert draft.produce(held, 1, version=version).code == EPOCH


def test_only_the_coordinator_knows_of_a_timeout(start: Start) -> None:
    """While it cannot be asked, and after another instance took over, the old epoch is just old."""
    client = start("kip")
    held = _timed_out(client)
    service = client.cluster.broker.coordinators.transactions
    service.resigned(service.host.partition_for("tx"))
    assert client.produce(held, 1, version=9).code == EPOCH
    client = start("kip")
    held = _timed_out(client)
    client.new()
    assert client.produce(held, 1, version=9).code == EPOCH


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.seed("588-2", "588-5", semantics="kip")
def test_an_epoch_that_its_own_client_left_is_just_old(start: Start, level: int) -> None:
    """After a client's own abort with EndTxn v5, and while a new instance's fence is under way."""
    client = start("kip", transaction_version=level)
    held = client.new()
    client.add(held)
    client.produce(held, 0)
    assert client.end_and_go_on(held, commit=False) == (OK, (held[0], held[1] + 1))
    assert client.produce(held, 1, version=9).code == EPOCH
    assert client.produce(held, 0, version=9, partition=1).code == EPOCH
    assert client.end(held, commit=False, version=1) == EPOCH
    assert client.add(held) == FENCED
    running = client.new()
    client.add(running)
    client.produce(running, 0)
    assert client.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.described().epoch == running[1] + 1
    assert client.produce(running, 1, version=9).code == EPOCH
    assert client.add(running) == FENCED


@both
@pytest.mark.seed("588-6", semantics="kafka kip")
def test_fenced_by_version(start: Start, semantics: str) -> None:
    client = start(semantics)
    old = client.new()
    client.new()
    assert [client.init(old, version=v)[0] for v in (3, 4, 5)] == [EPOCH, FENCED, FENCED]
    assert [client.add(old, version=v) for v in range(4)] == [EPOCH, EPOCH, FENCED, FENCED]
    assert [client.add_offsets(old, version=v) for v in range(5)] == [EPOCH, EPOCH, FENCED, FENCED, FENCED]
    codes = [client.end(old, commit=True, version=v) for v in range(6)]
    assert codes == [EPOCH, EPOCH, FENCED, FENCED, FENCED, FENCED]


@pytest.mark.seed("588-7", semantics="kafka kip")
def test_the_numbers_of_the_draft(start: Start) -> None:
    assert KAFKA.fenced_code == ErrorCode.PRODUCER_FENCED == 90
    assert ErrorCode(91) is ErrorCode.RESOURCE_NOT_FOUND
    client = start(DRAFT)
    held = _timed_out(client)
    assert [client.add(held, 1, version=v) for v in range(4)] == [47, 47, 90, 90]
    assert [client.end(held, commit=False, version=v) for v in range(4)] == [47, 47, 90, 90]
    client.new()
    assert [client.add(held, version=v) for v in range(4)] == [47, 47, 91, 91]
    assert client.init(held)[0] == 91


@pytest.mark.seed("588-8", "588-9", semantics="kip")
def test_the_abort_is_told_to_claim_and_may(start: Start) -> None:
    """What a client does with the codes: abort, then InitProducerId at its old epoch, then the next transaction."""
    client = start("kip")
    held = _timed_out(client)
    assert client.produce(held, 1, version=10).code == MAPPING
    assert client.end(held, commit=False, version=1) == MAPPING
    assert client.end(held, commit=True) == ErrorCode.TRANSACTION_ABORTABLE
    assert client.end(held, commit=False) == OK  # aborted already
    assert client.add(held) == UNKNOWN
    claimed = client.claim(held)
    client.add(claimed)
    assert client.produce(claimed, 0).code == OK
    assert client.end(claimed, commit=True) == OK


@pytest.mark.seed("588-8", "588-9", semantics="kafka")
def test_kafka_fences_below_version_5(start: Start) -> None:
    client = start("kafka", transaction_version=1)
    held = _timed_out(client)
    assert client.end(held, commit=False) == FENCED
    assert client.init(held)[0] == FENCED
