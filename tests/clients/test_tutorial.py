"""docs/tutorial: each step prints what the page says, and the broker's live page shows what is told of it."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from minibroker import Minibroker

pytestmark = pytest.mark.clients

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "README.md"
BLOCK = re.compile(r"^```(python|text|page)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_EVENTS = 15
"""A stream has at least an event each second; markers are written in far less."""


def rows(broker: Minibroker) -> Iterator[dict[str, Any]]:
    """The rows of the live page as they change, for as long as `MOST_EVENTS` take."""
    url = urlsplit(broker.page_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
    connection.request("GET", "/page/events")
    with connection.getresponse() as response:
        assert response.status == 200
        for _ in range(MOST_EVENTS):
            name, data, _ = response.readline(), response.readline(), response.readline()
            if name == b"event: rows\n":
                yield from json.loads(data.removeprefix(b"data: "))
    connection.close()


def shown(row: dict[str, Any]) -> Iterator[str]:
    """As minibroker/trace/page/draw.js writes it beside the row's name, and over the row's aborted ranges."""
    if row["kind"] == "partition" and "end" in row:
        offsets = [f"{kind} {row[kind]}" for kind in ("leader", "start", "stable", "high", "end")]
        yield " · ".join(offsets)
        yield from (f"aborted {first}–{last}" for first, last in row["aborted"])
    elif row["kind"] == "transaction":
        yield f"{row['state']} · {row['producer_id']}/{row['epoch']}"
    elif row["kind"] == "group":
        committed, pending = (
            ", ".join(f"{place}: {offset}" for place, offset in row[kind].items()) for kind in ("committed", "pending")
        )
        yield "; ".join([f"committed {committed or 'none'}", *([f"pending {pending}"] if pending else [])])


def test_each_step_prints_and_shows_what_the_page_says() -> None:
    program: dict[str, Any] = {}
    said, checked = "", {"text": 0, "page": 0}
    try:
        for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "python":
                with redirect_stdout(StringIO()) as output:
                    exec(text, program)
                said = output.getvalue()
                continue
            checked[kind] += 1
            if kind == "text":
                assert said == text
                continue
            missing = set(text.splitlines())
            for row in rows(program["broker"]):
                missing -= {f"{row['name']}: {line}" for line in shown(row)}
                if not missing:
                    break
            assert not missing, f"step {checked['page']}"
    finally:
        if "broker" in program:
            program["broker"].stop()
    assert checked == {"text": 6, "page": 6}
