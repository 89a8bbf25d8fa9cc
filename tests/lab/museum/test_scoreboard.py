"""The scoreboard: verdicts, failures, how a program is fed, the page, and a program of our own from end to end."""

from __future__ import annotations

import itertools
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.rules.rows import Log
from minibroker.rules.rules import finding
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import Script
from minibroker_lab.judge.trial import Task
from minibroker_lab.judge.verdict import BrokenPromise
from minibroker_lab.museum.cases import CaseError
from minibroker_lab.museum.command import add_arguments
from minibroker_lab.museum.scoreboard import feed, runs
from minibroker_lab.museum.scoreboard.cells import HERE, KAFKA, Cell, as_markdown, read_cells, save
from minibroker_lab.museum.scoreboard.failures import FAILURES
from minibroker_lab.museum.scoreboard.frameworks import Framework, place, read_all
from minibroker_lab.museum.scoreboard.pace import Pace, stretch
from minibroker_lab.museum.scoreboard.verdict import Verdict, verdict
from minibroker_protocol.records import Record, build_batch

TOPICS = ("in-1", "out-1")
COMMIT = {"number": 9, "api": "TxnOffsetCommit", "client_id": "app"}
GAVE_UP = "the client gave up: ended with 1: an error"
FIELDS = "title = 'A'\npromise = 'B'\nlink = 'C'\nclient = 'mini'\n"
"""Of a framework, but for its versions."""
SENT = {api: 3 for failure in FAILURES.values() for api in failure.requests}


def asked(*words: str) -> Namespace:
    """Options of `minibroker museum scoreboard`."""
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["scoreboard", *words])


def mini_of(folder: Path, version: str) -> Path:
    """A folder of frameworks with one, whose program is none of its own."""
    place = folder / "frameworks" / "mini"
    place.mkdir(parents=True)
    (place / "program.py").touch()
    fields = {"title": "Mini", "promise": "Once.", "link": "https://example.org", "client": "mini"}
    lines = [*(f"{name} = {value!r}" for name, value in fields.items()), f"versions = [{version!r}]"]
    (place / "framework.toml").write_text("\n".join(lines))
    return place.parent


def broken(
    rule: str,
    exchange: dict[str, Any] | None = None,
    *,
    topic: str = "out-1",
    message: str = "x",
    offset: int = 4,
) -> BrokenPromise:
    return BrokenPromise(finding(rule, Log("", topic, 0), message, first_offset=offset), exchange)


@pytest.mark.parametrize(
    ("promises", "status", "fired", "said"),
    [
        ([], 0, 1, "held"),
        ([broken("lineage-duplicate", COMMIT)], 0, 1, "doubled"),
        ([broken("lineage-lost", COMMIT)], 0, 1, "lost"),
        # No offset is behind the record, whatever the wire suggests: it is not lost yet.
        ([broken("lineage-lost", COMMIT, offset=5)], 0, 1, "no verdict"),
        ([broken("lineage-lost", offset=5), broken("no-progress", message=GAVE_UP)], 0, 1, "ended with an error"),
        ([broken("no-progress", message=GAVE_UP)], 0, 0, "no verdict"),
        ([broken("no-progress", message="the client gave up: no progress for 100 s: x")], 0, 1, "no verdict"),
        ([broken("no-progress", message=GAVE_UP), broken("lineage-duplicate", COMMIT)], 0, 1, "doubled"),
        ([broken("torn-transaction", COMMIT)], 0, 1, "torn"),
        # Of a run before on the same Kafka.
        ([broken("lineage-duplicate", COMMIT, topic="out-0")], 0, 1, "held"),
        ([], None, 1, "no verdict"),
        ([], 1, 1, "no verdict"),
        ([], 0, 0, "no verdict"),
    ],
)
def test_a_run_has_one_of_six_verdicts(
    promises: list[BrokenPromise], status: int | None, fired: int, said: str
) -> None:
    script = FAILURES["timeout"].scripts(SENT)[0]
    found = verdict(Judged(JudgedRun(script, status=status, fired=fired), promises), TOPICS, {0: 5})
    assert found.said == said
    assert bool(found.why) == (said != "held")
    if promises and promises[-1].exchange is COMMIT and said in ("doubled", "lost", "torn"):
        assert found.why == "x (exchange 9, TxnOffsetCommit of app)"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "; it has sent nothing"),
        (
            [("EndTxn", "answered", ["CONCURRENT_TRANSACTIONS"]), ("Heartbeat", "answered", [])],
            "; its last step: exchange 1, EndTxn of app: CONCURRENT_TRANSACTIONS, and sent 1 Heartbeat since then",
        ),
        ([("EndTxn", "dropped", [])], "; its last step: exchange 1, EndTxn of app, unanswered"),
        ([("EndTxn", "answered", [])], "; its last step: exchange 1, EndTxn of app"),
    ],
)
def test_a_program_that_stands_still_is_described_by_its_last_step(
    asked: Sequence[tuple[str, str, list[str]]], said: str
) -> None:
    """What the feed asks meanwhile is not its."""
    own = [("app", *what) for what in asked] + [(feed.Feed.client_id, "OffsetFetch", "answered", [])]
    exchanges = [
        {"number": number, "client_id": client, "api": api, "outcome": outcome, "errors": errors, "request": {}}
        for number, (client, api, outcome, errors) in enumerate(own, 1)
    ]
    run = JudgedRun(FAILURES["timeout"].scripts(SENT)[0], status=0, fired=1, exchanges=exchanges)
    stuck = broken("no-progress", message="the client gave up: no progress for 100 s: x")
    assert verdict(Judged(run, [stuck]), TOPICS, {}) == ("no verdict", f"no progress for 100 s: x{said}")


