"""The data pipeline: sources for segment files and topics, an exactly-once sink, and the audit, here or on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibroker_pipeline.frames import audit

__all__ = ["audit"]


def __getattr__(name: str) -> Any:
    # Commands that need no Arrow import the package too.
    if name != "audit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minibroker_pipeline.frames import audit

    return audit
