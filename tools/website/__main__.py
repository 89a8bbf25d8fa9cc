"""``python -m website FOLDER`` (see the package)."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import relpath
from typing import Final

import recorded_runs
import reference

from minibroker import program
from minibroker_lab.museum.matrix import as_html, as_json
from website import answers, playground
from website.markdown_pages import DeadLink, Page, Pages

ROOT: Final = Path(__file__).resolve().parents[2]
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; "
    "worker-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'"
)
_NAMED: Final = ("answers.html", "playground.html", "museum.html")
_MENUS: Final = {
    "Documentation": "docs",
    "Tutorial": "docs/tutorial",
    "How to": "docs/how-to",
    "Reference": "docs/reference",
    "Explanation": "docs/explanation",
    "For developers": "docs/how-to/developers",
}
"""Menu → the folder whose pages it lists, without those of folders below it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """1 with a line on stderr for a dead link."""
    parser = argparse.ArgumentParser(prog="python -m website", description="Build the site as static files.")
    parser.add_argument("folder", type=Path, help="made if it is not there; what is in it is kept")
    parser.add_argument("--without-playground", action="store_true", help="fetch nothing")
    options = parser.parse_args(arguments)
    try:
        build(options.folder, with_playground=not options.without_playground)
    except DeadLink as error:
        print(f"website: dead link: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder}: python -m http.server -d {options.folder} shows it")
    return 0


def build(folder: Path, *, with_playground: bool) -> None:
    """Write the site. Raises DeadLink."""
    folder.mkdir(parents=True, exist_ok=True)
    documents_pages = Pages(ROOT)
    documents = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    documents_pages.read(["README.md", "CHANGELOG.md", *documents])
    documents_pages.check()
    made = [answers.page(recorded_runs.load())]
    if with_playground:
        played = playground.build(ROOT, folder)
        if isinstance(played, Page):
            made.append(played)
        else:
            print(f"website: without the playground: {played}", file=sys.stderr)
    pages = {**{page.path: page for page in made}, **documents_pages.pages}
    first = ["index.html", *(name for name in _NAMED if name in pages or name == "museum.html")]
    menus = {"minibroker": first, **{name: _in(folder, pages) for name, folder in _MENUS.items()}}
    for path, page in pages.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_framed(page, pages, menus), encoding="utf-8")
    for path, source in documents_pages.copied.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, folder / path)
    cases = reference.museum()
    (folder / "museum.html").write_text(as_html(cases), encoding="utf-8")
    (folder / "museum.json").write_text(as_json(cases), encoding="utf-8")
    shutil.copy(playground.STATIC / "site.css", folder)


def _framed(page: Page, pages: dict[str, Page], menus: dict[str, list[str]]) -> str:
    up = relpath(".", str(PurePosixPath(page.path).parent))
    lists = [_menu(name, paths, page, pages) for name, paths in menus.items()]
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(page.title)}</title>\n"
        f'<link rel="icon" href="data:,">\n<link rel="stylesheet" href="{up}/site.css">\n'
        '<a class="to-pages" href="#pages">All pages</a>\n'
        f'<nav id="pages" aria-label="Pages">{"".join(lists)}</nav>\n<main>\n{page.body}\n</main>\n</html>\n'
    )


def _in(folder: str, pages: dict[str, Page]) -> list[str]:
    """Pages made of Markdown; the others have no headings to point at."""
    return sorted(path for path, page in pages.items() if str(PurePosixPath(path).parent) == folder and page.ids)


def _menu(name: str, paths: Iterable[str], page: Page, pages: dict[str, Page]) -> str:
    items = []
    for path in paths:
        title = {"index.html": "Start", "museum.html": "Museum"}.get(path) or pages[path].title
        here = ' aria-current="page"' if path == page.path else ""
        address = relpath(path, str(PurePosixPath(page.path).parent))
        items.append(f'<li><a href="{escape(address)}"{here}>{escape(title)}</a></li>')
    return f"<p>{escape(name)}</p><ul>{''.join(items)}</ul>"


if __name__ == "__main__":
    program.run(lambda: main)
