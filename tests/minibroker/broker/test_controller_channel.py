"""Requests to a controller that is not there: when they are sent again, and when that ends."""

from __future__ import annotations

from typing import Any

import pytest
from manual_time import ManualTimers

from minibroker.broker.controller_channel import ControllerChannel
from minibroker.kernel.deferred import Deferred, failed, resolved
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

REQUEST = m.DescribeQuorumRequest(topics=[])
ANSWER = m.DescribeQuorumResponse(topics=[])


class Controllers:
    """What each try is answered with, the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.tries = list(answers), 0

    def send(self, *_: Any) -> Deferred[Any]:
        self.tries += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Deferred):
            return answer
        return failed(ApiError(answer, "no")) if isinstance(answer, ErrorCode) else resolved(answer)


def sent(*answers: Any) -> tuple[ControllerChannel, Controllers, ManualTimers, Deferred[Any]]:
    controllers, timers = Controllers(*answers), ManualTimers()
    channel = ControllerChannel(controllers, timers, lambda: resolved(None))  # type: ignore[arg-type]
    return channel, controllers, timers, channel.send(REQUEST, 1)


def code(answer: Deferred[Any]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        answer.result()
    return refused.value.code


@pytest.mark.parametrize("away", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_CONTROLLER])
def test_it_is_asked_every_50_ms_until_it_answers(away: ErrorCode) -> None:
    _, controllers, timers, answer = sent(away, away, ANSWER)
    timers.advance(49)
    assert (controllers.tries, answer.done) == (1, False)
    timers.advance(1)
    assert (controllers.tries, answer.done) == (2, False)
    timers.advance(50)
    assert (controllers.tries, answer.result(), timers.armed) == (3, ANSWER, 0)


def test_a_minute_without_a_controller_is_enough() -> None:
    _, controllers, timers, answer = sent(ErrorCode.NOT_CONTROLLER)
    timers.advance(59_999)
    assert not answer.done
    timers.advance(1)
    assert (code(answer), timers.armed) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    tries = controllers.tries
    timers.advance(60_000)
    assert controllers.tries == tries


def test_a_refusal_of_the_controller_is_an_answer() -> None:
    for error in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.REQUEST_TIMED_OUT):
        _, controllers, timers, answer = sent(error)
        assert (code(answer), controllers.tries, timers.armed) == (error, 1, 0)


def test_the_end_of_the_broker_ends_what_waits() -> None:
    channel, controllers, timers, answer = sent(ErrorCode.NOT_CONTROLLER)
    channel.close()
    assert (code(answer), timers.armed) == (ErrorCode.NETWORK_EXCEPTION, 0)
    late: Deferred[Any] = Deferred()
    channel, controllers, timers, answer = sent(late)
    channel.close()
    late.fail(ApiError(ErrorCode.NOT_CONTROLLER, "no"))
    timers.advance(1000)
    assert (code(answer), controllers.tries) == (ErrorCode.NOT_CONTROLLER, 1)
