"""The scripts of the preset kip890 for a client, and what a run under one of them says."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import pytest

from minibroker_lab.judge import command
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.kip890 import NO, UNTOLD, YES, Answer, answer, late_scripts, table
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import Script, as_toml, parse
from minibroker_lab.judge.trial import Task, TryOut
from minibroker_protocol.records import Record

CALM = ("InitProducerId", "Add", "Produce", "commit", "Add", "Produce", "abort", "Add", "Produce", "commit")


def exchange(number: int, what: str, **more: Any) -> Exchange:
    """what: an API, or `commit`, `abort`, `Add` for AddPartitionsToTxn. Each takes 1 ms, every 10 ms."""
    api = {"commit": "EndTxn", "abort": "EndTxn", "Add": "AddPartitionsToTxn"}.get(what, what)
    name = "v3_and_below_transactional_id" if what == "Add" else "transactional_id"
    request = {name: "tx", "producer_id": 1, "producer_epoch": 0, "committed": what == "commit"}
    one = {"number": number, "api": api, "version": 1, "request": request, "response": {}, "errors": []}
    return {**one, "outcome": "answered", "fault": 0, "time_ms": number * 10, "took_ms": 1, **more}


def calm(*apis: str) -> list[Exchange]:
    return [exchange(number, what) for number, what in enumerate(apis, 1)]


def held(script: Script) -> tuple[str, int, str, int, bool]:
    one = script.steps[0]
    return (*one.rule["api"], one.rule["nth"], one.until, one.times, one.since_held)


def delayed(script: Script) -> tuple[str, int, int, bool]:
    _, one = script.steps
    return (*one.rule["api"], one.rule["nth"], one.rule["times"], one.after_hold)


@pytest.mark.parametrize("before", [(), ("Produce",), ("Produce", "Produce", "AddPartitionsToTxn")], ids=len)
def test_each_request_is_late_until_the_next_transaction_has_begun(before: tuple[str, ...]) -> None:
    """What came before is chance, and does not count."""
    of_others = [exchange(number - 9, what, request={}) for number, what in enumerate(before)]
    scripts = late_scripts([*of_others, *calm(*CALM)])
    assert {one.name: held(one) for one in scripts} == {
        "late commit": ("EndTxn", 1, "AddPartitionsToTxn", 1, True),
        "late abort": ("EndTxn", 2, "AddPartitionsToTxn", 1, True),
        "late Produce": ("Produce", 1 + before.count("Produce"), "AddPartitionsToTxn", 1, True),
    }
    assert {one.name: delayed(one) for one in scripts} == {
        "late commit": ("Produce", 1, 1, True),
        "late abort": ("Produce", 1, 1, True),
        "late Produce": ("Produce", 1, 2, True),
    }
    assert [parse(as_toml(one), one.name) for one in scripts] == scripts


def test_a_late_produce_waits_for_the_partitions_of_its_own_transaction_too() -> None:
    scripts = late_scripts(calm("Add", "Produce", "Add", "Produce", "commit", "Add", "Produce", "commit"))
    (late,) = [one for one in scripts if one.name == "late Produce"]
    assert held(late) == ("Produce", 1, "AddPartitionsToTxn", 2, True)
    assert delayed(late) == ("Produce", 1, 3, True)


@pytest.mark.parametrize("batches", [("Produce",), ("Produce", "Produce")], ids=["one Produce", "two"])
def test_with_transaction_version_2_it_is_all_the_same_how_many_produce_requests_a_transaction_is(
    batches: tuple[str, ...],
) -> None:
    scripts = late_scripts(calm(*batches, "commit", *batches, "abort", "Produce", "commit"))
    assert {one.name: held(one) for one in scripts} == {
        "late commit": ("EndTxn", 1, "Produce", 1, True),
        "late abort": ("EndTxn", 2, "Produce", 1, True),
        "late Produce": ("Produce", 1, "EndTxn", 1, True),
    }
    assert {delayed(one) for one in scripts} == {("EndTxn", 2, 1, True)}
    assert [parse(as_toml(one), one.name) for one in scripts] == scripts


def test_without_a_next_transaction_nothing_can_be_late() -> None:
    assert late_scripts(calm("InitProducerId", "Produce", "commit")) == []


def produced(one: Exchange, epoch: int = 0, sequence: int = 0, offset: int = 0) -> Produced:
    return Produced(one, "t", 0, (1, epoch, sequence), [Record(value=b"v")], offset, True)


def late(what: str, **more: Any) -> Exchange:
    """Applied behind everything else that `during` has."""
    return exchange(9, what, fault=1, time_ms=5, took_ms=70, **more)


def said(held: Exchange, ended: bool = True, epoch: int = 0, batches: tuple[Produced, ...] = ()) -> Answer:
    others = [exchange(1, "commit")] if ended else []
    begun = exchange(4, "Produce")
    run = JudgedRun(Script("late", "", ()), exchanges=[*others, begun, held])
    run.produced = [*batches, produced(begun, epoch, sequence=1)]
    return answer(Judged(run, []))


def test_a_late_end_txn_of_the_same_epoch_ends_the_next_transaction() -> None:
    assert said(late("commit")) == (YES, "EndTxn v1 (exchange 9) ended the transaction of exchange 4", 9)
    assert said(late("commit"), epoch=1).said == NO


def test_a_late_request_that_is_refused_does_nothing() -> None:
    refused = said(late("abort", errors=["INVALID_PRODUCER_EPOCH (47) at t-0"]), ended=False)
    assert refused == (NO, "EndTxn v1 (exchange 9) was refused with INVALID_PRODUCER_EPOCH", 9)


def test_a_late_produce_enters_the_next_transaction_unless_it_was_sent_again() -> None:
    held = late("Produce")
    own = produced(held)
    assert said(held, batches=(own,)).said == YES
    assert said(held, batches=(own, produced(exchange(1, "Produce")))).said == UNTOLD
    assert said(held, batches=(own, produced(exchange(1, "Produce"), offset=-1))).said == YES


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (late("commit", response=None), "the client did not go on"),
        (exchange(9, "commit"), "the client did not go on"),
        (late("commit"), "no other EndTxn"),
    ],
    ids=["never applied", "never held", "waits"],
)
def test_a_client_that_did_not_go_on_tells_nothing(held: Exchange, why: str) -> None:
    told = said(held, ended=False)
    assert told.said == UNTOLD
    assert why in told.why


def test_a_client_that_wrote_nothing_else_tells_nothing() -> None:
    held = late("commit")
    run = JudgedRun(Script("late", "", ()), exchanges=[exchange(1, "commit"), held])
    assert "wrote no other transaction" in answer(Judged(run, [])).why


def judge(*words: str, try_out: TryOut) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words), try_out=try_out)


def test_the_table_counts_what_was_said() -> None:
    answers = [("late commit", Answer(said, f"why {at}")) for at, said in enumerate((NO, YES, NO))]
    assert table(answers)[1:] == ["  late commit   no        2 of 3: why 0", "  late commit   yes       1 of 3: why 1"]


@pytest.mark.parametrize(
    ("held", "status"),
    [
        ({"errors": []}, 1),
        ({"errors": ["INVALID_PRODUCER_EPOCH (47)"]}, 0),
        ({"response": None}, 2),
    ],
    ids=["yes", "no", "not told"],
)
def test_the_command_ends_with_what_was_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    held: dict[str, Any],
    status: int,
) -> None:
    numbers = itertools.count()
    tasks: list[Task] = []

    def try_out(task: Task, script: Script, what: str) -> Judged:
        tasks.append(task)
        run = JudgedRun(script, status=0, fired=1, exchanges=calm(*CALM))
        if next(numbers):
            run.exchanges = [exchange(1, "commit"), begun := exchange(4, "Produce"), late("commit", **held)]
            run.produced = [produced(begun, sequence=1)]
        return Judged(run, [])

    assert judge("--preset", "kip890", "--repeat", "2", "client", try_out=try_out) == status
    told = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[:2] for line in told] == [["late", "commit"], ["late", "abort"], ["late", "Produce"]]
    assert all("2 of 2" in line for line in told)
    assert {task.config["minibroker.not.yet.answers"] for task in tasks} == {"false"}


def test_a_command_without_transactions_is_told_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calm = Judged(JudgedRun(Script("calm", "", ()), status=0), [])
    assert judge("--preset", "kip890", "client", try_out=lambda *_: calm) == 2
    assert "sends no request that could be late" in capsys.readouterr().err
