"""Commands are started with the signals of a terminal, whatever started pytest."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def heeded_signals() -> Iterator[None]:
    """A process inherits which signals are ignored: SIGINT in a job that a script put into the background, SIGHUP under
    nohup. Commands honour that, so that a test of Ctrl-C would wait for ever."""
    ignored = [
        number
        for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGHUP"))
        if number is not None and signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
