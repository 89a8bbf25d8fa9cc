from __future__ import annotations

import asyncio
import builtins
import logging
import threading
from typing import Any

import pytest

from minibroker.kernel.asyncio_runtime import LoopTimers, new_event_loop
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.threads import ThreadExecutor


async def _result(deferred: Deferred[Any]) -> Any:
    done = asyncio.Event()
    deferred.then(lambda _: done.set())
    await asyncio.wait_for(done.wait(), 60)
    return deferred.result()


async def test_work_runs_on_a_thread_and_its_result_arrives_on_the_loops() -> None:
    executor = ThreadExecutor(asyncio.get_running_loop())
    arrived: list[str] = []
    deferred = executor.submit(lambda: threading.current_thread().name)
    deferred.then(lambda _: arrived.append(threading.current_thread().name))
    assert (await _result(deferred)).startswith("minibroker-disk")
    assert arrived == [threading.main_thread().name]
    executor.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("minibroker-disk")]


async def test_an_error_of_the_work_arrives_too() -> None:
    executor = ThreadExecutor(asyncio.get_running_loop())
    with pytest.raises(ZeroDivisionError):
        await _result(executor.submit(lambda: 1 // 0))
    executor.close()


async def test_closed_timers_fire_no_more() -> None:
    timers = LoopTimers(asyncio.get_running_loop())
    fired: list[int] = []
    timers.call_later(1, lambda: fired.append(1))
    timers.call_later(1, lambda: fired.append(2)).cancel()
    await asyncio.sleep(0.02)
    assert fired == [1]
    timers.call_later(1, lambda: fired.append(3))
    timers.close()
    await asyncio.sleep(0.02)
    assert fired == [1]


def test_without_uvloop_the_platforms_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    for loop in (new_event_loop(), new_event_loop(uvloop=False)):
        assert type(loop).__module__.startswith("asyncio")
        loop.close()


def test_a_new_loop_leaves_the_log_of_asyncio_as_it_was() -> None:
    log = logging.getLogger("asyncio")
    for disabled in (True, False):
        log.disabled = disabled
        new_event_loop().close()
        found, log.disabled = log.disabled, False
        assert (found, log.filters) == (disabled, [])


async def test_what_is_due_now_runs_before_what_comes_later() -> None:
    """Else a request that is read meanwhile would overtake the marker of a transaction that was answered."""
    loop = asyncio.get_running_loop()
    order: list[str] = []
    LoopTimers(loop).call_later(0, lambda: order.append("due now"))
    loop.call_soon(order.append, "later")
    await asyncio.sleep(0.01)
    assert order == ["due now", "later"]
