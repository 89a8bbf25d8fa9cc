"""What each action does to a request, on a whole broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from faulty import FaultyCluster, produce_request

from minibroker.broker.connection import ConnectionInfo
from minibroker.faults import FaultError
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.requests.chain import Place
from minibroker.requests.context import CloseConnection
from minibroker_protocol.fields import Buffer
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.groups import FindCoordinatorRequest, HeartbeatRequest
from minibroker_protocol.messages.transactions import InitProducerIdRequest

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
DUPLICATE_OR_NONE = 0


@pytest.fixture
def broker() -> Iterator[FaultyCluster]:
    cluster = FaultyCluster(topics={"t": 1})
    yield cluster
    cluster.commands.close()
    cluster.stop()


def produce(broker: FaultyCluster, sequence: int, *, producer_id: int = 5) -> Deferred[Any]:
    return broker.send(produce_request("t", 0, producer_id=producer_id, epoch=0, sequence=sequence), 9)


def code(answer: Deferred[Any]) -> int:
    found: int = answer.result().responses[0].partition_responses[0].error_code
    return found


def end(broker: FaultyCluster) -> int:
    return broker.broker.partition("t", 0).log.log_end_offset


def test_error_changes_nothing(broker: FaultyCluster) -> None:
    broker.inject("Produce", {"name": "error", "code": "NOT_ENOUGH_REPLICAS"})
    assert (code(produce(broker, 0)), end(broker)) == (19, 0)
    assert (code(produce(broker, 0)), end(broker)) == (0, 1)


def test_apply_then_error_has_applied(broker: FaultyCluster) -> None:
    broker.inject("Produce", {"name": "apply_then_error", "code": "REQUEST_TIMED_OUT"})
    assert (code(produce(broker, 0)), end(broker)) == (7, 1)
    answer = produce(broker, 0).result().responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset, end(broker)) == (0, 0, 1)  # the retry is a duplicate


def test_drop_reply_has_applied(broker: FaultyCluster) -> None:
    broker.inject("Produce", "drop_reply")
    with pytest.raises(CloseConnection, match="dropped"):
        produce(broker, 0).result()
    assert end(broker) == 1


def test_drop_reply_can_leave_the_client_waiting(broker: FaultyCluster) -> None:
    rule = broker.inject("Produce", {"name": "drop_reply", "close": False})
    answer = produce(broker, 0)
    assert (answer.done, end(broker)) == (False, 1)
    broker.commands.engine.remove(rule.number)
    with pytest.raises(CloseConnection):
        answer.result()


@pytest.mark.parametrize(("when", "at_once"), [("before", 0), ("after", 1)])
def test_delay(broker: FaultyCluster, when: str, at_once: int) -> None:
    broker.inject("Produce", {"name": "delay", "ms": 300, "when": when})
    answer = produce(broker, 0)
    broker.timers.advance(299)
    assert (answer.done, end(broker)) == (False, at_once)
    broker.timers.advance(1)
    assert (code(answer), end(broker)) == (0, 1)


@pytest.mark.parametrize(("when", "at_once"), [("before", 0), ("after", 1)])
def test_hold_until_released(broker: FaultyCluster, when: str, at_once: int) -> None:
    rule = broker.inject("Produce", {"name": "hold", "when": when}, times=2)
    first, second = produce(broker, 0), produce(broker, 0, producer_id=6)
    assert (first.done, second.done, end(broker), rule.held) == (False, False, 2 * at_once, 2)
    assert rule.release(1) == 1
    assert (first.done, second.done) == (True, False)
    rule.release()
    assert (code(second), end(broker)) == (0, 2)


def test_duplicate_applies_again_and_answers_once(broker: FaultyCluster) -> None:
    broker.inject("Produce", {"name": "duplicate", "copies": 2})
    without_producer = produce_request("t", 0, producer_id=-1, epoch=-1, sequence=-1)
    assert broker.send(without_producer, 9).result().responses[0].partition_responses[0].base_offset == 0
    assert end(broker) == 3
    broker.inject("Produce", "duplicate")
    assert (code(produce(broker, 0)), end(broker)) == (0, 4)  # the second copy of an idempotent batch is none


def test_duplicate_later(broker: FaultyCluster) -> None:
    broker.inject("Produce", {"name": "duplicate", "after_ms": 50})
    broker.send(produce_request("t", 0, producer_id=-1, epoch=-1, sequence=-1), 9).result()
    assert end(broker) == 1
    broker.timers.advance(50)
    assert end(broker) == 2


def test_throttle_tells_the_client(broker: FaultyCluster) -> None:
    broker.inject("Produce", {"name": "throttle", "ms": 250})
    assert produce(broker, 0).result().throttle_time_ms == 250
    assert produce(broker, 1).result().throttle_time_ms == 0


def test_a_throttled_fetch_has_no_topics(broker: FaultyCluster) -> None:
    """As Kafka 4.4.0 over consumer_byte_rate: no session is made, and one that exists goes on."""
    produce(broker, 0)

    def fetch(session_id: int, session_epoch: int) -> Any:
        wanted = [FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
        topics = [FetchRequest.FetchTopic(topic="t", partitions=wanted)] if session_epoch <= 0 else []
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=session_epoch, topics=topics
        )
        return broker.send(request, 11).result()

    broker.inject("Fetch", {"name": "throttle", "ms": 250}, times=2)
    for epoch in (-1, 0):
        answer = fetch(0, epoch)
        assert (answer.throttle_time_ms, answer.error_code, answer.session_id, answer.responses) == (250, 0, 0, [])
    session = fetch(0, 0).session_id
    assert session
    broker.inject("Fetch", {"name": "throttle", "ms": 250}, times=1)
    answer = fetch(session, 1)
    assert (answer.throttle_time_ms, answer.error_code, answer.session_id, answer.responses) == (250, 0, session, [])
    assert bytes(fetch(session, 2).responses[0].partitions[0].records)


def test_close_and_reset_change_nothing(broker: FaultyCluster) -> None:
    for name in ("close", "reset"):
        broker.inject("Produce", name)
        with pytest.raises(CloseConnection):
            produce(broker, 0).result()
    assert end(broker) == 0


def test_a_black_hole_takes_everything_of_its_client_and_ends_with_the_rule(broker: FaultyCluster) -> None:
    rule = broker.inject("Produce", "black_hole", client_id="test")
    lost = [produce(broker, 0), broker.send(HEARTBEAT, 4)]
    assert [answer.done for answer in lost] == [False, False]
    assert broker.send(HEARTBEAT, 4, client_id="other").done
    broker.commands.engine.remove(rule.number)
    for answer in lost:
        with pytest.raises(CloseConnection):
            answer.result()
    assert end(broker) == 0


def test_corrupt_flips_one_byte(broker: FaultyCluster) -> None:
    plain = raw(broker, 0)
    for sequence, (at, position) in enumerate([(None, 4), (0, 4), (5, 9), (-1, len(plain) - 1), (99_999, -1)], 1):
        broker.inject("Produce", {"name": "corrupt", "at": at})
        damaged = raw(broker, sequence)
        assert len(plain) == len(damaged)
        expected = bytearray(plain)
        expected[12:] = damaged[12:]  # offsets differ
        expected[position] = plain[position] ^ 0xFF
        assert damaged == expected or position in (-1, len(plain) - 1)
        assert damaged[position] == plain[position] ^ 0xFF


def test_a_corrupt_request_is_refused_or_ends_the_connection(broker: FaultyCluster) -> None:
    broker.inject("Produce", {"name": "corrupt", "of": "request"})
    assert (code(produce(broker, 0)), end(broker)) == (2, 0)  # CORRUPT_MESSAGE
    assert (code(produce(broker, 0)), end(broker)) == (0, 1)  # what the client sends again is whole
    broker.inject("Heartbeat", {"name": "corrupt", "of": "request", "at": 0})
    with pytest.raises(CloseConnection, match="the request is damaged"):
        broker.send(HEARTBEAT, 4).result()
    with pytest.raises(FaultError, match="of is answer or request, not 'both'"):
        broker.inject("Heartbeat", {"name": "corrupt", "of": "both"})


def test_corrupt_breaks_the_checksum_of_records(broker: FaultyCluster) -> None:
    assert code(produce(broker, 0)) == 0
    broker.inject("Fetch", "corrupt")
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchRequest.FetchTopic(topic="t", partitions=[wanted])])
    damaged, whole = (bytes(broker.send(request, 11).result().responses[0].partitions[0].records) for _ in range(2))
    assert damaged[:-1] == whole[:-1]
    assert damaged[-1] == whole[-1] ^ 0xFF


def raw(broker: FaultyCluster, sequence: int) -> bytes:
    frame = broker.frame(produce_request("t", 0, producer_id=5, epoch=0, sequence=sequence), 9)
    answer = broker.dispatcher.dispatch(frame, ConnectionInfo())
    buffers = answer.result() if isinstance(answer, Deferred) else answer
    assert buffers is not None
    return b"".join(buffers)


class Wire:
    """The end of a connection that keeps what is pushed."""

    def __init__(self) -> None:
        self.pushed: list[bytes] = []
        self.was_reset = False

    def push(self, buffers: list[Buffer]) -> None:
        self.pushed.append(b"".join(buffers))

    def reset(self) -> None:
        self.was_reset = True


def on(broker: FaultyCluster, info: ConnectionInfo, sequence: int) -> Deferred[Any]:
    frame = broker.frame(
        produce_request("t", 0, producer_id=5, epoch=0, sequence=sequence), 9, correlation_id=100 + sequence
    )
    answer = broker.dispatcher.dispatch(frame, info)
    return answer if isinstance(answer, Deferred) else resolved(answer)


def test_truncate_sends_the_beginning_and_closes(broker: FaultyCluster) -> None:
    wire = Wire()
    broker.inject("Produce", {"name": "truncate", "keep": 9})
    with pytest.raises(CloseConnection):
        on(broker, ConnectionInfo(channel=wire), 0).result()
    assert [len(data) for data in wire.pushed] == [9]
    assert end(broker) == 1


def test_reset_cuts_the_connection(broker: FaultyCluster) -> None:
    wire = Wire()
    broker.inject("Produce", "reset")
    assert on(broker, ConnectionInfo(channel=wire), 0).result() is None
    assert wire.was_reset
    assert end(broker) == 0


def test_reorder_applies_the_next_request_first_and_answers_in_order(broker: FaultyCluster) -> None:
    info = ConnectionInfo(channel=Wire())
    broker.inject("Produce", "reorder")
    assert on(broker, info, 0).result() is None
    answers = b"".join(on(broker, info, 1).result())
    sizes = int.from_bytes(answers[:4], "big")
    first, second = answers[4 : 4 + sizes], answers[8 + sizes :]
    assert (int.from_bytes(first[:4], "big"), int.from_bytes(second[:4], "big")) == (100, 101)
    # Sequence 1 came first, to a producer nobody knew; 0 then was out of order.
    log = broker.broker.partition("t", 0).log.producers.entry(5)
    assert log is not None
    assert (log.last_sequence, end(broker)) == (1, 1)


def test_reorder_gives_up_when_nothing_follows(broker: FaultyCluster) -> None:
    wire = Wire()
    broker.inject("Produce", {"name": "reorder", "within_ms": 80})
    on(broker, ConnectionInfo(channel=wire), 0).result()
    broker.timers.advance(79)
    assert end(broker) == 0
    broker.timers.advance(1)
    assert end(broker) == 1
    assert int.from_bytes(wire.pushed[0][4:8], "big") == 100


@pytest.mark.parametrize(("when", "expected"), [("before", 0), ("after", 0)])
def test_do_between_append_and_reply(broker: FaultyCluster, when: str, expected: int) -> None:
    code(produce(broker, 0))
    operation = {"operation": "lose_producer_state", "arguments": {"topic": "t", "partition": 0}, "when": when}
    broker.inject("Produce", {"name": "do", **operation})
    assert code(produce(broker, 1)) == expected
    known = broker.broker.partition("t", 0).log.producers.entry(5)
    assert (known is None) == (when == "after")


def test_do_with_what_the_request_names(broker: FaultyCluster) -> None:
    taken = {"topic": "$topic", "partition": "$partition", "producer_id": "$producer_id"}
    code(produce(broker, 0))
    code(produce(broker, 0, producer_id=6))
    broker.inject("Produce", {"name": "do", "operation": "lose_producer_state", "arguments": taken, "when": "after"})
    code(produce(broker, 1))
    producers = broker.broker.partition("t", 0).log.producers
    assert (producers.entry(5), producers.entry(6) is None) == (None, False)


def test_a_request_without_it_is_only_applied(broker: FaultyCluster) -> None:
    taken = {"transactional_id": "$transactional_id", "to": "$other_broker"}
    rule = broker.inject("InitProducerId", {"name": "do", "operation": "move_coordinator", "arguments": taken})
    answer = broker.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert (answer.result().error_code, rule.fired) == (0, 1)


def test_an_operation_that_cannot_be_done_closes_the_connection(broker: FaultyCluster) -> None:
    moved = {"topic": "$topic", "partition": 7, "to": 2}
    broker.inject("Produce", {"name": "do", "operation": "move_leader", "arguments": moved})
    with pytest.raises(CloseConnection, match="fault: move_leader cannot be done: "):
        code(produce(broker, 0))


def test_an_aborted_transaction_at_the_end_of_a_partition(broker: FaultyCluster) -> None:
    code(produce(broker, 0))
    appended = {"topic": "t", "partition": 0}
    assert broker.commands.call("state.append_aborted", appended).result() == 1
    log = broker.broker.partition("t", 0).log
    assert (log.log_end_offset, log.last_stable_offset) == (3, 3)
    assert [(one.first_offset, one.last_offset) for one in log.last_aborted(9)] == [(1, 2)]


def test_the_epoch_of_an_id_that_is_new(broker: FaultyCluster) -> None:
    taken = {"transactional_id": "$transactional_id", "epoch": 32764}
    broker.inject("InitProducerId", {"name": "do", "operation": "set_producer_epoch", "arguments": taken})
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    broker.send(FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), 4)
    found = [broker.send(request, 4).result() for _ in range(3)]
    assert [one.producer_epoch for one in found] == [32765, 32766, 0]
    assert found[0].producer_id == found[1].producer_id != found[2].producer_id


def test_waiting_for_a_rule(broker: FaultyCluster) -> None:
    rule = broker.inject("Heartbeat", {"name": "error", "code": "NOT_COORDINATOR"}, times=3)
    waited = broker.commands.call("fault.wait", {"id": rule.number, "times": 2, "timeout_ms": 1000})
    broker.send(HEARTBEAT, 4)
    assert not waited.done
    broker.send(HEARTBEAT, 4)
    assert waited.result()["fired"] == 2
    assert [hit["api"] for hit in waited.result()["hits"]] == ["Heartbeat"] * 2


def test_waiting_ends_when_the_time_is_up_or_the_rule_goes(broker: FaultyCluster) -> None:
    rule = broker.inject("Heartbeat", "close")
    waited = broker.commands.call("fault.wait", {"id": rule.number, "timeout_ms": 1000})
    broker.timers.advance(1000)
    assert waited.result()["fired"] == 0
    waited = broker.commands.call("fault.wait", {"id": rule.number, "timeout_ms": 1000})
    broker.commands.call("fault.remove", {"id": rule.number})
    assert waited.result()["fired"] == 0
    with pytest.raises(FaultError, match="no rule"):
        broker.commands.call("fault.get", {"id": rule.number})


def test_stopping_answers_nobody_and_holds_nobody(broker: FaultyCluster) -> None:
    broker.inject("Produce", "hold")
    answer = produce(broker, 0)
    broker.commands.close()
    with pytest.raises(CloseConnection, match="gone"):
        answer.result()
    assert broker.dispatcher.link_at(Place.FAULTS_AND_TRACE) is None


def test_a_fetch_without_records_has_the_offsets_as_they_are(broker: FaultyCluster) -> None:
    produce(broker, 0).result()
    rule = broker.inject("Fetch", "no_records")
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[partition])]
    answers = [
        broker.send(FetchRequest(topics=topics, max_bytes=1000, max_wait_ms=0, min_bytes=0), 11).result()
        for _ in range(2)
    ]
    seen = [answer.responses[0].partitions[0] for answer in answers]
    assert [bool(part.records) for part in seen] == [False, True]
    assert {(part.error_code, part.high_watermark) for part in seen} == {(0, 1)}
    assert rule.fired == 1
