"""A paused broker does nothing and loses nothing, as a process under SIGSTOP."""

from __future__ import annotations

from typing import Any

import pytest
from many_brokers import ManyBrokers

from minibroker.broker.suspension import Suspension
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.records import Record, build_batch


def batch(value: bytes) -> bytes:
    return bytes(build_batch([Record(0, 1_700_000_000_000, None, value)]))


def code(answer: Deferred[Any]) -> int:
    found: int = answer.result().responses[0].partition_responses[0].error_code
    return found


@pytest.fixture
def brokers() -> ManyBrokers:
    # Nobody leaves the in-sync set and no session ends while a test looks at the pause itself.
    lasting = {"replica.lag.time.max.ms": "3600000", "broker.session.timeout.ms": "3600000"}
    many = ManyBrokers(3, lasting)
    many.create("t", [[1, 2, 3]])
    return many


def test_clients_of_a_paused_broker_wait_and_are_answered_in_their_order(brokers: ManyBrokers) -> None:
    brokers.cluster.pause_broker(1)
    first = brokers.send(1, brokers.produce_request("t", batch(b"1")), 9)
    second = brokers.send(1, brokers.produce_request("t", batch(b"2")), 9)
    asked = brokers.send(1, MetadataRequest(topics=None), 9)
    brokers.settle(60_000)
    assert (first.done, second.done, asked.done) == (False, False, False)
    assert brokers.partition(1, "t").log_end_offset == 0
    brokers.cluster.resume_broker(1)
    brokers.settle(50)
    assert (code(first), code(second), asked.done) == (0, 0, True)
    assert brokers.values("t") == [b"1", b"2"]


def test_others_are_served_meanwhile(brokers: ManyBrokers) -> None:
    brokers.cluster.pause_broker(1)
    assert brokers.send(2, MetadataRequest(topics=None), 9).result().brokers


def test_a_paused_follower_copies_nothing_until_it_goes_on(brokers: ManyBrokers) -> None:
    brokers.cluster.pause_broker(2)
    answer = brokers.send(1, brokers.produce_request("t", batch(b"1")), 9)
    brokers.settle(900)
    assert not answer.done  # acks=all waits for what is still in sync
    assert brokers.partition(3, "t").log_end_offset == 1
    assert brokers.partition(2, "t").log_end_offset == 0
    brokers.cluster.resume_broker(2)
    brokers.settle(50)
    assert code(answer) == 0
    assert brokers.partition(2, "t").log_end_offset == 1


def test_a_paused_leader_gives_followers_nothing(brokers: ManyBrokers) -> None:
    brokers.cluster.pause_broker(2)
    brokers.settle(1000)  # its last fetch was answered: with nothing
    assert brokers.produce("t", b"1", acks=1).error_code == 0
    brokers.cluster.pause_broker(1)
    brokers.cluster.resume_broker(2)
    brokers.settle(5000)
    assert brokers.partition(2, "t").log_end_offset == 0
    brokers.cluster.resume_broker(1)
    brokers.settle(1000)
    assert brokers.partition(2, "t").log_end_offset == 1


def test_news_of_the_controller_wait(brokers: ManyBrokers) -> None:
    brokers.cluster.pause_broker(3)
    brokers.create("later", [[1, 2, 3]], at=1)
    assert "later" not in brokers.cluster.brokers[3].image.topics
    brokers.cluster.resume_broker(3)
    brokers.settle(50)
    assert "later" in brokers.cluster.brokers[3].image.topics


