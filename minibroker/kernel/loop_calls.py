"""Calls from other threads that run on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from minibroker.kernel.deferred import Deferred


def call_in_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> Future[Any]:
    """Have the loop's thread call `work`; the result, or what a Deferred that it returns is resolved with.

    Raises RuntimeError when the loop is closed.
    """
    outcome: Future[Any] = Future()

    def deliver(deferred: Deferred[Any]) -> None:
        try:
            outcome.set_result(deferred.result())
        except BaseException as error:
            outcome.set_exception(error)

    def begin() -> None:
        try:
            result = work()
        except BaseException as error:
            outcome.set_exception(error)
            return
        if isinstance(result, Deferred):
            result.then(deliver)
        else:
            outcome.set_result(result)

    loop.call_soon_threadsafe(begin)
    return outcome
