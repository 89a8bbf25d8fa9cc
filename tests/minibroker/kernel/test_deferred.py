from __future__ import annotations

import pytest
from manual_time import ManualTimers

from minibroker.kernel.deferred import Deferred, failed, gather, mapped, resolved, spawn
from minibroker.kernel.waiting import sleep, with_timeout


def test_a_coroutine_that_need_not_wait_is_done_when_spawn_returns() -> None:
    async def add() -> int:
        return await resolved(1) + await resolved(2)

    assert spawn(add()).result() == 3


def test_a_coroutine_goes_on_when_what_it_waits_for_arrives() -> None:
    first: Deferred[int] = Deferred()
    second: Deferred[int] = Deferred()

    async def add() -> int:
        return await first + await second

    outcome = spawn(add())
    second.resolve(2)
    assert not outcome.done
    first.resolve(1)
    assert outcome.result() == 3


def test_a_failure_reaches_the_waiting_coroutine_and_may_be_caught_there() -> None:
    waited: Deferred[int] = Deferred()

    async def careful() -> str:
        try:
            await waited
        except KeyError as error:
            return f"caught {error.args[0]}"
        return "nothing"

    outcome = spawn(careful())
    waited.fail(KeyError("x"))
    assert outcome.result() == "caught x"


def test_an_uncaught_failure_is_the_result_of_the_coroutine() -> None:
    async def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        spawn(broken()).result()


def test_a_value_is_delivered_once() -> None:
    deferred = resolved(1)
    with pytest.raises(RuntimeError, match="already"):
        deferred.resolve(2)
    with pytest.raises(RuntimeError, match="already"):
        deferred.fail(ValueError())


def test_the_result_of_an_open_deferred_cannot_be_had() -> None:
    with pytest.raises(RuntimeError, match="not resolved"):
        Deferred[int]().result()


def test_callbacks_run_in_order_and_at_once_when_late() -> None:
    deferred: Deferred[int] = Deferred()
    seen: list[str] = []
    deferred.then(lambda d: seen.append(f"a{d.result()}"))
    deferred.then(lambda d: seen.append(f"b{d.result()}"))
    deferred.resolve(1)
    deferred.then(lambda d: seen.append(f"c{d.result()}"))
    assert seen == ["a1", "b1", "c1"]


def test_one_takes_what_another_holds() -> None:
    source: Deferred[int] = Deferred()
    taker: Deferred[int] = Deferred()
    source.then(taker.take)
    assert not taker.done
    source.resolve(3)
    assert taker.result() == 3
    refused: Deferred[int] = Deferred()
    refused.take(failed(KeyError("gone")))
    with pytest.raises(KeyError, match="gone"):
        refused.result()
    with pytest.raises(RuntimeError, match="not resolved yet"):
        Deferred[int]().take(Deferred())


def test_a_mapped_value_fails_with_its_source_and_with_the_change() -> None:
    given: Deferred[str] = Deferred()
    number = mapped(given, int)
    assert not number.done
    given.resolve("7")
    assert number.result() == 7
    with pytest.raises(ValueError, match="invalid literal"):
        mapped(resolved("x"), int).result()
    with pytest.raises(KeyError, match="gone"):
        mapped(failed(KeyError("gone")), int).result()


def test_what_a_callback_of_a_mapped_value_raises_is_not_laid_to_the_change() -> None:
    given: Deferred[str] = Deferred()
    number = mapped(given, int)

    def broken(_: Deferred[int]) -> None:
        raise LookupError("the callback's own")

    number.then(broken)
    with pytest.raises(LookupError, match="own"):
        given.resolve("7")
    assert number.result() == 7


def test_gather_keeps_the_order_and_reports_a_failure_when_all_are_done() -> None:
    one: Deferred[int] = Deferred()
    two: Deferred[int] = Deferred()
    both = gather([one, two])
    two.resolve(2)
    one.resolve(1)
    assert both.result() == [1, 2]
    assert gather([]).result() == []

    bad: Deferred[int] = Deferred()
    late: Deferred[int] = Deferred()
    mixed = gather([bad, late])
    bad.fail(KeyError("gone"))
    assert not mixed.done
    late.resolve(1)
    with pytest.raises(KeyError):
        mixed.result()


def test_with_timeout_tells_which_came_first_and_cancels_its_timer() -> None:
    timers = ManualTimers()
    waited: Deferred[None] = Deferred()
    outcome = with_timeout(timers, waited, 100)
    waited.resolve(None)
    assert outcome.result() is True
    assert timers.armed == 0

    outcome = with_timeout(timers, Deferred(), 100)
    timers.advance(99)
    assert not outcome.done
    timers.advance(1)
    assert outcome.result() is False
    assert with_timeout(timers, Deferred(), 0).result() is False


def test_sleep_ends_after_its_time() -> None:
    timers = ManualTimers()
    slept = sleep(timers, 20)
    timers.advance(19)
    assert not slept.done
    timers.advance(1)
    assert slept.done
