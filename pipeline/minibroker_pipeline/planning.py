"""From what a user asks for to the plan of an audit: files or topics are listed."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from minibroker.client.security import PLAINTEXT, Security
from minibroker_pipeline.files import Files, NotReadable
from minibroker_pipeline.lineage import lineage_of, read_order
from minibroker_pipeline.listing import Spread, list_directory, local_partition
from minibroker_pipeline.plan import Plan
from minibroker_pipeline.topics import TIMEOUT_MS, Topics


def plan_for(
    path: str | None,
    *,
    bootstrap: str | None = None,
    security: Security = PLAINTEXT,
    settings_file: str | None = None,
    timeout_ms: int | None = None,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    compacted: Collection[str] = (),
    lineage: Sequence[str] = (),
    lineage_key: str = "key",
    group: str | None = None,
    spread: Spread = map,
    **more: Any,
) -> Plan:
    """The plan for a path or URI, or for the cluster at `bootstrap`.

    spread: who looks into the directories of logs.
    more: fields of Plan.

    Raises NotReadable and ValueError.
    """
    chosen: dict[str, Any] = {"topics": topics, "partitions": partitions, "compacted": compacted}
    lineages = tuple(lineage_of(text, lineage_key, group) for text in lineage)
    files: Files | Topics
    if bootstrap is not None:
        files = Topics(bootstrap, security, settings_file, timeout_ms or TIMEOUT_MS)
        listed = files.list(**chosen, order=read_order(lineages))
    else:
        assert path is not None
        if (partition := local_partition(path)) is not None:
            path, topic, index = partition
            chosen |= {"topics": [topic], "partitions": [index]}
        files = Files(path)
        listed = list_directory(files, **chosen, spread=spread)
    facts, parts = tuple(listed.facts), tuple(listed.parts)
    there = {fact.log.topic for fact in facts}.union(fault.log.topic for fault in listed.findings)
    absent = {*topics}.union(*(application.topics for application in lineages)) - there
    if absent:  # a misspelt name must not hide a fault
        among = " among those that --topic and --partition choose" if topics or partitions else ""
        raise NotReadable(f"{files.uri}: no partition of {', '.join(sorted(absent))}{among}")
    return Plan(files, facts, parts, files.uri, lineages=lineages, findings=listed.findings, **more)


def as_of(text: str | None) -> int | None:
    """The time of --as-of in milliseconds since 1970. Raises ValueError."""
    if text is None:
        return None
    if text == "now":
        return time.time_ns() // 1_000_000
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ValueError(f"--as-of {text}: expected 'now', ms since 1970 or a time in ISO 8601") from None
