"""KIP-360 row by row, in bytes, under both semantics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from memory_cluster import keep_loading
from seed_client import ID, OK, SeedClient, produce_request

from minibroker.kernel.deferred import Deferred
from minibroker.releases.semantics import KAFKA, KIP
from minibroker.requests.tapped_request import TappedRequest
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.transactions import DescribeTransactionStateRequest
from minibroker_storage.retention import delete_old_segments

Start = Callable[..., SeedClient]
both = pytest.mark.parametrize("semantics", ["kafka", "kip"])

BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
SOON = {
    "transactional.id.expiration.ms": "700000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "10000",
    "producer.id.expiration.ms": "100000",
    "producer.id.expiration.check.interval.ms": "10000",
}
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@both
@pytest.mark.seed("360-1", "447-1", semantics="kafka kip")
def test_a_new_instance_fences_the_one_before(start: Start, semantics: str) -> None:
    client = start(semantics)
    first = client.new()
    bumped = client.claim(first)
    newcomer = client.new()
    assert newcomer == (first[0], bumped[1] + 1)
    for old in (first, bumped):
        assert client.init(old)[0] == FENCED  # the last epoch was forgotten
        assert client.add(old) == FENCED
        assert client.produce(old, 0).code == EPOCH
    assert client.add(newcomer) == OK
    assert client.produce(newcomer, 0).code == OK


@both
@pytest.mark.seed("360-2", "360-11", semantics="kafka kip")
def test_the_current_epoch_is_bumped_and_sequences_begin_anew(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new()
    client.add(held)
    assert client.produce(held, 0, count=3).code == OK
    assert client.end(held, commit=True) == OK
    bumped = client.claim(held)
    assert bumped == (held[0], held[1] + 1)
    client.add(bumped)
    assert client.produce(bumped, 3).code == (UNKNOWN if semantics == "kip" else OUT_OF_ORDER)
    assert client.produce(bumped, 0).code == OK


@both
@pytest.mark.seed("360-3", semantics="kafka kip")
def test_a_retried_bump_gets_the_same_epoch(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new()
    bumped = client.claim(held)
    assert [client.claim(held) for _ in range(3)] == [bumped] * 3


@both
@pytest.mark.seed("360-4", semantics="kafka kip")
def test_any_other_epoch_is_fenced(start: Start, semantics: str) -> None:
    client = start(semantics)
    first = client.new()
    second = client.claim(first)
    third = client.claim(second)
    ahead = (third[0], third[1] + 1)
    for wrong in (first, ahead):
        assert client.init(wrong, version=3)[0] == EPOCH
        assert client.init(wrong)[0] == FENCED
    client.add(third)
    client.produce(third, 0)
    code, _ = client.init(first)
    if semantics == "kip":
        assert code == FENCED
        assert client.end(third, commit=True) == OK  # untouched
    else:
        assert code == BUSY
        assert client.init(first)[0] == FENCED
        assert client.end(third, commit=True) == FENCED


levels = pytest.mark.parametrize("level", [0, 1, 2])


def _aborted(client: SeedClient, held: tuple[int, int]) -> int:
    """What InitProducerId gets once the transaction it aborted is over."""
    for _ in range(20):
        code, _ = client.init(held)
        if code != BUSY:
            return code
        client.cluster.timers.advance(20)
    raise AssertionError("still CONCURRENT_TRANSACTIONS")


@both
@levels
@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.seed("360-3", semantics="kafka kip")
def test_a_late_copy_of_a_bump_meets_a_transaction(start: Start, semantics: str, level: int, reloaded: bool) -> None:
    client = start(semantics, transaction_version=level)
    held = client.new()
    bumped = client.claim(held)
    client.add(bumped)
    assert client.produce(bumped, 0).code == OK
    if reloaded:
        client.reload_coordinator()
    copy = client.init(held)
    if semantics == "kip":
        # Version 0 of the transaction state message has no last epoch to load: refused, and the owner lives as well.
        assert copy == ((FENCED, (-1, -1)) if reloaded and level == 0 else (OK, bumped))
        assert client.produce(bumped, 1).code == OK
        assert client.end(bumped, commit=True) == OK
        client.claim(bumped)
    else:
        assert copy[0] == BUSY
        assert _aborted(client, held) == FENCED
        assert client.produce(bumped, 1).code == EPOCH
        assert client.end(bumped, commit=True) == FENCED


@both
@levels
@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.seed("360-2", semantics="kafka kip")
def test_the_owner_asks_for_a_bump_while_its_transaction_runs(
    start: Start, semantics: str, level: int, reloaded: bool
) -> None:
    client = start(semantics, transaction_version=level)
    held = client.claim(client.new())
    client.add(held)
    assert client.produce(held, 0).code == OK
    assert client.init(held)[0] == BUSY
    if reloaded:
        client.reload_coordinator()
    code = _aborted(client, held)
    if semantics == "kafka" and level < 2:
        assert code == FENCED
        return
    assert code == OK
    bumped = client.claim(held)
    assert bumped == (held[0], held[1] + 1)
    log = client.cluster.broker.partition("t", 0).log
    assert (log.producers.open_transactions(), log.last_stable_offset) == ({}, 2)  # the batch, its ABORT marker
    client.add(bumped)
    assert client.produce(bumped, 0).code == OK
    assert client.end(bumped, commit=True) == OK


@both
@pytest.mark.seed("360-5", "360-7", semantics="kafka kip")
def test_a_retried_bump_survives_a_failover(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new()
    bumped = client.claim(held)
    client.reload_coordinator()
    assert client.claim(held) == bumped


@pytest.mark.seed("360-5", semantics="kafka kip")
def test_a_last_epoch_that_is_not_logged_is_lost(start: Start) -> None:
    for preset in (KAFKA, KIP):
        client = start(replace(preset, persist_last_epoch=False))
        held = client.new()
        client.claim(held)
        client.reload_coordinator()
        assert client.init(held)[0] == FENCED


@both
@pytest.mark.seed("360-6", semantics="kafka kip")
def test_an_expired_id_gets_a_new_producer_id(start: Start, semantics: str) -> None:
    client = start(semantics, SOON)
    held = client.new()
    client.cluster.clock.advance(700_000 + 10_001)
    assert client.add(held) == MAPPING
    fresh = client.claim(held)
    assert fresh[0] != held[0]
    assert fresh[1] == 0
    code, again = client.init(held)
    assert (code, again) == ((OK, fresh) if semantics == "kip" else (FENCED, (-1, -1)))
    if semantics == "kip":
        client.reload_coordinator()
        assert client.claim(held) == fresh
    newcomer = client.new()
    assert client.init(held)[0] == FENCED
    assert client.add(newcomer) == OK


@both
@pytest.mark.seed("360-8", semantics="kafka kip")
def test_describe_transaction_state(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new()
    client.add(held, 1)
    state = client.described()
    assert (state.error, state.producer_id, state.epoch, state.state) == (OK, *held, "Ongoing")
    assert [(p.topic_name, p.partition_ids) for p in state.partitions] == [("t", [1])]
    unknown = client.described("nobody")
    assert (unknown.error, unknown.producer_id, unknown.epoch) == (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, -1, -1)


@both
@pytest.mark.seed("360-9", "oos-4", semantics="kafka kip")
def test_producer_state_outlives_its_records(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new(name=None)
    assert client.produce(held, 0, transactional=False).code == OK
    client.cluster.broker.partition("t", 0).log.delete_records(-1)
    repeated = client.produce(held, 0, transactional=False)
    assert (repeated.code, repeated.base_offset, repeated.log_start_offset) == (OK, 0, 1)
    assert client.produce(held, 5, transactional=False).code == OUT_OF_ORDER


@both
@pytest.mark.parametrize("deleted", ["DeleteRecords", "retention"])
@pytest.mark.seed("360-9", semantics="kafka kip")
def test_producer_state_outlives_its_records_over_a_restart(start: Start, semantics: str, deleted: str) -> None:
    client = start(semantics)
    held = client.new(name=None)
    for sequence in range(3):
        assert client.produce(held, sequence, transactional=False).code == OK
    log = client.cluster.broker.partition("t", 0).log
    log.delete_records(-1)
    if deleted == "retention":
        log.roll(client.cluster.clock.now_ms())
        assert delete_old_segments(log, client.cluster.clock.now_ms()) == 1
    client.restart()
    producers = client.cluster.broker.partition("t", 0).log.producers
    # Kafka reads no snapshot at or below the log start, and takes any sequence of a producer it does not know.
    assert producers.knows(held[0]) is (semantics == "kip")
    answer = client.produce(held, 3, transactional=False)
    assert (answer.code, answer.base_offset, answer.log_start_offset) == (OK, 3, 3)
    repeated = client.produce(held, 2, transactional=False)
    assert (repeated.code, repeated.base_offset) == ((OK, 2) if semantics == "kip" else (OUT_OF_ORDER, -1))


@pytest.mark.seed("360-9", semantics="kafka kip")
def test_producer_state_goes_with_time(start: Start) -> None:
    """Kafka: a day after the record's timestamp. The text: transactional.id.expiration.ms after it came."""
    for semantics, limit in (("kafka", 100_000), ("kip", 700_000)):
        client = start(semantics, SOON)
        held = client.new(name=None)
        client.produce(held, 0, transactional=False)
        producers = client.cluster.broker.partition("t", 0).log.producers
        client.cluster.clock.advance(limit - 10_001)
        assert producers.knows(held[0]), semantics
        client.cluster.clock.advance(20_002)
        assert not producers.knows(held[0]), semantics
    old = start("kip", SOON)
    held = old.new(name=None)
    past = produce_request(held, 0, 1, 0, False, 1000)  # stamped long ago by the client's clock
    old.cluster.send(past, 11).result()
    old.cluster.clock.advance(20_001)
    assert old.cluster.broker.partition("t", 0).log.producers.knows(held[0])


