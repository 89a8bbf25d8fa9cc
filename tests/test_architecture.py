"""docs/explanation/architecture.md and the contracts of import-linter name the same rooms, in the same order."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packages import PACKAGES, PLACES, ROOT, TOPS

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ROOMS = next(contract["layers"] for contract in CONTRACTS if contract.get("exhaustive"))
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = {"__main__", "cli", "exit_codes", "output", "program", "version"}
"""Layers that are single modules."""


def test_the_page_lists_the_rooms_in_the_order_of_the_contract() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `minibroker/(\w+)` \|", page, re.MULTILINE)
    stacked = [room for room in reversed(ROOMS) if room not in MODULES]
    assert listed == stacked


def test_every_storage_module_but_the_disk_is_in_the_contract_about_io() -> None:
    (pure,) = [contract["source_modules"] for contract in CONTRACTS if contract["name"].startswith("the core does no")]
    modules = {path.stem for path in (ROOT / "storage" / "minibroker_storage").glob("*.py")}
    assert {f"minibroker_storage.{name}" for name in modules - {"__init__", "os_disk"}} <= set(pure)


@pytest.mark.matrix
def test_imports_inside_functions_are_where_the_page_says_why() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Imports inside functions")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:minibroker|protocol|storage|pipeline|lab)/[\w./]+)`", table)
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if inside_functions(path)
    }
    assert {file for file in found if not any(file == name or file.startswith(f"{name}/") for name in named)} == set()
    assert {name for name in named if not any(file == name or file.startswith(f"{name}/") for file in found)} == set()


def test_every_import_inside_a_function_spares_its_module_a_load() -> None:
    # What the module itself loads, by whatever way, is imported at its top.
    useless = [
        f"{name}:{node.lineno} {ast.unparse(node)}" for name, node in late_imports() if spares_nothing(name, node)
    ]
    assert useless == []


SOURCES = {
    ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in PACKAGES.values()
    for path in folder.rglob("*.py")
}
Import = ast.Import | ast.ImportFrom


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST, inside: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """All below `node`, each with what it is inside of: "function", "TYPE_CHECKING" or ""."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child, inside
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            if isinstance(child, FUNCTION):
                yield from statements(child, "function")
            elif isinstance(child, ast.If) and any(named(part) == "TYPE_CHECKING" for part in ast.walk(child.test)):
                yield from statements(child, inside or "TYPE_CHECKING")
            else:
                yield from statements(child, inside)


def named(node: ast.AST) -> str | None:
    """The last word of a name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


INDENTED = re.compile(r"^[ \t]+(?:from|import)\s", re.MULTILINE)


AT_THE_MARGIN = re.compile(r"^(?:from [\w.]+ import (?:\([^)]*\)|.*)|import .*)", re.MULTILINE)


@cache
def imports(path: Path) -> list[tuple[Import, str]]:
    text = path.read_text(encoding="utf-8")
    # Parsed whole only where one is indented: in most modules they are at the margin.
    tree = parsed(path) if INDENTED.search(text) else ast.parse("\n".join(AT_THE_MARGIN.findall(text)))
    return [(node, inside) for node, inside in statements(tree) if isinstance(node, Import)]


def inside_functions(path: Path) -> list[Import]:
    if not INDENTED.search(path.read_text(encoding="utf-8")):
        return []  # most modules, which are not parsed for this
    return [node for node, inside in imports(path) if inside == "function"]


def late_imports() -> Iterator[tuple[str, Import]]:
    for name, path in SOURCES.items():
        for node in inside_functions(path):
            yield name, node


def imported(node: Import) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    below = {f"{node.module}.{alias.name}" for alias in node.names}
    return {str(node.module)} | (below & SOURCES.keys())


@cache
def loaded_by(name: str) -> frozenset[str]:
    """What an import of the module loads, as far as our packages say."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        if module in SOURCES:
            waiting += loaded_at_once(module)
    return frozenset(found)


@cache
def loaded_at_once(module: str) -> frozenset[str]:
    """What a module of ours imports outside of its functions, and the packages that it is in."""
    parts = module.split(".")
    found = {".".join(parts[:count]) for count in range(1, len(parts))}
    for node, inside in imports(SOURCES[module]):
        if not inside:
            found |= imported(node)
    return frozenset(found)


def spares_nothing(name: str, node: Import) -> bool:
    return imported(node) <= loaded_by(name)


TIERS = ("clients", "container", "go", "jvm", "node")


@pytest.mark.parametrize("tier", TIERS)
def test_the_default_tests_miss_nothing_in_a_directory_of_a_tier(tier: str) -> None:
    """tests/conftest.py passes these over: each test there has a marker that leaves it out anyway."""
    left_out = (*TIERS, "slow")
    for path in (ROOT / "tests" / tier).rglob("test_*.py"):
        body = parsed(path).body
        marks = [ast.unparse(node) for node in body if "pytestmark" in ast.unparse(node).partition("=")[0]]
        if not is_marked(marks, left_out):
            tests = [node for node in body if isinstance(node, FUNCTION) and node.name.startswith("test_")]
            unmarked = [
                one.name for one in tests if not is_marked([ast.unparse(d) for d in one.decorator_list], left_out)
            ]
            assert unmarked == [], path


def is_marked(decorators: list[str], names: tuple[str, ...]) -> bool:
    return any(f"pytest.mark.{name}" in one for one in decorators for name in names)


