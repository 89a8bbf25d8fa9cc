"""Which test runs which lines of the product: a pytest plugin that records it, and what reads a recording.

A block is a run of statements that run together. When a module is imported, each block of its functions gets one
statement more, which marks the block: an order of magnitude cheaper than a trace of lines.
"""

from __future__ import annotations

import ast
import builtins
import os
import sqlite3
import sys
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import compress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from packages import ROOT, TOPS

SOURCES = TOPS
FILE = "MUTANTS_RECORDING"
MARKS = "__blocks_that_ran__"
_COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TABLES = """
create table source (path text, text text);
create table block (number integer, path text, first integer, last integer);
create table ran (test text, phase text, seconds real, blocks blob);
"""


class Marking(ast.NodeTransformer):
    """Marks the blocks of a module's functions; `lines` has first line, last line and block."""

    def __init__(self, first: int) -> None:
        self.next, self.lines = first, list[tuple[int, int, int]]()

    def visit_FunctionDef(self, node: Any) -> Any:
        for name, value in ast.iter_fields(node):
            if name == "body":
                node.body = self._marked(value, node.lineno)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def _marked(self, body: list[ast.stmt], line: int) -> list[ast.stmt]:
        marked: list[ast.stmt] = []
        if ast.get_docstring(ast.Module(body, []), clean=False) is not None:
            marked.append(body.pop(0))
        fresh = True
        for statement in body:
            if isinstance(statement, ast.Global | ast.Nonlocal):
                marked.append(statement)
                continue
            if fresh:
                block, fresh = self.next, False
                self.next += 1
                mark = ast.parse(f"{MARKS}[{block}] = 1").body[0]
                for each in ast.walk(mark):
                    ast.copy_location(each, statement)
                marked.append(mark)
            start = min(
                [statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))]
            )
            inner = [child for child in self._lists(statement) for child in child[1]]
            last = (
                min((inner_statement.lineno for inner_statement in inner), default=(statement.end_lineno or start) + 1)
                - 1
            )
            self.lines.append((start, max(start, last), block))
            for owner, children in list(self._lists(statement)):
                name = next(name for name, value in ast.iter_fields(owner) if value is children)
                if isinstance(owner, ast.ExceptHandler | ast.match_case):  # its own line is run with what is in it
                    self.lines.append((getattr(owner, "lineno", children[0].lineno), children[0].lineno, self.next))
                setattr(owner, name, self._marked(children, children[0].lineno))
            if isinstance(statement, _FUNCTIONS):
                self.visit(statement)
            elif isinstance(statement, ast.ClassDef):
                self.generic_visit(statement)
            marked.append(statement)
            fresh = isinstance(statement, _COMPOUND)
        return marked

    @staticmethod
    def _lists(statement: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
        """Lists of statements that belong to a compound statement."""
        if isinstance(statement, _COMPOUND):
            for owner in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                for name in ("body", "orelse", "finalbody"):
                    if getattr(owner, name, None):
                        yield owner, getattr(owner, name)


class _Loader(SourceFileLoader):
    recorder: Recorder

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = self.recorder.marked(path, Path(path).read_text())
        return compile(tree, path, "exec", dont_inherit=True)  # type: ignore[no-any-return]


class Recorder(MetaPathFinder):
    """Loads the product with marks, and writes what each test ran."""

    def __init__(self, file: Path) -> None:
        self._marks, self._database = bytearray(), sqlite3.connect(file)
        self._lock = (
            threading.Lock()
        )  # a broker's thread imports too, and a database connection belongs to the thread that opened it
        self._sources: list[tuple[str, str]] = []
        self._blocks: list[tuple[int, str, int, int]] = []
        self._database.executescript(f"pragma journal_mode = off; pragma synchronous = off; {_TABLES}")
        setattr(builtins, MARKS, self._marks)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
            return None
        if not any(spec.origin.startswith(f"{ROOT / source}{os.sep}") for source in SOURCES):
            return None
        spec.loader = _Loader(fullname, spec.origin)
        spec.loader.recorder = self
        return spec

    def marked(self, path: str, text: str) -> ast.Module:
        tree, name = ast.parse(text), str(Path(path).relative_to(ROOT))
        with self._lock:
            marking = Marking(len(self._marks))
            marking.visit(tree)
            self._marks.extend(bytes(marking.next - len(self._marks)))
            self._sources.append((name, text))
            self._blocks += [(block, name, first, last) for first, last, block in marking.lines]
        return tree

    def write(self, test: str, phase: str, seconds: float = 0.0) -> None:
        with self._lock:
            self._database.executemany("insert into source values (?, ?)", self._sources)
            self._database.executemany("insert into block values (?, ?, ?, ?)", self._blocks)
            self._sources, self._blocks = [], []
        ran = array("I", compress(range(len(self._marks)), self._marks))
        self._marks[:] = bytes(len(self._marks))
        self._database.execute("insert into ran values (?, ?, ?, ?)", (test, phase, seconds, ran.tobytes()))
        self._database.commit()

    def pytest_collection_finish(self) -> None:
        self.write("", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.write(report.nodeid, report.when or "", report.duration)

    def pytest_unconfigure(self) -> None:
        self._database.close()


class Recording:
    """One run of tests, with the sources as they were then."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, check_same_thread=False)
        self._sources: dict[str, str] = dict(self._database.execute("select path, text from source"))

    def seconds(self) -> dict[str, float]:
        return dict(self._database.execute("select test, sum(seconds) from ran where test != '' group by test"))

    @cached_property
    def _ran(self) -> dict[int, list[str]]:
        """Block → the tests that ran it, with the phase."""
        contexts = defaultdict(list)
        for test, phase, blocks in self._database.execute("select test, phase, blocks from ran"):
            context = f"{test}|{phase}" if test else ""
            for block in array("I", blocks):
                contexts[block].append(context)
        return contexts

    def contexts(self, path: str) -> dict[int, list[str]]:
        """Line of today → the tests that ran it. Lines that are new since, or in no function, are in none."""
        if path not in self._sources:
            return {}
        then, now = self._sources[path].splitlines(), (ROOT / path).read_text().splitlines()
        moved = {
            block.a + step + 1: block.b + step + 1
            for block in SequenceMatcher(None, then, now, autojunk=False).get_matching_blocks()
            for step in range(block.size)
        }
        rows = self._database.execute("select number, first, last from block where path = ? order by number", [path])
        return {
            moved[line]: self._ran.get(number, [])
            for number, first, last in rows
            for line in range(first, last + 1)
            if line in moved
        }


# Before pytest imports anything of the product: a `conftest.py` does, and so does the plugin of the product itself.
_recorder = Recorder(Path(os.environ.pop(FILE))) if FILE in os.environ else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_recorder, "mutants-recorder")
