"""Words for people: reasons without error numbers, and counts that agree with their noun."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from minibroker.output import say


def reason(error: BaseException) -> str:
    """The text of an error without Python's ``[Errno 2]``; for a file, its name comes first."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename or repr('')}: {error.strerror}"
    return str(error)


def fail(why: object, status: int, command: str = "minibroker") -> int:
    """Print on stderr, in one line, why a command ends; returns its exit status."""
    say(f"{command}: {reason(why) if isinstance(why, BaseException) else why}", to=sys.stderr)
    return status


def counted(count: int, noun: str) -> str:
    """``1 failure``, ``2 failures``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def near(name: str, known: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """``, did you mean …?`` for a mistyped name, to append to what is wrong with it; empty when none is alike, or the
    name itself is known and something else is wrong with it. meant: names that others have for a thing → ours."""
    if meant and name in meant:
        return f", did you mean {meant[name]}?"
    from difflib import get_close_matches

    names = list(known)
    close = [] if name in names else get_close_matches(name, names, 1)
    return f", did you mean {close[0]}?" if close else ""