BREACHES = {
    "an arrow up": ("minibroker/kernel/deferred.py", "from minibroker.config import types", "the rooms of minibroker"),
    "an arrow up for types only": (
        "minibroker/broker/lifecycle.py",
        "from typing import TYPE_CHECKING as checking\nif checking:\n    from minibroker.cluster import cluster",
        "the rooms of minibroker",
    ),
    "a circle": ("minibroker/kernel/clock.py", "from minibroker.kernel import broker_clock", "no circles: minibroker"),
    "a socket below the edge": ("storage/minibroker_storage/origin.py", "import socket", "the core does no I/O"),
    "the edge in the core": (
        "minibroker/coordinators/hashing.py", "from minibroker.server import watchdog", "the rooms of minibroker"
    ),
    "a machine that knows its runtime": (
        "minibroker/coordinators/result.py", "from minibroker.coordinator_runtime import coordinators",
        "the rooms of minibroker",
    ),
    "a chain that knows handlers": (
        "minibroker/requests/chain.py", "from minibroker.handlers import table", "the rooms of minibroker"
    ),
    "a broker that knows the pipeline": (
        "minibroker/handlers/table.py", "import minibroker_pipeline.reading", "five packages"
    ),
    "a broker that knows the laboratory": (
        "minibroker/testing/embedded.py", "import minibroker_lab.judge.scripts", "five packages"
    ),
    "a pipeline that knows the laboratory": (
        "pipeline/minibroker_pipeline/demo_command.py", "import minibroker_lab.judge.scripts", "five packages"
    ),
    "Spark in the rules": ("minibroker/rules/rules.py", "import pyarrow", "the rules need no Spark"),
    "a room without a name": ("minibroker/attic/__init__.py", "", "the rooms of minibroker"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("breach", BREACHES)
def test_a_planted_breach_is_found(breach: str, tmp_path: Path) -> None:
    pytest.importorskip("importlinter", reason="the extra `check` is not installed")
    for name in (*TOPS, "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path)
    file, line, contract = BREACHES[breach]
    place = tmp_path / file
    place.parent.mkdir(exist_ok=True)
    before = place.read_text() if place.exists() else ""
    place.write_text(f"{before}\n{line}\n")
    paths = ":".join(str(tmp_path / place.relative_to(ROOT)) for place in PLACES)
    program = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": paths, "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^{re.escape(contract)}.*BROKEN", done.stdout, re.MULTILINE), done.stdout


def test_what_tests_share_is_in_rooms_that_are_all_on_the_path() -> None:
    support = ROOT / "tests" / "support"
    entries = [path for path in support.iterdir() if path.name != "__pycache__"]
    assert {path.name for path in entries if path.is_file()} == {"README.md", "__main__.py"}, (
        "a module goes into a room"
    )
    # A folder that moved away may still hold what Python compiled.
    rooms = {path.name for path in entries if path.is_dir() and any(path.rglob("*.py"))}
    page = (support / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == sorted(rooms)
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    for path in (tool["pytest"]["ini_options"]["pythonpath"], tool["mypy"]["mypy_path"]):
        assert {part.rpartition("tests/support/")[2] for part in path if "tests/support" in part} == rooms


def test_a_room_or_module_that_tests_share_has_a_name_of_its_own() -> None:
    rooms = [path for path in (ROOT / "tests" / "support").iterdir() if path.is_dir() and path.name != "__pycache__"]
    inside = [path for room in rooms for path in room.iterdir()]
    modules = [path.stem for path in inside if path.suffix == ".py" or (path / "__init__.py").exists()]
    names = [*modules, *(room.name for room in rooms)]
    assert sorted(names) == sorted(set(names))


VAGUE = {"found", "given", "left", "told", "asked", "one"}
MAY_BE_VAGUE = re.compile(rf"\b_?({'|'.join(VAGUE)})\b(?=\s*([=:,()+|]|in\b|for\b))")
VAGUE_NAMES = {
    "lab/minibroker_lab/simulation": 5,
    "minibroker/cluster": 9,
    "minibroker/control": 2,
    "minibroker/faults": 2,
    "minibroker/kernel": 2,
    "minibroker/testing": 2,
    "pipeline/minibroker_pipeline": 3,
}
"""How many names of a room, all in all, do not say what their value is; a room that is not here has none."""


@pytest.mark.matrix
def test_no_room_has_more_names_that_do_not_say_what_their_value_is() -> None:
    counts = Counter(
        room_of(path.relative_to(ROOT))
        for folder in (*PACKAGES.values(), ROOT / "tools", ROOT / "tests" / "support")
        for path in folder.rglob("*.py")
        if MAY_BE_VAGUE.search(path.read_text(encoding="utf-8"))
        for name in names_bound(parsed(path))
        if name.strip("_") in VAGUE
    )
    assert {room: count for room, count in counts.items() if count > VAGUE_NAMES.get(room, 0)} == {}


def room_of(path: Path) -> str:
    """The folder of the packages, or of what tests share, that a file is in."""
    return (
        "/".join(path.parts[: 3 if path.parts[0] in ("lab", "tests") else 2]) if len(path.parts) > 2 else path.parts[0]
    )


def names_bound(tree: ast.Module) -> Iterator[str]:
    """Variables, parameters, attributes, functions and classes, where they are made."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.arg():
                yield node.arg
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
