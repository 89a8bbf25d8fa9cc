"""Runs a framework's program to the end of its input, as the command that the judge starts.

Its arguments are NAMES and the program's command. It writes the input in portions, each once the program has reached
the end of the one before, by the group's offsets or by the records of the output, and ends the program with SIGTERM
when it has reached the end of all. Started again after a kill, it writes the portions that are missing. A program that
ends by itself, or makes no progress, is a ``give up`` of the history, with the reason (`ENDED`, `STUCK`). Nothing
else ends a run: it may take long where it gets on, and where it does not it is given more on a busy machine (`Pace`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from minibroker.client.cluster import require
from minibroker.client.connection import BrokerFailed
from minibroker.client.topics import LATEST, READ_COMMITTED, Span, committed
from minibroker.client.transactional import GROUP_KEY, TransactionalClient
from minibroker.kernel.asyncio_runtime import wall_ms
from minibroker.kernel.words import counted
from minibroker_lab.museum.scoreboard.frameworks import OUTPUT_RECORDS
from minibroker_lab.museum.scoreboard.pace import Clock, Pace
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch, decode_records

INPUT, OUTPUT, GROUP, STATE_DIR = "INPUT_TOPIC", "OUTPUT_TOPIC", "GROUP", "STATE_DIR"
PROGRESS: Final = "PROGRESS"
WAITS: Final = "WAITS_SECONDS"
"""Environment variables of a program (NAMES, as JSON), beside BOOTSTRAP_SERVERS. GROUP is its transactional id too,
where it has one. `WAITS` is how long it may stand still beyond what it is given for any progress: what the script has
pass, and an open transaction until it times out."""
COMMITTED = "committed.json"
"""File in STATE_DIR with how far the program had come when it had ended: partition of the input → offset."""
ENDED, STUCK = "ended with", "no progress"
PARTITIONS: Final = 2
_PORTIONS, _PORTION = 4, 6
RECORDS: Final = _PORTIONS * _PORTION
_PATIENCE_SECONDS = 100.0
"""How long a program may stand still: more than sessions, transactions' ends and a restart take together."""
_LOST_SECONDS = 30.0
_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0
_WIDTH = 200
_CUT: Final = " …"
_LONG: Final = re.compile(r"(\S{120})\S+")
_ERROR: Final = re.compile(r"\w*(Exception|Error|error|FATAL|fatal|panic)\b")
_KIND: Final = re.compile(r"\w(Exception|Error)\b")


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
            offsets = self.all_committed(group)
        except (ApiError, BrokerFailed):
            return -1  # a transaction is open, or the coordinator moves
        return sum(max(offset, 0) for (name, _), (offset, _) in offsets.items() if name == topic)

    def copied(self, topic: str) -> int:
        """How many records of the input a read_committed consumer finds in the output, by key."""
        try:
            return len({key for partition in range(PARTITIONS) for key in self._readable(topic, partition)})
        except (ApiError, BrokerFailed):
            return -1  # the leader moves

    def _readable(self, topic: str, partition: int) -> Iterator[bytes]:
        """The keys of the records that are not of aborted transactions."""
        stop = self.offset(topic, partition, LATEST, READ_COMMITTED)
        for fetched in self.read(Span(topic, partition, 0, stop), READ_COMMITTED):
            for header, batch in committed(fetched.data, fetched.aborted):
                yield from (bytes(record.key or b"") for record in decode_records(batch, 0, header))

    def passed(self, source: str, target: str) -> dict[int, int]:
        """By partition the offset behind the last record of the input that is in the output, for a program that keeps
        its offsets elsewhere: it had read what is before it."""
        there = {key for partition in range(PARTITIONS) for key in self._readable(target, partition)}
        return {
            partition: 1
            + max((offset for offset, key in enumerate(self._readable(source, partition)) if key in there), default=-1)
            for partition in range(PARTITIONS)
        }

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
    """The last line of a program's output that names an error, else its last one; a long one is cut between words, and
    in those that are long themselves, and keeps the kind of the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.search(line) and not line.startswith("at ")]
    line = _LONG.sub(r"\1…", (named or lines or ["nothing was printed"])[-1])
    short = textwrap.shorten(line, _WIDTH, placeholder=_CUT)
    kinds = [word for word in line.split() if _KIND.search(word)]
    if not kinds or kinds[-1] in short:
        return short
    return textwrap.shorten(f"{_CUT.strip()} {line[line.rindex(kinds[-1]) :]}", _WIDTH, placeholder=_CUT)


def follow(
    program: subprocess.Popen[bytes],
    feed: Feed,
    topic: str,
    progress: Callable[[], int],
    waits: float = 0.0,
    clock: Clock | None = None,
) -> str:
    """Feed the program until all is done; why it went wrong, else an empty text.

    A program that passed over a record makes no progress either: after a while the next portion shows whether it goes
    on behind it.

    topic: of the input.
    progress: how many records the program has come to, -1 while that cannot be said.
    waits: as `WAITS`.
    clock: default: `Pace`.
    """
    clock = clock or Pace()
    patience = _PATIENCE_SECONDS + waits
    deadline, seen = clock() + patience, -1
    while (now := clock()) < deadline:
        if program.poll() is not None:
            return f"{ENDED} {program.returncode}"
        end = sum(feed.written(topic))
        reached = progress()
        if reached > seen:
            deadline, seen = now + patience, reached
        waited = now - (deadline - patience)
        if reached >= end or not end or (end < RECORDS and waited > _LOST_SECONDS):
            if end >= RECORDS:
                return ""
            if reached < end:
                deadline = now + patience
            first = end // _PORTION * _PORTION
            feed.write(topic, range(first, first + _PORTION))
        time.sleep(_POLL_SECONDS)
    return f"{STUCK} for {patience:.0f} s behind {counted(max(seen, 0), 'record')} of {RECORDS}"


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
            by_output = names.get(PROGRESS) == OUTPUT_RECORDS
            group, source, target = names[GROUP], names[INPUT], names[OUTPUT]
            reason = follow(
                program,
                feed,
                source,
                lambda: feed.copied(target) if by_output else feed.reached(group, source),
                float(names.get(WAITS, 0)),
            )
            stop(program)
            offsets = feed.passed(source, target) if by_output else feed.committed_offsets(group, source)
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
