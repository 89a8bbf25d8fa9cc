"""Faults, clock and state of every test broker, wherever it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.control.reading import Reading

if TYPE_CHECKING:
    from minibroker.control.client import Clock, Control, Faults, State


class Controlled(Reading):
    """The three groups of commands of its `control`, and what a test looks at."""

    @property
    def control(self) -> Control:
        """Faults, clock, state and exchanges. RuntimeError when the broker does not run."""
        raise NotImplementedError

    @property
    def faults(self) -> Faults:
        """Rules that make the broker answer late, wrongly, twice or not at all."""
        return self.control.faults

    @property
    def clock(self) -> Clock:
        """The broker clock, to freeze and to advance."""
        return self.control.clock

    @property
    def state(self) -> State:
        """Operations on what the broker knows: producer state, logs, epochs, markers, brokers."""
        return self.control.state
