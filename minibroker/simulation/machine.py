"""A broker's machine: its disk outlives the process, and what was synced outlives a loss of power."""

from __future__ import annotations

from random import Random

from minibroker_storage.disk import Buffer, DirLock
from minibroker_storage.faulty_disk import FaultyDisk, FaultyFile


class MachineDisk:
    """`minibroker_storage.disk.Disk`. A file opened before the power went belongs to the disk that was lost."""

    durable = True

    def __init__(self) -> None:
        self.inner = FaultyDisk()

    def fail_soon(self, random: Random) -> None:
        """One of the next changing calls gets half its work done and an EIO."""
        self.inner.fail_at = self.inner.calls + 1 + random.randrange(12)

    def fill(self) -> None:
        """From now on nothing more fits on it."""
        self.inner.full = True

    def heal(self) -> None:
        self.inner.full, self.inner.fail_at = False, 0

    def unsynced_cuts(self) -> list[str]:
        return self.inner.unsynced_cuts()

    def lose_power(self, random: Random) -> None:
        """Keep what was synced, and of the rest what chance leaves: torn, and not always in order."""
        self.inner = self.inner.after_power_loss(random)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        return self.inner.open(path, create=create)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def list(self, path: str = "") -> list[str]:
        return self.inner.list(path)

    def is_dir(self, path: str) -> bool:
        return self.inner.is_dir(path)

    def make_dir(self, path: str) -> None:
        self.inner.make_dir(path)

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self.inner.remove_tree(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def modified_ms(self, path: str) -> int:
        return self.inner.modified_ms(path)

    def read_bytes(self, path: str) -> bytes:
        return self.inner.read_bytes(path)

    def sync_dir(self, path: str) -> None:
        self.inner.sync_dir(path)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.inner.write_atomic(path, data, sync=sync)

    def lock(self, path: str, holder: str) -> DirLock:
        return self.inner.lock(path, holder)

    def close(self) -> None:
        self.inner.close()
