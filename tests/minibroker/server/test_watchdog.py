from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from manual_time import ManualTimers

from minibroker import Minibroker
from minibroker.server import service, watchdog
from minibroker.server.watchdog import LoopWatchdog


class Loop(ManualTimers):
    """An event loop's time."""

    def time(self) -> float:
        return self._now_ms / 1000

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        return self.call_later(when * 1000 - self._now_ms, callback)


def test_says_when_the_loop_was_held_up(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a beat that is late, only the time in which the thread itself worked counts as the worst."""
    loop, worked = Loop(), [0.0]
    monkeypatch.setattr(watchdog.time, "thread_time", lambda: worked[0])
    watching = LoopWatchdog(loop, 200)  # type: ignore[arg-type]
    watching.start()
    for late, of_its_own in ((190, 0.19), (230, 0.215), (300, 0.1)):
        loop.stand_still(20 + late)
        worked[0] += of_its_own
        loop.advance(0)
    assert (watching.late, watching.worst_ms) == (2, pytest.approx(215))
    assert caplog.text.count("ms late") == 2
    assert "ran 230.0 ms late; of these its thread worked 215.0 ms" in caplog.text
    for _ in range(2):
        watching.stop()
    assert loop.armed == 0


@pytest.mark.parametrize(("setting", "started"), [({"minibroker.loop.lag.max.ms": "77"}, [77]), ({}, [])])
def test_a_broker_watches_its_loop_where_a_setting_says_so(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, str], started: list[int]
) -> None:
    beating: list[int] = []

    class Watching(LoopWatchdog):
        def start(self) -> None:
            if self._timer is None:
                beating.append(self._max_lag_ms)
            super().start()

    monkeypatch.setattr(service, "LoopWatchdog", Watching)
    with Minibroker(config=setting):
        assert beating == started
