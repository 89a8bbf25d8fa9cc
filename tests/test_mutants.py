"""The defects that `python -m mutants` plants. Planting and showing them takes hours and is done by hand."""

from __future__ import annotations

import ast
import builtins
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("cosmic_ray")

from mutants import __main__ as program
from mutants.coverage_map import CoverageMap
from mutants.planting import CORE, ROOT, Mutant, candidates, changed, drawn, found_again
from mutants.recording import MARKS, Marking, Recorder, Recording
from mutants.server import NotInFunctions, swaps

SOURCE = """
class Thing:
    size: int = 3

    def grow(self, by: int | None = None, *, at: int = 0) -> int:
        log.info("grows by %d", by + 1)
        self.size += by
        if by < 4 and not at:
            self.tell()
        kept = [by, *zip([by], [by], strict=True)]
        assert not by + 3
        raise ValueError(f"too {by + 2}")
"""


def test_what_is_planted_and_what_is_not() -> None:
    """No annotation, log line, assertion, text of an error or name that is never bound."""
    found = {(mutant.line, mutant.operator.split("_")[-1]) for mutant in candidates("thing.py", SOURCE)}
    assert {line for line, _ in found} <= {5, 7, 8, 9, 10}
    assert {
        (7, "delete"),
        (9, "delete"),
        (8, "LtE"),
        (8, "ReplaceAndWithOr"),
        (8, "Not"),
        (8, "NumberReplacer"),
    } <= found
    assert not {(10, "delete"), (10, "ReplaceTrueWithFalse")} & found


def test_of_dotted_exceptions_in_a_tuple_none_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "try:\n    f()\nexcept (a.Error, KeyError):\n    g()\n"
    (tmp_path / "thing.py").write_text(source)
    monkeypatch.setattr("mutants.planting.ROOT", tmp_path)
    found = [one for one in candidates("thing.py", source) if one.operator == "ExceptionReplacer"]
    assert [bool(changed(one)) for one in found] == [False, True]


def test_a_seed_draws_the_same_again_from_the_core() -> None:
    first, again, other = drawn(3, 12, "in_sync"), drawn(3, 12, "in_sync"), drawn(4, 12, "in_sync")
    assert first == again != other
    assert all(mutant.before != mutant.after for mutant in first)
    assert all((ROOT / folder).is_dir() for folder in CORE)


def test_a_defect_is_found_again_where_its_line_has_moved_to() -> None:
    mutant = drawn(3, 1, "in_sync")[0]
    moved = replace(mutant, line=mutant.line + 7, occurrence=mutant.occurrence + 1)
    assert found_again(moved) == mutant
    assert found_again(replace(mutant, before="what is there no more")) is None


@pytest.mark.parametrize(
    ("old", "new", "functions"),
    [
        ("def a(): return 1\nclass B:\n  def c(self): return [x for x in 2]", "return 3", ["a"]),
        ("def a(): return 1\nclass B:\n  def c(self): return [x + 1 for x in 2]", "x - 1", ["B.c"]),
        ("def a(b=1): return b", "b=2", None),
        ("class A:\n  b = 1", "b = 2", None),
    ],
)
def test_only_a_defect_within_functions_needs_no_import(old: str, new: str, functions: list[str] | None) -> None:
    word = {"return 3": "return 1", "x - 1": "x + 1", "b=2": "b=1", "b = 2": "b = 1"}[new]
    before, after = compile(old, "a.py", "exec"), compile(old.replace(word, new), "a.py", "exec")
    if functions is None:
        with pytest.raises(NotInFunctions):
            list(swaps(before, after))
    else:
        assert [code.co_qualname for code, _ in swaps(before, after)] == functions


BLOCKS = """
ONE = 1
class A:
    def f(self, a):
        "Doc."
        global ONE
        b = a
        if a == 1:
            return b
        elif a == 2:
            b += 1
        else:
            try:
                int("x")
            except ValueError:
                b = 0
        for _ in range(a):
            def g():
                return b
            g()
        return b
"""


@pytest.mark.parametrize(
    ("a", "lines"),
    [
        (1, [7, 8, 9]),
        (0, [7, 8, 10, 13, 14, 15, 16, 17, 21]),
        (2, [7, 8, 10, 11, 17, 18, 19, 20, 21]),
    ],
)
def test_a_recording_knows_the_lines_that_ran(a: int, lines: list[int]) -> None:
    """Those of a function's statements; what runs at import is in no block."""
    marking, tree = Marking(0), ast.parse(BLOCKS)
    marking.visit(tree)
    marks = bytearray(marking.next)
    space: dict[str, Any] = {MARKS: marks}
    exec(compile(tree, "blocks.py", "exec"), space)
    assert not any(marks)
    space["A"]().f(a)
    of_line = {line: block for first, last, block in marking.lines for line in range(first, last + 1)}
    assert [line for line, block in sorted(of_line.items()) if marks[block]] == lines
    assert space["A"].f.__doc__ == "Doc."


