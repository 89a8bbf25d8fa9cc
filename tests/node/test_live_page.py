"""The live page in a Chromium: what clients do is seen while they do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.client.transactional import TransactionalClient
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch

pytestmark = pytest.mark.node

HOSTILE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, page=True, topics={"orders": 1}) as running:
        yield running


@pytest.fixture
def tab(browser: Any, broker: Minibroker) -> Iterator[Any]:
    """The page; what it says on its console, and what it loads from elsewhere, fails the test."""
    opened = browser.new_page()
    said: list[str] = []
    own = broker.page_url.removesuffix("page/")
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: said.append(request.url) if not request.url.startswith(own) else None)
    opened.goto(broker.page_url)
    yield opened
    opened.close()
    assert said == []


def test_a_transaction_and_its_fencing_are_seen(tab: Any, broker: Minibroker) -> None:
    assert tab.locator("#transactions .row").count() == 0
    with TransactionalClient(broker.bootstrap_servers) as client:
        zombie = client.init_producer_id(HOSTILE, 60_000, transaction_version=2)
        records = [Record(0, 1_700_000_000_000, None, b"v")] * 2
        named = {"producer_id": zombie.producer_id, "producer_epoch": zombie.producer_epoch}
        sent = bytes(build_batch(records, base_sequence=0, transactional=True, **named))
        client.produce(zombie, "orders", 0, sent)
        lane = tab.locator("#transactions .row")
        lane.locator(".state.Ongoing").wait_for()
        assert lane.locator("b").inner_text() == HOSTILE
        tab.locator("#partitions .batch.open").wait_for()
        client.init_producer_id(HOSTILE, 60_000, transaction_version=2)
        with pytest.raises(ApiError):
            client.end(zombie, commit=True)
        lane.locator(".mark.fenced").wait_for()
        # What is chosen stays while more comes.
        lane.locator(".mark.fenced").press("Enter")
        assert "current epoch" in tab.locator("#detail").inner_text()
        client.init_producer_id("another", 60_000, transaction_version=2)
        lane.nth(1).wait_for()
        assert "current epoch" in tab.locator("#detail").inner_text()
        assert tab.locator("#requests tr.chosen").count() == 1
        # It keeps the focus, too, and a slider that was moved stays.
        assert "fenced" in tab.evaluate("document.activeElement.getAttribute('aria-label')")
        tab.locator("#time").focus()
        tab.keyboard.press("Home")
        lane.first.wait_for(state="detached")
        before = tab.locator("#now").inner_text()
        assert before.startswith("0 of ")
        client.init_producer_id("a third", 60_000, transaction_version=2)
        tab.locator("#now").filter(has_not_text=before).wait_for()
        assert tab.locator("#now").inner_text().startswith("0 of ")
        tab.keyboard.press("End")
        lane.nth(2).wait_for()
    assert tab.title() == "minibroker"
