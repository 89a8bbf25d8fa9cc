"""CPU-bound work on one thread, in an order in which no work holds up all others for long.

Every job belongs to a level. While it runs, jobs of lower levels have their turns in between, on top of its stack. A
job that takes longer than its level allows is moved to the next level; if a job runs there already, it starts again
later. So at most one job of each level is under way, which bounds their memory, and nothing is computed by two threads,
which would only take the interpreter from the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent import futures
from time import sleep
from typing import Any, Final

from minibroker.kernel.executor import Abandoned
from minibroker_protocol.records import TakesLong
from minibroker_protocol.records.pace import BRIEF_STEPS, STEP

_STEPS_AT_MOST: Final = (BRIEF_STEPS, 4 * BRIEF_STEPS, 32 * BRIEF_STEPS, None, None)
"""Steps of a level's work: about 10 ms, 40 ms, 300 ms, and any number in the last two. The last level is for work that
nothing waits for."""
_WALK, _LAST = 1, 4
_STEPS_PER_SLICE: Final = BRIEF_STEPS
"""Steps of a work before one of a lower level has its turn."""
_TURNS_OF_LOWER = 3
"""Turns of the lowest level before the highest has one."""
# The thread gives the interpreter to the loop at each report of so many steps, for so long. Left alone it would only do
# so 5 ms (sys.getswitchinterval) after the loop asked, each time the loop came back from the system.
_BREATH_SECONDS = 0.00005


class ComputingEnded(Exception):
    """The work was ended because its executor was closed."""


def _always() -> bool:
    return True


class _Work:
    """wanted, keep: as in `Computing.submit`.
    level: the level at which it waits or runs.
    """

    __slots__ = ("future", "keep", "level", "run", "wanted")

    def __init__(self, run: Callable[[Any], Any], wanted: Callable[[], bool], keep: bool, level: int) -> None:
        self.run, self.wanted, self.keep, self.level = run, wanted, keep, level
        self.future: futures.Future[Any] = futures.Future()


class Computing:
    """The thread, and the works that wait for it. `submit` is called on the loop's thread, the rest on this one."""

    def __init__(self) -> None:
        self._pool = futures.ThreadPoolExecutor(1, thread_name_prefix="minibroker-computing")
        self._waiting: list[deque[_Work]] = [deque() for _ in _STEPS_AT_MOST]
        self._under_way: list[_Work] = []  # the last one runs, the others wait for it; their levels fall
        self._turns = 0
        self.ended = False

    def submit(
        self,
        run: Callable[[Any], Any],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> futures.Future[Any]:
        """Run `run(pace)`. It must change nothing before its last report to the pace, as it may be begun again.

        wanted: whether something waits for the result; once it does not, the work fails with Abandoned or, if it is to
            be kept, waits until there is no other.
        walk: it takes longer than the first level allows.
        """
        work = _Work(run, wanted or _always, keep, _WALK if walk else 0)
        if self.ended:
            work.future.set_exception(ComputingEnded())
        else:
            self._waiting[work.level].append(work)
            self._pool.submit(self._run_all)
        return work.future

    def close(self) -> None:
        """End the running work at its next report to the pace, fail the queued work, and end the thread."""
        self.ended = True
        self._pool.shutdown(wait=True)

    def _run_all(self) -> None:
        # Submitted once for each piece of work, which an earlier call has mostly run already.
        while self._run_one(below=_LAST + 1):
            pass

    def _run_one(self, below: int) -> bool:
        """Run a work of a level below `below`; False if there is none."""
        self._turns += 1
        levels = range(below) if self._turns % (_TURNS_OF_LOWER + 1) else reversed(range(below))
        for level in levels:
            while self._waiting[level]:
                work = self._waiting[level].popleft()
                if self._is_due(work):
                    self._run(work)
                    return True
        return False

    def _is_due(self, work: _Work) -> bool:
        if self.ended:
            work.future.set_exception(ComputingEnded())
        elif work.level == _LAST or work.wanted():
            return True
        elif work.keep:
            work.level = _LAST
            self._waiting[_LAST].append(work)
        else:
            work.future.set_exception(Abandoned())
        return False

    def _run(self, work: _Work) -> None:
        self._under_way.append(work)
        try:
            result = work.run(_Pace(self, work))
        except TakesLong:
            work.level += 1
            self._waiting[work.level].append(work)
        except BaseException as error:
            work.future.set_exception(error)
        else:
            work.future.set_result(result)
        finally:
            self._under_way.pop()

    def raise_level(self, work: _Work) -> int | None:
        """Move the running work to the next level; returns its steps. Raises TakesLong if that is taken."""
        if len(self._under_way) > 1 and self._under_way[-2].level == work.level + 1:
            raise TakesLong(f"more than {_STEPS_AT_MOST[work.level]} steps")
        work.level += 1
        return _STEPS_AT_MOST[work.level]

    def others(self, work: _Work) -> None:
        """Run a work of a lower level, if there is one, in the middle of this one."""
        self._run_one(below=work.level)


class _Pace:
    """The `Pace` of one piece of work: ends it if it is not wanted or takes too long, and yields to the loop and to
    other work."""

    most_bytes: int | None = None

    def __init__(self, computing: Computing, work: _Work) -> None:
        self._computing, self._work = computing, work
        self._most = _STEPS_AT_MOST[work.level]
        self._done = self._reported = 0
        self._slice_end = _STEPS_PER_SLICE

    def __call__(self, steps: int) -> None:
        self._done += steps
        if self._done - self._reported < STEP:
            return
        self._reported = self._done
        work, computing = self._work, self._computing
        if computing.ended:
            raise ComputingEnded
        if not work.keep and not work.wanted():
            raise Abandoned
        if self._most is not None and self._done > self._most:
            self._most = computing.raise_level(work)
        sleep(_BREATH_SECONDS)
        if self._done >= self._slice_end:
            self._slice_end = self._done + _STEPS_PER_SLICE
            computing.others(work)