class Map(CoverageMap):
    """Coverage of one file, which no run has recorded."""

    def __init__(self) -> None:
        self.seconds = {f"{HERE}": 1.0, f"{ROOM}": 1.0, f"{THERE}_quick": 0.1, f"{THERE}_slow": 5.0}

    def _contexts(self, mutant: Mutant) -> dict[int, list[str]]:
        names = (f"{THERE}_quick", ROOM, HERE, f"{THERE}_slow", f"{THERE}_unknown")
        return {1: [""], 90: [f"{name}|run" for name in names]}


HERE = "tests/minibroker/partitions/test_in_sync.py::test_a"
ROOM = "tests/minibroker/partitions/test_a.py::test_a"
BESIDE = "tests/minibroker/partitions/test_b.py::test_b"
THERE = "tests/minibroker/cluster/test_x.py::test"


def test_tests_of_protocol_and_storage_are_in_folders_of_shorter_names() -> None:
    coverage, storage = Map(), "tests/storage/test_a.py::test_a"
    coverage.seconds = dict.fromkeys((THERE, storage), 1.0)
    coverage._contexts = lambda _: {90: [f"{name}|run" for name in coverage.seconds]}  # type: ignore[method-assign]
    mutant = replace(drawn(3, 1, "storage/segment")[0], line=90, before="")
    assert coverage.tests(mutant, 40)[0] == storage


def test_tests_of_the_folder_that_do_not_run_the_line_come_after_those_that_do() -> None:
    coverage = Map()
    coverage.seconds |= dict.fromkeys((BESIDE,), 0.01)
    mutant = replace(drawn(3, 1, "in_sync")[0], line=90, before="")
    assert coverage.tests(mutant, 40) == [HERE, ROOM, f"{THERE}_quick", f"{THERE}_slow", BESIDE]


@pytest.mark.parametrize(("line", "limit", "count"), [(90, 40, 4), (90, 2.2, 3), (1, 40, 4)])
def test_tests_of_the_file_come_first_then_of_the_folder_then_the_quick(line: int, limit: float, count: int) -> None:
    mutant = replace(drawn(3, 1, "in_sync")[0], line=line, before="")
    coverage = Map()
    assert coverage.tests(mutant, limit) == [HERE, ROOM, f"{THERE}_quick", f"{THERE}_slow"][:count]
    assert coverage.runs_at_import(mutant) is (line == 1)


def test_a_defect_is_written_as_it_is_described() -> None:
    mutant = drawn(3, 1, "in_sync")[0]
    was, now = (ROOT / mutant.path).read_text().splitlines(), changed(mutant).splitlines()
    assert (was[mutant.line - 1].strip(), now[mutant.line - 1].strip()) == (mutant.before, mutant.after)
    assert Path(mutant.path).parts[0] == "minibroker"


@pytest.mark.skipif(hasattr(builtins, MARKS), reason="these tests are being recorded")
def test_a_module_that_another_thread_imports_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(builtins, MARKS, None, raising=False)
    path = ROOT / "minibroker" / "kernel" / "waiting.py"
    recorder = Recorder(tmp_path / "recording")
    importing = Thread(target=recorder.marked, args=(str(path), path.read_text()))
    importing.start()
    importing.join()
    recorder._marks[0] = 1
    recorder.write("a test", "call")
    recorder.pytest_unconfigure()
    found = Recording(tmp_path / "recording").contexts("minibroker/kernel/waiting.py")
    assert {line for line, tests in found.items() if tests == ["a test|call"]}
    assert {line for line, tests in found.items() if not tests}


def test_a_run_goes_on_where_it_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = drawn(3, 5, "in_sync")
    output = tmp_path / "3.json"
    output.write_text(json.dumps([asdict(replace(one, seen="a test")) for one in planted[:2]]))
    shown: list[list[Mutant]] = []

    def show(*arguments: Any) -> list[Mutant]:
        shown.append(arguments[0])
        return []

    monkeypatch.setattr(program, "CoverageMap", lambda _: None)
    monkeypatch.setattr(program, "_shown", show)
    for more in ([], ["--resume"]):
        arguments = ["--seed", "3", "--count", "5", "--only", "in_sync", "--output", str(output), *more]
        monkeypatch.setattr(sys, "argv", ["mutants", *arguments])
        assert program.main() == 0
    assert shown == [planted, planted[2:]]
