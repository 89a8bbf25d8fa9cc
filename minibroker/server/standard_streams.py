"""stdin, stdout and stderr of a process that was started without one of them."""

from __future__ import annotations

import os
import sys
from typing import IO

_LAST_STANDARD_FD = 2


def open_standard_streams() -> None:
    """Put the null device where a standard stream is closed.

    Else the next file or socket would get its number, and what somebody writes to "stdout" would end up in there.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > _LAST_STANDARD_FD:
            os.close(fd)
            break
    sys.stdin = sys.stdin or _null("r")
    sys.stdout = sys.stdout or _null("w")
    sys.stderr = sys.stderr or _null("w")


def _null(mode: str) -> IO[str]:
    return open(os.devnull, mode, encoding="utf-8")
