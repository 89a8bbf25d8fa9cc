"""What an append answers, and how failures of the disk reach clients."""

from __future__ import annotations

from collections.abc import Sequence

from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_storage.disk import StorageError
from minibroker_storage.producer_state import CompletedTxn

NO_TXNS: Sequence[CompletedTxn] = ()


class AppendInfo:
    """What became of an append. Offsets are inclusive; times in ms, -1 for none.

    ``duplicate``: nothing was written, the offsets are those of the batch that is there already.
    """

    __slots__ = (
        "base_offset",
        "completed_transactions",
        "duplicate",
        "first_leader_epoch",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "max_timestamp",
    )

    def __init__(
        self,
        base_offset: int,
        last_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
        duplicate: bool,
        max_timestamp: int,
        first_leader_epoch: int,
        completed_transactions: Sequence[CompletedTxn] = NO_TXNS,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.duplicate = duplicate
        self.max_timestamp = max_timestamp
        self.first_leader_epoch = first_leader_epoch
        self.completed_transactions = completed_transactions

    def __repr__(self) -> str:
        return f"AppendInfo({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def storage_error(error: StorageError | Malformed) -> ApiError:
    """A failed disk call, or files that hold nonsense, as clients see it."""
    text = f"{error.filename}: {error.strerror}" if isinstance(error, StorageError) else str(error)
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, text)


class storage_errors:
    """Turns what the disk and the files do wrong into an ApiError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StorageError | Malformed):
            raise storage_error(error) from error
