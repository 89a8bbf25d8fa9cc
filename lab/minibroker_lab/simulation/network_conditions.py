"""What happens to a message: probabilities, and which nodes cannot reach each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random


class Fate(Enum):
    """DELIVERED, after a delay. LOST: it never arrives. MUTE: it arrives, its answer does not. LATE: its sender has
    given it up when it arrives, as bytes of a broken connection that wait in the receiver's buffer do; the sender's
    next attempt makes it a duplicate, and the one that comes last."""

    DELIVERED = "delivered"
    LOST = "lost"
    MUTE = "answer lost"
    LATE = "late"


@dataclass(slots=True)
class Chances:
    """The chance that a message meets each fate; any other message is delivered. Delays in ms."""

    lost: float = 0.0
    mute: float = 0.0
    late: float = 0.0
    delay_ms: float = 1.0
    stray_ms: float = 0.0


class NetworkConditions:
    """Shared by all wires of a world. A side of a wire is a node id, the controller's -1, or a client's name."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.chances = Chances()
        self._cut: set[frozenset[int | str]] = set()

    def calm(self) -> None:
        """From now on every message is delivered."""
        self.chances = Chances()
        self._cut.clear()

    def cut(self, one: int | str, other: int | str) -> None:
        self._cut.add(frozenset((one, other)))

    def mend(self, one: int | str, other: int | str) -> None:
        self._cut.discard(frozenset((one, other)))

    def reaches(self, one: int | str, other: int | str) -> bool:
        return not self._cut or frozenset((one, other)) not in self._cut

    def fate(self, *, bad_luck: float = 1.0) -> Fate:
        """Draw the fate of a message; the probabilities are multiplied by `bad_luck`."""
        chances = self.chances
        roll = self._random.random() / bad_luck
        if roll >= chances.lost + chances.mute + chances.late:
            return Fate.DELIVERED
        if roll < chances.lost:
            return Fate.LOST
        return Fate.MUTE if roll < chances.lost + chances.mute else Fate.LATE

    def delay_ms(self) -> float:
        return 0.2 + self._random.random() * self.chances.delay_ms

    def stray_ms(self) -> float:
        """How long a late message is under way after it was given up."""
        return self._random.random() * self.chances.stray_ms

    def patience_ms(self) -> float:
        """After which a sender gives up."""
        return 30.0 + self._random.random() * 400.0