def test_every_failure_has_a_script_for_each_request_that_the_program_sends() -> None:
    for name, failure in FAILURES.items():
        scripts = failure.scripts(SENT)
        assert len(scripts) == max(len(failure.requests), 1)
        assert all(step.rule["transactional_id"] == "*" for script in scripts for step in script.steps), name
        assert not failure.requests or failure.scripts({}) == []
    first, second = FAILURES["killed-before"].scripts({"InitProducerId": 1, "Produce": 5})
    assert (first.name, second.name) == ("InitProducerId 1", "Produce 2")
    unlike = {name for name, failure in FAILURES.items() if not failure.behind_proxy}
    assert unlike == {"rebalance", "coordinator", "leader", "restart", "crash"}


def test_a_transaction_times_out_by_the_timeout_of_its_program() -> None:
    """Behind a proxy time is real, and repetitions of the request are held too."""
    for timeout_ms, advanced in ((60_000, 75_000), (90_000, 105_000)):
        (script,) = FAILURES["timeout"].scripts(SENT, timeout_ms)
        assert (script.steps[0].advance_ms, script.steps[0].rule["times"]) == (advanced, 1)
    (script,) = FAILURES["timeout"].scripts(SENT, real_time=True)
    assert script.steps[0].rule["times"] == 1000
    assert FAILURES["answer-lost"].scripts(SENT, real_time=True)[0].steps[0].rule["times"] == 1


