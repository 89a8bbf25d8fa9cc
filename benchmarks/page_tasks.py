"""The longest tasks of the live page and of a saved trace's page in a Chromium, with many partitions and many ids.

The page reacts to nothing during a task. The processor time of a task depends little on other programs on the machine,
its wall time does. The longest tasks are shown with the processor time of their parts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibroker import Minibroker
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.trace.saved import Trace
from minibroker.trace.view import page
from minibroker_protocol.records import Record, build_batch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOPICS = 10
EXCHANGES_A_SECOND = 140
"""As many as a page is shown of a busy broker."""
CATEGORIES = ["toplevel", "loading", "devtools.timeline", "v8", "blink.user_timing"]
MARK = "this is the page"
COPY = "DocumentLoader::BodyLoadingFinished"
MOST_RECORDED = 10_000
"""Exchanges that a broker keeps at most."""
EXPLAINED = 3
"""Tasks that are shown with their parts."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--ids", type=int, default=1_000, help="transactional ids")
    parser.add_argument("--rounds", type=int, default=3, help="transactions of each id")
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        parser.error("needs the extra `browser`: pip install -e '.[browser]'")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        live(chromium, Path(place), options)
        saved(chromium, Path(place), options)
        chromium.close()
    return 0


def live(chromium: Browser, place: Path, options: argparse.Namespace) -> None:
    """The page while clients work; then a page that is opened when there is everything already."""
    with broker(options, page=True) as running, TransactionalClient(running.bootstrap_servers) as client:
        with traced(chromium, place, "live page") as tab:
            tab.goto(running.page_url)
            work(client, options.ids, options.rounds)
            use(tab)
        with traced(chromium, place, "live page, opened late") as tab:
            tab.goto(running.page_url)
            tab.locator("#partitions-count", has_text=f"{options.partitions}").wait_for()
            tab.locator("#now", has_text="1000 of 1000").wait_for()
            use(tab)


