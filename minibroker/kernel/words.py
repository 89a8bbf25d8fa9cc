"""Words for people: reasons without error numbers, and counts that agree with their noun."""

from __future__ import annotations


def reason(error: BaseException) -> str:
    """What went wrong, without Python's ``[Errno 2]``; of an error of a file, the file first."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def counted(count: int, noun: str) -> str:
    """``1 failure``, ``2 failures``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