def test_progress_by_the_output_is_what_a_read_committed_consumer_gets() -> None:
    """Neither records of an aborted transaction nor second copies, nor those above an open transaction."""
    topics = dict.fromkeys(TOPICS, feed.PARTITIONS)
    with Minibroker(topics=topics) as broker, feed.Feed(broker.bootstrap_servers) as reader:
        reader.write("in-1", range(8))

        def write(name: str, *numbers: int, end: bool | None) -> None:
            producer = reader.init_producer_id(name, 60_000)
            records = [Record(0, 0, b"k%d" % number, b"") for number in numbers]
            batch = build_batch(
                records,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            reader.produce(producer, "out-1", 0, bytes(batch))
            if end is not None:
                reader.end(producer, commit=end)

        write("aborted", 1, 3, end=False)
        assert reader.copied("out-1") == 0
        write("committed", 0, 2, end=True)
        write("again", 2, 4, end=True)
        write("open", 5, end=None)
        write("above", 7, end=True)
        assert reader.copied("out-1") == 3
        assert reader.passed("in-1", "out-1") == {0: 3, 1: 0}
        assert reader.copied("out-2") == -1


def test_requests_with_a_transactional_id_are_counted() -> None:
    def exchange(api: str, errors: Sequence[str] = (), **request: object) -> dict[str, Any]:
        return {"api": api, "errors": errors, "request": request}

    assert runs.transactional(
        [
            exchange("Produce", transactional_id="app-1"),
            exchange("Produce", transactional_id="another"),
            exchange("Produce", transactional_id=None),
            exchange("AddPartitionsToTxn", v3_and_below_transactional_id="app-1"),
            exchange("EndTxn", ["NOT_COORDINATOR"], transactional_id="app-1"),
            {"api": "Fetch", "errors": [], "request": None},
        ],
        "app-*",
    ) == {"Produce": 1, "AddPartitionsToTxn": 1}


class Program:
    """Commits four records a poll; ends after `last` portions."""

    returncode = 3

    def __init__(self, last: int) -> None:
        self.end, self.committed, self._last = 0, 0, last
        self.portions: list[range] = []

    def poll(self) -> int | None:
        return self.returncode if len(self.portions) > self._last else None

    def written(self, topic: str) -> list[int]:
        return [self.end // 2, self.end - self.end // 2]

    def write(self, topic: str, numbers: range) -> None:
        self.portions.append(numbers)
        self.end += len(numbers)

    def progress(self) -> int:
        self.committed = min(self.committed + 4, self.end)
        return self.committed


def test_a_program_gets_each_portion_once_the_one_before_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed.time, "sleep", lambda seconds: None)
    program: Any = Program(last=feed.RECORDS)
    assert feed.follow(program, program, "in", program.progress) == ""
    assert [number for portion in program.portions for number in portion] == list(range(feed.RECORDS))
    assert program.committed == feed.RECORDS
    ended: Any = Program(last=1)
    assert feed.follow(ended, ended, "in", ended.progress) == "ended with 3"


def clock(step: float, count: int = 1_000) -> tuple[Iterator[float], Callable[[], float]]:
    """So many looks, that far apart."""
    seconds = iter(step * number for number in range(count))
    return seconds, lambda: next(seconds)


def test_a_program_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed.time, "sleep", lambda seconds: None)
    seconds, looks = clock(10.0)
    program: Any = Program(last=feed.RECORDS)
    behind = f"behind 1 record of {feed.RECORDS}"
    assert feed.follow(program, program, "in", lambda: 1, clock=looks) == f"{feed.STUCK} for 100 s {behind}"
    before = next(seconds)
    program = Program(last=feed.RECORDS)
    assert feed.follow(program, program, "in", lambda: 1, 500.0, looks) == f"{feed.STUCK} for 600 s {behind}"
    assert next(seconds) - before >= 600


def test_a_program_that_gets_on_may_take_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look in 90 s, each with a record more."""
    monkeypatch.setattr(feed.time, "sleep", lambda seconds: None)
    reached = itertools.count(1)
    program: Any = Program(last=feed.RECORDS)
    assert feed.follow(program, program, "in", lambda: next(reached), clock=clock(90.0)[1]) == ""
    assert next(reached) > feed.RECORDS


@pytest.mark.parametrize(("busy", "told"), [(1.0, 60.0), (4.0, 60.0), (20.0, 15.0)])
def test_seconds_of_a_busy_machine_count_for_less(busy: float, told: float) -> None:
    """On one that is twenty times as slow a minute counts as a quarter of one."""
    seconds, now = clock(0.25)
    pace = Pace(now, lambda: busy)
    began = next(seconds)
    while next(seconds) - began < 60:
        reached = pace()
    assert reached == pytest.approx(told, rel=0.05)


def test_how_slow_a_machine_is_shows_in_what_a_piece_of_work_takes() -> None:
    """Three looks at the processor's time and two at the wall's."""
    for wall, expected in ((0.02, 1.0), (0.06, 3.0), (0.01, 1.0)):
        passed, worked = iter((5.0, 5.0 + wall)), iter((1.0, 1.005, 1.02))
        assert stretch(partial(next, passed), partial(next, worked)) == pytest.approx(expected)
    assert stretch() >= 1


def test_a_program_that_passed_over_a_record_gets_the_next_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it lost one shows in the records behind it."""
    monkeypatch.setattr(feed.time, "sleep", lambda seconds: None)
    program: Any = Program(last=feed.RECORDS)
    looks = clock(5.0)[1]
    assert feed.follow(program, program, "in", lambda: program.end - 1, clock=looks).startswith(feed.STUCK)
    assert program.end == feed.RECORDS


