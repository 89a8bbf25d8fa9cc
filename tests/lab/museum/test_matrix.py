"""The museum's rates as Markdown, JSON and one HTML page: each in its cell, and nothing of a case taken for HTML."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from museum_case import CASE, write_case

from minibroker.cli import main
from minibroker_lab.museum.cases import Measured, read_all, save

ODD = "<script>alert(1)</script> & \"it\" 'is'"
MEASURED = {
    "mini-7": [
        Measured("1.10", 10, 9, "2026-11-02"),
        Measured("1.9", 20, 0, "2026-11-01"),
        Measured("1.10", 5, 0, "2026-11-03", failures=False),
    ],
    "mini-8": [Measured("1.9@<2.8>", 3, 3, "2026-11-02")],
}
COLUMNS = ["1.9", "1.9@<2.8>", "1.10", "1.10 calm"]
CELLS = {"mini-7": ["0 of 20", "", "9 of 10", "0 of 5"], "mini-8": ["", "3 of 3", "", ""]}


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """Two cases of one client, and one of another that was not measured; their texts are odd."""
    place = tmp_path / "museum" / "cases"
    odd = CASE.replace('"It repeats itself"', f"'''{ODD}'''").replace('affected = "1.0"', 'affected = "<1.0"')
    write_case(place / "mini-7", "", odd)
    write_case(place / "mini-8", "", odd.replace("example/mini#7", "<KIP>"))
    write_case(place / "other-1", "", odd.replace('"mini"', '"o<t>her"'))
    for case, every in MEASURED.items():
        for one in every:
            save(place, case, one)
    return place


class Page(HTMLParser):
    """The tables of a page as lists of rows of cells, its tags, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: set[str] = set()
        self.linked: list[str] = []
        self.classes: dict[str, set[str]] = {}
        self._class = ""
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.linked += [value or "" for name, value in attrs if name in ("href", "src")]
        self._class = dict(attrs).get("class") or ""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[-1][-1][-1] += data
            self.classes.setdefault(data, set()).update(self._class.split())


def reports(cases: Path, capsys: pytest.CaptureFixture[str], *names: str) -> tuple[str, str, str]:
    """What is printed, and the texts of both files."""
    out = cases.parent / "out"
    options = ["--cases", str(cases), "--report", "html,json", "--report-dir", str(out)]
    assert main(["museum", "matrix", *names, *options]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [f"wrote {out / 'museum.html'}", f"wrote {out / 'museum.json'}"]
    return printed.out, (out / "museum.html").read_text("utf-8"), (out / "museum.json").read_text("utf-8")


def test_each_rate_is_in_its_cell(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed, html, text = reports(cases, capsys)
    page = Page(html)
    assert printed.startswith("Measured 2026-11-01 to 2026-11-03.\n")
    assert "Measured 2026-11-01 to 2026-11-03." in html
    assert f"| mini | {' | '.join(COLUMNS)} |" in printed
    mini, other = page.tables
    assert mini[0] == ["case", *COLUMNS]
    assert other[0] == ["case"]
    for case, (_, *cells) in zip(CELLS, mini[1:], strict=True):
        assert cells == CELLS[case]
        assert f"| `{case}` | {' | '.join(CELLS[case])} |" in printed
    assert page.classes["9 of 10"] == {"rate", "bad"}
    assert page.classes["0 of 20"] == {"rate", "good"}
    given = {one["id"]: one for one in json.loads(text)}
    assert list(given) == ["mini-7", "mini-8", "other-1"]
    for case in read_all(cases):
        rates = [Measured(**one) for one in given[case.id]["rates"]]
        assert rates == list(case.measured) == MEASURED.get(case.id, [])
        assert (given[case.id]["about"], given[case.id]["fixed"]) == (ODD, "2.0")


def test_the_page_takes_no_name_for_html_and_loads_nothing(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, html, _ = reports(cases, capsys)
    page = Page(html)
    assert not page.tags & {"script", "link", "img", "iframe", "t", "kip"}
    assert html.count(escape(ODD)) == 3
    assert set(page.linked) == {"https://github.com/example/mini/issues/7"}
    assert not re.search(r"url\(|@import", html)
    assert "prefers-color-scheme: dark" in html


def test_some_cases_or_none_that_was_measured(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed, _, text = reports(cases, capsys, "mini-8")
    assert "mini-7" not in printed + text
    printed, html, _ = reports(cases, capsys, "other-1")
    assert "Nothing was measured." in printed
    assert "Nothing was measured." in html


def test_a_report_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["museum", "matrix", "--report", "junit"])
    assert ended.value.code == 2
    assert "'junit' is none of html, json" in capsys.readouterr().err
