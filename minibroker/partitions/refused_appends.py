"""Log lines about appends that a log has refused, one a second for each error code.

A full disk, or too few replicas, refuses every request of a client that sends it again.
"""

from __future__ import annotations

from minibroker.kernel.clock import Timers
from minibroker.kernel.line_limit import LineLimit
from minibroker.kernel.logs import get_logger
from minibroker_protocol.errors import ApiError, ErrorCode

log = get_logger("minibroker.broker")


class RefusedAppends:
    """The log lines of one broker.

    log_dir: its data directory, which lines about the disk name.
    """

    def __init__(self, timers: Timers, log_dir: str) -> None:
        self._timers = timers
        self._log_dir = log_dir
        self._limits: dict[ErrorCode, LineLimit] = {}

    def say(self, partition: object, error: ApiError) -> None:
        """The log of `partition` has refused an append with `error`."""
        of_the_disk = error.code == ErrorCode.KAFKA_STORAGE_ERROR
        limit = self._limits.get(error.code)
        if limit is None:
            rest = f"%d more appends were refused with {error.code.name} within %g s"
            write = log.error if of_the_disk else log.warning
            limit = self._limits[error.code] = LineLimit(self._timers, write, rest, most=1)
        where = f" (data directory: {self._log_dir})" if of_the_disk else ""
        why = error.message if of_the_disk and error.message else error
        limit.say("append to %s refused: %s%s", partition, why, where)

    def close(self) -> None:
        """Log the counts of suppressed lines."""
        for limit in self._limits.values():
            limit.close()