def test_the_error_of_a_program_is_its_last_line_that_names_one() -> None:
    said = "start\norg.apache.kafka.KafkaException: fenced\n    at Error.java:3\nbye\n"
    assert feed.error_line(said) == "org.apache.kafka.KafkaException: fenced"
    assert feed.error_line("one\ntwo\n\n") == "two"
    assert feed.error_line("") == "nothing was printed"


def test_a_long_error_is_cut_between_words_and_keeps_its_kind() -> None:
    long = " ".join(f"word{number}" for number in range(60))
    line = feed.error_line(f"Error of a.b.FencedException: {long}")
    assert line.startswith("Error of a.b.FencedException: word0")
    assert len(line) <= 200
    assert line.removesuffix(" …").split()[-1] in long.split()
    late = feed.error_line(f"Error: {long}: a.b.FencedException: too late {long}")
    assert late.startswith("… a.b.FencedException: too late word0")
    assert late.endswith(" …")
    assert len(late) <= 200
    whole = feed.error_line(f"a.b.FencedException: {'x' * 300} {'y' * 20}")
    assert whole == f"a.b.FencedException: {'x' * 120}… {'y' * 20}"
    assert feed.error_line("z" * 300) == f"{'z' * 120}…"
    short = "a.b.FencedException: it has  two blanks"
    assert feed.error_line(short) == "a.b.FencedException: it has two blanks"


@pytest.mark.parametrize(
    ("status", "texts"),
    [
        (0, ["no such request", "no such request", "held 2 of 2"]),
        (1, ["no verdict 1 of 1"] * 2 + ["no verdict 2 of 2"]),
    ],
)
def test_a_calm_run_that_did_not_hold_says_nothing_of_requests(
    capsys: pytest.CaptureFixture[str], status: int, texts: list[str]
) -> None:
    """A program without transactions sends none; one that did not run might. It is tried once."""
    scripts: list[str] = []

    def try_out(task: Task, script: Script, what: str) -> Judged:
        scripts.append(script.name)
        return Judged(JudgedRun(script, status=status), [])

    options = Namespace(times=2, upstream=None, broker_name=None, traces=None)
    own = runs.Runs(
        Framework("Mini", "Once.", "https://example.org", "mini", ("1.0",)), "1.0", ["mini"], options, try_out
    )
    assert [list(own.cells(failure))[-1].text for failure in ("timeout", "leader", "none")] == texts
    assert scripts == ["no-failure"] * 3
    assert (
        "timeout: no verdict: without a failure: no verdict (the feed ended with 1)" in capsys.readouterr().out
    ) == (status == 1)


def cell(at: tuple[str, str, str, str], date: str, verdicts: Sequence[Verdict]) -> Cell:
    """With these runs."""
    return reduce(lambda measured, verdict: measured.plus(verdict, date), verdicts, Cell(*at, date))


def ran(script: Script, *promises: BrokenPromise) -> Judged:
    """A run with one transaction, whose failure was met."""
    ended = {"number": 3, "api": "EndTxn", "client_id": "app", "outcome": "answered", "errors": []}
    exchanges = [{**ended, "request": {"transactional_id": "app"}}]
    return Judged(JudgedRun(script, status=0, fired=1, exchanges=exchanges), promises)


@contextmanager
def no_program(name: str, version: str, sources: Sequence[Path]) -> Iterator[list[str]]:
    yield []


