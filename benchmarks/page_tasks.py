"""The longest tasks of the live page in a Chromium, beside a broker with many partitions and transactional ids.

A task is a piece of work during which the page reacts to nothing. Its processor time is told, which other programs on
the machine do not change much, and its wall time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibroker import Minibroker
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker_protocol.records import Record, build_batch

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOPICS = 10
EXCHANGES_A_SECOND = 240
"""As many as a page is shown of a busy broker."""


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
    topics = {f"topic-{number}": options.partitions // TOPICS for number in range(TOPICS)}
    with (
        Minibroker(ephemeral=True, page=True, process=True, topics=topics) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
        tempfile.TemporaryDirectory() as place,
        sync_playwright() as playwright,
    ):
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = chromium.new_page()
        tab.goto(broker.page_url)
        trace = Path(place, "trace.json")
        chromium.start_tracing(page=tab, path=trace, categories=["toplevel"])
        work(client, options.ids, options.rounds)
        use(tab)
        shown = [tab.locator(one).inner_text() for one in ("#now", "#transactions-count", "#partitions-count")]
        chromium.stop_tracing()
        chromium.close()
        found = tasks(json.loads(trace.read_text())["traceEvents"])
    print(f"{shown[0]}; {shown[1]} transactional ids and {shown[2]} partitions drawn; {len(found)} tasks")
    for field, name in (("tdur", "processor"), ("dur", "wall")):
        longest = sorted((task.get(field, 0) / 1000 for task in found), reverse=True)[:10]
        print(f"longest by {name} time, ms:", " ".join(f"{one:.1f}" for one in longest))
    return 0


def work(client: TransactionalClient, ids: int, rounds: int) -> None:
    """Every fourth transaction has records, in a partition of its own, and every eighth commits."""
    begun, sent = time.monotonic(), 0
    for _ in range(rounds):
        for number in range(ids):
            producer = client.init_producer_id(f"app-{number}", 60_000, transaction_version=2)
            sent += 1
            if number % 4 == 0:
                client.produce(producer, f"topic-{number % TOPICS}", number // TOPICS, batch(producer))
                client.end(producer, commit=number % 8 == 0)
                sent += 2
            time.sleep(max(0.0, sent / EXCHANGES_A_SECOND - (time.monotonic() - begun)))


def batch(producer: Producer) -> bytes:
    named = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    records = [Record(0, 1_700_000_000_000, None, b"v")] * 2
    return bytes(build_batch(records, base_sequence=0, transactional=True, **named))


def use(tab: Page) -> None:
    """The filter, and back in time and on again by keyboard."""
    for wanted in ("app-99", ""):
        tab.locator("#filter").fill(wanted)
        tab.wait_for_timeout(500)
    tab.locator("#time").focus()
    for key in ("Home", "End", "ArrowLeft", "PageUp", "End"):
        tab.keyboard.press(key)
        tab.wait_for_timeout(500)


def tasks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the page's main thread."""
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    return [
        one
        for one in events
        if one["name"] == "ThreadControllerImpl::RunTask" and names.get((one["pid"], one["tid"])) == "CrRendererMain"
    ]


if __name__ == "__main__":
    sys.exit(main())
