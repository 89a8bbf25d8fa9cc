"""Plants small defects in the product, one at a time, and says which of them the default tests see.

    python -m mutants --count 300 --seed 1            # what was seen, by folder, and every defect that was not
    python -m mutants --count 40 --only storage       # in files whose path has this text
    python -m mutants --again mutants.json            # only those that an earlier run did not see

The operators are cosmic-ray's, and one that deletes a statement. The first run records which test runs which line
(coverage, one context a test); a defect is then shown to the tests of its line, the quickest first, until one of them
fails or `--seconds` of tests have passed. Each worker changes a copy of the tree, so programs that a test starts have
the defect too. Needs the extra `mutants`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import parso
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from coverage import CoverageData

ROOT = Path(__file__).parent.parent
EXPLAINED = ROOT / "tests" / "support" / "mutants.toml"
# The core: what promises something about exactly-once. Commands, demo and pages are left out.
CORE = (
    "protocol/minibroker_protocol", "storage/minibroker_storage", "minibroker/coordinators",
    "minibroker/coordination", "minibroker/partitions", "minibroker/broker", "minibroker/handlers",
    "minibroker/server", "minibroker/security", "minibroker/rules",
)  # fmt: skip
SOURCES = ("minibroker", "protocol", "storage", "pipeline")
COPIED = (*SOURCES, "tests", "tools", "docs", "README.md", "pyproject.toml", "CHANGELOG.md", "benchmarks", "docker")


class DeleteStatement(Operator):
    """A call or an assignment that is not made."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and _deletable(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.get_first_leaf()
        return parso.python.tree.Name("pass\n", node.start_pos, prefix=first.prefix)

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()


def _deletable(statement: Any) -> bool:
    if statement.type == "expr_stmt":
        # A local name that is never bound is a NameError in any test, a field without its type a class without it.
        if statement.children[1].type == "annassign":
            return False
        return "." in statement.children[0].get_code() or statement.children[1].get_code().strip() not in ("=", ":")
    return statement.type in ("atom_expr", "await_expr") and "(" in statement.get_code()


# Kind of defect: its operators. A kind is drawn first, so that numbers, which are many, do not crowd out others.
KINDS = {
    "statement": ["delete"],
    "condition": [
        *(f"ReplaceComparisonOperator_{pair}" for pair in (
            "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
            "Is_IsNot", "IsNot_Is",
        )), "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot", "ReplaceUnaryOperator_Delete_Not",
    ],
    "number": ["NumberReplacer"],
    "arithmetic": [
        f"ReplaceBinaryOperator_{pair}" for pair in (
            "Add_Sub", "Sub_Add", "Mul_Add", "FloorDiv_Mul", "Mod_Mul", "BitAnd_BitOr",
            "LShift_RShift", "RShift_LShift",
        )
    ],
    "constant": ["ReplaceTrueWithFalse", "ReplaceFalseWithTrue"],
    "loop": ["ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"],
    "exception": ["ExceptionReplacer"],
}  # fmt: skip
WEIGHTS = {"statement": 4, "condition": 4, "number": 1, "arithmetic": 1, "constant": 1, "loop": 1, "exception": 1}


