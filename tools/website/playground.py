"""The playground: Python for browsers (Pyodide, from its npm package) and this project's sources."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from minibroker.trace.view import MODULES, frame, page_style
from website.markdown_pages import Page

PATH: Final = "playground.html"
STATIC: Final = Path(__file__).with_name("static")
PYODIDE: Final = "pyodide@314.0.7"
_FILES: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
_TRACE: Final = "minibroker/trace/page"
_PACKAGES: Final = (
    ("", "minibroker"),
    ("protocol", "minibroker_protocol"),
    ("storage", "minibroker_storage"),
    ("lab", "minibroker_lab"),
)


def build(root: Path, folder: Path) -> Page | str:
    """The page, with everything it loads in `folder`; or why there is none."""
    problem = _fetch_pyodide(folder / "pyodide")
    if problem:
        return problem
    pack(root, folder / "minibroker.zip")
    for name in ("playground.js", "playground-worker.js"):
        shutil.copy(STATIC / name, folder)
    trace_page(root, folder / "trace")
    return Page(PATH, "Playground", (STATIC / PATH).read_text(encoding="utf-8"), {"seed"})


def trace_page(root: Path, shown: Path) -> None:
    """The page of exchanges, in the folder `shown`."""
    shown.mkdir(exist_ok=True)
    (shown / "index.html").write_text(frame("Simulation", "shown.js"), encoding="utf-8")
    (shown / "page.css").write_text(page_style(), encoding="utf-8")
    for source in (*(root / _TRACE / name for name in MODULES), STATIC / "shown.js"):
        shutil.copy(source, shown)


def pack(root: Path, path: Path) -> None:
    """The sources with their data files, as one ZIP file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, package in _PACKAGES:
            for source in sorted((root / place / package).rglob("*")):
                if source.is_file() and source.suffix != ".pyc":
                    archive.write(source, source.relative_to(root / place))
        archive.write(STATIC / "crc32c.py", "crc32c.py")


def _fetch_pyodide(to: Path) -> str:
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    with tempfile.TemporaryDirectory() as work:
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", work, PYODIDE]
        try:
            done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return f"npm did not get {PYODIDE} within 300 s"
        if done.returncode:
            return f"npm cannot get {PYODIDE}: {(done.stderr.strip() or 'no reason').splitlines()[-1]}"
        to.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copy(Path(work, "node_modules", "pyodide", name), to)
    return ""
