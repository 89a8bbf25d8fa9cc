"""A saved trace as one page of HTML with everything in it: `minibroker trace view FILE`."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib import resources
from typing import Final

from minibroker.trace.saved import Trace, as_lines

MODULES: Final = ("words.js", "story.js", "draw.js")
"""Scripts that draw exchanges, wherever they come from; those in front load nothing of those behind."""
_SCRIPTS: Final = (*MODULES, "saved.js")
_MODULE_WORDS: Final = re.compile(r"^import .*?;\n|^export (?=function|const|class|let)", re.MULTILINE)


def page(trace: Trace, title: str) -> str:
    """HTML that loads nothing: it contains styles, script and exchanges, and its policy forbids other scripts."""
    source = resources.files("minibroker.trace") / "page"
    style = page_style()
    # One module cannot import from another in a page that is a file, so they become one.
    script = "".join(_MODULE_WORDS.sub("", (source / name).read_text(encoding="utf-8")) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    # Text in the data must not end its element.
    data = as_lines(trace).replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    end = f'<script type="application/jsonl" id="trace">{data}</script>\n<script type="module">{script}</script>'
    return _framed(title, head, end)


def base_style() -> str:
    """Colours, light and dark, and the look of tables and boxes: CSS that every page of minibroker begins with."""
    return (resources.files("minibroker.trace") / "page" / "base.css").read_text(encoding="utf-8")


def page_style() -> str:
    """CSS of the page of exchanges, saved or live."""
    return base_style() + (resources.files("minibroker.trace") / "page" / "page.css").read_text(encoding="utf-8")


def frame(title: str, script: str) -> str:
    """The page that loads its style and modules from beside it; `script` loads the exchanges."""
    return _framed(title, '<link rel="stylesheet" href="page.css">', f'<script type="module" src="{script}"></script>')


def _framed(title: str, head: str, end: str) -> str:
    parts = {"title": escape(title), "head": head, "end": end}
    empty = (resources.files("minibroker.trace") / "page" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], empty)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
