"""The broker's part of a failed test's report: the exchanges that matter, and where all of them are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minibroker.kernel.words import counted
from minibroker.output import printable
from minibroker.trace.recorder import clock
from minibroker.trace.saved import Trace
from minibroker.trace.view import page
from minibroker_storage.private_files import output_path

_WIDTH = 600
"""Characters of a line: the reason of a refusal is never as long, what a client sent may be."""
_LAST = 5
_NORMAL = ("MEMBER_ID_REQUIRED",)
"""Errors that belong to how a client works: the first JoinGroup of every member is answered with it (KIP-394)."""

Exchange = Mapping[str, Any]


def report(exchanges: Sequence[Exchange], most: int, file: Path | None) -> str:
    """Short lines, at most `most`: exchanges that were refused, closed or met by a fault, of clients that connected in
    the test; the last few when there is none. All exchanges are written to `file` as JSON lines, and as a page beside
    it, unless it is None."""
    if not exchanges:
        return "no client sent a request"
    own = {exchange["client"] for exchange in exchanges if exchange["api"] == "ApiVersions"}
    notable = [exchange for exchange in exchanges if _is_notable(exchange)]
    shown = [exchange for exchange in notable if exchange["client"] in own]
    lines = [line(exchange) for exchange in shown[-most:]] if most else []
    if len(shown) > len(lines):
        lines.insert(0, f"({len(shown) - len(lines)} earlier ones are not shown)")
    if not shown:
        lines = ["no request of the test's clients was refused; the last:"]
        lines += [line(exchange) for exchange in exchanges[-min(_LAST, most) :] if most]
    if len(notable) > len(shown):
        others = counted(len(notable) - len(shown), "refusal")
        lines.append(f"(not shown: {others} of clients that connected before the test)")
    if file is None:
        return "\n".join(lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    output_path(file).write_text("".join(json.dumps(exchange) + "\n" for exchange in exchanges), encoding="utf-8")
    beside = file.with_suffix(".html")
    output_path(beside).write_text(page(Trace(exchanges), file.stem), encoding="utf-8")
    lines.append(f"{counted(len(exchanges), 'exchange')}, as a page: {beside}; as JSON lines: {file}")
    return "\n".join(lines)


def _is_notable(exchange: Exchange) -> bool:
    if exchange["fault"] or exchange["outcome"].startswith("closed"):
        return True
    return any(not error.startswith(_NORMAL) for error in exchange["errors"])


def line(exchange: Exchange) -> str:
    """One exchange, with the first reason why it was refused."""
    text = f"{clock(exchange['time_ms'])} {exchange['client_id'] or '-'} {exchange['api']}"
    why = exchange["reasons"] or exchange["errors"]
    if why:
        text += f": {why[0]}" + (f" (and {len(why) - 1} more)" if len(why) > 1 else "")
    if exchange["fault"]:
        text += f" [fault {exchange['fault']}]"
    if exchange["outcome"] not in ("answered", "waiting"):
        text += f" [{exchange['outcome']}]"
    text = printable(text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
