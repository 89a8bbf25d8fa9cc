"""The list of 51 bugs in museum/bugs.md: every row is there, and says which cases show it, or why none does."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from minibroker.cli import main

ROOT = Path(__file__).parents[3]
CASES = [path.parent.name for path in (ROOT / "museum" / "cases").glob("*/case.toml")]
NO_CASE = "[did not return](#calls-that-did-not-return)"
_, _, REST = (ROOT / "museum" / "bugs.md").read_text(encoding="utf-8").partition("## The list of bugs\n")
LIST, _, REST = REST.partition("## Calls that did not return\n")
HUNG, _, TRIED = REST.partition("## Tried, and not shown\n")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LIST.splitlines() if re.match(r"\| \d", line)]


def test_every_row_is_there() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 52)]
    assert all(len(row) == 5 and all(row) for row in ROWS)


def test_every_row_has_a_case_or_a_reason() -> None:
    for number, _, _, _, here in ROWS:
        named = re.findall(r"`([^`]+)`", here) if here.startswith("`") else []
        reason = ("not a case: ", "not tried: ")
        assert named or here == "tried" or here.startswith(reason) or here.endswith(f"not a case: {NO_CASE}"), number
        for name in named:
            assert any(fnmatch(case, name) for case in CASES), (number, name)


def test_what_did_not_return_is_a_row_of_words() -> None:
    rows = [line.strip("|").split("|") for line in HUNG.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 9
    assert all(len(row) == 5 and all(cell.strip() for cell in row) for row in rows)
    # A list of what hung names threads, and no failures that lead there.
    apis = "InitProducerId|AddPartitionsToTxn|EndTxn|Produce|JoinGroup|NOT_|INVALID_|\\.toml"
    assert not [row for row in rows if re.search(apis, " ".join(row))]
    for number, _, thread, _, here in ROWS:
        if NO_CASE in here:
            assert any(
                name in HUNG for name in re.findall(r"[\w.-]+/[\w.-]+#\d+", thread) + re.findall(r"#\d+", here)
            ), number


def test_what_was_tried_is_told() -> None:
    told = {number for cell in re.findall(r"^\| (\d+(?:, \d+)*) \|", TRIED, re.M) for number in cell.split(", ")}
    assert {number for number, *_, here in ROWS if "tried" in here and "not tried" not in here} <= told


def test_a_case_may_be_named_after_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["museum", "show", "--cases", str(ROOT / "museum" / "cases"), "aiokafka-1017"]) == 0
    assert capsys.readouterr().out.startswith("aiokafka-1017: ")
