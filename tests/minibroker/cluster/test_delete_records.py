"""DeleteRecords is answered once the records are gone from every live replica (Kafka's DelayedDeleteRecords)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from many_brokers import ManyBrokers

from minibroker.kernel.deferred import Deferred
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offsets import DeleteRecordsRequest


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers(3)
    many.create("t", [[1, 2, 3], [1, 2, 3]])
    many.cluster.reassign("t", 1, [1])
    for number in range(5):
        many.produce("t", b"%d" % number)
    many.settle(600)
    yield many
    many.stop()


def delete(brokers: ManyBrokers, *offsets: int, timeout_ms: int = 10_000) -> Deferred[Any]:
    partitions = [
        DeleteRecordsRequest.DeleteRecordsPartition(partition_index=i, offset=offset)
        for i, offset in enumerate(offsets)
    ]
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=timeout_ms
    )
    return brokers.send(1, request, 2)


def results(answer: Deferred[Any]) -> list[tuple[int, int]]:
    return [(p.error_code, p.low_watermark) for p in answer.result().topics[0].partitions]


def starts(brokers: ManyBrokers) -> list[int]:
    return [brokers.partition(node, "t").log_start_offset for node in sorted(brokers.cluster.brokers)]


def test_it_waits_for_every_replica(brokers: ManyBrokers) -> None:
    answer = delete(brokers, 3)
    assert not answer.done
    assert brokers.partition(1, "t").log_start_offset == 3
    brokers.settle(100)
    assert results(answer) == [(0, 3)]
    assert starts(brokers) == [3, 3, 3]


def test_a_follower_that_does_not_follow_makes_it_time_out(brokers: ManyBrokers) -> None:
    brokers.cluster.cut_link(1, 3)
    answer = delete(brokers, 3, timeout_ms=2000)
    brokers.settle(1999)
    assert not answer.done
    brokers.settle(2)
    assert results(answer) == [(ErrorCode.REQUEST_TIMED_OUT, 0)]
    assert starts(brokers) == [3, 3, 0]
    brokers.cluster.mend_link(1, 3)
    brokers.settle(2000)
    assert starts(brokers) == [3, 3, 3]


def test_no_time_at_all_is_time_that_is_up(brokers: ManyBrokers) -> None:
    assert results(delete(brokers, 3, timeout_ms=0)) == [(ErrorCode.REQUEST_TIMED_OUT, 0)]


def test_a_broker_that_is_gone_is_not_waited_for(brokers: ManyBrokers) -> None:
    brokers.cluster.kill_broker(3)
    answer = delete(brokers, -1)
    brokers.settle(100)
    assert results(answer) == [(0, 5)]


def test_a_leader_that_resigns_while_it_waits_says_so(brokers: ManyBrokers) -> None:
    brokers.cluster.cut_link(1, 3)
    answer = delete(brokers, 3)
    brokers.settle(100)
    assert not answer.done
    brokers.cluster.move_leader("t", 0, 2)
    brokers.settle(10)
    assert results(answer) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_what_was_deleted_before_and_what_has_one_replica_is_answered_at_once(brokers: ManyBrokers) -> None:
    done = delete(brokers, 3, 0)
    brokers.settle(100)
    assert results(done) == [(0, 3), (0, 0)]
    again = delete(brokers, 2, 0)
    assert results(again) == [(0, 3), (0, 0)]


def test_one_partition_that_is_done_does_not_answer_for_the_other(brokers: ManyBrokers) -> None:
    brokers.produce("t", b"x", index=1)
    brokers.cluster.cut_link(1, 3)
    answer = delete(brokers, 3, 1, timeout_ms=500)
    brokers.settle(600)
    assert results(answer) == [(ErrorCode.REQUEST_TIMED_OUT, 0), (0, 1)]


def test_an_error_does_not_wait_with_the_others(brokers: ManyBrokers) -> None:
    answer = delete(brokers, 3, 7)
    brokers.settle(100)
    assert results(answer) == [(0, 3), (ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