@pytest.mark.parametrize(
    ("reason", "code", "why"),
    [
        (
            "no progress for 100 s: x",
            2,
            {"no verdict": "no progress for 100 s: x; its last step: exchange 3, EndTxn of app"},
        ),
        ("ended with 1: an error", 1, {"ended with an error": "EndTxn 2: ended with 1: an error"}),
    ],
)
def test_no_verdict_is_no_failure(tmp_path: Path, reason: str, code: int, why: dict[str, str]) -> None:
    """What ended the run is kept, and no script is named."""

    def tried(task: Task, script: Script, what: str) -> Judged:
        given_up = [broken("no-progress", message=f"the client gave up: {reason}")] if script.steps else []
        both = ran(script, *given_up)
        both.run.exchanges.append(both.run.exchanges[0])
        return both

    folder, arguments = mini_of(tmp_path, "1.0"), asked("mini", "--failure", "timeout", "--save")
    assert runs.scoreboard(arguments, folder=folder, program=no_program, try_out=tried) == code
    assert [measured.why for measured in read_cells(folder)] == [why]


def test_runs_are_added_to_those_that_are_saved(tmp_path: Path) -> None:
    """They go on where those ended in the turn of scripts, and each is saved at once."""
    scripts: list[str] = []
    saved: list[int] = []

    def tried(task: Task, script: Script, what: str) -> Judged:
        scripts.append(script.name)
        saved.append(sum(measured.runs for measured in read_cells(folder)))
        judged = ran(script)
        judged.run.exchanges.append({"api": "InitProducerId", "errors": [], "request": {"transactional_id": "app"}})
        return judged

    folder, options = mini_of(tmp_path, "1.0"), ("mini", "--failure", "killed-after", "--save", "--add", "--times")
    at = "mini", "1.0", "killed-after", HERE
    save(folder, cell(at, "2026-11-27", [Verdict("lost", "InitProducerId 1: k7"), Verdict("held"), Verdict("held")]))
    assert runs.scoreboard(asked(*options, "5"), folder=folder, program=no_program, try_out=tried) == 1
    assert scripts == ["no-failure", "EndTxn 1", "InitProducerId 1"]
    assert saved == [3, 3, 4]
    (measured,) = read_cells(folder)
    assert (measured.text, measured.why) == ("held 4 of 5, lost 1 of 5", {"lost": "InitProducerId 1: k7"})
    assert runs.scoreboard(asked(*options, "5"), folder=folder, program=no_program, try_out=tried) == 1
    assert len(scripts) == 3


def test_failures_are_about_the_transactional_ids_of_the_copy() -> None:
    """MirrorMaker's workers have others, for the topic with their configuration."""
    tried: list[dict[str, Any]] = []

    def try_out(task: Task, script: Script, what: str) -> Judged:
        tried.extend(dict(step.rule) for step in script.steps)
        sent = [{"api": "EndTxn", "errors": [], "request": {"transactional_id": name}} for name in ("leader", "copy-0")]
        return Judged(JudgedRun(script, status=0, fired=1, exchanges=sent), [])

    options = Namespace(times=1, upstream=None, broker_name=None, traces=None)
    mini = Framework("Mini", "Once.", "https://example.org", "mini", ("1.0",), transactional_id="copy-*")
    own = runs.Runs(mini, "1.0", ["mini"], options, try_out)
    assert list(own.cells("timeout"))[-1].text == "held 1 of 1"
    assert [(rule["transactional_id"], rule["nth"]) for rule in tried] == [("copy-*", 1)]


def test_failures_of_a_program_without_transactions_are_about_what_it_writes() -> None:
    """`killed-after` has the requests of transactions besides, which it does not send."""
    tried: list[tuple[str, str | None]] = []

    def try_out(task: Task, script: Script, what: str) -> Judged:
        target = json.loads(task.command[4])[feed.OUTPUT]
        tried.extend((script.name, step.rule["topic"]) for step in script.steps)
        assert not script.steps or fnmatchcase(target, script.steps[0].rule["topic"])
        sent = [
            {"api": "Produce", "errors": [], "request": {"transactional_id": None, "topic_data": [{"name": name}]}}
            for name in ("in-1", target)
        ]
        return Judged(JudgedRun(script, status=0, fired=1, exchanges=sent), [])

    options = Namespace(times=1, upstream=None, broker_name=None, traces=None)
    mini = Framework("Mini", "Twice.", "https://example.org", "mini", ("1.0",), transaction_timeout_ms=0)
    own = runs.Runs(mini, "1.0", ["mini"], options, try_out)
    assert [list(own.cells(failure))[-1].text for failure in ("killed-after", "timeout")] == [
        "held 1 of 1",
        "no such request",
    ]
    assert tried == [("Produce 1", "out-*")]


