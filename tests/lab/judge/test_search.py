"""Random scripts, the smallest one that breaks a rule, and the command that looks for it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from minibroker.cli import main
from minibroker.rules.rows import Log
from minibroker.rules.rules import finding
from minibroker_lab.judge import command
from minibroker_lab.judge.draw import Footprint, draw, footprint, kills
from minibroker_lab.judge.history import HistoryError
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import Script, as_toml, bundled, load, parse
from minibroker_lab.judge.search import Search, contains
from minibroker_lab.judge.verdict import BrokenPromise

CLIENT = Path(__file__).parents[2] / "support" / "applications" / "wrong_client.py"
CORE = ["InitProducerId", "Produce", "Produce", "InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn"] * 2
OLD = {"AddPartitionsToTxn": 1, "EndTxn": 1, "Fetch": 4, "FindCoordinator": 2, "InitProducerId": 1, "Produce": 7}
NEW = {"EndTxn": 5, "Fetch": 18, "InitProducerId": 5, "ListOffsets": 11, "Metadata": 13, "Produce": 13}
NAMED = frozenset({"InitProducerId", "AddPartitionsToTxn", "EndTxn", "Produce"})
SEEDS = range(200)


def scripts(seen: Footprint, seeds: Iterable[int] = SEEDS) -> list[Script]:
    return [draw(seed, seen) for seed in seeds]


def test_a_script_has_another_if_it_has_each_fault_as_often() -> None:
    """A bug that one lost answer shows is not the one that needs two."""
    lose = '[[fault]]\napi = "Produce"\naction = {{ name = "drop_reply" }}\nnth = {nth}\n'
    single, double = (parse(lose.format(nth=1) * count, "x") for count in (1, 2))
    assert contains(double, single)
    assert contains(double, double)
    assert not contains(single, double)


def test_a_seed_draws_the_same_script_and_another_seed_another_one() -> None:
    seen = Footprint(CORE, OLD, NAMED)
    first, again = scripts(seen), scripts(seen)
    assert first == again
    assert len({as_toml(script).partition("\n")[2] for script in first}) > len(SEEDS) * 0.9


@pytest.mark.parametrize("script", [*map(load, bundled()), *scripts(Footprint(CORE, OLD, NAMED), SEEDS[:40])])
def test_a_script_that_is_written_is_the_same_when_it_is_read(script: Script) -> None:
    assert parse(as_toml(script), script.name) == script


def drawn(seen: Footprint) -> set[tuple[str, str]]:
    """API and error code."""
    rules = [step.rule for script in scripts(seen, range(2 * len(SEEDS))) for step in script.steps]
    return {(rule["api"][0], rule["action"]["code"]) for rule in rules if "code" in rule["action"]}


def test_a_bundled_script_is_the_same_as_a_file() -> None:
    every = [load(name) for name in bundled()]
    assert any(one.restart and one.advance_ms for script in every for one in script.steps)
    assert [parse(as_toml(script), script.name) for script in every] == every


def test_only_codes_are_drawn_that_kafka_answers_for_the_version() -> None:
    old, new = drawn(Footprint(CORE, OLD, NAMED)), drawn(Footprint(CORE, NEW, NAMED))
    assert ("Produce", "UNKNOWN_TOPIC_OR_PARTITION") in old - new
    assert ("Produce", "UNKNOWN_TOPIC_ID") in new - old
    assert ("Produce", "CONCURRENT_TRANSACTIONS") in new - old
    assert ("Fetch", "KAFKA_STORAGE_ERROR") in new - old
    plain = drawn(Footprint(CORE, NEW, frozenset()))
    assert ("Produce", "CONCURRENT_TRANSACTIONS") not in plain
    assert {code for api, code in plain if api == "InitProducerId"} == {"COORDINATOR_LOAD_IN_PROGRESS"}
    assert not {code for _, code in old | new} & {"INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "UNKNOWN_PRODUCER_ID"}


def test_a_forgotten_producer_is_the_only_failure_of_its_script() -> None:
    forgotten = [s for s in scripts(Footprint(CORE, NEW, NAMED)) if "lose_producers" in as_toml(s)]
    assert forgotten
    assert {len(script.steps) for script in forgotten} == {1}


def test_what_is_drawn_around_a_hold_counts_from_the_hold_on() -> None:
    """As an EndTxn that waits for the second Produce after it: the third EndTxn from there on is delayed."""
    core = ["Produce", "Produce", "Produce", "EndTxn", "Produce", "EndTxn", "Produce", "EndTxn"]
    drawn_steps = {step for script in scripts(Footprint(core, OLD, NAMED), range(2000)) for step in _around(script)}
    assert ("EndTxn", 1, "Produce", 2, "EndTxn", 3) in drawn_steps
    assert ("Produce", 3, "EndTxn", 2, "Produce", 3) in drawn_steps
    assert ("Produce", 3, "Produce", 2, "EndTxn", 2) in drawn_steps


def _around(script: Script) -> Iterator[tuple[str, int, str, int, str, int]]:
    for hold, delayed in pairwise(script.steps):
        if hold.until and delayed.after_hold:
            assert hold.since_held
            (late,), (behind,) = hold.rule["api"], delayed.rule["api"]
            yield late, hold.rule["nth"], hold.until, hold.times, behind, delayed.rule["nth"]


def test_what_waits_for_a_hold_goes_with_it(tmp_path: Path) -> None:
    """A smaller script can be read, and has a fault."""
    shapes = []

    def breaks(script: Script) -> Judged:
        shapes.append([step.after_hold for step in script.steps])
        assert script.steps
        assert parse(as_toml(script), script.name) == script
        found = [BrokenPromise(finding("duplicate-record", Log("", "orders", 0), "twice"), None)]
        last = [{"api": "Fetch", "fault": len(script.steps), "number": 1}]
        return Judged(JudgedRun(script, status=0, fired=1, exchanges=last), found)

    searched(tmp_path, breaks)
    assert [False, True] in shapes


def test_the_footprint_has_the_exactly_once_requests_that_were_done() -> None:
    def exchange(api: str, version: int, *errors: str, **request: object) -> dict[str, object]:
        return {"api": api, "version": version, "errors": list(errors), "request": request}

    seen = footprint(
        [
            exchange("ApiVersions", 4),
            exchange("InitProducerId", 4, "NOT_COORDINATOR", transactional_id="tx"),
            exchange("InitProducerId", 4, transactional_id="tx"),
            exchange("Produce", 9, transactional_id=None),
            exchange("Produce", 10, transactional_id=None),
            exchange("Fetch", 12),
        ]
    )
    assert seen == Footprint(
        ["InitProducerId", "Produce", "Produce"],
        {"Fetch": 12, "InitProducerId": 4, "Produce": 10},
        frozenset({"InitProducerId"}),
    )


def test_the_client_is_killed_at_every_request_in_turn() -> None:
    every = kills(Footprint(["Produce", "EndTxn", "Produce"], {}, frozenset()))
    assert [script.name for script in every] == [
        f"killed-{when}-{name}" for name in ("Produce-1", "EndTxn-1", "Produce-2") for when in ("before", "after")
    ]
    (last,) = every[-1].steps
    assert (last.rule["nth"], last.rule["action"]["when"], last.restart, last.advance_ms) == (2, "after", True, 60_000)


def test_a_search_kills_the_client_too() -> None:
    drawn = scripts(Footprint([*CORE, "OffsetCommit"], {**OLD, "OffsetCommit": 8}, NAMED))
    killed = [one.rule for script in drawn for one in script.steps if one.restart]
    assert {rule["action"].get("when", "before") for rule in killed} == {"before", "after"}
    assert {api for rule in killed for api in rule["api"]} == {*CORE, "OffsetCommit"}
    named = sum(any(one.rule["api"] == ["OffsetCommit"] for one in script.steps) for script in drawn)
    assert named > len(drawn) / 8


LOOP = Footprint([*CORE, "TxnOffsetCommit", "OffsetCommit"], {**NEW, "TxnOffsetCommit": 5, "OffsetCommit": 9}, NAMED)


@functools.cache
def files_of_loop() -> list[list[str]]:
    return [as_toml(script).split("[[fault]]") for script in scripts(LOOP)]


def share(*signs: str) -> float:
    """Of the scripts for an application that commits offsets, those with a failure that has all these in its file."""
    files = files_of_loop()
    return sum(any(all(sign in fault for sign in signs) for fault in every) for every in files) / len(files)


def test_a_search_draws_most_what_an_application_meets_on_its_exactly_once_path() -> None:
    """What finds the mistakes of users, each in a share of the scripts that a search of minutes comes to."""
    assert share("restart_client") > 0.15
    assert share('"TOPIC_AUTHORIZATION_FAILED"') + share('"MESSAGE_TOO_LARGE"') > 0.02
    assert share('"GROUP_AUTHORIZATION_FAILED"') > 0.02
    assert share('"EndTxn"', '"drop_reply"') > 0.01
    assert share("append_aborted") > 0.02
    assert share('"Fetch"') > 0.13


def planted(script: Script) -> Judged:
    """What a client would come to that sends again, as something new, when an answer to EndTxn was lost twice."""
    broken = any(
        s.rule["api"] == ["EndTxn"] and s.rule["action"]["name"] == "drop_reply" and s.rule["times"] > 1
        for s in script.steps
    )
    found = [BrokenPromise(finding("duplicate-record", Log("", "orders", 0), "twice"), None)] if broken else []
    acted = [{"api": "Fetch", "fault": number, "number": number} for number in range(1, len(script.steps) + 1)]
    return Judged(JudgedRun(script, status=0, fired=1, exchanges=acted), found)


def searched(tmp_path: Path, try_out: Callable[[Script], Judged]) -> Search:
    search = Search(try_out, 2, lambda: False, tmp_path)
    search.run(iter(SEEDS), Footprint(CORE, OLD, NAMED))
    return search


def test_what_breaks_is_made_as_small_as_it_still_breaks(tmp_path: Path) -> None:
    search = searched(tmp_path, planted)
    for found in search.broken_scripts:
        (only,) = found.script.steps
        assert (only.rule["api"], only.rule["nth"], only.rule["times"]) == (["EndTxn"], 1, 2)
        assert (found.broken, found.runs) == (2, 2)
        assert load(str(tmp_path / f"{found.name}.toml")).steps == found.script.steps
    ways = {str(found.script.steps[0].rule["action"]) for found in search.broken_scripts}
    assert len(ways) == len(search.broken_scripts) == 2  # with the connection, and without
    assert sum(found.times for found in search.broken_scripts) > 2


def test_a_history_that_cannot_be_read_decides_nothing(tmp_path: Path) -> None:
    def torn(script: Script) -> Judged:
        raise HistoryError("line 3 of the history: no JSON")

    search = searched(tmp_path, torn)
    assert search.table()[0] == f"{len(SEEDS)} runs: 0 held, 0 broken, {len(SEEDS)} undecided, 0 not applicable"
    assert search.table()[1:] == [f"  undecided {len(SEEDS)}×: line 3 of the history: no JSON"]


def options(tmp_path: Path, *more: str) -> list[str]:
    return ["judge", "--search", "--topic", "orders:1", "--found", str(tmp_path), *more]


def first_seed(way: str) -> int:
    """A seed whose script, for a client that only sends four Produce, has this action only; not a silent one."""
    seen = Footprint(["Produce"] * 4, {"Produce": 12}, frozenset())
    steps = ((n, draw(n, seen).steps) for n in itertools.count())
    actions = ((n, step.rule["action"]) for n, (step, *others) in steps if not others)
    return next(n for n, action in actions if action["name"] == way and action.get("close", True))


def test_a_client_that_sends_again_without_a_producer_id_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = first_seed("drop_reply")
    client = [sys.executable, str(CLIENT), "duplicate_record"]
    status = main(
        options(
            tmp_path,
            "--seed",
            str(seed),
            "--runs",
            "1",
            "--report",
            "json",
            "--report-dir",
            str(tmp_path),
            "--",
            *client,
        )
    )
    said = capsys.readouterr().out.splitlines()
    assert status == 1
    assert f"search-{seed}: exactly-once broken" in said
    assert said[-3:-1] == [
        "1 run: 0 held, 1 broken, 0 undecided, 0 not applicable",
        f"  broken 1×: duplicate-record: search-{seed}.toml (1 of 1 run)",
    ]
    (step,) = load(str(tmp_path / f"search-{seed}.toml")).steps
    assert (step.rule["nth"], step.rule["times"]) == (1, 1)


def test_a_right_client_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = first_seed("error")
    client = [sys.executable, str(CLIENT), "right"]
    more = ["--topic", "in:1", "--topic", "out:1", "--seed", str(seed), "--runs", "2", "--timeout", "30"]
    assert main(options(tmp_path, *more, "--any-exit", "--allow-unmet", "--", *client)) == 0
    assert "0 broken" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tries = itertools.count()

    def until_interrupted(task: object, script: Script, what: str) -> Judged:
        if next(tries) == 2:
            raise KeyboardInterrupt
        done = JudgedRun(
            script,
            status=0,
            fired=1,
            exchanges=[{"api": "Produce", "version": 9, "errors": [], "request": {}, "fault": 0}],
        )
        return Judged(done, [])

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(KeyboardInterrupt):
        command.run(parser.parse_args(options(tmp_path, "--", "client")[1:]), try_out=until_interrupted)
    assert capsys.readouterr().out == (
        "requests made to fail: none; no failure met: Produce\n1 run: 1 held, 0 broken, 0 undecided, 0 not applicable\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--search", "--script", "calm"], "--search draws its scripts: leave out --script, --kills and --preset"),
        (["--search", "--kills"], "leave out --script, --kills and --preset"),
        (["--runs", "2"], "--minutes and --runs go with --search"),
        (["--search", "--minutes", "0"], "expected a time above 0, got '0'"),
        (["--search", "--minutes", "nan"], "expected a time above 0, got 'nan'"),
        (["--search", "--minutes", "ten"], "expected a time above 0, got 'ten'"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["judge", *arguments, "--", "client"]) == 2
    assert said in capsys.readouterr().err
