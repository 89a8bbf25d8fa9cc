"""The site: its pages lead to one another, load nothing from elsewhere and have the facts of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import cache
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from posixpath import normpath

import peers
import pytest
import recorded_runs
import reference
from recorded_runs import RecordedRun
from seeds import SEEDS
from website import __main__ as website
from website import answers, playground
from website.markdown_pages import DeadLink, Pages

from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.scenario import KAFKA, Scenario, bundled
from minibroker_lab.conformance.weight import RECOVERY


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built on a machine without npm."""
    folder, said = tmp_path_factory.mktemp("site"), StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, redirect_stderr(said):
        monkeypatch.setattr(playground.shutil, "which", lambda _: None)
        assert website.main([str(folder)]) == 0
    assert said.getvalue() == "website: without the playground: there is no npm\n"
    return folder


class Read(HTMLParser):
    """What a page points at, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.policy = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag in ("img", "script", "link", "iframe"):
            self.loaded.append(given.get("src") or given.get("href", ""))
        elif given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    return {page: Read(page) for page in site.rglob("*.html") if page != site / "museum.html"}


def test_every_link_leads_somewhere(pages: dict[Path, Read]) -> None:
    assert len(pages) > 60
    is_file, ids = cache(os.path.isfile), {str(page): found.ids for page, found in pages.items()}
    for page, found in pages.items():
        folder = str(page.parent)
        for address in {*found.links, *found.loaded}:
            if address.startswith(("https:", "http:", "data:", "mailto:")):
                continue
            path, _, fragment = address.partition("#")
            target = normpath(f"{folder}/{path}") if path else str(page)
            assert is_file(target), f"{page}: {address}"
            if fragment and target in ids:
                assert fragment in ids[target], f"{page}: {address}"


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Read]) -> None:
    for page, found in pages.items():
        assert not [one for one in found.loaded if one.startswith(("http:", "https:", "//"))], page
        if found.policy or page != site / "museum.html":
            assert "default-src 'none'" in found.policy, page


@pytest.mark.parametrize(
    "text", [*playground.STATIC.glob("*.css"), *playground.STATIC.glob("*.js")], ids=lambda one: one.name
)
def test_scripts_and_styles_load_nothing_from_elsewhere(text: Path) -> None:
    loaded = r"""(?:@import|\burl|\bfrom|\bimport|\bfetch|\bWorker)[\s("'`]*(?:[a-z]+:)?//"""
    assert not re.findall(loaded, text.read_text(encoding="utf-8"))


def test_every_row_of_the_texts_has_its_answers(site: Path) -> None:
    text = (site / "answers.html").read_text(encoding="utf-8")
    rows = text.split('<h2 id="row-')[1:]
    assert [row.partition('"')[0] for row in rows] == list(SEEDS)
    assert all("<table>" in row for row in rows)
    # KIP-360: the retry at the last epoch; recorded from Kafka 4.3.1 and 4.4.0.
    retried = next(row for row in rows if row.startswith("360-5"))
    assert "restart-keeps-last-epoch" in retried
    # A release that answers otherwise has a column of its own.
    assert "<th>kafka-3.9</th>" in text
    assert re.search(r"<th>kafka-[\d.]+</th><th>kip</th>", text), "the texts beside the releases"


def cells(table: str) -> list[list[str]]:
    """The texts of a table's rows, the heading's first."""
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[dh].*?>(.*?)(?=<t[dh]|$)", row)]
        for row in rows
    ]


def test_every_row_says_what_every_broker_did(site: Path) -> None:
    """Brokers × rows, and the brokers of each scenario: no cell is empty."""
    text = (site / "answers.html").read_text(encoding="utf-8")
    runs = recorded_runs.load()
    assert [run.broker for run in runs] == [one.label for one in peers.BROKERS.values()]
    overview = cells(text.partition('id="overview">')[2].partition("</table>")[0])
    assert overview[0] == ["row", *(run.broker.replace("`", "") for run in runs)]
    assert [row[0] for row in overview[1:]] == list(SEEDS)
    assert all(re.fullmatch(r"\d+ / \d+|–", cell) for row in overview[1:] for cell in row[1:])
    for scenario in bundled():
        if set(scenario.proves) & set(SEEDS):
            told = text.partition(f"<code>{scenario.name}</code>")[2].partition("</table>")[0]
            assert [(row[0], row[1]) for row in cells(told)[1:]] == [
                (run.broker.replace("`", ""), run.outcome(scenario)) for run in runs
            ], scenario.name


def test_a_failing_broker_is_quoted(tmp_path: Path) -> None:
    scenario = next(one for one in bundled() if "360-3" in one.proves)
    passed = {one.name: "passed" for one in bundled()}
    failed = {scenario.name: "failed: step 2 (Produce): field a.b.errorCode: expected 'NONE', got 'UNKNOWN <1>'"}
    run = RecordedRun("other", "1", "by hand", "2026-01-01", KAFKA, 1, passed | failed)
    text = answers.page([run]).body
    assert '<td class="failed">failed</td>' in text
    assert ">Produce errorCode UNKNOWN &lt;1&gt;</td>" in text
    assert text.count('<td class="failed">') == len(set(scenario.proves) & set(SEEDS)) * 2, "the row and the scenario"


def test_a_run_without_a_scenario_ends_the_build() -> None:
    """A scenario that came after the run was recorded: the broker has to be run again."""
    scenario = next(one for one in bundled() if "360-3" in one.proves)
    passed = {one.name: "passed" for one in bundled() if one is not scenario}
    with pytest.raises(KeyError, match=scenario.name):
        answers.page([RecordedRun("other", "1", "by hand", "2026-01-01", KAFKA, 1, passed)])


def test_where_a_broker_stopped_answering_is_told_by_numbers() -> None:
    """Nobody is to learn from the results which request ends somebody's broker."""
    group = next(one for one in bundled() if "360-3" in one.proves).group
    ended, *others = [one for one in bundled() if one.group == group]
    results = [Result(one, Status.PASSED) for one in bundled() if one is not ended]
    results.append(Result(ended, Status.FAILED, "the broker does not answer any more", breach=RECOVERY))
    scenarios, counted, _ = recorded_runs.recorded(results)
    assert counted == {group: {"passed": len(others), "failed (recovery)": 1}}
    assert {one.name for one in bundled() if one.name not in scenarios} == {ended.name, *(one.name for one in others)}
    run = RecordedRun("other", "1", "by hand", "2026-01-01", KAFKA, 2, scenarios, counted)
    assert {run.outcome(one) for one in (ended, *others)} == {"counted"}
    assert run.counts(bundled())["failed (recovery)"] == 1
    assert "does not answer" not in answers.page([run]).body
    page = recorded_runs.with_results("", [run])
    assert f"| other | {len(bundled()) - 1} | 0 | 1 | 0 | 0 | 0 | 0 | 0 | once; silent in {group} |" in page
    assert not re.search("does not answer|no response|closed by the broker", recorded_runs.DATA.read_text("utf-8"))


@pytest.mark.parametrize("missing", [True, False])
def test_scenarios_that_came_later_are_run_alone(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    new, *others = (one for one in bundled() if KAFKA in one.only)
    last = {one.name: "passed" for one in others} | {"one-that-was-removed": "passed"}
    asked: list[str] = []
    saved: list[RecordedRun] = []

    def run(scenarios: Sequence[Scenario]) -> peers.Ran:
        asked.extend(one.name for one in scenarios)
        return [Result(one, Status.FAILED, "another answer") for one in scenarios], 1

    monkeypatch.setattr(peers, "BROKERS", {"other": peers.Broker("other", lambda: "2", "by hand", run)})
    monkeypatch.setattr(
        recorded_runs, "load", lambda: [RecordedRun("other", "1", "by hand", "2026-01-01", KAFKA, 1, last)]
    )
    monkeypatch.setattr(recorded_runs, "save", saved.extend)
    peers.record("other", missing=missing)
    assert asked == [new.name] if missing else len(asked) > 300
    (kept,) = saved
    assert kept.scenarios.keys() == {one.name for one in (new, *others)}
    assert kept.outcome(new) == "failed"


def test_the_results_are_todays() -> None:
    page = recorded_runs.PAGE.read_text(encoding="utf-8")
    assert recorded_runs.with_results(page, recorded_runs.load()) == page, "run python tests/support peers"
    assert recorded_runs.DATA.stat().st_size < 300_000


def test_the_rates_of_the_museum_are_there_for_programs_too(site: Path) -> None:
    assert len(json.loads((site / "museum.json").read_text(encoding="utf-8"))) == len(reference.museum())


def test_tables_of_museum_and_judge_are_there(site: Path) -> None:
    assert "librdkafka-4736" in (site / "museum.html").read_text(encoding="utf-8")
    assert "<table>" in (site / "docs" / "reference" / "museum.html").read_text(encoding="utf-8")
    assert "<table>" in (site / "docs" / "how-to" / "judge.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("link", ["gone.md", "../outside.md", "there.md#no-such-heading"])
def test_a_dead_link_is_found(tmp_path: Path, link: str) -> None:
    (tmp_path / "a.md").write_text(f"# A\n\n[it]({link})\n", encoding="utf-8")
    (tmp_path / "there.md").write_text("# There\n", encoding="utf-8")
    found = Pages(tmp_path)
    with pytest.raises(DeadLink, match=re.escape(link.replace("there.md", "there.html"))):
        found.read(["a.md"])
        found.check()


def test_headings_are_named_as_links_have_them(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A `code` – and: more\n\n## Twice\n\n## Twice\n", encoding="utf-8")
    found = Pages(tmp_path)
    found.read(["a.md"])
    assert found.pages["a.html"].ids == {"a-code--and-more", "twice", "twice-1"}


def test_a_dead_link_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Start\n\n[it](docs/a.md#gone)\n", encoding="utf-8")
    for name in ("CHANGELOG.md", "docs/a.md"):
        (tmp_path / name).write_text("# A\n", encoding="utf-8")
    monkeypatch.setattr(website, "ROOT", tmp_path)
    assert website.main([str(tmp_path / "site"), "--without-playground"]) == 1
    assert capsys.readouterr().err == "website: dead link: index.html: docs/a.html#gone\n"


def test_the_playground_has_all_that_a_seed_reads(tmp_path: Path) -> None:
    """Without this environment's packages: a browser has none of them."""
    playground.pack(website.ROOT, tmp_path / "minibroker.zip")
    shutil.unpack_archive(tmp_path / "minibroker.zip", tmp_path / "sources")
    command = [sys.executable, "-I", "-S", "-c", RUN_A_SEED, str(tmp_path / "sources")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no promise was broken" in done.stdout


RUN_A_SEED = """
import logging, sys
sys.path.insert(0, sys.argv[1])
logging.disable(logging.CRITICAL)
from minibroker_lab.simulation.command import tell
from minibroker_lab.simulation.run import simulate
sys.exit(tell(simulate(31, telling=True)))  # of little work
"""


def test_without_npm_the_rest_is_built(site: Path) -> None:
    assert "playground" not in re.findall(r'href="(\w+)\.html"', (site / "index.html").read_text(encoding="utf-8"))
    assert not (site / "playground.html").exists()


def test_the_trace_page_of_the_playground_has_every_module_that_it_loads(tmp_path: Path) -> None:
    shown = tmp_path / "trace"
    playground.trace_page(Path(__file__).parents[1], shown)
    loaded = {
        name
        for script in shown.glob("*.js")
        for name in re.findall(r'^import .* from "\./(.*)";$', script.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert loaded
    assert {name for name in loaded if not (shown / name).is_file()} == set()
    assert ":root" in (shown / "page.css").read_text(encoding="utf-8")