def test_cells_are_kept_and_make_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "frameworks"
    at = "mini", "1.0", "timeout", HERE
    lost = Verdict("lost", "EndTxn 2: k7 is missing")
    save(folder, cell(at, "2026-11-27", [Verdict("held")]))
    save(folder, cell(at, "2026-11-27", [lost, Verdict("held"), lost._replace(why="later")]))  # in place of the first
    save(folder, cell((*at[:3], KAFKA), "2026-11-28", [Verdict("lost", "EndTxn 2: k8")]))
    save(folder, Cell("mini", "1.0", "oversized", HERE, "2026-11-27"))
    mini = Framework("Mini", "Once.", "https://example.org", "mini", ("1.0", "0.9"), folder=folder / "mini")
    other = Framework("Other", "Nothing.", "https://example.org", "other", ("2.0",), folder=folder / "other")
    page = as_markdown([mini, other], read_cells(folder))
    row = next(line for line in page.splitlines() if line.startswith("| Mini 1.0 |"))
    command = "minibroker museum scoreboard mini --client mini==1.0 --failure"
    assert [text for text in row.split(" | ")[1:] if text != "not run"] == [
        "lost 2 of 3, held 1 of 3",
        "no such request",
        f"`{command} NAME --times 3` |",
    ]
    assert " | transaction timeout `timeout` | " in page
    assert "| Mini 0.9 | not run |" in page
    said = "* Mini 1.0, transaction timeout, lost: `EndTxn 2: k7 is missing`. Kafka 4.4.0: lost 1 of 1, `EndTxn 2: k8`."
    assert f"{said} `{command} timeout --times 3`" in page.splitlines()
    assert "| Other | Nothing. ([source](https://example.org)) | not run |" in page
    assert "2026-11-27 to 2026-11-28" in page


def test_what_only_another_cluster_showed_is_on_the_page() -> None:
    def measured(failure: str, broker: str, *said: str) -> Cell:
        verdicts = [Verdict(word, "" if word == "held" else f"why {word}") for word in said]
        return cell(("mini", "1.0", failure, broker), "2026-11-27", verdicts)

    mini = Framework("Mini", "Once.", "https://example.org", "mini", ("1.0",), folder=Path("mini"))
    cells = [
        measured("timeout", KAFKA, "held", "lost"),
        measured("timeout", HERE, "held", "held"),
        measured("oversized", KAFKA, "no verdict", "torn"),
        measured("oversized", HERE, "torn"),
        measured("none", KAFKA, "doubled"),
        measured("crash", KAFKA, "held"),
    ]
    said = [line.removeprefix("* Mini 1.0, ") for line in as_markdown([mini], cells).splitlines() if "* Mini" in line]
    rates = "no verdict 1 of 2, torn 1 of 2"
    assert [line.partition(" `minibroker ")[0] for line in said] == [
        "transaction timeout, lost, on Kafka 4.4.0 only: held 1 of 2, lost 1 of 2, `why lost`. Here: held 2 of 2.",
        f"record too large, no verdict, on Kafka 4.4.0 only: {rates}, `why no verdict`. Here: torn 1 of 1.",
        f"record too large, torn: `why torn`. Kafka 4.4.0: {rates}, `why torn`.",
        "no failure, doubled, on Kafka 4.4.0 only: doubled 1 of 1, `why doubled`. Here: not run.",
    ]
    assert [line.partition("mini==1.0 ")[2] for line in said] == [
        "--failure timeout --times 2 --upstream HOST:PORT`",
        "--failure oversized --times 2 --upstream HOST:PORT`",
        "--failure oversized --times 1`",
        "--failure none --times 1 --upstream HOST:PORT`",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{FIELDS}versions = ['1']\n", "a framework has versions and a program"),
        (f"{FIELDS}versions = []\n", "a framework has versions and a program"),
        ('titel = "A"\n', "unexpected keyword argument 'titel'"),
        ("title =\n", "Invalid value"),
        (f"{FIELDS}versions = ['1']\nprogress = 'ouput'\n", "progress is group or output, not 'ouput'"),
    ],
)
def test_a_framework_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mini").mkdir()
    if "progress" in text or "[]" in text:
        (tmp_path / "mini" / "program.py").touch()
    (tmp_path / "mini" / "framework.toml").write_text(text)
    with pytest.raises(CaseError, match=said):
        read_all(tmp_path)


