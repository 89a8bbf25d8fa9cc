"""Consumers on topics that a real Kafka wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sink_readers import committed_records

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.topics import LATEST, ReadingClient
from minibroker_lab.judge.readers import (
    ANSWERS,
    RIGHT,
    SETTINGS,
    UNDECIDED,
    WRONG,
    Topic,
    judge_output,
    judge_readers,
    unpack,
)
from minibroker_protocol.records import iter_batches

TOPIC = Topic("t", "", [(1, "a"), (3, "b c")], [(2, "x")])


@pytest.mark.parametrize(
    ("lines", "status", "said", "why"),
    [
        (["1 a", "3 b c"], 0, RIGHT, "2 records"),
        (["1 a", "3 b c"], None, RIGHT, "2 records"),
        (["1 a", "2 x", "3 b c"], 0, WRONG, "offset 2 'x' was read: its transaction was aborted"),
        (["1 a", "2 x"], 1, WRONG, "offset 2 'x' was read: its transaction was aborted"),
        (["1 a", "1 a", "3 b c"], 0, WRONG, "offset 1 'a' was read twice"),
        (["3 b c", "1 a"], 0, WRONG, "offset 1 'a' was read after offset 3"),
        (["1 b", "3 b c"], 0, WRONG, "offset 1 'b' was read: the log has 'a' there"),
        (["1 a", "2 y"], 0, WRONG, "offset 2 'y' was read: no record is there"),
        (["1 a"], 0, WRONG, "offset 3 'b c' was not read (1 of 2 records)"),
        (["2 x", "% Reached end"], 0, WRONG, "offset 2 'x' was read: its transaction was aborted"),
        (["1 a"], None, WRONG, "offset 3 'b c' was not read (1 of 2 records); the command was ended after 9 s"),
        (["1 a"], 2, UNDECIDED, "the command ended with 2 after 1 of 2 records"),
        (["1 a", "connected"], 0, UNDECIDED, "line 2 of its output is not OFFSET VALUE: 'connected'"),
    ],
)
def test_what_a_consumer_printed(lines: list[str], status: int | None, said: str, why: str) -> None:
    assert judge_output(TOPIC, lines, status, 9) == (said, why)


@pytest.mark.parametrize("answers", ANSWERS)
def test_the_broker_serves_the_topics_as_kafka_did(tmp_path: Path, answers: str) -> None:
    topics = unpack(tmp_path)
    assert all(one.promised[-1][1] == "end" for one in topics)
    assert [one.name for one in topics if not one.others] == ["compacted", "compacted-gzip"]  # Kafka removed them
    with (
        Minibroker(data_dir=str(tmp_path / "data"), config={**SETTINGS, **ANSWERS[answers]}) as broker,
        ReadingClient(broker.bootstrap_servers) as client,
    ):
        broker.clock.advance(days=30)  # the records are as old as the archive
        whole = client.offset("aborted-ranges", 0, LATEST)
        headers = [header for _, header in iter_batches(client.fetch("aborted-ranges", 0, 0).data)]
        assert (headers[-1].next_offset == whole) == (answers == "whole answers")
        read = {one.name: list(committed_records(client, one.name, 0, {})) for one in topics}
    assert read == {one.name: one.promised for one in topics}


def test_compaction_left_batches_without_records_and_gaps(tmp_path: Path) -> None:
    unpack(tmp_path)
    for name in ("compacted", "compacted-gzip"):
        segments = sorted((tmp_path / "data" / f"{name}-0").glob("*.log"))
        headers = [header for path in segments for _, header in iter_batches(path.read_bytes())]
        assert min(header.record_count for header in headers) == 0
        assert any(0 < header.record_count <= header.last_offset_delta for header in headers)


PRINTS = """
import json, os, sys
rows = json.load(open(sys.argv[1]))[os.environ["MINIBROKER_TOPIC"]]
for row in sorted(rows["promised"] + (rows["others"] if len(sys.argv) > 2 else [])):
    print(*row)
"""


@pytest.mark.parametrize(
    ("more", "status", "last"), [([], 0, "2 right, 0 wrong"), (["uncommitted"], 1, "0 right, 2 wrong")]
)
def test_a_command_is_run_for_each_topic(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    status: int,
    last: str,
) -> None:
    unpack(tmp_path)
    command = [sys.executable, "-c", PRINTS, str(tmp_path / "promised.json"), *more]
    answers = {name: own for name, own in ANSWERS.items() if name == "whole answers"}
    assert judge_readers(command, 60.0, {}, answers=answers, topics=slice(2)) == status
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{last}, 0 undecided"
    assert said[0].startswith("lone-markers, whole answers: ")


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--readers", "--script", "calm", "--", "client"]) == 2
    said = "--readers has topics of its own, and no failures: leave out --script"
    assert said in capsys.readouterr().err
    for option in (
        ["--repeat", "2"],
        ["--semantics", "kip"],
        ["--lineage-key", "key"],
        ["--any-exit"],
        ["--allow-unmet"],
    ):
        assert main(["judge", "--readers", *option, "--", "client"]) == 2
        assert f"leave out {option[0]}" in capsys.readouterr().err