@dataclass(slots=True)
class Mutant:
    path: str
    operator: str
    occurrence: int
    line: int
    kind: str
    before: str = ""
    after: str = ""
    seen: str = ""  # the test that saw it, "timeout" or ""
    tests: int = 0

    @property
    def folder(self) -> str:
        return next(folder for folder in CORE if self.path.startswith(folder)).split("/")[-1]


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        data, seconds = coverage_of_tests(Path(arguments.coverage or ROOT / "build" / "mutants"))
        if arguments.again:
            mutants = [Mutant(**one) for one in json.loads(Path(arguments.again).read_text()) if not one["seen"]]
        else:
            mutants = drawn(arguments.seed, arguments.count, arguments.only)
        copies: Queue[Path] = Queue()
        for number in range(arguments.jobs):
            copies.put(_copy(Path(scratch) / str(number)))

        def show(mutant: Mutant) -> Mutant:
            copy = copies.get()
            try:
                tests = chosen_tests(mutant, data, seconds, arguments.seconds)
                return _shown(mutant, copy, tests, arguments.seconds)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            done = []
            for mutant in pool.map(show, mutants):
                done.append(mutant)
                print(f"{len(done):4} {'seen' if mutant.seen else 'NOT SEEN':8} {mutant.path}:{mutant.line} "
                      f"{mutant.before!r} -> {mutant.after!r}", flush=True)  # fmt: skip
                Path(arguments.output).write_text(json.dumps([asdict(one) for one in done], indent=1))
    print(report(done, arguments.seed))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose path has this text")
    parser.add_argument("--again", metavar="FILE", help="the defects that an earlier run's output says were not seen")
    parser.add_argument("--seconds", type=float, default=40, help="tests per defect, in seconds of an ordinary run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--coverage", metavar="DIR", help="where the map of lines to tests is kept")
    parser.add_argument("--output", default="mutants.json", metavar="FILE")
    return parser.parse_args()


def coverage_of_tests(folder: Path) -> tuple[CoverageData, dict[str, float]]:
    """Which test runs which line, and how long each test takes; made once and kept."""
    file, times = folder / ".coverage", folder / "times.xml"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sources = [f"--cov={source}" for source in SOURCES]
        command = [
            "-q",
            *sources,
            "--cov-context=test",
            "--cov-report=",
            f"--junitxml={times}",
            "-p",
            "no:cacheprovider",
        ]
        subprocess.run([sys.executable, "-m", "pytest", *command], cwd=ROOT, check=False, env={
            **os.environ, "COVERAGE_FILE": str(file),
        })  # fmt: skip
    data = CoverageData(str(file))
    data.read()
    seconds = {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(case.get("time", 0))
        for case in ElementTree.parse(times).iter("testcase")
    }
    return data, seconds


def drawn(seed: int, count: int, only: str = "") -> list[Mutant]:
    """`count` defects, the same for the same seed and tree."""
    by_kind = defaultdict(list)
    for folder in CORE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = str(path.relative_to(ROOT))
            if only in relative:
                for mutant in candidates(relative, path.read_text()):
                    by_kind[mutant.kind].append(mutant)
    chance = random.Random(seed)
    mutants: list[Mutant] = []
    while len(mutants) < count and any(by_kind.values()):
        kinds = [kind for kind in KINDS if by_kind[kind]]
        kind = chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        mutant = by_kind[kind].pop(chance.randrange(len(by_kind[kind])))
        if _describe(mutant):
            mutants.append(mutant)
    return mutants


def candidates(path: str, source: str) -> Iterator[Mutant]:
    tree = parso.parse(source)
    lines = source.splitlines()
    for kind, names in KINDS.items():
        for name in names:
            operator, occurrence = _operator(name), 0
            for node in _nodes(tree):
                for start, _ in operator.mutation_positions(node):
                    if _worth_it(node, lines[start[0] - 1]):
                        yield Mutant(path, name, occurrence, start[0], kind)
                    occurrence += 1


def _operator(name: str) -> Any:
    return DeleteStatement() if name == "delete" else get_operator(f"core/{name}")()


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _worth_it(node: Any, line: str) -> bool:
    """No annotation, log line, type check or abstract body: nothing of these is seen by a user."""
    if any(word in line for word in ("log.debug(", "log.info(", "log.warning(", "log.error(", "log.exception(")):
        return False
    if any(word in line for word in ("TYPE_CHECKING", "__slots__", "NotImplementedError", "slots=True")):
        return False
    child, parent = node, node.parent
    if node.type == "operator" and node.value == "*" and parent.type not in ("term", "expr_stmt"):
        return False  # of a signature or a call
    while parent is not None:
        if parent.type in ("annassign", "tfpdef", "decorator", "import_from", "raise_stmt"):
            return False
        if (
            parent.type in ("param", "funcdef")
            and child.type not in ("suite", "parameters")
            and (parent.type == "funcdef" or child is not parent.children[-1])
        ):
            return False
        child, parent = parent, parent.parent
    return True


