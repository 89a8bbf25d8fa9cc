"""How heavy a difference from the expected answer is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple


class Weight(Enum):
    """Of a difference, the heaviest first. EXACTLY_ONCE: records or offsets are lost, doubled, torn or read though
    aborted, or a fenced producer writes. RECOVERY: a client cannot go on, or acts otherwise than with Kafka. CODE:
    another code or number, with which a client does the same. DETAIL: a text, or another form of nothing."""

    EXACTLY_ONCE = "exactly-once"
    RECOVERY = "recovery"
    CODE = "code"
    DETAIL = "detail"

    @property
    def light(self) -> bool:
        """Whether clients do as with Kafka all the same."""
        return self in (Weight.CODE, Weight.DETAIL)

    def at_least(self, other: Weight) -> bool:
        return _RANK[self] <= _RANK[other]


class Breach(NamedTuple):
    """promise: the sentence that is broken, with its source; of EXACTLY_ONCE only."""

    weight: Weight
    promise: str = ""


_RANK: Final = {weight: rank for rank, weight in enumerate(Weight)}
RECOVERY, CODE, DETAIL = Breach(Weight.RECOVERY), Breach(Weight.CODE), Breach(Weight.DETAIL)


def heaviest(breaches: Iterable[Breach]) -> Breach:
    """The first of the heaviest; DETAIL of none."""
    return min(breaches, key=lambda breach: _RANK[breach.weight], default=DETAIL)
