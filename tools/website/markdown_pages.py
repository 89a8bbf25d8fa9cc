"""Markdown of the repository, and what it links to, as pages of the site."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_NO_WORD: Final = re.compile(r"[^\w\- ]")


@dataclass
class Page:
    """path: in the site.
    ids: what links can point at.
    links: (path, fragment) of other pages.
    """

    path: str
    title: str
    body: str
    ids: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)


class DeadLink(Exception):
    """A page has a link to something that does not exist."""


class Pages:
    """Follows links from Markdown files to everything else in the repository that they show."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
        self._waiting: deque[PurePosixPath] = deque()
        self._known: set[PurePosixPath] = set()
        self.pages: dict[str, Page] = {}
        self.copied: dict[str, PurePosixPath] = {}
        """Path in the site → file: pictures and the like, which are taken as they are."""

    def read(self, sources: Iterable[str]) -> None:
        """Make pages of these files and of all that they lead to. Raises DeadLink."""
        for source in sources:
            self._want(PurePosixPath(source))
        while self._waiting:
            source = self._waiting.popleft()
            page = self._page(source)
            self.pages[page.path] = page

    def check(self) -> None:
        """Raises DeadLink for an anchor that is not on its page."""
        for page in self.pages.values():
            for path, fragment in page.links:
                if fragment and path in self.pages and fragment not in self.pages[path].ids:
                    raise DeadLink(f"{page.path}: {path}#{fragment}")

    def _want(self, source: PurePosixPath) -> None:
        if source not in self._known:
            self._known.add(source)
            self._waiting.append(source)

    def _page(self, source: PurePosixPath) -> Page:
        path = self._root / source
        target = path_of(source)
        if path.is_dir():
            names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir() if entry.name[0] not in "._")
            items = "".join(f"<li>{escape(name)}</li>" for name in names)
            return Page(target, str(source), f"<h1>{escape(str(source))}</h1><ul>{items}</ul>")
        text = path.read_text(encoding="utf-8")
        if source.suffix != ".md":
            return Page(target, str(source), f"<h1>{escape(str(source))}</h1><pre>{escape(text)}</pre>")
        page = Page(target, source.stem, "")
        tokens = self._markdown.parse(text)
        for place, token in enumerate(tokens):
            if token.type == "heading_open":
                self._heading(page, token, tokens[place + 1])
            for child in token.children or ():
                self._link(page, source, child)
        page.body = self._markdown.renderer.render(tokens, self._markdown.options, {})
        return page

    def _heading(self, page: Page, opening: Token, inline: Token) -> None:
        said = "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))
        if opening.tag == "h1":
            page.title = said
        slug = _NO_WORD.sub("", said.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in page.ids:
            number += 1
        page.ids.add(name)
        opening.attrSet("id", name)

    def _link(self, page: Page, source: PurePosixPath, token: Token) -> None:
        name = {"link_open": "href", "image": "src"}.get(token.type)
        address = str(token.attrGet(name) or "") if name else ""
        if not name or not address or _ELSEWHERE.match(address):
            return
        path, _, fragment = address.partition("#")
        wanted = PurePosixPath(normpath(source.parent / path)) if path else source
        if wanted.is_absolute() or ".." in wanted.parts or not (self._root / wanted).exists():
            raise DeadLink(f"{source}: {address}")
        if (self._root / wanted / "README.md").exists():
            wanted /= "README.md"
        if name == "src" or wanted.suffix in (".html", ".json"):
            # The page of a Markdown file may have the name of an HTML file that lies beside it.
            target = wanted.name if wanted.suffix == ".html" else str(wanted)
            self.copied[target] = wanted
        else:
            self._want(wanted)
            target = path_of(wanted)
            page.links.append((target, fragment if wanted.suffix == ".md" else ""))
        there = relpath(target, str(PurePosixPath(page.path).parent))
        token.attrSet(name, f"{there}#{fragment}" if fragment else there)


def path_of(source: PurePosixPath) -> str:
    """Where the page of a file stands: README.md of the repository is the first page."""
    if str(source) == "README.md":
        return "index.html"
    return str(source.with_suffix(".html")) if source.suffix == ".md" else f"{source}.html"
