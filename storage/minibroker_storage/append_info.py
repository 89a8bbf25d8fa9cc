"""The result of an append, and the ApiError for a failure of the disk."""

from __future__ import annotations

from dataclasses import dataclass

from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_storage.disk import StorageError


@dataclass(slots=True, eq=False)
class AppendInfo:
    """The result of an append. Offsets are inclusive; times in ms, -1 for none.

    duplicate: nothing was written, the offsets are those of the batch that is already in the log.
    replicated: every in-sync replica has it. The partition knows, the log does not (Kafka's LeaderHwChange).
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    max_timestamp: int
    replicated: bool = False


def storage_error(error: StorageError | Malformed) -> ApiError:
    """The error that clients get for a failed disk call or malformed files."""
    text = f"{error.filename}: {error.strerror}" if isinstance(error, StorageError) else str(error)
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, text)


class storage_errors:
    """Turns errors of the disk and malformed files into an ApiError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StorageError | Malformed):
            raise storage_error(error) from error
