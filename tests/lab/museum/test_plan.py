"""Plans of cases: what a client's program is told to do, and the history that comes of what it answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from minibroker_lab.museum.plan import check, main

# Answers each step as it is told to: {step: [answers, one after the other]}, else by `ok`, and writes the steps down.
PROGRAM = """
import json, sys
answers, log = json.loads(sys.argv[1]), open(sys.argv[2], "a")
for line in sys.stdin:
    step = line.strip()
    print(step, file=log, flush=True)
    own = answers.get(step) or answers.get(step.split()[0], [])
    print(own.pop(0) if own else "ok", flush=True)
"""


Follow = Callable[..., tuple[list[str], list[dict[str, object]], int]]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """plan, answers → (steps that the program was given, history without topics, status)."""
    monkeypatch.setenv("MINIBROKER_HISTORY", str(tmp_path / "history"))

    def follow(
        plan: Sequence[str], answers: dict[str, list[str]], program: str = PROGRAM
    ) -> tuple[list[str], list[dict[str, object]], int]:
        status = main(plan, [sys.executable, "-c", program, json.dumps(answers), str(tmp_path / "log")], 0.01)
        lines = (tmp_path / "history").read_text().splitlines() if (tmp_path / "history").exists() else []
        told = [json.loads(line) for line in lines]
        assert {one.pop("topic") for one in told} <= {"orders"}
        return (tmp_path / "log").read_text().splitlines(), told, status

    return follow


def test_a_transaction_and_what_became_of_its_record(followed: Follow) -> None:
    plan = ["open tx", "begin", "send a", "send b@1", "flush", "commit", "read a"]
    steps, told, status = followed(plan, {"flush": ["ack a\nnack b refused\nok"], "read": ["read a 0 7\nok"]})
    assert steps == ["open tx", "begin", "send a 0", "send b 1", "flush", "commit", "read a"]
    assert told == [
        {"event": "send", "value": "a", "transaction": 0},
        {"event": "send", "value": "b", "transaction": 0},
        {"event": "ack", "value": "a"},
        {"event": "end", "transaction": 0, "outcome": "commit"},
        {"event": "read", "value": "a", "partition": 0, "offset": 7},
    ]
    assert status == 0


def test_the_rest_of_a_transaction_that_fails_is_left_out_and_it_is_aborted(followed: Follow) -> None:
    plan = ["open tx", "begin", "send a", "flush", "send b", "commit", "begin", "commit"]
    steps, told, _ = followed(plan, {"flush": ["error no"]})
    assert steps == ["open tx", "begin", "send a 0", "flush", "abort", "begin", "commit"]
    assert [(one["transaction"], one["outcome"]) for one in told[1:]] == [(0, "abort"), (1, "commit")]


def test_a_producer_that_cannot_abort_is_replaced_until_one_opens(followed: Follow) -> None:
    plan = ["open tx", "begin", "commit", "begin", "commit"]
    steps, told, _ = followed(plan, {"commit": ["error no"], "abort": ["error no"], "open tx": ["ok", "error no"]})
    assert steps == ["open tx", "begin", "commit", "abort", "open tx", "open tx", "begin", "commit"]
    assert [(one["transaction"], one["outcome"]) for one in told] == [(1, "commit")]


def test_a_plan_goes_on_with_the_same_producer_until_a_transaction_is_committed(followed: Follow) -> None:
    steps, told, _ = followed(["open tx", "transact a"], {"commit": ["error no"], "abort": ["error no"]})
    assert steps == ["open tx", "begin", "send a.0 0", "commit", "abort", "begin", "send a.1 0", "commit"]
    assert [(one["event"], one["transaction"]) for one in told] == [("send", 0), ("send", 1), ("end", 1)]


def test_a_record_is_sent_until_it_is_acknowledged(followed: Follow) -> None:
    # Refused when it is sent, refused later, not told of at the first flush, and then written.
    answers = {"send": ["error full", "nack a refused\nok"], "flush": ["ok", "ok", "error no", "ack a\nok"]}
    steps, told, _ = followed(["open", "insist a"], answers)
    assert [step.split()[0] for step in steps] == ["open", "send", "send", "flush", "send", *["flush"] * 3]
    assert told == [{"event": "send", "value": "a"}, {"event": "ack", "value": "a"}]


@pytest.mark.parametrize(
    ("plan", "answers", "last"),
    [
        (["open", "insist a"], {"send": ["error no"] * 20}, "a failed 20 times, at last with no"),
        (["open", "insist a"], {"send": ["nack a no\nok"] * 20}, "a failed 20 times, at last with not written"),
        (["open tx", "transact a"], {"commit": ["error no"] * 20}, "a failed 20 times, at last with no"),
        (["open", "flush"], {"open": ["error no"] * 20}, "open failed 20 times, at last with no"),
    ],
)
def test_what_fails_again_and_again_is_given_up(
    followed: Follow, plan: list[str], answers: dict[str, list[str]], last: str
) -> None:
    (word, errors), *_ = answers.items()
    last_try = ["ack a\nok"] if word == "send" else []
    tried, told, status = followed([*plan, "flush"], {word: errors + last_try})
    assert told[-1] == {"event": "give up", "reason": last}
    assert (status, sum(step.split()[0] in answers for step in tried)) == (1, 20)
    # One error less, and the plan goes on.
    _, told, status = followed([*plan, "flush"], {word: errors[1:] + last_try})
    assert (status, sum(one["event"] == "give up" for one in told)) == (0, 1)


def test_a_program_that_ends_too_early(followed: Follow, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import sys; open(sys.argv[2], 'w'); sys.stdin.readline(); print('for people')"
    steps, _, status = followed(["open", "flush"], {}, program)
    assert (steps, status) == ([], 1)
    assert capsys.readouterr().out == "for people\nthe program ended before its plan\n"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("comit", "there is no step 'comit', did you mean commit?"),
        ("begin now", "the step 'begin' has no word behind it, not 'begin now'"),
        ("send", "the step 'send' has one word behind it, not 'send'"),
        ("send a b", "the step 'send' has one word behind it, not 'send a b'"),
        ("send a@x", "invalid literal"),
        ("sleep long", "could not convert"),
    ],
)
def test_a_step_that_cannot_be(step: str, said: str) -> None:
    for good in ("open", "open tx", "send a@1", "sleep 0.5", "commit"):
        check(good)
    with pytest.raises(ValueError, match=said):
        check(step)