@both
@pytest.mark.seed("360-10", "oos-1", semantics="kafka kip")
def test_a_replica_that_knows_only_its_log(start: Start, semantics: str) -> None:
    from minibroker.partitions.producer_loss import lose_producers

    client = start(semantics)
    held = client.new(name=None)
    client.produce(held, 0, count=2, transactional=False)
    partition = client.cluster.broker.partition("t", 0)
    assert lose_producers(partition, "delete-records", now_ms=client.cluster.clock.now_ms()) == [held[0]]
    answer = client.produce(held, 2, transactional=False)
    if semantics == "kafka":
        assert (answer.code, answer.base_offset) == (OK, 2)
        return
    assert (answer.code, answer.log_start_offset) == (UNKNOWN, 2)
    bumped = (held[0], held[1] + 1)
    assert client.produce(bumped, 0, transactional=False).code == OK
    assert client.produce(held, 3, transactional=False).code == EPOCH  # never backwards


@both
@pytest.mark.seed("360-11", "360-16", semantics="kafka kip")
def test_a_late_copy_after_the_bump_is_refused(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new()
    client.add(held)
    client.produce(held, 0)
    assert client.end(held, commit=False) == OK
    bumped = client.claim(held)
    client.add(bumped)
    assert client.produce(bumped, 0).code == OK
    assert client.produce(held, 1).code == EPOCH  # the copy that was on its way when the client gave up
    idempotent = client.new(name=None)
    client.produce(idempotent, 0, transactional=False, partition=1)
    assert client.produce((idempotent[0], 1), 0, transactional=False, partition=1).code == OK
    assert client.produce(idempotent, 1, transactional=False, partition=1).code == EPOCH


@both
@pytest.mark.seed("360-12", "oos-5", semantics="kafka kip")
def test_nothing_follows_a_gap(start: Start, semantics: str) -> None:
    """In flight behind a batch that failed for good: none may be written."""
    client = start(semantics)
    held = client.new(name=None)
    client.produce(held, 0, transactional=False)
    for later in (2, 3, 4):
        assert client.produce(held, later, transactional=False).code == OUT_OF_ORDER
    assert client.produce(held, 1, transactional=False).base_offset == 1
    assert client.cluster.broker.partition("t", 0).log.log_end_offset == 2


@both
@pytest.mark.seed("360-17", semantics="kafka kip")
def test_a_client_that_resets_its_sequence_and_keeps_its_epoch(start: Start, semantics: str) -> None:
    """As clients did before KIP-360 when their state was lost by truncation: works on, and is fenced all the same."""
    from minibroker.partitions.producer_loss import lose_producers

    client = start(semantics)
    held = client.new()
    partition = client.cluster.broker.partition("t", 0)
    client.add(held)
    assert [client.produce(held, sequence).code for sequence in range(2)] == [OK, OK]
    assert client.end(held, commit=True) == OK
    for _ in range(2):
        lose_producers(partition, "delete-records", now_ms=client.cluster.clock.now_ms())
        client.add(held)
        if semantics == "kip":
            refused = client.produce(held, 2)
            assert (refused.code, refused.log_start_offset) == (UNKNOWN, partition.log.log_start_offset)
        assert [client.produce(held, sequence).code for sequence in range(2)] == [OK, OK]
        assert client.end(held, commit=True) == OK
    newcomer = client.new()
    lose_producers(partition, "delete-records", now_ms=client.cluster.clock.now_ms())
    assert client.produce(held, 0).code == EPOCH  # nothing is known here, and the coordinator knows
    client.add(newcomer)
    assert client.produce(newcomer, 0).code == OK
    assert client.produce(held, 0).code == EPOCH


def _lost_zombie(
    start: Start, preset: object, level: int | None = None, **config: str
) -> tuple[SeedClient, tuple[int, int]]:
    """A fenced producer, and a partition that forgot it."""
    from minibroker.partitions.producer_loss import lose_producers

    config = {"transaction.partition.verification.enable": "false", **config}
    client = start(preset, config, transaction_version=level)
    zombie = client.new()
    client.add(zombie)
    client.produce(zombie, 0)
    client.time_out()
    lose_producers(client.cluster.broker.partition("t", 0), "delete-records", now_ms=client.cluster.clock.now_ms())
    return client, zombie


@pytest.mark.seed("360-14", semantics="kafka kip")
def test_the_hole_of_the_draft_and_its_check(start: Start) -> None:
    client, zombie = _lost_zombie(start, KIP)
    assert client.produce(zombie, 0).code == OK  # nobody ends this transaction
    assert client.cluster.broker.partition("t", 0).log.producers.open_transactions()
    client, zombie = _lost_zombie(start, replace(KIP, check_unknown_producer=True))
    assert client.produce(zombie, 0).code == EPOCH
    assert client.cluster.broker.partition("t", 0).log.producers.open_transactions() == {}
    current = client.claim(zombie)
    client.add(current)
    assert client.produce(current, 0).code == OK
    # Kafka closes it by verification, which is on by default
    client, zombie = _lost_zombie(start, KAFKA, **{"transaction.partition.verification.enable": "true"})
    assert client.produce(zombie, 0).code == EPOCH


@pytest.mark.seed("360-14", semantics="kip")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, MAPPING),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_the_check_needs_an_answer(start: Start, error: ErrorCode, code: ErrorCode) -> None:
    client, zombie = _lost_zombie(start, replace(KIP, check_unknown_producer=True))
    service = client.cluster.broker.coordinators.transactions
    index = service.host.partition_for(ID)
    if error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        service.host.shard(index).entries.clear()
    elif error is ErrorCode.NOT_COORDINATOR:
        service.resigned(index)
    else:
        keep_loading(service.host, index)
    assert client.produce(zombie, 0).code == code


