"""Programs of other languages' toolchains that a tier needs; a missing one is a reason to skip, never an error."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
DOWNLOAD_SECONDS = 300
BUILD_SECONDS = 600
_NPM_INSTALL = ("install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")


class Unavailable(Exception):
    """A tool or a download this tier needs is not to be had; the text says which."""


def tool(name: str) -> str:
    """Full path of a program, or Unavailable."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not installed")
    return path


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def go_with_libraries(folder: Path, *modules: str) -> str:
    """Path of Go, once it has what go.mod of a folder asks for, or these modules."""
    go = tool("go")
    argv = [go, "mod", "download", *modules]
    fetched = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    if fetched.returncode:
        raise Unavailable(f"go could not fetch the libraries: {last_line(fetched.stderr)}")
    return go


def go_program(package: str, directory: Path, *, folder: Path = TESTS / "go", modules: tuple[str, ...] = ()) -> str:
    """A program of a folder with a go.mod, built into `directory`; one that does not compile is an error, no skip."""
    go = go_with_libraries(folder, *modules)
    out = directory / ("program" if package == "." else Path(package).name)
    argv = [go, "build", "-o", str(out), package]
    built = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if built.returncode:
        raise AssertionError(built.stderr)
    return str(out)


def node_program(name: str, directory: Path) -> list[str]:
    """Command line of a program of tests/node, or of another path, copied into `directory` with the libraries."""
    node, npm = tool("node"), tool("npm")
    for file in ("package.json", name):
        shutil.copy(TESTS / "node" / file, directory)
    done = subprocess.run([npm, *_NPM_INSTALL], cwd=directory, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    if done.returncode:
        raise Unavailable(f"npm could not fetch kafkajs: {last_line(done.stderr)}")
    return [node, str(directory / Path(name).name)]
