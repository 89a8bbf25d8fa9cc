"""Text for a terminal or a text log. Names from clients, files and the network may hold escape sequences and line ends.

Every line that a command prints goes through `say`, every line of a text log through `printable`, every JSON document
through `json_text`. HTML and other documents, which have their own escapes, go through `write_out`.
"""

from __future__ import annotations

import sys
from typing import IO


def printable(text: str) -> str:
    r"""`text` with everything that does not print as escapes: ``\n``, ``\x1b``, ``\u202e``, as in Python's literals.

    That is control characters (also tab and line ends), marks of direction, other invisible characters, spaces other
    than " ", and lone surrogates. A backslash stays.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def say(*lines: str, to: IO[str] | None = None, flush: bool = False) -> None:
    """Print each as one line, whatever is in it.

    to: None is stdout.
    """
    for line in lines:
        print(printable(line), file=to)
    if flush:
        (to or sys.stdout).flush()


def json_text(value: object, *, indent: int | None = None) -> str:
    r"""`value` as JSON that is safe on a terminal: what `printable` escapes is a JSON escape here (``\u009b``), other
    letters stay."""
    import json

    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def write_out(document: str, *, flush: bool = False) -> None:
    """Print a document on stdout as it is."""
    print(document, end="", flush=flush)
