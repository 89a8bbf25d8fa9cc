"""A saved trace as one page of HTML with everything in it: `minibroker trace view FILE`."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, Final

from minibroker.trace.saved import NoTrace, exchange_of

_SCRIPTS: Final = ("story.js", "draw.js", "saved.js")
_MODULE_WORDS: Final = re.compile(r"^import .*?;\n|^export (?=function|const|class|let)", re.MULTILINE)
_NEEDED: Final = ("number", "time_ms", "took_ms", "api", "outcome", "request")


def read(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The exchanges of a trace. Raises NoTrace with the line."""
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        exchange = exchange_of(line, number)
        missing = [name for name in _NEEDED if name not in exchange]
        if missing:
            raise NoTrace(
                f"line {number} is no exchange: {missing[0]} is missing (minibroker trace --json writes them)"
            )
        found.append(exchange)
    return found


def page(exchanges: Sequence[Mapping[str, Any]], title: str) -> str:
    """HTML that loads nothing: styles, script and exchanges are in it, and nothing else may run."""
    source = resources.files("minibroker.trace") / "page"
    style = (source / "page.css").read_text(encoding="utf-8")
    # One module cannot import from another in a page that is a file, so they become one.
    script = "".join(_MODULE_WORDS.sub("", (source / name).read_text(encoding="utf-8")) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    # Text in the data must not end its element.
    data = json.dumps([*exchanges], ensure_ascii=False).replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    end = f'<script type="application/json" id="exchanges">{data}</script>\n<script type="module">{script}</script>'
    return _framed(title, head, end)


def live_frame(title: str) -> str:
    """The page that asks the broker for everything: its style, its modules and what happens."""
    return _framed(title, '<link rel="stylesheet" href="page.css">', '<script type="module" src="live.js"></script>')


def _framed(title: str, head: str, end: str) -> str:
    parts = {"title": escape(title), "head": head, "end": end}
    frame = (resources.files("minibroker.trace") / "page" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], frame)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
