"""The application that `minibroker judge` is shown on, in seven client libraries: how each is built, run and judged."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jvm import JVM_TIER, compile_java, java_command
from toolchain import TESTS, go_program, node_program

from minibroker.cli import main

PYTHON = ("confluent-kafka", "aiokafka", "kafka-python")
JAVA, NODE = "Java", "kafkajs"
GO = {"franz-go": "github.com/twmb/franz-go", "sarama": "github.com/IBM/sarama"}
CLIENTS = (*PYTHON, JAVA, *GO, NODE)


def command(client: str, directory: Path) -> list[str]:
    """Its command line; what has to be built goes into `directory`. Raises Unavailable."""
    if client in PYTHON:
        return [sys.executable, str(TESTS / "support" / "judged_client.py"), client]
    if client == JAVA:
        return java_command("JudgedClient", extra=(compile_java([JVM_TIER / "JudgedClient.java"], directory),))
    if client == NODE:
        return node_program("judged.mjs", directory)
    return [go_program("./judged", directory), client]


def release(client: str) -> str:
    """The version of the library."""
    if client in PYTHON:
        return version(client)
    if client == JAVA:
        return _found(r"<kafka\.version>(.+?)<", JVM_TIER / "pom.xml")
    if client == NODE:
        return _found(r'"kafkajs": "(.+?)"', TESTS / "node" / "package.json")
    return _found(rf"\t{re.escape(GO[client])} v(\S+)", TESTS / "go" / "go.mod")


def _found(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(encoding="utf-8"))
    if match is None:
        raise AssertionError(f"{file.name} does not say {pattern!r}")
    return match[1]


def verdicts(argv: Sequence[str], scripts: Sequence[str], semantics: str = "kafka") -> dict[str, dict[str, Any]]:
    """Script → what `minibroker judge` reports of this command."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "judge.json")
        chosen = [argument for script in scripts for argument in ("--script", script)]
        how = ["--semantics", semantics, "--topic", "orders:1", "--report", "json", "--report-dir", place]
        main(["judge", *chosen, *how, "--", *argv])
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
    return {one["script"]: one for one in found}


def hold(argv: Sequence[str], scripts: Sequence[str]) -> None:
    """Assert that exactly-once held under each of these scripts."""
    found = verdicts(argv, scripts)
    assert list(found) == list(scripts)
    assert [one for one in found.values() if one["verdict"] != "held"] == []


SHORT = ("lost-produce-replies", "timeout-mid-transaction")
"""What the tiers of other languages ask on every run; all scripts are for docs/judge.md."""
