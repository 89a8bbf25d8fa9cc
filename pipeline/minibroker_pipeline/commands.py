"""What this package adds to the command `minibroker` (entry points of the group `minibroker.commands`)."""

from __future__ import annotations

from typing import Final

from minibroker.cli import Command

AUDIT: Final = Command(
    "minibroker_pipeline.command", "look for broken exactly-once promises in data directories and topics"
)
