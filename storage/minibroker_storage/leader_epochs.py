"""`leader-epoch-checkpoint`: where each leader epoch begins in a log (KIP-101, KIP-279; Kafka's LeaderEpochFileCache).

Pure: the log writes `encode()` to the file whenever a method returns True.
"""

from bisect import bisect_right

from minibroker_storage.checkpoints import INT32_MAX, LARGEST_OFFSET, decode_lines, encode_lines, whole_number
from minibroker_storage.checkpoints import LEADER_EPOCH as FILE_NAME
from minibroker_storage.disk import Disk, join
from minibroker_storage.file_errors import MalformedFile

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochCache:
    """Epochs and start offsets, both strictly increasing.

    latest_epoch: None without any.
    """

    __slots__ = ("_epochs", "_starts", "latest_epoch")

    def __init__(self) -> None:
        self.latest_epoch: int | None = None  # beside the list: every append asks for it
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @classmethod
    def decode(cls, data: bytes, path: str = "leader-epoch-checkpoint") -> "LeaderEpochCache":
        """Raises MalformedFile."""
        cache = cls()
        for number, fields in decode_lines(data, path, 2):
            epoch, start = (_number(field, path, number) for field in fields)
            if epoch > INT32_MAX or start > LARGEST_OFFSET:
                raise MalformedFile(path, number, f"expected an epoch and an offset, got {epoch} {start}", unit="line")
            cache.assign(epoch, start)
        return cache

    def encode(self) -> bytes:
        return encode_lines(f"{epoch} {start}" for epoch, start in self.entries)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; True when the cache changed.

        Entries that contradict the new one (same or higher epoch, same or higher offset) are dropped.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset}")
        if self._epochs and self._epochs[-1] == epoch and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest_epoch = epoch
        return True

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1 when it is before the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else UNDEFINED_EPOCH

    def contradiction(self, first_offset: int, last_offset: int, epoch: int) -> str:
        """The differences from batches at these offsets, all of this epoch; empty if there are none.

        What lies below the first entry may be of that epoch or an older one. Kafka cuts the file wherever the log start
        goes up (LeaderEpochFileCache.truncateFromStartAsyncFlush), writes the log start itself up to a minute later
        (LogManager.checkpointLogStartOffsets), and after a kill in between never has the older entries again.
        """
        if not self._starts:
            return ""
        begin = self._starts[0]
        if first_offset < begin and epoch > self._epochs[0]:
            return f"{FILE_NAME} says {self._epochs[0]} from offset {begin} on"
        if last_offset < begin:
            return ""
        first = max(first_offset, begin)
        epoch_there = self.epoch_for_offset(first)
        if epoch_there != epoch:
            return f"{FILE_NAME} says {epoch_there}"
        following = bisect_right(self._starts, first)
        if following < len(self._starts) and self._starts[following] <= last_offset:
            return f"{FILE_NAME} says {self._epochs[following]} from offset {self._starts[following]} on"
        return ""

    def previous_epoch(self, epoch: int) -> int | None:
        """The largest known epoch below `epoch`."""
        lower = [known for known in self._epochs if known < epoch]
        return lower[-1] if lower else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its exclusive end), as OffsetForLeaderEpoch answers; (-1, -1) when not known."""
        # A newer epoch than any here: this log is behind the one that asks.
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        # The epoch that is being written: consumers ask for it after a rebalance.
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        # Older than all here: its records are gone, and the follower goes on at the log's start
        # (LeaderEpochFileCache.endOffsetFor).
        found_epoch = epoch if higher == 0 else self._epochs[higher - 1]
        return found_epoch, self._starts[higher]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop epochs that begin at or after `end_offset`; True when the cache changed."""
        changed = False
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            changed = True
        self.latest_epoch = self._epochs[-1] if self._epochs else None
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: its epoch starts there, older ones go; True when the cache changed."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:index], self._starts[:index]
        self._starts[0] = start_offset
        return True

    def clear(self) -> bool:
        changed = bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()
        self.latest_epoch = None
        return changed


def read_epochs(
    disk: Disk, path: str, clean: bool, warnings: list[str]
) -> tuple[LeaderEpochCache, list[tuple[int, int]] | None]:
    """The epochs in the file, and the bytes on the disk, None if the file must be rewritten. After a crash an
    unreadable file counts as missing: batches have their epochs."""
    file = join(path, FILE_NAME)
    try:
        data = disk.read_bytes(file) if disk.exists(file) else b""
        epochs = LeaderEpochCache.decode(data, file)
        if data and not clean and not data.endswith(b"\n"):  # the last number may be incomplete
            raise MalformedFile(file, data.count(b"\n") + 1, "expected a line end", unit="line")
    except MalformedFile as error:
        if clean:
            raise
        warnings.append(f"{error}; epochs are taken from the batches")
        return LeaderEpochCache(), None
    return epochs, epochs.entries


def _number(text: str, path: str, line: int) -> int:
    number = whole_number(text)
    if number is None:
        raise MalformedFile(path, line, f"expected a number, got {text[:40]!r}", unit="line")
    return number