@pytest.mark.seed("360-14", semantics="kip")
def test_the_check_looks_again_after_the_answer(start: Start) -> None:
    """A batch that made the producer known meanwhile: its state decides, not the stale answer."""
    client, _ = _lost_zombie(start, replace(KIP, check_unknown_producer=True))
    zombie = client.described()
    stale = (zombie.producer_id, zombie.epoch + 5)
    held = []

    class Slow:
        def serve(self, tapped: TappedRequest) -> Deferred[Any]:
            answer = tapped.apply()
            if not isinstance(tapped.request, DescribeTransactionStateRequest):
                return answer
            later: Deferred[Any] = Deferred()
            held.append((later, answer))
            return later

    client.cluster.cluster.set_broker_tap(Slow())
    waiting = client.cluster.send(produce_request(stale, 0, 1, 0, True, client.cluster.clock.now_ms()), 11)
    assert not waiting.done
    plain = produce_request(stale, 0, 1, 0, False, client.cluster.clock.now_ms())
    written = client.cluster.send(plain, 11).result().responses[0].partition_responses[0]
    assert written.error_code == OK
    later, answer = held[0]
    later.resolve(answer.result())
    # Known by now: the duplicate is acknowledged with its offset instead of being refused.
    answered = waiting.result().responses[0].partition_responses[0]
    assert (answered.error_code, answered.base_offset) == (OK, written.base_offset)


