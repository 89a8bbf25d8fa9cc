"""Subcommands of `minibroker` in this package (entry points of the group `minibroker.commands`)."""

from __future__ import annotations

from typing import Final

from minibroker.cli import Command

CONFORMANCE: Final = Command(
    "minibroker_lab.conformance.command", "compare any broker with recorded answers of Apache Kafka"
)
DEMO: Final = Command("minibroker_lab.demo.command", "run an exactly-once loop and check its result")
JUDGE: Final = Command(
    "minibroker_lab.judge.command", "run a client under failures and judge whether exactly-once held"
)
MUSEUM: Final = Command("minibroker_lab.museum.command", "show bugs of real clients on the versions that have them")
SIMULATE: Final = Command(
    "minibroker_lab.simulation.command", "run the broker's code under seeded failures and check the result"
)
