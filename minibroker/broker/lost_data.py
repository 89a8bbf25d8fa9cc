"""Reports at start what a data directory lacks, and refuses to start on it where the settings say so."""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.config.settings import Settings
from minibroker.kernel.logs import get_logger
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.lost import Lost

log = get_logger(__name__)

REFUSE = "minibroker.refuse.lost.data"


def report(lost: Sequence[Lost], where: str, settings: Settings) -> None:
    """Log each loss in one line. Raises ApiError KAFKA_STORAGE_ERROR if the settings forbid a start on it, or the
    directory is not usable at all."""
    for loss in lost:
        log.warning("%s in %s: %s", "missing file" if loss.rebuilt else "lost data", where, loss.explained)
        if not loss.usable:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{where} cannot be used: {loss}")
    lost = [loss for loss in lost if not loss.rebuilt]
    if lost and settings.get_boolean(REFUSE):
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"not starting on lost data in {where}, as {REFUSE} says: {lost[0]}{more}"
        )