def saved(chromium: Browser, place: Path, options: argparse.Namespace) -> None:
    """The page of a trace in which every id writes in its share of the partitions."""
    share = max(options.partitions // options.ids, 1)
    exchanges: list[dict[str, Any]] = []
    with (
        broker(options, record=MOST_RECORDED) as running,
        TransactionalClient(running.bootstrap_servers) as client,
    ):
        for number in range(options.ids):
            producer = client.init_producer_id(f"app-{number}", 60_000, transaction_version=2)
            for other in range(number * share, (number + 1) * share):
                client.produce(producer, *partition(other % options.partitions), batch(producer))
            client.end(producer, commit=number % 8 == 0)
            if number % 100 == 99 or number == options.ids - 1:
                after = exchanges[-1]["number"] if exchanges else 0
                exchanges += running.control.exchanges(MOST_RECORDED, after=after)
    file = place / "trace.html"
    file.write_text(page(Trace(exchanges), "saved"), encoding="utf-8")
    with traced(chromium, place, f"saved page of {file.stat().st_size / 1e6:.0f} MB") as tab:
        tab.goto(file.as_uri())
        tab.locator("#partitions-count:not(:empty)").wait_for()
        use(tab)


def broker(options: argparse.Namespace, **named: Any) -> Minibroker:
    topics = {f"topic-{number}": max(options.partitions // TOPICS, 1) for number in range(TOPICS)}
    return Minibroker(ephemeral=True, process=True, topics=topics, **named)


def work(client: TransactionalClient, ids: int, rounds: int) -> None:
    """Every fourth transaction has records, in a partition of its own, and every eighth commits."""
    begun, sent = time.monotonic(), 0
    for _ in range(rounds):
        for number in range(ids):
            producer = client.init_producer_id(f"app-{number}", 60_000, transaction_version=2)
            sent += 1
            if number % 4 == 0:
                client.produce(producer, *partition(number), batch(producer))
                client.end(producer, commit=number % 8 == 0)
                sent += 2
            time.sleep(max(0.0, sent / EXCHANGES_A_SECOND - (time.monotonic() - begun)))


def partition(number: int) -> tuple[str, int]:
    return f"topic-{number % TOPICS}", number // TOPICS


def batch(producer: Producer) -> bytes:
    named = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    records = [Record(0, 1_700_000_000_000, None, b"v")] * 2
    return bytes(build_batch(records, base_sequence=0, transactional=True, **named))


def use(tab: Page) -> None:
    """The filter, back in time and on again by keyboard, and down to the requests."""
    for wanted in ("app-99", ""):
        tab.locator("#filter").fill(wanted)
        tab.wait_for_timeout(500)
    tab.locator("#time").focus()
    for key in ("Home", "End", "ArrowLeft", "PageUp", "End"):
        tab.keyboard.press(key)
        tab.wait_for_timeout(500)
    tab.evaluate("document.getElementById('requests').scrollIntoView()")
    tab.wait_for_timeout(500)


@contextmanager
def traced(chromium: Browser, place: Path, title: str) -> Iterator[Page]:
    """A new tab, whose tasks are printed at the end."""
    tab = chromium.new_page()
    file = place / "tasks.json"
    chromium.start_tracing(page=tab, path=file, categories=CATEGORIES)
    yield tab
    shown = [tab.locator(selector).inner_text() for selector in ("#now", "#transactions-count", "#partitions-count")]
    tab.evaluate(f"performance.mark({MARK!r})")
    chromium.stop_tracing()
    tab.close()
    print(f"{title}: {shown[0]}; {shown[1]} transactional ids and {shown[2]} partitions drawn")
    report(tasks_of(json.loads(file.read_text())["traceEvents"]))


def tasks_of(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Each task of the page's main thread, followed by the events in it. Chromium has other pages, such as that of its
    address bar, in processes of their own."""
    (thread,) = {(event["pid"], event["tid"]) for event in events if event["name"] == MARK}
    completed = [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == thread]
    tasks: list[list[dict[str, Any]]] = []
    for event in sorted(completed, key=lambda event: (event["ts"], -event["dur"])):
        if tasks and event["ts"] < tasks[-1][0]["ts"] + tasks[-1][0]["dur"]:
            tasks[-1].append(event)
        elif event["name"] == "ThreadControllerImpl::RunTask":
            tasks.append([event])
    return tasks


def took(task: list[dict[str, Any]], field: str) -> float:
    """ms. The developer tools, by which the page is driven, copy the loaded file: this does not count."""
    copies = sum(event.get(field, 0) for event in task if event["name"] == COPY)
    return float(task[0].get(field, 0) - copies) / 1000


def report(tasks: list[list[dict[str, Any]]]) -> None:
    print(f"  {len(tasks)} tasks, {sum(took(task, 'tdur') for task in tasks) / 1000:.1f} s of processor time")
    for field, name in (("tdur", "processor"), ("dur", "wall")):
        longest = sorted((took(task, field) for task in tasks), reverse=True)[:10]
        print(f"  longest by {name} time, ms:", " ".join(f"{ms:.1f}" for ms in longest))
    begun = tasks[0][0]["ts"]
    for task in sorted(tasks, key=lambda task: took(task, "tdur"), reverse=True)[:EXPLAINED]:
        parts = ", ".join(f"{name} {used / 1000:.1f}" for name, used in parts_of(task).most_common(5))
        print(f"  {took(task, 'tdur'):.1f} ms at {(task[0]['ts'] - begun) / 1e6:.1f} s: {parts}")


def parts_of(task: list[dict[str, Any]]) -> Counter[str]:
    """Processor time in µs by the name of the event, without that of the events in it."""
    used: Counter[str] = Counter()
    around: list[dict[str, Any]] = []
    for event in task:
        while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
            around.pop()
        if around:
            used[around[-1]["name"]] -= event.get("tdur", 0)
        used[event["name"]] += event.get("tdur", 0)
        around.append(event)
    del used[COPY]
    return used


if __name__ == "__main__":
    sys.exit(main())
