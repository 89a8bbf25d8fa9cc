"""A broker that the controller does not hear of is fenced when its session ends, and serves again once it is heard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from many_brokers import ManyBrokers

from minibroker.kernel.transport import CONTROLLER
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import BrokerHeartbeatRequest, BrokerHeartbeatResponse

SESSION_MS = 9000
LAG_MS = 30_000


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    many = ManyBrokers(3)
    many.create("t", [[1, 2, 3]])
    yield many
    many.stop()


def cut_off(brokers: ManyBrokers, node_id: int, *, mend: bool = False) -> None:
    """From the controller and every other broker."""
    for other in {CONTROLLER, 1, 2, 3} - {node_id}:
        (brokers.cluster.mend_link if mend else brokers.cluster.cut_link)(node_id, other)


def fenced(brokers: ManyBrokers) -> set[int]:
    return {node for node, broker in brokers.cluster.image.brokers.items() if broker.fenced}


def test_brokers_that_are_heard_of_stay(brokers: ManyBrokers) -> None:
    before = brokers.cluster.image.partition("t", 0)
    brokers.settle(5 * SESSION_MS)
    assert fenced(brokers) == set()
    assert brokers.cluster.image.partition("t", 0) == before


def test_a_silent_leader_is_fenced_and_another_one_elected(brokers: ManyBrokers) -> None:
    brokers.produce("t", b"a")
    cut_off(brokers, 1)
    brokers.settle(SESSION_MS - 2000)
    assert fenced(brokers) == set()
    assert brokers.leader("t") == 1
    brokers.settle(4000)
    assert fenced(brokers) == {1}
    assert brokers.leader("t") == 2
    assert brokers.cluster.image.partition("t", 0).isr == (2, 3)
    assert brokers.produce("t", b"b").error_code == 0
    # It still takes itself for the leader, as nobody can tell it, and commits nothing.
    assert brokers.partition(1, "t").is_leader
    assert brokers.produce("t", b"lost", at=1, acks=1).error_code == 0
    assert brokers.partition(1, "t").high_watermark <= 1

    cut_off(brokers, 1, mend=True)
    brokers.settle(5000)
    assert fenced(brokers) == set()
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]
    assert brokers.values("t") == [b"a", b"b"]
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")


def test_a_silent_follower_leaves_the_set_by_whatever_comes_first(brokers: ManyBrokers) -> None:
    brokers.produce("t", b"a")
    cut_off(brokers, 3)
    brokers.settle(SESSION_MS + 2000)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2)
    assert brokers.leader("t") == 1


def test_a_follower_the_controller_hears_of_leaves_after_the_lag_time(brokers: ManyBrokers) -> None:
    """Cut off from the leader alone: its session lives, its replica does not follow."""
    brokers.produce("t", b"a")
    brokers.cluster.cut_link(1, 3)
    assert brokers.produce("t", b"b", acks=1).error_code == 0
    brokers.settle(LAG_MS / 2)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2, 3)
    brokers.settle(LAG_MS)
    assert brokers.cluster.image.partition("t", 0).isr == (1, 2)
    assert fenced(brokers) == set()
    brokers.cluster.mend_link(1, 3)
    brokers.settle(5000)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]


def test_a_kill_that_nobody_notices_shows_when_the_session_ends(brokers: ManyBrokers) -> None:
    brokers.cluster.kill_broker(1, unnoticed=True)
    assert brokers.leader("t") == 1
    brokers.settle(SESSION_MS + 2000)
    assert brokers.leader("t") == 2
    brokers.cluster.start_broker(1)
    brokers.settle(5000)
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]


def test_the_session_of_a_broker_that_was_added_is_watched(brokers: ManyBrokers) -> None:
    single = ManyBrokers(1)
    try:
        single.cluster.cut_link(1, CONTROLLER)
        single.settle(5 * SESSION_MS)
        assert fenced(single) == set()  # alone, it sends no heartbeat, and nobody waits for one
        single.cluster.mend_link(1, CONTROLLER)
        single.cluster.add_broker()
        single.settle(5 * SESSION_MS)
        assert fenced(single) == set()
        single.cluster.cut_link(2, CONTROLLER)
        single.settle(2 * SESSION_MS)
        assert fenced(single) == {2}
    finally:
        single.stop()


def test_a_process_that_was_held_up_as_a_whole_fences_nobody(brokers: ManyBrokers) -> None:
    """A debugger or a sleeping laptop: every timer is late by the same time, and fires once."""
    brokers.timers.hold_up(10 * SESSION_MS)
    brokers.settle(2 * SESSION_MS)
    assert fenced(brokers) == set()
    assert brokers.leader("t") == 1


def test_heartbeats_of_an_earlier_life_and_of_strangers_are_refused(brokers: ManyBrokers) -> None:
    def beat(node_id: int, epoch: int, offset: int = 1 << 40) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=node_id,
            broker_epoch=epoch,
            current_metadata_offset=offset,
            want_fence=False,
            want_shut_down=False,
        )
        answer = brokers.cluster.controller.handle(request, 2).result()
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer

    epoch = brokers.cluster.brokers[1].epoch
    assert beat(1, epoch - 1).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert beat(9, epoch).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    brokers.cluster.controller.replication.fence(1)
    behind = beat(1, epoch, offset=epoch - 1)
    assert (behind.error_code, behind.is_caught_up, behind.is_fenced) == (0, False, True)
    well = beat(1, epoch)
    assert (well.error_code, well.is_caught_up, well.is_fenced) == (0, True, False)
    assert fenced(brokers) == set()


def test_links_are_between_nodes_that_exist(brokers: ManyBrokers) -> None:
    with pytest.raises(ApiError) as unknown:
        brokers.cluster.cut_link(1, 7)
    assert unknown.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(ApiError) as same:
        brokers.cluster.cut_link(1, 1)
    assert same.value.code == ErrorCode.INVALID_REQUEST


def test_a_paused_broker_is_fenced_and_comes_back_when_it_goes_on(brokers: ManyBrokers) -> None:
    brokers.produce("t", b"a")
    brokers.cluster.pause_broker(1)
    brokers.settle(SESSION_MS + 2000)
    assert fenced(brokers) == {1}
    assert brokers.leader("t") == 2
    assert brokers.produce("t", b"b").error_code == 0
    brokers.cluster.resume_broker(1)
    brokers.settle(5000)
    assert fenced(brokers) == set()
    assert sorted(brokers.cluster.image.partition("t", 0).isr) == [1, 2, 3]
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")


@pytest.mark.parametrize(("interval_ms", "said"), [("500", False), ("501", True)])
def test_heartbeats_that_are_too_rare_are_told_of(
    caplog: pytest.LogCaptureFixture, interval_ms: str, said: bool
) -> None:
    ManyBrokers(1, {"broker.heartbeat.interval.ms": interval_ms, "broker.session.timeout.ms": "1000"}).stop()
    assert ("is above half of broker.session.timeout.ms (1000)" in caplog.text) == said
