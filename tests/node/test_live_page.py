"""The live page in a Chromium: what clients do is seen while they do it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.transactional import TransactionalClient
from minibroker.control import TOKEN_VARIABLE
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch

pytestmark = pytest.mark.node

HOSTILE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, page=True, brokers=2, topics={"orders": 1}) as running:
        running.state.create_topic(topic="replicated", replication_factor=2)
        yield running


@pytest.fixture
def tab(browser: Any, broker: Minibroker) -> Iterator[Any]:
    """The page; what it says on its console, and what it loads from elsewhere, fails the test."""
    opened = browser.new_page()
    said: list[str] = []
    own = broker.page_url.partition("page/")[0]
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: said.append(request.url) if not request.url.startswith(own) else None)
    opened.goto(broker.page_url)
    assert "token" not in opened.url
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
        strip = tab.locator("#partitions .row", has_text="orders-0")
        strip.filter(has_text="start 0 · stable 0 · high 2 · end 2").wait_for()
        assert strip.locator(".range.open").count() == 1
        open_now = tab.locator("#open li")
        open_now.filter(has_text="on orders-0").wait_for()
        assert open_now.locator("button").inner_text() == HOSTILE
        client.commit_offset(zombie, HOSTILE, "orders", 0, 9, "")
        group = tab.locator("#groups .row", has_text="pending orders-0: 9")
        group.wait_for()
        assert group.locator("b").inner_text() == HOSTILE
        unused = tab.locator("#partitions .row", has_text="replicated-0")
        unused.filter(has_text="not used since the broker's start").wait_for()
        client.init_producer_id(HOSTILE, 60_000, transaction_version=2)
        with pytest.raises(ApiError):
            client.end(zombie, commit=True)
        lane.locator(".mark.fenced").wait_for()
        tab.locator("#refused", has_text="PRODUCER_FENCED").wait_for()
        open_now.wait_for(state="detached")
        # What is chosen stays while more comes.
        lane.locator(".mark.fenced").press("Enter")
        strip.locator(".range.aborted").wait_for()
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


def test_without_a_client_it_shows_how_to_connect(browser: Any) -> None:
    with Minibroker(ephemeral=True, page=True) as empty:
        opened = browser.new_page()
        opened.goto(empty.page_url)
        program = opened.locator("#nothing pre").first
        program.wait_for()
        assert f'"bootstrap.servers": "{empty.bootstrap_servers}"' in program.inner_text()
        assert opened.locator("#nothing details[open]").count() == 1
        opened.locator("#nothing summary", has_text="Node").click()
        opened.locator("#nothing pre", has_text=f"brokers: ['{empty.bootstrap_servers}']").wait_for()
        with TransactionalClient(empty.bootstrap_servers) as client:
            client.init_producer_id("app", 60_000, transaction_version=2)
            opened.locator("#nothing").wait_for(state="hidden")
        opened.close()


def test_what_is_held_is_released_by_a_click(tab: Any, broker: Minibroker) -> None:
    hold = broker.faults.inject("EndTxn", "hold", transactional_id=HOSTILE)
    with hold, TransactionalClient(broker.bootstrap_servers) as client, ThreadPoolExecutor(1) as pool:
        producer = client.init_producer_id(HOSTILE, 60_000, transaction_version=2)
        client.add_partitions(producer, "orders", [0])
        ended = pool.submit(client.end, producer, commit=True)
        tab.get_by_role("button", name=f"Release rule {hold.id}").click()
        ended.result(20)
        tab.locator("#transactions .state.CompleteCommit").first.wait_for()
    acts = tab.locator("#acts")
    shell, python = acts.locator("pre").all_inner_texts()
    assert shell == f"minibroker control --control {tab.url.split('/')[2]} fault.release id={hold.id}"
    injected, released = python.splitlines()
    assert injected.startswith('fault = broker.faults.inject(["EndTxn"], {"name": "hold"')
    assert f"transactional_id={json.dumps(HOSTILE)}" in injected
    assert released == "fault.release()"
    acts.get_by_role("button", name="Close").click()
    assert acts.inner_text() == ""


def test_a_rule_the_clock_a_broker_and_a_leader(tab: Any, broker: Minibroker) -> None:
    rule = tab.get_by_role("form", name="A rule")
    rule.locator("[name=api]").fill("InitProducerId")
    rule.locator("[name=action]").select_option("error")
    rule.locator("[name=detail]").fill("INVALID_PRODUCER_EPOCH")
    rule.locator("[name=transactional_id]").fill("it's")
    rule.get_by_role("button", name="Set rule").click()
    tab.locator("#now-section .rule").wait_for()
    (found,) = broker.faults.list()
    assert found["rule"]["action"] == {"name": "error", "code": "INVALID_PRODUCER_EPOCH"}
    assert r"'transactional_id=it'\''s'" in tab.locator("#acts").inner_text()
    tab.get_by_role("button", name="Remove rule").click()
    tab.locator("#now-section .rule").wait_for(state="detached")
    tab.get_by_role("button", name="Freeze", exact=True).click()
    tab.locator("#now-section", has_text="frozen").wait_for()
    before = broker.clock.now_ms
    tab.get_by_role("button", name="Advance the clock by 1 min").click()
    tab.locator("#acts .done").wait_for()
    assert broker.clock.now_ms == before + 60_000
    assert "broker.clock.advance(minutes=1)" in tab.locator("#acts").inner_text()
    line = tab.locator("[name=line]")
    line.fill("clock.unfreeze")
    line.press("Enter")
    tab.locator("#now-section", has_not_text="frozen").wait_for()
    tab.get_by_role("button", name="About replicated-0").press("Enter")
    tab.get_by_role("button", name="Have broker").click()
    tab.locator("#partitions .row", has_text="replicated-0").filter(has_text="leader 2").wait_for()
    tab.locator("#detail dd").first.filter(has_text="2").wait_for()
    tab.get_by_role("button", name="Kill 2").click()
    tab.locator("#now-section .away", has_text="Broker 2").wait_for()
    tab.get_by_role("button", name="Start 2").click()
    tab.locator("#now-section .away").wait_for(state="detached")
    assert broker.control.describe()["brokers"] == [1, 2]


def test_a_deleted_topic_goes(tab: Any, broker: Minibroker) -> None:
    broker.state.create_topic(topic="going")
    strip = tab.locator("#partitions .row", has_text="going-0")
    strip.wait_for()
    with TransactionalClient(broker.bootstrap_servers) as client:
        client.ask_any(m.DeleteTopicsRequest(topic_names=["going"], timeout_ms=9000), m.DeleteTopicsResponse, 4)
    strip.wait_for(state="detached")


def test_without_the_token_it_only_shows(browser: Any, broker: Minibroker) -> None:
    address, _, token = broker.page_url.partition("#token=")
    opened = browser.new_page()
    opened.goto(address)
    opened.locator("#now-section li").first.wait_for()
    assert opened.locator("#now-section button").count() == 0
    field = opened.locator("[name=token]")
    field.fill("not it")
    field.press("Enter")
    opened.locator("#acts", has_text="That is not the token.").wait_for()
    field.fill(token)
    field.press("Enter")
    opened.get_by_role("button", name="Freeze", exact=True).wait_for()
    opened.get_by_role("button", name="Kill 1").wait_for()
    line = opened.locator("[name=line]")
    line.fill("state.move_leader topic=replicated partition=0 to=7")
    line.press("Enter")
    opened.locator("#acts .refused", has_text="7").wait_for()
    opened.close()


def test_each_line_does_the_same_again(tab: Any, broker: Minibroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line and the Python that are shown, with an id that looks like a number."""
    line = tab.locator("[name=line]")
    line.fill(
        """fault.add api=EndTxn action='{"name":"error","code":"NOT_COORDINATOR"}' transactional_id='"123"' times=2"""
    )
    line.press("Enter")
    tab.locator("#acts .done").wait_for()
    shell, python = tab.locator("#acts pre").all_inner_texts()
    program, *arguments = shlex.split(shell)
    assert program == "minibroker"
    monkeypatch.setenv(TOKEN_VARIABLE, broker.page_url.partition("#token=")[2])
    assert main(arguments) == 0
    exec(python, {"broker": broker})
    first, second, third = (set_["rule"] for set_ in broker.faults.list())
    assert first == second == third
    assert first["transactional_id"] == "123"
    broker.faults.clear()