class Listening:
    """Notes what a broker sends, and lets it pass."""

    def __init__(self) -> None:
        self.asked: list[type[Request]] = []

    def serve(self, tapped: TappedRequest) -> Deferred[Any]:
        self.asked.append(type(tapped.request))
        return tapped.apply()


@pytest.mark.parametrize(("level", "code", "asks"), [(0, OK, 0), (1, EPOCH, 1), (2, EPOCH, 1)])
@pytest.mark.seed("360-18", semantics="kip")
def test_the_check_waits_for_the_level_that_came_with_its_call(start: Start, level: int, code: int, asks: int) -> None:
    client, zombie = _lost_zombie(start, replace(KIP, check_unknown_producer=True), level)
    listening = Listening()
    client.cluster.cluster.set_broker_tap(listening)
    assert client.produce(zombie, 0).code == code
    assert listening.asked == [DescribeTransactionStateRequest] * asks


@pytest.mark.seed("360-18", semantics="kafka")
def test_kafka_never_makes_the_call(start: Start) -> None:
    for level in (0, 2):
        client, zombie = _lost_zombie(start, KAFKA, level=level)
        listening = Listening()
        client.cluster.cluster.set_broker_tap(listening)
        assert client.produce(zombie, 0).code == OK
        assert listening.asked == []


@both
@pytest.mark.seed("360-15", semantics="kafka kip")
def test_epochs_that_are_used_up_rotate_the_producer_id(start: Start, semantics: str) -> None:
    client = start(semantics)
    held = client.new()
    entry = client.cluster.broker.coordinators.transactions.describe(ID)
    entry.metadata = entry.metadata._replace(producer_epoch=32766)
    last = (held[0], 32766)
    rotated = client.claim(last)
    assert rotated[0] != held[0]
    assert rotated[1] == 0
    client.reload_coordinator()
    assert client.claim(last) == rotated
    if semantics == "kip":  # Kafka forgets the old producer id with the retry itself
        assert client.claim(last) == rotated
