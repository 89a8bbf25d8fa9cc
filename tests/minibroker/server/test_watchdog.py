from __future__ import annotations

import asyncio
import time

import pytest

from minibroker.server.watchdog import LoopWatchdog


async def test_says_when_the_loop_was_held_up(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(asyncio.get_running_loop(), 200)
    watchdog.start()
    await asyncio.sleep(0.05)
    assert watchdog.late == 0
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
    await asyncio.sleep(0.05)
    beat = watchdog._timer
    assert beat is not None
    for _ in range(2):
        watchdog.stop()
    assert beat.cancelled()
    assert watchdog.late == 1
    assert watchdog.worst_ms > 200
    assert "ms late" in caplog.text