def test_a_broker_that_is_paused_for_longer_than_its_session_is_fenced_and_comes_back() -> None:
    brokers = ManyBrokers(3)
    brokers.create("t", [[1, 2, 3]])
    brokers.cluster.pause_broker(1)
    brokers.settle(12_000)
    assert brokers.leader("t") in (2, 3)
    assert not brokers.cluster.image.brokers[1].active
    assert brokers.produce("t", b"1").error_code == 0
    asked = brokers.send(1, brokers.produce_request("t", batch(b"lost")), 9)  # of a client that heard nothing of it
    brokers.cluster.resume_broker(1)
    brokers.settle(30_000)
    assert brokers.cluster.image.brokers[1].active
    assert code(asked) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [brokers.partition(node, "t").log_end_offset for node in (1, 2, 3)] == [1, 1, 1]
    assert brokers.values("t") == [b"1"]


def test_a_paused_broker_can_be_killed_and_stopped(brokers: ManyBrokers) -> None:
    for end in (brokers.cluster.kill_broker, brokers.cluster.stop_broker):
        brokers.cluster.pause_broker(2)
        assert brokers.cluster.paused_brokers == [2]
        end(2)
        assert brokers.cluster.paused_brokers == []
        brokers.settle()
        assert brokers.produce("t", b"x").error_code == 0
        brokers.cluster.start_broker(2)
        brokers.settle(1000)
        assert brokers.partition(2, "t").log_end_offset == brokers.partition(1, "t").log_end_offset


def test_a_broker_that_is_stopped_while_paused_first_does_what_waits(brokers: ManyBrokers) -> None:
    brokers.create("alone", [[2]])
    brokers.cluster.pause_broker(2)
    waiting = brokers.send(2, brokers.produce_request("alone", batch(b"1")), 9)
    brokers.cluster.stop_broker(2)
    assert code(waiting) == 0
    brokers.cluster.start_broker(2)
    brokers.settle(1000)
    assert brokers.values("alone") == [b"1"]


def test_only_a_broker_that_runs_can_be_paused(brokers: ManyBrokers) -> None:
    with pytest.raises(ApiError, match="broker 9 is not running"):
        brokers.cluster.pause_broker(9)
    brokers.cluster.resume_broker(1)  # was not paused


class Due:
    """Timers that fire when told."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def call_later(self, delay_ms: float, callback: Any) -> Due:
        self.callbacks.append(callback)
        return self

    def cancel(self) -> None:
        pass


def test_a_timer_that_was_due_in_the_pause_can_still_be_cancelled() -> None:
    suspension, due = Suspension(), Due()
    timers = suspension.timers(due)
    told: list[str] = []
    cancelled = timers.call_later(1, lambda: told.append("cancelled"))
    timers.call_later(1, lambda: told.append("kept"))
    suspension.pause()
    for callback in due.callbacks:
        callback()
    assert told == []
    cancelled.cancel()
    suspension.resume()
    assert told == ["kept"]


def test_what_fails_on_the_way_back_does_not_stop_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    suspension = Suspension()
    told: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    suspension.pause()
    suspension.run(fail)
    suspension.run(lambda: told.append("after"))
    suspension.resume()
    assert told == ["after"]
    assert "paused broker failed" in caplog.text


def test_a_killed_broker_drops_what_waits_and_is_paused_no_more() -> None:
    suspension, ran = Suspension(), []
    suspension.pause()
    suspension.run(lambda: ran.append("before"))
    suspension.drop()
    suspension.run(lambda: ran.append("after"))
    assert ran == ["after"]


def test_what_kills_the_broker_on_the_way_back_is_the_last_of_it() -> None:
    suspension, done = Suspension(), list[str]()
    suspension.pause()
    suspension.run(suspension.drop)
    suspension.run(lambda: done.append("after its end"))
    suspension.resume()
    assert (done, suspension.paused) == ([], False)


def test_what_pauses_again_leaves_the_rest_for_the_next_time() -> None:
    suspension, done = Suspension(), list[str]()
    suspension.pause()
    suspension.run(lambda: done.append("first"))
    suspension.run(suspension.pause)
    suspension.run(lambda: done.append("last"))
    suspension.resume()
    assert (done, suspension.paused) == (["first"], True)
    suspension.resume()
    assert (done, suspension.paused) == (["first", "last"], False)
