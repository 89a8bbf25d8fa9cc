"""The live page beside the demo, and a picture of each of its views, light and dark, in the folder PAGE_PICTURES."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minibroker import Minibroker
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch

pytestmark = pytest.mark.node

COLORS = ("light", "dark")
SIZE = {"width": 1400, "height": 900}


def batch(producer: Producer, count: int) -> bytes:
    records = [Record(0, 1_700_000_000_000, None, b"v")] * count
    named = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    return bytes(build_batch(records, base_sequence=0, transactional=True, **named))


class Scene(NamedTuple):
    """A cluster with transactions in every state, one of which waits with its EndTxn."""

    broker: Minibroker
    held: Future[None]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with (
        Minibroker(ephemeral=True, page=True, brokers=3, config={"default.replication.factor": "3"}) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
        TransactionalClient(broker.bootstrap_servers) as waiting,
        ThreadPoolExecutor(1) as pool,
    ):
        broker.state.create_topic(topic="orders", partitions=3)
        broker.state.create_topic(topic="payments", partitions=2)
        told = [("checkout", True), ("billing", True), ("checkout", False), ("shipping", None), ("checkout", True)]
        for number, (name, commit) in enumerate(told):
            producer = client.init_producer_id(name, 60_000, transaction_version=2)
            for topic, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
                client.produce(producer, topic, partition, batch(producer, 3))
            client.commit_offset(producer, "shippers", "orders", 0, 3 * number, "")
            if commit is not None:
                client.end(producer, commit=commit)
        zombie = client.init_producer_id("zombie", 60_000, transaction_version=2)
        client.produce(zombie, "orders", 2, batch(zombie, 3))
        client.init_producer_id("zombie", 60_000, transaction_version=2)
        with pytest.raises(ApiError):
            client.end(zombie, commit=True)
        broker.faults.inject("EndTxn", "hold", transactional_id="held")
        producer = waiting.init_producer_id("held", 60_000, transaction_version=2)
        waiting.produce(producer, "payments", 1, batch(producer, 2))
        held = pool.submit(waiting.end, producer, commit=True)
        broker.state.kill_broker(broker=3)
        yield Scene(broker, held)
        broker.faults.clear()


@pytest.fixture(params=COLORS)
def tab(request: pytest.FixtureRequest, browser: Any, scene: Scene) -> Iterator[Any]:
    opened = browser.new_page(viewport=SIZE, color_scheme=request.param)
    opened.goto(scene.broker.page_url)
    opened.locator("#transactions .mark.fenced").wait_for()
    yield opened
    opened.close()


@pytest.fixture
def picture(tab: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    folder = Path(os.environ.get("PAGE_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    color = request.node.callspec.params["tab"]

    def taken(name: str) -> None:
        file = folder / f"{name}-{color}.png"
        tab.screenshot(path=file)
        assert file.read_bytes().startswith(b"\x89PNG")
        # Nothing is wider than the window.
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")

    return taken


def test_pictures_of_the_views(tab: Any, scene: Scene, picture: Any) -> None:
    tab.locator("#partitions .row", has_text="payments-1").locator(".range.open").wait_for()
    tab.locator("#now-section .away", has_text="Broker 3").wait_for()
    picture("overview")
    tab.locator("#transactions .mark.fenced").press("Enter")
    picture("refusal")
    tab.locator("#requests tr").last.scroll_into_view_if_needed()
    picture("requests")
    tab.evaluate("scrollTo(0, 0)")
    tab.get_by_role("button", name="About orders-0").press("Enter")
    tab.get_by_role("button", name="Freeze", exact=True).click()
    tab.locator("#acts .done").wait_for()
    picture("hands")
    scene.broker.clock.unfreeze()
    tab.get_by_role("button", name="Close what was done").click()
    tab.locator("#time").fill("12")
    tab.locator("#now", has_text="12 of").wait_for()
    picture("back-in-time")


def test_the_names_of_lines_end_where_the_lanes_end(browser: Any, scene: Scene) -> None:
    opened = browser.new_page(viewport={"width": 1000, "height": 900})  # lanes are at their shortest
    opened.goto(scene.broker.page_url)
    opened.locator("#partitions .names small", has_text="high watermark").first.wait_for()
    cut = """[...document.querySelectorAll("#partitions .names small")].filter((one) =>
        one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right + 0.5)"""
    assert opened.evaluate(f"{cut}.map((one) => one.textContent)") == []
    opened.close()


def test_without_the_token(browser: Any, scene: Scene, tmp_path: Path) -> None:
    opened = browser.new_page(viewport=SIZE)
    opened.goto(scene.broker.page_url.partition("#")[0])
    opened.locator("#now-section .broker").first.wait_for()
    opened.screenshot(path=Path(os.environ.get("PAGE_PICTURES") or tmp_path) / "without-token-light.png")
    assert opened.get_by_role("button", name="Kill").count() == 0
    opened.close()


def test_the_demo_is_followed(browser: Any) -> None:
    """Its aborts, its zombie and its killed member; then back to before the zombie was fenced, and on again."""
    pytest.importorskip("confluent_kafka")
    pytest.importorskip("aiokafka")
    quick = {
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "250",
    }
    with Minibroker(ephemeral=True, page=True, config=quick) as broker:
        opened = browser.new_page(viewport=SIZE)
        failed: list[str] = []
        opened.on("pageerror", lambda error: failed.append(str(error)))
        opened.goto(broker.page_url)
        command = [sys.executable, "-m", "minibroker", "demo", "--bootstrap", broker.bootstrap_servers]
        command += ["--records", "200", "--seed", "1", "--timeout-ms", "2500"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
            try:
                opened.locator("#transactions .state.Ongoing").first.wait_for(timeout=60_000)
                fenced = opened.locator("#transactions .mark.fenced")
                fenced.first.wait_for(timeout=60_000)
                opened.locator("#partitions .batch.committed").first.wait_for(timeout=60_000)
                said, _ = demo.communicate(timeout=90)
            finally:
                demo.kill()
        assert demo.returncode == 0, said
        opened.locator("#time").focus()
        opened.keyboard.press("Home")
        fenced.first.wait_for(state="detached")
        opened.keyboard.press("End")
        fenced.first.wait_for()
        opened.close()
        assert failed == []
