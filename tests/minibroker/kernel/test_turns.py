"""Long work leaves the loop its turn, short work is done at once."""

from __future__ import annotations

import pytest
from manual_time import ManualTimers

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEP, STEPS_AT_ONCE, InOrder, Lane, at_once, in_turns


async def count(number: int, done: list[int]) -> int:
    for i in range(number):
        await STEP
        done.append(i)
    return number


def test_a_short_list_is_done_at_once() -> None:
    timers = ManualTimers()
    assert in_turns(Lane(timers), count(STEPS_AT_ONCE - 1, [])) == STEPS_AT_ONCE - 1
    assert timers.armed == 0


def test_a_long_list_gives_the_loop_back() -> None:
    timers = ManualTimers()
    done: list[int] = []
    answer = in_turns(Lane(timers), count(3 * STEPS_AT_ONCE, done))
    assert isinstance(answer, Deferred)
    assert not answer.done
    assert len(done) == STEPS_AT_ONCE - 1
    timers.advance(0)
    assert answer.result() == 3 * STEPS_AT_ONCE


def test_what_is_waited_for_in_between_is_waited_for() -> None:
    timers = ManualTimers()
    given: Deferred[int] = Deferred()

    async def work() -> int:
        await STEP
        return await given + await count(2 * STEPS_AT_ONCE, [])

    answer = in_turns(Lane(timers), work())
    assert isinstance(answer, Deferred)
    given.resolve(1)
    assert not answer.done
    timers.advance(0)
    assert answer.result() == 2 * STEPS_AT_ONCE + 1


@pytest.mark.parametrize("steps", [0, 3 * STEPS_AT_ONCE])
def test_an_error_comes_from_wherever_it_is_raised(steps: int) -> None:
    timers = ManualTimers()

    async def work() -> None:
        await count(steps, [])
        raise ValueError("no")

    if steps == 0:
        with pytest.raises(ValueError, match="no"):
            in_turns(Lane(timers), work())
        return
    answer = in_turns(Lane(timers), work())
    timers.advance(0)
    assert isinstance(answer, Deferred)
    with pytest.raises(ValueError, match="no"):
        answer.result()


def test_works_come_one_after_another() -> None:
    timers = ManualTimers()
    works = InOrder(timers)
    done: list[int] = []

    async def work(number: int, steps: int) -> None:
        await count(steps, [])
        done.append(number)

    works.run(work(0, 1))
    assert works.idle.done
    works.run(work(1, 2 * STEPS_AT_ONCE))
    works.run(work(2, 1))
    assert not works.idle.done
    assert done == [0]
    timers.advance(0)
    assert works.idle.done
    assert done == [0, 1, 2]


@pytest.mark.parametrize("steps", [0, 2 * STEPS_AT_ONCE])
def test_a_work_that_fails_holds_up_no_other(steps: int) -> None:
    timers = ManualTimers()
    works = InOrder(timers)
    done: list[int] = []

    async def broken() -> None:
        await count(steps, [])
        raise ValueError("no")

    async def good() -> None:
        await STEP
        done.append(1)

    if steps == 0:
        with pytest.raises(ValueError, match="no"):
            works.run(broken())
    else:
        works.run(broken())
    works.run(good())
    timers.advance(0)
    assert works.idle.done
    assert done == [1]


def test_nothing_begins_after_the_end() -> None:
    timers = ManualTimers()
    works = InOrder(timers)
    done: list[int] = []

    async def work() -> None:
        for _ in range(2 * STEPS_AT_ONCE):
            await STEP
            if works.closed:
                return
        done.append(1)

    works.run(work())
    works.run(work())
    works.close()
    works.run(work())
    timers.advance(0)
    assert works.idle.done
    assert done == []


def test_all_at_once() -> None:
    assert at_once(count(3 * STEPS_AT_ONCE, [])) == 3 * STEPS_AT_ONCE
