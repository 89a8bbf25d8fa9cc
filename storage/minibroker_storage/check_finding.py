"""Findings in files, and the rules that they break: rows of `minibroker/rules/catalogue.json`, by their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ERROR = "error"
NOTICE = "notice"

CHECKPOINT = "checkpoint"
DATA_DIRECTORY = "data-directory"
LOST_DATA = "lost-data"
OFFSET_INDEX = "offset-index"
PRODUCER_SNAPSHOT = "producer-snapshot"
TIME_INDEX = "time-index"
TOPIC_ID = "topic-id"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong (`error`), or worth knowing (`notice`), in a file: byte `position` and log `offset` if known."""

    rule: str
    path: str
    message: str
    position: int | None = None
    offset: int | None = None
    severity: str = ERROR

    def __str__(self) -> str:
        where = [self.path]
        if self.position is not None:
            where.append(f"byte {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{self.severity}: {', '.join(where)}: {self.message}"


Report = Callable[[Finding], None]
