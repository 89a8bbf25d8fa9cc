"""How long a walk over records may take at once: the caller hands in a `Pace`, and the walk reports to it."""

from __future__ import annotations

from typing import Final, Protocol

STEP: Final = 1024
"""Records and headers walked one by one between two reports."""
BRIEF_STEPS: Final = 32 * STEP
"""Records and headers, together, that take some ten milliseconds."""
BRIEF_BYTES: Final = 1024 * 1024
"""Bytes that are decompressed in a few milliseconds."""


class TakesLong(Exception):
    """The work is longer than its caller has time for. Nothing was changed; it can be begun again elsewhere."""


class Pace(Protocol):
    """most_bytes: what a batch may decompress to before `TakesLong` is raised, None for no such limit."""

    most_bytes: int | None

    def __call__(self, steps: int) -> None:
        """So many records or headers were walked one by one since the last call. May wait, or raise to end the work."""


class Brief:
    """Ends the work with `TakesLong` once it has lasted for some ten milliseconds."""

    __slots__ = ("_steps", "most_bytes")

    def __init__(self, steps: int = BRIEF_STEPS, most_bytes: int = BRIEF_BYTES) -> None:
        self.most_bytes: int | None = most_bytes
        self._steps = steps

    def __call__(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TakesLong(f"{-self._steps} records and headers too many")


class Unhurried:
    """Lets the work take as long as it needs, without a break."""

    most_bytes: int | None = None

    def __call__(self, steps: int) -> None:
        pass


UNHURRIED: Final[Pace] = Unhurried()
