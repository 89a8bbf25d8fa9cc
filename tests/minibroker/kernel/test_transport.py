"""The wire within one process: copies, turns of the loop, and nodes that vanish."""

from __future__ import annotations

import pytest
from manual_time import ManualTimers

from minibroker.cluster.in_process_network import InProcessNetwork
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.kernel.transport import CONTROLLER
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.inter_broker import AllocateProducerIdsRequest, AllocateProducerIdsResponse

REQUEST = AllocateProducerIdsRequest(broker_id=1, broker_epoch=7)
RESPONSE = AllocateProducerIdsResponse(producer_id_start=1000, producer_id_len=10)


class Node:
    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.answer: Deferred[Response] = resolved(RESPONSE)

    def __call__(self, request: Request, version: int) -> Deferred[Response]:
        self.seen.append(request)
        return self.answer


@pytest.fixture
def timers() -> ManualTimers:
    return ManualTimers()


@pytest.fixture
def network(timers: ManualTimers) -> InProcessNetwork:
    network = InProcessNetwork(timers)
    network.attach(CONTROLLER, Node())
    return network


def test_another_node_gets_a_copy_and_so_does_the_sender(network: InProcessNetwork, timers: ManualTimers) -> None:
    one, two = Node(), Node()
    network.attach(1, one)
    network.attach(2, two)
    answer = network.endpoint(1).send(2, REQUEST, 0)
    assert two.seen == []
    timers.advance(0)
    assert two.seen == [REQUEST]
    assert two.seen[0] is not REQUEST
    assert answer.result() == RESPONSE
    assert answer.result() is not RESPONSE


def test_a_node_calls_itself_and_a_single_broker_its_controller(network: InProcessNetwork) -> None:
    one = Node()
    network.attach(1, one)
    assert network.endpoint(1).send(1, REQUEST, 0).result() is RESPONSE
    assert network.endpoint(1).send(CONTROLLER, REQUEST, 0).result() is RESPONSE
    network.attach(2, Node())
    assert not network.endpoint(1).send(CONTROLLER, REQUEST, 0).done


def test_a_node_that_vanishes_fails_what_waits_for_it(network: InProcessNetwork, timers: ManualTimers) -> None:
    two = Node()
    two.answer = Deferred()
    network.attach(1, Node())
    network.attach(2, two)
    waiting = network.endpoint(1).send(2, REQUEST, 0)
    timers.advance(0)
    network.detach(2)
    later = network.endpoint(1).send(2, REQUEST, 0)
    timers.advance(0)
    for failed in (waiting, later):
        with pytest.raises(ApiError) as error:
            failed.result()
        assert error.value.code == ErrorCode.NETWORK_EXCEPTION
    two.answer.resolve(RESPONSE)  # too late, and harmless


def test_a_failure_of_the_other_side_arrives_without_its_frames(
    network: InProcessNetwork, timers: ManualTimers
) -> None:
    two = Node()
    two.answer = Deferred()
    network.attach(1, Node())
    network.attach(2, two)
    waiting = network.endpoint(1).send(2, REQUEST, 0)
    timers.advance(0)
    raised = ApiError(ErrorCode.NOT_CONTROLLER, "no")
    two.answer.fail(raised)
    timers.advance(0)
    with pytest.raises(ApiError) as error:
        waiting.result()
    assert error.value.code == ErrorCode.NOT_CONTROLLER
    assert error.value is not raised


def test_what_is_sent_over_a_cut_link_arrives_once_it_is_mended(
    network: InProcessNetwork, timers: ManualTimers
) -> None:
    two = Node()
    network.attach(1, Node())
    network.attach(2, two)
    news: list[int] = []
    network.cut(2, 1)
    network.cut(2, CONTROLLER)
    answer = network.endpoint(1).send(2, REQUEST, 0)
    network.publish(2, lambda: news.append(1))
    network.publish(2, lambda: news.append(2))
    network.publish(1, lambda: news.append(0))
    timers.advance(1000)
    assert (two.seen, news, answer.done) == ([], [0], False)
    network.mend(1, 2)
    network.mend(CONTROLLER, 2)
    timers.advance(0)
    assert (two.seen, news) == ([REQUEST], [0, 1, 2])
    assert answer.result() == RESPONSE


def test_an_answer_does_not_pass_a_link_that_was_cut_meanwhile(network: InProcessNetwork, timers: ManualTimers) -> None:
    two = Node()
    two.answer = Deferred()
    network.attach(1, Node())
    network.attach(2, two)
    answer = network.endpoint(1).send(2, REQUEST, 0)
    timers.advance(0)
    network.cut(1, 2)
    two.answer.resolve(RESPONSE)
    timers.advance(1000)
    assert not answer.done
    network.mend(1, 2)
    timers.advance(0)
    assert answer.result() == RESPONSE


def test_a_sender_does_not_wait_for_ever(timers: ManualTimers) -> None:
    network = InProcessNetwork(timers, patience_ms=600)
    two = Node()
    two.answer = Deferred()
    network.attach(1, Node())
    network.attach(2, two)
    answer = network.endpoint(1).send(2, REQUEST, 0)
    timers.advance(599)
    assert not answer.done
    timers.advance(201)
    with pytest.raises(ApiError) as late:
        answer.result()
    assert late.value.code == ErrorCode.NETWORK_EXCEPTION
    two.answer.resolve(RESPONSE)  # nobody is there to take it
    timers.advance(1000)
    assert timers.armed == 0


def test_nothing_that_was_held_reaches_a_node_that_is_gone(network: InProcessNetwork, timers: ManualTimers) -> None:
    network.attach(1, Node())
    network.attach(2, Node())
    network.cut(2, CONTROLLER)
    news: list[int] = []
    network.publish(2, lambda: news.append(1))
    network.detach(2)
    network.attach(2, Node())
    network.mend(2, CONTROLLER)
    timers.advance(10)
    assert news == []
