"""How far long work has come."""

from __future__ import annotations

import io

from minibroker.kernel.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only() -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        now = [0.0]
        progress = ProgressLine(stream, lambda: now[0])  # noqa: B023
        progress.show("a.log", 0, 4_000_000)
        assert stream.getvalue() == ""
        now[0] = 1.0
        progress.show("a.log", 1_000_000, 4_000_000)
        progress.clear()
        assert ("a.log: 25 % of 4.0 MB" in stream.getvalue()) is shown


def test_what_is_long_in_any_case_says_so_at_once() -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        ProgressLine(stream, lambda: 0.0, at_once=True).say("round 1 of 3")
        assert (stream.getvalue() == "\rround 1 of 3") is shown
