"""Runs a framework's program to the end of its input, as the command that the judge starts.

Its arguments are NAMES and the program's command. It writes the input in portions, each once the group's offsets have
reached the end of the one before, and ends the program with SIGTERM when they have reached the end of all. Started
again after a kill, it writes the portions that are missing. A program that ends by itself, or makes no progress, is a
``give up`` of the history, with the reason (`ENDED`, `STUCK`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from minibroker.client.cluster import require
from minibroker.client.connection import BrokerFailed
from minibroker.client.topics import LATEST
from minibroker.client.transactional import GROUP_KEY, TransactionalClient
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch

INPUT, OUTPUT, GROUP, STATE_DIR = "INPUT_TOPIC", "OUTPUT_TOPIC", "GROUP", "STATE_DIR"
"""Environment variables of a program (NAMES, as JSON), beside BOOTSTRAP_SERVERS. GROUP is its transactional id too,
where it has one."""
COMMITTED = "committed.json"
"""File in STATE_DIR with what the group had committed when the program had ended: partition of the input → offset."""
ENDED, STUCK = "ended with", "no progress"
PARTITIONS: Final = 2
_PORTIONS, _PORTION = 4, 6
RECORDS: Final = _PORTIONS * _PORTION
_PATIENCE_SECONDS = 100.0
_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0
_WIDTH = 200
_ERROR: Final = re.compile(r"\w*(Exception|Error|error|FATAL|fatal|panic)\b")


class Feed(TransactionalClient):
    """Reads offsets and writes the input."""

    client_id = "minibroker-feed"
    patience = 1.0

    def written(self, topic: str) -> list[int]:
        """The end of each partition."""
        return [self.offset(topic, partition, LATEST) for partition in range(PARTITIONS)]

    def write(self, topic: str, numbers: range) -> None:
        """The records of these numbers, each with a key and a value of its own."""
        for partition in range(PARTITIONS):
            own = [number for number in numbers if number % PARTITIONS == partition]
            batch = build_batch([Record(0, wall_ms(), b"k%d" % n, b"v%d" % n) for n in own])
            kind = m.ProduceRequest
            data = kind.PartitionProduceData(index=partition, records=bytes(batch))
            request = kind(
                acks=-1, timeout_ms=30_000, topic_data=[kind.TopicProduceData(name=topic, partition_data=[data])]
            )
            self.ask_leader(
                topic,
                partition,
                request,
                m.ProduceResponse,
                11,
                lambda answer: answer.responses[0].partition_responses[0],
            )

    def reached(self, group: str, topic: str) -> int:
        """How many records of the input are behind the offsets of the group."""
        try:
            committed = self.all_committed(group)
        except (ApiError, BrokerFailed):
            return -1  # a transaction is open, or the coordinator moves
        return sum(max(offset, 0) for (name, _), (offset, _) in committed.items() if name == topic)

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """What the group has committed, by partition; an open transaction is not waited for."""
        request = m.OffsetFetchRequest(group_id=group, topics=None)

        def ask() -> dict[int, int]:
            _, address = self.coordinator(group, GROUP_KEY)
            answer = self.ask(address, request, m.OffsetFetchResponse, 7)
            require(answer.error_code, f"group {group}")
            own = (entry for entry in answer.topics if entry.name == topic)
            return {place.partition_index: place.committed_offset for entry in own for place in entry.partitions}

        return self.patiently(ask, _PATIENCE_SECONDS)


def error_line(text: str) -> str:
    """The last line of a program's output that names an error, else its last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.search(line) and not line.startswith("at ")]
    return (named or lines or ["nothing was printed"])[-1][:_WIDTH]


def follow(program: subprocess.Popen[bytes], feed: Feed, group: str, topic: str) -> str:
    """Feed the program until all is done; why it went wrong, else an empty text."""
    deadline, seen = time.monotonic() + _PATIENCE_SECONDS, -1
    while time.monotonic() < deadline:
        if program.poll() is not None:
            return f"{ENDED} {program.returncode}"
        end = sum(feed.written(topic))
        reached = feed.reached(group, topic)
        if reached > seen:
            deadline, seen = time.monotonic() + _PATIENCE_SECONDS, reached
        if reached >= end or not end:
            if end >= RECORDS:
                return ""
            first = end // _PORTION * _PORTION
            feed.write(topic, range(first, first + _PORTION))
        time.sleep(_POLL_SECONDS)
    return f"{STUCK} for {_PATIENCE_SECONDS:.0f} s"


def stop(program: subprocess.Popen[bytes]) -> None:
    """Ask the program to end, then end it."""
    if program.poll() is None:
        program.terminate()
        try:
            program.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def main(names: Mapping[str, str], command: Sequence[str]) -> int:
    """names: the environment variables of the program."""
    said = Path(names[STATE_DIR], "output.txt")
    with said.open("ab") as output:
        program = subprocess.Popen(
            command, env={**os.environ, **names}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        with Feed(os.environ["BOOTSTRAP_SERVERS"]) as feed:
            reason = follow(program, feed, names[GROUP], names[INPUT])
            stop(program)
            offsets = feed.committed_offsets(names[GROUP], names[INPUT])
        Path(names[STATE_DIR], COMMITTED).write_text(json.dumps(offsets))
    finally:
        stop(program)
    if reason:
        why = f"{reason}: {error_line(said.read_text(encoding='utf-8', errors='replace'))}"
        event: dict[str, Any] = {"event": "give up", "reason": why}
        with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as history:
            history.write(json.dumps(event) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
