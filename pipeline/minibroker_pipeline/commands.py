"""Subcommands of `minibroker` in this package (entry points of the group `minibroker.commands`)."""

from __future__ import annotations

from typing import Final

from minibroker.cli import Command

AUDIT: Final = Command(
    "minibroker_pipeline.audit_command", "look for broken exactly-once promises in data directories and topics"
)
PIPELINE: Final = Command(
    "minibroker_pipeline.demo_command",
    "`pipeline demo`: a job on Spark from topic to topic, exactly once, through failures",
)
