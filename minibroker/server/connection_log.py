"""Log lines about closed connections, ten a second at most."""

from __future__ import annotations

import asyncio

from minibroker.kernel.asyncio_runtime import LoopTimers
from minibroker.kernel.line_limit import LineLimit
from minibroker.kernel.logs import get_logger

log = get_logger("minibroker.server")

_PER_SECOND = 10


class ConnectionLog(LineLimit):
    """The first ten lines of a second are written as warnings; the others are counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = 1) -> None:
        rest = "%d more connections were closed or refused within %g s"
        super().__init__(LoopTimers(loop), log.warning, rest, most=_PER_SECOND, seconds=seconds)