def test_two_settings_of_a_framework_share_a_program(tmp_path: Path) -> None:
    text = f"{FIELDS}versions = ['1']\n"
    for name, more in (("first", ""), ("second", 'program = "first"\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "framework.toml").write_text(text + more)
    (tmp_path / "first" / "program.py").touch()
    assert [framework.sources for framework in read_all(tmp_path)] == [[tmp_path / "first" / "program.py"]] * 2


def test_cells_of_the_repository_are_about_its_frameworks_and_failures() -> None:
    known = {framework.name: framework.versions for framework in read_all(place())}
    for measured in read_cells(place()):
        assert measured.version in known[measured.framework]
        assert measured.failure in FAILURES
        assert measured.broker in (HERE, KAFKA)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["quixstream"], "there is no framework 'quixstream', did you mean quixstreams?"),
        (["quixstreams", "--client", "franz-go==1.0"], "--client franz-go: what is run is about quixstreams"),
        (["--failure", "timeout"], "name a framework to run, or --all"),
        (["quixstreams", "--matrix"], "--matrix is for run, not for scoreboard"),
        (["quixstreams", "--failure", "timeouts"], "there is no failure 'timeouts', did you mean timeout?"),
        (["quixstreams", "--upstream", "kafka:1", "--save"], "--save with --upstream needs --broker-name NAME"),
        (["quixstreams", "--add"], "--add goes with --save"),
        (["quixstreams", "--broker-name", "Kafka 4.4.0"], "--broker-name goes with --upstream"),
        (["quixstreams", "--upstream", "kafka:1", "--broker-name", HERE], "--broker-name cannot be minibroker"),
    ],
)
def test_options_that_make_no_sense(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main(["museum", "scoreboard", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "broker"),
    [
        (["--upstream", "kafka:1", "--broker-name", "Kafka 3.9.0"], "Kafka 3.9.0"),
        ([], HERE),
    ],
)
def test_cells_are_saved_under_the_name_of_their_broker(tmp_path: Path, options: list[str], broker: str) -> None:
    waits = []

    def tried(task: Task, script: Script, what: str) -> Judged:
        assert task.upstream == ("kafka:1" if options else "")
        names = json.loads(task.command[4])
        waits.append(names.get(feed.WAITS))
        assert names["TMPDIR"] == names[feed.STATE_DIR]
        return ran(script)

    folder, arguments = mini_of(tmp_path, "1.0"), asked("mini", "--failure", "timeout", "--save", *options)
    assert runs.scoreboard(arguments, folder=folder, program=no_program, try_out=tried) == 0
    assert [cell.broker for cell in read_cells(folder)] == [broker]
    assert waits == (["0", "135"] if options else [None, None])  # only behind a proxy the wait is real


@pytest.mark.slow
@pytest.mark.parametrize(("way", "said"), [("right", "held"), ("outside", "doubled"), ("careless", "lost")])
def test_a_program_of_our_own(tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, said: str) -> None:
    """Killed at each request: a right loop holds, one that commits offsets outside of the transaction does not."""
    source = Path(__file__).parents[2] / "support" / "applications" / "copy_loop.py"

    @contextmanager
    def program(name: str, version: str, sources: Sequence[Path]) -> Iterator[list[str]]:
        yield [sys.executable, str(source), version]

    folder, options = mini_of(tmp_path, way), asked("mini", "--failure", "killed-after", "--times", "6", "--save")
    assert runs.scoreboard(options, folder=folder, program=program) == (said != "held"), capsys.readouterr().out
    (measured,) = read_cells(folder)
    assert said in measured.verdicts
    if said == "held":
        assert measured.verdicts == {"held": 6}
