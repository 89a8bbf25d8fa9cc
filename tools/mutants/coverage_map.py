"""Which test runs which line of the product, kept on disk; the choice and the order of tests for a defect."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

from .planting import ROOT, Mutant
from .recording import FILE, Recording

_READERS = 4
_SHARED = 0.5  # a fixture that more of the file's tests set up is probably each test's own


def test_folder(mutant: Mutant) -> str:
    parts = mutant.path.split("/")
    return "/".join(["tests", *parts[: 2 if parts[0] == "minibroker" else 1]]) + "/"


class CoverageMap:
    """Of all tests. Opening it records those that were added or changed since; `folder` is deleted to begin anew."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, folder / "files.json"
        folder.mkdir(parents=True, exist_ok=True)
        known = json.loads(self._files.read_text()) if self._files.exists() else {}
        now = {
            str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            for path in sorted((ROOT / "tests").rglob("test_*.py"))
        }
        fresh = [name for name, digest in now.items() if known.get(name) != digest]
        if fresh:
            self._record(fresh, known, now)
        self._recordings = [Recording(path) for path in sorted(folder.glob("*.sqlite"))]
        self.seconds: dict[str, float] = {}
        for recording in self._recordings:
            self.seconds.update(recording.seconds())
        self._longest: dict[str, float] = {}
        self._latest: tuple[str, dict[int, list[str]]] = ("", {})

    def _record(self, files: list[str], known: dict[str, str], now: dict[str, str]) -> None:
        """Runs the tests of these files, a folder at a time: what was recorded of a run that was ended is kept."""
        self._files.write_text(json.dumps(known := {name: known[name] for name in known if name in now}, indent=0))
        for room, names in groupby(files, lambda name: name.rpartition("/")[0]):
            of_room = list(names)
            print(f"     records {room}", flush=True)
            begun = self._folder / "begun"
            begun.unlink(missing_ok=True)
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "mutants.recording", "-p", "no:cacheprovider",
                 *of_room],
                cwd=ROOT, check=False, stdout=subprocess.DEVNULL,
                env={**os.environ, FILE: str(begun), "PYTHONPATH": str(ROOT / "tools")},
            )  # fmt: skip
            begun.rename(self._folder / f"{len(list(self._folder.glob('*.sqlite'))):03}.sqlite")
            known |= {name: now[name] for name in of_room}
            self._files.write_text(json.dumps(known, indent=0))

    def longest(self, test: str) -> float:
        """Seconds of the longest test of its file, to which the others' shared fixtures are counted."""
        if not self._longest:
            for name, seconds in self.seconds.items():
                file = name.partition("::")[0]
                self._longest[file] = max(seconds, self._longest.get(file, 0.0))
        return self._longest.get(test.partition("::")[0], 1.0)

    def runs_at_import(self, mutant: Mutant) -> bool:
        return "" in self._contexts(mutant).get(mutant.line, [""])

    def _contexts(self, mutant: Mutant) -> dict[int, list[str]]:
        if self._latest[0] != mutant.path:
            contexts_by_line = defaultdict(list)
            for recording in self._recordings:
                for line, contexts in recording.contexts(mutant.path).items():
                    contexts_by_line[line] += contexts
            self._latest = mutant.path, contexts_by_line
        return self._latest[1]

    def tests(self, mutant: Mutant, limit: float) -> list[str]:
        """The tests that run the mutant's line, for `limit` seconds.

        The tests of the file itself come first, then those of its folder, and the quick ones before the slow ones. The
        rows of one table take turns with other tests: 1, then 2, then 4 of them, as most rows show what the first did.
        """
        by_line = self._contexts(mutant)
        contexts = by_line.get(mutant.line, [])
        at_import = not contexts or "" in contexts
        if at_import:  # whatever runs anything of the file
            contexts = [context for of_line in by_line.values() for context in of_line if context]
        names = {context.rpartition("|")[0] for context in contexts} | self._of_shared_fixtures(contexts)
        # The tests of its folder may read what the line declares, or use what it made for another test, and not run it.
        beside = {name for name in self.seconds if name.startswith(test_folder(mutant))} - names
        if at_import:
            names, beside = names | beside, set()
        programs = self._that_start_programs() - names - beside  # they come last
        path = Path(mutant.path)
        own, room = f"/test_{path.stem.strip('_')}.py::", f"/{path.parent.name.removeprefix('minibroker_')}/"
        readers = self._readers(mutant, by_line)

        rows = Counter[str]()
        turns: dict[str, int] = {}
        quick_first = sorted(
            (names | beside | programs | readers) & self.seconds.keys(), key=lambda name: (self.seconds[name], name)
        )
        for name in quick_first:
            rows[table := name.partition("[")[0]] += 1
            turns[name] = rows[table].bit_length()

        def place(name: str) -> tuple[bool | int, ...]:
            last = (name in programs, name in beside)
            return name not in readers, *last, own not in name, room not in name, turns[name]

        ordered = sorted(quick_first, key=place)
        tests, total = [], 0.0
        for name in ordered:
            total += self.seconds[name] + 0.01
            if total > limit:
                break
            tests.append(name)
        return tests

    def _readers(self, mutant: Mutant, by_line: dict[int, list[str]]) -> set[str]:
        """For an attribute that the line sets: of each line of the file with it, the quickest tests that run it."""
        attribute = re.match(r"self\.(\w+)", mutant.before)
        if attribute is None:
            return set()
        word = re.compile(rf"\.{attribute[1]}\b")
        readers: set[str] = set()
        for number, line in enumerate((ROOT / mutant.path).read_text().splitlines(), 1):
            if word.search(line):
                tests = {context.rpartition("|")[0] for context in by_line.get(number, ()) if context}
                readers.update(sorted(tests, key=lambda name: self.seconds.get(name, 0.0))[:_READERS])
        return readers

    def _that_start_programs(self) -> set[str]:
        """Tests that may run a line in another process, of which nothing is recorded."""
        files = {
            str(path.relative_to(ROOT))
            for path in (ROOT / "tests").rglob("test_*.py")
            if "subprocess" in path.read_text()
        }
        return {name for name in self.seconds if name.partition("::")[0] in files}

    def _of_shared_fixtures(self, contexts: list[str]) -> set[str]:
        """All tests of the files in which a line runs in the setup of few: the others share what that made."""
        in_setup = Counter(context.partition("::")[0] for context in contexts if context.endswith("|setup"))
        tests = defaultdict(list)
        for name in self.seconds:
            tests[name.partition("::")[0]].append(name)
        return {name for file, count in in_setup.items() if count <= _SHARED * len(tests[file]) for name in tests[file]}
