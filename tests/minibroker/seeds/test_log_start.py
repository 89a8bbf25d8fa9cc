"""A leader that has not learnt its predecessor's log start (KIP-360: state that was lost must not "resurface" to a
producer's harm), in bytes, on three brokers, under both semantics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from many_brokers import ManyBrokers

from minibroker.partitions.producer_loss import lose_producers
from minibroker.releases.semantics import PRESETS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offsets import DeleteRecordsRequest

OK = ErrorCode.NONE
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN = ErrorCode.UNKNOWN_PRODUCER_ID
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
PRODUCER = 77
NEW, OLD, DEPOSED = 3, 2, 1

DELETE_ALL = DeleteRecordsRequest(
    topics=[
        DeleteRecordsRequest.DeleteRecordsTopic(
            name="t", partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)]
        )
    ],
    timeout_ms=500,
)

Failover = Callable[[str], ManyBrokers]
both = pytest.mark.parametrize("semantics", ["kafka", "kip"])


@pytest.fixture
def deleted() -> Iterator[Failover]:
    """deleted(semantics): sequences 0 to 2 of epoch 0 are everywhere; brokers 1 (the leader) and 2 begin at 3 and
    broker 3, which is in sync, still at 0."""
    running: list[ManyBrokers] = []

    def bring_about(semantics: str) -> ManyBrokers:
        brokers = ManyBrokers(3, semantics=PRESETS[semantics])
        running.append(brokers)
        brokers.create("t", [[DEPOSED, OLD, NEW]])
        for sequence in range(3):
            assert write(brokers, 0, sequence) == (OK, sequence, 0)
        brokers.settle(600)
        brokers.cluster.cut_link(DEPOSED, NEW)
        answer = brokers.send(DEPOSED, DELETE_ALL, 2)
        brokers.settle(600)
        assert answer.result().topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert starts(brokers) == {DEPOSED: 3, OLD: 3, NEW: 0}
        assert NEW in brokers.cluster.image.partition("t", 0).isr
        return brokers

    yield bring_about
    for brokers in running:
        brokers.stop()


def write(brokers: ManyBrokers, epoch: int, sequence: int) -> tuple[int, int, int]:
    """(code, base offset, log start offset) of one record."""
    producer = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": sequence}
    answer = brokers.produce("t", b"%d/%d" % (epoch, sequence), **producer)
    return answer.error_code, answer.base_offset, answer.log_start_offset


def starts(brokers: ManyBrokers) -> dict[int, int]:
    return {node: brokers.partition(node, "t").log_start_offset for node in (DEPOSED, OLD, NEW)}


def forget(brokers: ManyBrokers, node: int) -> None:
    """As if the producer had been idle long enough for this replica, and for no other."""
    assert lose_producers(brokers.partition(node, "t"), "expiration", now_ms=brokers.clock.now_ms()) == [PRODUCER]


def fail_over(brokers: ManyBrokers) -> None:
    moved = brokers.cluster.move_leader("t", 0, NEW)
    brokers.settle()
    assert moved.done
    brokers.cluster.mend_link(DEPOSED, NEW)
    assert brokers.leader("t") == NEW


@both
@pytest.mark.seed("360-19", semantics="kafka kip")
def test_the_log_start_goes_back_and_producers_go_on(deleted: Failover, semantics: str) -> None:
    brokers = deleted(semantics)
    fail_over(brokers)
    assert brokers.values("t") == [b"0/0", b"0/1", b"0/2"]  # no guarantee, in the text and in Kafka
    assert write(brokers, 0, 3) == (OK, 3, 0)
    assert write(brokers, 0, 3) == (OK, 3, 0)
    brokers.settle(2000)
    assert starts(brokers) == {DEPOSED: 3, OLD: 3, NEW: 0}  # each replica's own goes up only
    assert brokers.partition(OLD, "t").log.producers.entry(PRODUCER).last_sequence == 3


@both
@pytest.mark.seed("360-19", "360-10", semantics="kafka kip")
def test_state_that_was_lost_resurfaces_for_a_producer_that_bumped(deleted: Failover, semantics: str) -> None:
    """The leader forgot the producer, its client was told so and bumped; the next leader remembers the old epoch."""
    brokers = deleted(semantics)
    forget(brokers, DEPOSED)
    if semantics == "kip":
        assert write(brokers, 0, 3) == (UNKNOWN, -1, 3)
    fail_over(brokers)
    assert brokers.partition(NEW, "t").log.producers.entry(PRODUCER).last_sequence == 2
    assert [write(brokers, 1, sequence) for sequence in range(2)] == [(OK, 3, 0), (OK, 4, 0)]
    assert write(brokers, 0, 3)[0] == EPOCH  # never backwards


@both
@pytest.mark.seed("360-19", semantics="kafka kip")
def test_a_bump_that_was_written_outlives_the_failover(deleted: Failover, semantics: str) -> None:
    brokers = deleted(semantics)
    forget(brokers, DEPOSED)
    brokers.cluster.mend_link(DEPOSED, NEW)
    assert write(brokers, 1, 0)[:2] == (OK, 3)
    brokers.settle(600)
    fail_over(brokers)
    assert write(brokers, 1, 1)[:2] == (OK, 4)
    assert write(brokers, 0, 3)[0] == EPOCH


@both
@pytest.mark.seed("360-17", "360-19", semantics="kafka kip")
def test_state_that_was_lost_resurfaces_for_a_client_that_keeps_its_epoch(deleted: Failover, semantics: str) -> None:
    """What the text calls fatal: sequence 0 again, in the same epoch. It is a duplicate while it is remembered."""
    brokers = deleted(semantics)
    forget(brokers, DEPOSED)
    fail_over(brokers)
    assert write(brokers, 0, 0) == (OK, 0, 0)
    for sequence in range(3, 6):
        assert write(brokers, 0, sequence)[0] == OK
    stale = ErrorCode.DUPLICATE_SEQUENCE_NUMBER if semantics == "kip" else OUT_OF_ORDER
    assert write(brokers, 0, 0)[0] == stale
    assert brokers.values("t") == [b"0/%d" % sequence for sequence in range(6)]


@both
@pytest.mark.seed("360-19", "360-9", semantics="kafka kip")
def test_a_follower_that_learnt_the_log_start_and_was_restarted_leads(deleted: Failover, semantics: str) -> None:
    """Kafka's start forgets what lies below the log start, so the next leader knows less than the last one did."""
    brokers = deleted(semantics)
    brokers.cluster.stop_broker(OLD)
    brokers.cluster.start_broker(OLD)
    brokers.settle(2000)
    assert brokers.partition(OLD, "t").log_start_offset == 3
    assert brokers.partition(OLD, "t").log.producers.knows(PRODUCER) is (semantics == "kip")
    brokers.cluster.move_leader("t", 0, OLD)
    brokers.settle()
    assert brokers.leader("t") == OLD
    assert write(brokers, 0, 5)[0] == (OUT_OF_ORDER if semantics == "kip" else OK)  # a gap, seen only with the state