def _describe(mutant: Mutant) -> str:
    """Sets what the line said and says; "" when nothing was changed."""
    source = (ROOT / mutant.path).read_text()
    changed = MutationVisitor.mutate_code(source, _operator(mutant.operator), mutant.occurrence)
    try:
        compile(changed or "", mutant.path, "exec")
    except SyntaxError:
        return ""
    if not changed:
        return ""
    for before, after in zip(source.splitlines(), changed.splitlines(), strict=False):
        if before != after:
            mutant.before, mutant.after = before.strip(), after.strip()
            break
    return changed


def chosen_tests(mutant: Mutant, data: CoverageData, seconds: dict[str, float], limit: float) -> list[str]:
    """The tests that run the mutant's line: those of its own folder first, the quick ones before the slow ones."""
    file = next((file for file in data.measured_files() if file.endswith("/" + mutant.path)), None)
    by_line = data.contexts_by_lineno(file) if file else {}
    names = {context.rpartition("|")[0] for context in by_line.get(mutant.line, ()) if context}
    if not names:  # a line that runs at import: whatever runs anything of the file
        names = {context.rpartition("|")[0] for contexts in by_line.values() for context in contexts if context}
    room = str(Path(mutant.path).parent).split("/")[-1]
    ordered = sorted(
        (name for name in names if name in seconds and "\n" not in name),
        key=lambda name: (f"/{room}/" not in name, seconds[name], name),
    )
    tests, total = [], 0.0
    for name in ordered:
        total += seconds[name] + 0.01
        if total > limit:
            break
        tests.append(name)
    return tests


def _copy(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, target / name, ignore=shutil.ignore_patterns("target", "node_modules", "__pycache__")
            )
        elif source.exists():
            shutil.copy(source, target / name)
    return target


def _shown(mutant: Mutant, copy: Path, tests: list[str], limit: float) -> Mutant:
    path = copy / mutant.path
    source = path.read_text()
    changed = _describe(mutant)
    mutant.tests = len(tests)
    if not tests:
        return mutant
    names = copy / "tests.txt"
    names.write_text("\n".join(tests))
    try:
        path.write_text(changed)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--no-header", f"@{names}"],
            cwd=copy, capture_output=True, text=True, timeout=60 + 3 * limit, env={
                **os.environ, "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": os.pathsep.join(str(copy / name) for name in ("protocol", "storage", "pipeline", ".")),
            },
        )  # fmt: skip
        failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        mutant.seen = "" if run.returncode == 0 else (failed or [f"exit status {run.returncode}"])[0][:200]
    except subprocess.TimeoutExpired:
        mutant.seen = "timeout"
    finally:
        path.write_text(source)
    return mutant


def explained() -> dict[tuple[str, str, str], str]:
    """Defects that change nothing a user could notice, with the reason, by path, line before and line after."""
    if not EXPLAINED.exists():
        return {}
    entries = tomllib.loads(EXPLAINED.read_text())["mutant"]
    return {(entry["path"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def report(mutants: list[Mutant], seed: int) -> str:
    reasons = explained()
    planted, seen, known = Counter[str](), Counter[str](), Counter[str]()
    for mutant in mutants:
        planted[mutant.folder] += 1
        seen[mutant.folder] += bool(mutant.seen)
        known[mutant.folder] += not mutant.seen and (mutant.path, mutant.before, mutant.after) in reasons
    rows = [f"| {folder} | {planted[folder]} | {seen[folder]} | {known[folder]} |" for folder in sorted(planted)]
    total = planted.total() - known.total()
    share = 100 * seen.total() / total if total else 100
    return "\n".join([
        f"seed {seed}", "| folder | planted | seen | explained |", "|---|---|---|---|", *rows,
        f"| all | {planted.total()} | {seen.total()} | {known.total()} |",
        f"{share:.1f} % of what a user could notice was seen",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
