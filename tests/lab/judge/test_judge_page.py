"""The tables of benchmarks/results/judge.md, which `tests/support/pages/judge_page.py` writes."""

from __future__ import annotations

import judged_applications
from judge_page import _said, columns, kept, table
from late_page import PAGE, SCRIPTS, cell
from late_page import kept as late_rows
from late_page import table as late_table
from toolchain import TESTS

from minibroker_lab.judge.scripts import bundled


def test_the_programs_of_the_page_are_there() -> None:
    programs = (judged_applications._SOURCES, judged_applications.LOOPS)
    assert [set(every) for every in programs] == [set(judged_applications.CLIENTS)] * 2
    sources = {source for of_clients in programs for every in of_clients.values() for source in every}
    assert [source for source in sources if not (TESTS / source).is_file()] == []


def test_a_client_that_did_not_return_is_counted_and_no_script_is_named() -> None:
    old, new, *_ = columns()
    cells = {old: dict.fromkeys(bundled(), "held"), new: dict.fromkeys(bundled(), "held")}
    cells[old] |= {bundled()[0]: _said({"status": None, "broken": [{"rule": "no-progress"}]})}
    cells[old] |= {bundled()[1]: _said({"status": 0, "broken": [{"rule": "order"}]}), "measured": "2026-11-24"}
    cells[new] |= {"measured": "2026-11-24"}
    text = table("kafka", cells)
    scripts, _, counts = text.partition("\n\n")
    assert (old in scripts, new in scripts, "no verdict" in scripts) == (False, True, False)
    assert f"| {old} | {len(bundled()) - 2} | 1 | 1 | 2026-11-24 |" in counts
    assert not any(f"`{name}`" in counts for name in bundled())
    read = kept(text, "kafka")
    assert (read[new], table("kafka", read)) == (cells[new], text)
    assert set(read[columns()[-1]].values()) == {"not run"}


def test_the_cells_of_the_page_of_late_requests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = late_rows(text)
    assert {len(row) for row in rows.values()} == {len(SCRIPTS) + 1}
    assert set(rows) <= set(columns())
    assert late_table(rows) in text
    assert cell("yes", "3 of 3", "EndTxn v1 (exchange 27) ended it") == "**yes** 3 of 3: EndTxn v1"
    assert (
        cell("no", "2 of 3", "EndTxn v1 (exchange 2) was refused with PRODUCER_FENCED") == "no 2 of 3: PRODUCER_FENCED"
    )
    assert [cell("not told", times, "x") for times in ("3 of 3", "1 of 3")] == ["not told", "not told 1 of 3"]
