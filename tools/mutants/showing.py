"""Shows a defect to tests, in a copy of the tree."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from packages import PLACES

from .coverage_map import CoverageMap, test_folder
from .planting import ROOT, Mutant, changed
from .recording import SOURCES
from .server import PIPES

COPIED = (
    *SOURCES, "tests", "tools", "docs", "integrations", "README.md", "pyproject.toml", "CHANGELOG.md",
    "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "hatch_build.py", "benchmarks", "docker", "museum", "findings",
)  # fmt: skip
# What a test may take before it counts as hanging: on a machine that does other things too.
LEAST, TIMES = 20.0, 6.0


class Collected:
    """A process that has collected tests and shows defects to them."""

    def __init__(self, copy: Path, arguments: list[str]) -> None:
        requests, self._requests = os.pipe()
        answers, writer = os.pipe()
        paths = [*(str(copy / place.relative_to(ROOT)) for place in PLACES), str(ROOT / "tools")]
        self.output = copy.parent / "output"
        said = self.output.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "mutants.server", "-p", "no:cacheprovider",
             f"--basetemp={copy.parent / 'temporary'}", *arguments],
            cwd=copy, pass_fds=(requests, writer), stdout=said, stderr=subprocess.STDOUT,
            env={
                **os.environ, PIPES: f"{requests},{writer}",
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )  # fmt: skip
        said.close()
        os.close(requests)
        os.close(writer)
        self._answers = os.fdopen(answers)
        self.names: list[str] = self._answer().get("ready", [])

    def show(self, tests: list[tuple[str, float]], most: float = 1e9, **change: str) -> Any:
        os.write(self._requests, (json.dumps({"tests": tests, "most": most, **change}) + "\n").encode())
        return self._answer()

    def _answer(self) -> Any:
        return json.loads(self._answers.readline() or '{"broken": true}')

    def close(self) -> None:
        os.close(self._requests)
        self._process.wait()
        self._answers.close()


class Workplace:
    """A copy of the tree with the tests collected in it."""

    def __init__(self, folder: Path, coverage: CoverageMap, arguments: list[str]) -> None:
        self._copy, self._coverage, self._arguments = _copied(folder / "tree"), coverage, arguments
        self._whole = Collected(self._copy, arguments)
        self._failing: set[str] = set()  # tests that fail without any defect
        if not self._whole.names:
            raise SystemExit(f"the tests cannot be collected:\n{self._whole.output.read_text()[-2000:]}")

    def close(self) -> None:
        self._whole.close()

    def all_tests(self, mutant: Mutant) -> list[str]:
        """The collected tests; those of the mutant's folder come first."""
        folder = test_folder(mutant)
        return sorted(self._whole.names, key=lambda name: (not name.startswith(folder), name))

    def show(self, mutant: Mutant, tests: list[str], most: float = 1e9) -> Mutant:
        """`most`: seconds that may pass before the last test begins."""
        end = time.monotonic() + most
        remaining = [
            (name, LEAST + TIMES * self._coverage.longest(name)) for name in tests if name not in self._failing
        ]
        while remaining:
            answer = self._seen_by(mutant, remaining, end - time.monotonic())
            if not answer["seen"]:
                break
            if not answer["test"]:
                return replace(mutant, seen=answer["seen"], tests=len(tests))
            at = next(at for at, (name, _) in enumerate(remaining) if name == answer["test"])
            if answer["seen"] == "timeout" and not answer.get("busy"):  # the machine may have been slow
                answer = self._seen_by(mutant, [(answer["test"], 3 * remaining[at][1])], 1e9)
            if answer["seen"] and not self._whole.show([remaining[at]])["seen"]:
                return replace(mutant, seen=f"{answer['seen']}: {answer['test']}", tests=len(tests))
            print(f"     does not count: {remaining[at][0]}", flush=True)
            self._failing.add(remaining[at][0])
            remaining = remaining[at + 1 :]
        return replace(mutant, seen="", tests=len(tests))

    def _seen_by(self, mutant: Mutant, tests: list[tuple[str, float]], most: float) -> Any:
        path, source, after = self._copy / mutant.path, (ROOT / mutant.path).read_text(), changed(mutant)
        path.write_text(after)
        try:
            answer: Any = {"fresh": True}
            if not self._coverage.runs_at_import(mutant):
                answer = self._whole.show(tests, most, path=mutant.path, before=source, after=after)
            if "fresh" in answer:
                answer = self._freshly(tests, most)
        finally:
            path.write_text(source)
        return {"seen": "is not imported", "test": ""} if "broken" in answer else answer

    def _freshly(self, tests: list[tuple[str, float]], most: float) -> Any:
        """Import everything again, because the defect is in code that runs at import."""
        names = self._copy.parent / "names"
        names.write_text("\n".join(sorted({name.partition("::")[0] for name, _ in tests})))
        collected = Collected(self._copy, [*self._arguments, f"@{names}"])
        try:
            return collected.show(tests, most) if collected.names else {"broken": True}
        finally:
            collected.close()


def _copied(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, target / name, ignore=shutil.ignore_patterns("target", "node_modules", "__pycache__")
            )
        elif source.exists():
            shutil.copy(source, target / name)
    # A defect may leave size and second of a file as they were: compiled files are held against its content, those that
    # Python writes in their place too. Tests do not change, and are compiled by the first collection.
    for source in SOURCES:
        compileall.compile_dir(str(target / source), quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return target
