"""A broker's machine: its disk outlives the process, and what was synced outlives a loss of power."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from minibroker_lab.simulation.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    _Disk = FaultyDisk  # whose methods are those of the current disk
else:
    _Disk = object


class MachineDisk(_Disk):
    """`minibroker_storage.disk.Disk`. A file opened before the power went belongs to the disk that was lost."""

    durable = True

    def __init__(self) -> None:
        self.inner = FaultyDisk()

    def fail_soon(self, random: Random) -> None:
        """One of the next writing calls does half its work and fails with EIO."""
        self.inner.fail_at = self.inner.calls + 1 + random.randrange(12)

    def fill(self) -> None:
        """The disk is full from now on."""
        self.inner.full = True

    def heal(self) -> None:
        self.inner.full, self.inner.fail_at = False, 0

    def lose_power(self, random: Random) -> None:
        """Keep what was synced, and a random part of the rest: torn, and not always in order."""
        self.inner = self.inner.after_power_loss(random)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
