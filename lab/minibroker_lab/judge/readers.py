"""`minibroker judge --readers`: topics that a real Kafka 4.4.0 wrote, and whether a consumer prints what read_committed
promises of them. `tests/support/recordings/write_readers.py` made the archive."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.exit_codes import EXIT_BROKEN, EXIT_HELD, EXIT_UNDECIDED
from minibroker.kernel.words import counted
from minibroker.output import say
from minibroker.program import uninterrupted, whole
from minibroker.testing.embedded import Minibroker
from minibroker_lab.judge.run import STANDARD_ERROR, end

TOPIC: Final = "MINIBROKER_TOPIC"
"""The environment variable that names the topic to read."""
ANSWERS: Final = {"whole answers": {}, "tiny answers": {"fetch.max.bytes": "1024"}}
"""What one answer to Fetch holds → broker settings: all of a topic, or one or two batches."""
ALL_TOPICS: Final = slice(None)
RIGHT, WRONG, UNDECIDED = "right", "wrong", "undecided"
_ARCHIVE, _PROMISED, _DATA = "readers.tar.xz", "promised.json", "data"
# The records are as old as the archive, and stay as Kafka's cleaner left them.
SETTINGS: Final = {"log.retention.ms": "-1", "log.cleaner.enable": "false"}
_LINE = re.compile(r"(\d+) (.*)")

Row = tuple[int, str]
"""Offset and value."""


class Topic(NamedTuple):
    """A topic with one partition.

    promised: what a read_committed consumer is given, in order.
    others: the records of aborted transactions.
    """

    name: str
    about: str
    promised: Sequence[Row]
    others: Sequence[Row]


class Reading(NamedTuple):
    """What a command made of a topic: `RIGHT`, `WRONG` or `UNDECIDED`, and why."""

    verdict: str
    why: str


def unpack(directory: Path) -> list[Topic]:
    """Unpack the archive's data directory into `directory` and return its topics."""
    with as_file(files("minibroker_lab.judge").joinpath(_ARCHIVE)) as archive, tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    topics = json.loads((directory / _PROMISED).read_text(encoding="utf-8"))
    return [
        Topic(name, topic["about"], [*map(_row, topic["promised"])], [*map(_row, topic["others"])])
        for name, topic in topics.items()
    ]


def _row(pair: Sequence[object]) -> Row:
    offset, value = pair
    return int(str(offset)), str(value)


def judge_readers(
    command: Sequence[str],
    timeout: float,
    config: Mapping[str, object],
    *,
    answers: Mapping[str, Mapping[str, str]] = ANSWERS,
    topics: slice = ALL_TOPICS,
) -> int:
    """Run the command once for each topic and size of answers, and say what it made of it.

    timeout: seconds of a run.
    answers: those of ANSWERS that are tried.
    topics: the part of the archive's topics that is read.

    Returns the exit status. Raises OSError when the command cannot be started, StartError when the broker cannot.
    """
    verdicts = []
    for name, reading in _readings(
        command, timeout, {name: {**own, **config} for name, own in answers.items()}, topics
    ):
        say(f"{name}: {reading.verdict}{': ' if reading.verdict != RIGHT else ', '}{reading.why}", flush=True)
        verdicts.append(reading.verdict)
    say(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (RIGHT, WRONG, UNDECIDED)))
    return EXIT_BROKEN if WRONG in verdicts else EXIT_UNDECIDED if UNDECIDED in verdicts else EXIT_HELD


def _readings(
    command: Sequence[str], timeout: float, configs: Mapping[str, Mapping[str, object]], chosen: slice
) -> Iterator[tuple[str, Reading]]:
    """Each run by its name."""
    for answers, config in configs.items():
        with tempfile.TemporaryDirectory(prefix="minibroker-readers-") as place:
            topics = unpack(Path(place))[chosen]
            settings = {**SETTINGS, **config}
            with whole(Minibroker(data_dir=str(Path(place, _DATA)), config=settings)) as broker:
                for topic in topics:
                    environment = {"BOOTSTRAP_SERVERS": broker.bootstrap_servers, TOPIC: topic.name}
                    printed = Path(place, "printed")
                    status = _run(command, environment, printed, timeout)
                    text = printed.read_bytes().decode("utf-8", "backslashreplace")
                    yield f"{topic.name}, {answers}", judge_output(topic, text.splitlines(), status, timeout)


def _run(command: Sequence[str], environment: Mapping[str, str], printed: Path, timeout: float) -> int | None:
    """Exit status, None when the command had to be ended."""
    child = None
    try:
        with open(printed, "wb") as output, uninterrupted():
            child = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=STANDARD_ERROR,
                start_new_session=True,
            )
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child is not None:
            end(child)


def judge_output(topic: Topic, lines: Sequence[str], status: int | None, timeout: float) -> Reading:
    """What a command with this exit status made of a topic.

    lines: what it printed, ``OFFSET VALUE`` a record.
    """
    matches = [_LINE.fullmatch(line) for line in lines]
    rows = [(int(match[1]), match[2]) for match in matches if match is not None]
    wrong = _first_wrong(topic, rows)
    if wrong:
        return Reading(WRONG, wrong)
    for number, (line, match) in enumerate(zip(lines, matches, strict=True), 1):
        if match is None:
            return Reading(UNDECIDED, f"line {number} of its output is not OFFSET VALUE: {line[:60]!r}")
    missing = [row for row in topic.promised if row not in rows]
    if status:
        return Reading(UNDECIDED, f"the command ended with {status} after {_of(topic, rows)}")
    if missing:
        ended = f"; the command was ended after {timeout:g} s" if status is None else ""
        offset, value = missing[0]
        return Reading(WRONG, f"offset {offset} {value!r} was not read ({_of(topic, rows)}){ended}")
    return Reading(RIGHT, counted(len(rows), "record"))


def _of(topic: Topic, rows: Sequence[Row]) -> str:
    return f"{len(rows)} of {counted(len(topic.promised), 'record')}"


def _first_wrong(topic: Topic, rows: Iterable[Row]) -> str:
    """The first record that was printed and not promised, or not here; empty when there is none."""
    promised, others = dict(topic.promised), dict(topic.others)
    seen: dict[int, str] = {}
    for offset, value in rows:
        what = f"offset {offset} {value!r} was read"
        if offset in seen:
            return f"{what} twice"
        if others.get(offset) == value:
            return f"{what}: its transaction was aborted"
        if promised.get(offset) != value:
            return (
                f"{what}: the log has {promised[offset]!r} there"
                if offset in promised
                else f"{what}: no record is there"
            )
        if seen and offset < max(seen):
            return f"{what} after offset {max(seen)}"
        seen[offset] = value
    return ""
