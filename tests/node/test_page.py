"""The page of a trace: what its script makes of exchanges, under Node, and the page itself in a Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.trace.saved import Trace
from minibroker.trace.view import page
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import Record, build_batch

pytestmark = pytest.mark.node

WORDS = Path(__file__).parents[2] / "minibroker" / "trace" / "page" / "words.js"
STORY = Path(__file__).parents[2] / "minibroker" / "trace" / "page" / "story.js"
HOSTILE = "<img src=x onerror=document.title='owned'>"
SHOWN = """
const told = new Story();
for (const exchange of inOrderOfAnswers(JSON.parse(process.argv[1]))) told.take(exchange);
const plain = (value) => Object.fromEntries(value);
console.log(JSON.stringify({
  transactions: [...told.transactions.values()].map((one) => ({
    ...one, segments: one.segments.map((s) => s.state), marks: one.marks.map((m) => [m.kind, m.text]),
  })),
  partitions: [...told.partitions.values()].map((one) => ({
    ...one, batches: one.batches.map((b) => [b.from, b.to, b.outcome]),
  })),
  groups: [...told.groups.values()].map((one) => ({
    ...one, members: one.members.size, committed: plain(one.committed), pending: plain(one.pending),
  })),
  refusals: told.refusals.length,
}));
"""


def batch(producer: Producer, sequence: int, count: int = 2) -> bytes:
    records = [Record(0, 1_700_000_000_000, None, b"v")] * count
    named = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    return bytes(build_batch(records, base_sequence=sequence, transactional=True, **named))


@pytest.fixture(scope="module", params=[2, 1])
def exchanges(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """A commit with a group's offset, an abort, a transaction that another instance fences, and its late commit."""
    version = request.param
    with (
        Minibroker(ephemeral=True, record=200, topics={"orders": 1}, transaction_version=version) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        for commit in (True, False):
            producer = client.init_producer_id(HOSTILE, 60_000, transaction_version=version)
            if version < 2:
                client.add_partitions(producer, "orders", [0])
                client.add_group(producer, "g")
            client.produce(producer, "orders", 0, batch(producer, 0))
            client.commit_offset(producer, "g", "orders", 0, 7 if commit else 9, "")
            client.end(producer, commit=commit)
        zombie = client.init_producer_id(HOSTILE, 60_000, transaction_version=version)
        if version < 2:
            client.add_partitions(zombie, "orders", [0])
        client.produce(zombie, "orders", 0, batch(zombie, 0, 3))
        client.init_producer_id(HOSTILE, 60_000, transaction_version=version)
        with pytest.raises(ApiError):
            client.end(zombie, commit=True)
        return broker.control.exchanges(200)


def run_node(script: str, exchanges: list[dict[str, Any]]) -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    command = [node, "--input-type=module", "-e", script, json.dumps(exchanges)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def modules(*files: Path) -> str:
    """Their code as that of one."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in files).replace("export ", "")
    return "\n".join(line for line in text.splitlines() if not line.startswith("import "))


def told(exchanges: list[dict[str, Any]]) -> Any:
    return json.loads(run_node(modules(WORDS, STORY) + SHOWN, exchanges))


def test_what_exchanges_tell(exchanges: list[dict[str, Any]]) -> None:
    found = told(exchanges)
    (lane,) = found["transactions"]
    assert lane["id"] == HOSTILE
    assert [state for state in lane["segments"] if state.startswith("Complete")][:2] == [
        "CompleteCommit",
        "CompleteAbort",
    ]
    assert lane["marks"][-1][0] == "fenced"
    assert "bump" in [kind for kind, _ in lane["marks"]]
    (partition,) = found["partitions"]
    # A marker lies after each transaction.
    assert partition["batches"] == [[0, 2, "committed"], [3, 5, "aborted"], [6, 9, "aborted"]]
    (group,) = found["groups"]
    assert (group["committed"], group["pending"]) == ({"orders-0": 7}, {})
    assert found["refusals"] >= 1


def in_words(exchanges: list[dict[str, Any]]) -> Any:
    """api, subject, and kind, text and why of the result of each exchange, as a row of the page has them."""
    script = modules(WORDS, STORY)
    script += """
      const told = new Story();
      for (const one of JSON.parse(process.argv[1])) told.take(one);
      const shown = (one) => ({ api: one.api, subject: subjectOf(one), ...resultOf(one) });
      console.log(JSON.stringify(JSON.parse(process.argv[1]).map(shown)));
    """
    return json.loads(run_node(script, exchanges))


def test_a_request_is_said_with_its_subject_and_its_result(exchanges: list[dict[str, Any]]) -> None:
    rows = in_words(exchanges)
    first = {row["api"]: (row["subject"], row["text"]) for row in reversed(rows)}
    assert first["InitProducerId"] == (HOSTILE, "producer 0, epoch 0")
    assert first["Produce"] == (f"{HOSTILE}, orders-0", "at offset 0")
    assert first["TxnOffsetCommit"] == (f"{HOSTILE}, g, orders-0", "pending orders-0: 7")
    *ends, late = [row for row in rows if row["api"] == "EndTxn"]
    assert [row["text"] for row in ends] == ["committed", "aborted"]
    assert (late["subject"], late["kind"]) == (HOSTILE, "refused")
    assert late["text"] in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
    assert "current epoch" in late["why"]
    assert "(90)" not in late["why"]  # the row shows the code already


def test_topic_ids_are_said_by_the_names_that_metadata_gave_them() -> None:
    base = {"errors": [], "reasons": [], "fault": 0, "outcome": "answered", "time_ms": 0, "took_ms": 1}
    topic = {"topic_id": "e7a4037c-fd50-4796-96de-1d6484bf899e", "partitions": [{"partition": 0}]}
    unknown = {"topic_id": "00000000-0000-0000-0000-000000000007", "partitions": [{"partition": 1}]}
    metadata = {"topics": [{"topic_id": topic["topic_id"], "name": "orders"}]}
    sent = {"index": 0, "records": [{"attributes": 0, "records": 2, "base_sequence": -1, "producer_id": -1}]}
    produce = {"topic_data": [{"topic_id": topic["topic_id"], "partition_data": [sent]}]}
    answer = {"responses": [{"partition_responses": [{"error_code": 0, "base_offset": 0}]}]}
    made = [
        {**base, "number": 1, "api": "Metadata", "request": {}, "response": metadata},
        {**base, "number": 2, "api": "Fetch", "request": {"topics": [topic, unknown]}, "response": {}},
        {**base, "number": 3, "api": "Produce", "request": produce, "response": answer},
    ]
    assert in_words(made)[1]["subject"] == f"orders-0, {unknown['topic_id']}-1"
    assert [one["name"] for one in told(made)["partitions"]] == ["orders-0"]


def test_results_that_are_no_answers() -> None:
    base = {"api": "EndTxn", "request": {"transactional_id": "a"}, "response": None, "errors": [], "reasons": []}
    made = [
        {**base, "outcome": "waiting", "fault": 3},
        {**base, "outcome": "closed: why", "fault": 0},
        {**base, "outcome": "answered", "fault": 3, "request": {"committed": True}, "response": {"error_code": 0}},
        {**base, "outcome": "answered", "fault": 0, "api": "Heartbeat", "response": {"error_code": 0}},
        {**base, "outcome": "answered", "fault": 0, "broken": ["why"]},
    ]
    assert [(row["text"], row["kind"]) for row in in_words(made)] == [
        ("held by rule 3", "waiting"),
        ("closed: why", "refused"),
        ("committed, rule 3 acted", "fault"),
        ("ok", "done"),
        ("broken promise", "broken"),
    ]


def test_answers_within_a_millisecond_keep_the_order_of_their_requests() -> None:
    """Times of requests are whole ms: the first began late in its, the second was sent after its answer."""
    done = {"outcome": "answered", "version": 5}
    request = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0}
    made = []
    for number, (api, time_ms, took_ms, code) in enumerate(
        [("InitProducerId", 500, 0.2, 0), ("InitProducerId", 508, 1.9, 0), ("EndTxn", 509, 0.1, 90)]
    ):
        errors = ["PRODUCER_FENCED (90) at x"] if code else []
        answer = {"error_code": code, "producer_id": 7, "producer_epoch": number}
        timed = {"number": number, "time_ms": time_ms, "took_ms": took_ms, "errors": errors}
        made.append({**done, **timed, "api": api, "request": request, "response": answer})
    (lane,) = told(made)["transactions"]
    assert [kind for kind, _ in lane["marks"]] == ["bump", "fenced"]


@pytest.fixture
def opened(browser: Any, exchanges: list[dict[str, Any]], tmp_path: Path) -> Iterator[Any]:
    """The page as a file; what it says on its console fails the test."""
    file = tmp_path / "trace.html"
    file.write_text(page(Trace(exchanges), "trace.jsonl"), encoding="utf-8")
    tab = browser.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    tab.goto(file.as_uri())
    yield tab
    assert said == []
    tab.close()


def test_the_page_in_a_browser(opened: Any) -> None:
    lane = opened.locator("#transactions .row")
    assert lane.locator("b").inner_text() == HOSTILE
    assert opened.title() == "trace.jsonl"  # what the id says was not run
    opened.locator("#partitions .batch").nth(2).wait_for()
    assert opened.locator("#partitions .batch").count() == 3
    # From the mark of the refusal to the exchange and its reason.
    lane.locator(".mark.fenced").last.press("Enter")
    detail = opened.locator("#detail")
    assert "EndTxn" in detail.locator("h2").inner_text()
    assert "current epoch" in detail.inner_text()
    assert opened.locator("#requests tr.chosen").count() == 1
    opened.locator("#partitions .batch").first.press("Space")
    assert "Produce" in detail.locator("h2").inner_text()
    lane.locator(".state").first.click()
    assert "InitProducerId" in detail.locator("h2").inner_text()
    # Tab stops once in a lane; from there the arrow keys lead along it.
    stops = lane.locator("[tabindex='0']")
    assert stops.count() == 1
    last = stops.get_attribute("aria-label")
    stops.press("ArrowLeft")
    before = opened.evaluate("document.activeElement.getAttribute('aria-label')")
    assert before.startswith(HOSTILE)
    assert before != last
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate("document.activeElement.getAttribute('aria-label')") == last
    # Back in time, by keyboard.
    slider = opened.locator("#time")
    slider.focus()
    opened.keyboard.press("Home")
    opened.locator("#transactions .row").first.wait_for(state="detached")
    opened.keyboard.press("End")
    opened.locator("#transactions .row").first.wait_for()
    opened.locator("#refusals").check()
    opened.locator("#requests tr:not(.refusal)").first.wait_for(state="detached")
    opened.locator("#filter").fill("nothing has this name")
    opened.locator("#transactions .row").first.wait_for(state="detached")


def test_states_of_one_millisecond_lie_beside_each_other(
    browser: Any, exchanges: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Each can be chosen with the pointer, however short it was."""
    began = exchanges[0]["time_ms"]
    quick = [{**exchange, "time_ms": began, "took_ms": 0.0} for exchange in exchanges[:-2]]
    later = [{**exchange, "time_ms": began + 900} for exchange in exchanges[-2:]]
    file = tmp_path / "trace.html"
    file.write_text(page(Trace(quick + later), "trace.jsonl"), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(file.as_uri())
    tab.locator("#transactions .state").first.wait_for(state="attached")
    states = tab.locator("#transactions .state").evaluate_all(
        "(all) => all.map((state) => [Number(state.getAttribute('x')), Number(state.getAttribute('width'))])"
    )
    assert len(states) > 4
    for (begin, width), (following, _) in pairwise(states):
        assert begin + width <= following + 0.01
    tab.close()


def test_at_a_glance_by_keyboard_in_the_dark_and_on_a_small_screen(opened: Any) -> None:
    assert "No transaction is open." in opened.locator("#open").evaluate(
        "(one) => getComputedStyle(one, '::after').content"
    )
    refused = opened.locator("#refused")
    assert "EndTxn" in refused.locator("button").inner_text()
    assert "current epoch" in refused.locator("p").inner_text()
    assert opened.locator("#transactions .names small", has_text="fenced").count() == 1
    opened.keyboard.press("/")
    assert opened.evaluate("document.activeElement.id") == "filter"
    opened.keyboard.type("r/")  # no shortcut while one types
    assert not opened.locator("#refusals").is_checked()
    opened.locator("#filter").fill("")
    opened.keyboard.press("Escape")
    opened.locator("body").click(position={"x": 2, "y": 300})
    opened.keyboard.press("r")
    assert opened.locator("#refusals").is_checked()
    opened.locator("#requests tr:not(.refusal)").first.wait_for(state="detached")
    opened.keyboard.press("j")
    first = opened.locator("#requests tr.chosen").get_attribute("data-number")
    opened.keyboard.press("j")
    opened.keyboard.press("k")
    assert opened.locator("#requests tr.chosen").get_attribute("data-number") == first
    opened.keyboard.press("Escape")
    assert opened.locator("#detail h2").inner_text() == "Nothing chosen"
    back = "getComputedStyle(document.body).backgroundColor"
    light = opened.evaluate(back)
    for _ in range(2):  # as the system has it, light, dark
        opened.locator("#theme").click()
    assert opened.evaluate(back) != light
    opened.set_viewport_size({"width": 360, "height": 700})
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_verdict_stands_above_and_marks_what_broke(
    browser: Any, exchanges: list[dict[str, Any]], tmp_path: Path
) -> None:
    (committed,) = [one for one in exchanges if one["api"] == "EndTxn" and one["request"]["committed"]][:1]
    broken = [{**one, "broken": [HOSTILE]} if one is committed else one for one in exchanges]
    file = tmp_path / "verdict.html"
    file.write_text(page(Trace(broken, ["exactly-once broken", HOSTILE]), "verdict"), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(file.as_uri())
    assert tab.locator("#said").text_content() == f"exactly-once broken\n{HOSTILE}"
    tab.locator("#transactions .mark.broken").press("Enter")
    assert tab.locator("#detail dd").first.inner_text() == HOSTILE
    row = tab.locator("#requests tr.chosen")
    row.wait_for()
    assert row.locator("td").last.inner_text().splitlines() == ["broken promise", HOSTILE]
    assert row.get_attribute("class") == "refusal chosen"
    numbers = tab.locator("#requests tr").evaluate_all("rows => rows.map((row) => Number(row.dataset.number))")
    assert numbers == sorted(numbers, reverse=True)
    assert tab.title() == "verdict"
    tab.close()


def many(count: int, ids: int) -> list[dict[str, Any]]:
    """Exchanges in which each of the transactional ids initializes its producer again and again."""
    made = []
    for number in range(count):
        done = {"time_ms": 1_700_000_000_000 + number, "took_ms": 0.5, "outcome": "answered", "errors": []}
        request = {"transactional_id": f"app-{number % ids}", "producer_id": number % ids, "producer_epoch": 0}
        answer = {"error_code": 0, "producer_id": number % ids, "producer_epoch": number // ids}
        asked = {"number": number, "api": "InitProducerId", "version": 5, "request": request, "response": answer}
        made.append({**done, **asked})
    return made


@pytest.fixture
def saved(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of such exchanges; its clock is under the control of the test, and is at `window.now`."""
    tab = browser.new_page()
    tab.add_init_script("window.now = 0; window.tick = 0; performance.now = () => (window.now += window.tick)")

    def load(exchanges: list[dict[str, Any]], tick: float = 0) -> Any:
        file = tmp_path / "many.html"
        file.write_text(page(Trace(exchanges), "many"), encoding="utf-8")
        tab.add_init_script(f"window.tick = {tick}")
        tab.goto(file.as_uri())
        return tab

    yield load
    tab.close()


def test_no_frame_has_more_than_a_slice_of_the_work(saved: Any) -> None:
    """All at once would be one long task: benchmarks/page_tasks.py. Each look at the clock takes 1 ms here."""
    tab = saved(many(60, 60), tick=1)
    tab.locator("#requests tr").nth(59).wait_for()
    tab.evaluate("""() => { window.most = 0; window.frames = 0;
        let drawn = 0;
        const count = () => { window.most = Math.max(window.most, drawn); window.frames += drawn > 0; drawn = 0;
            requestAnimationFrame(count); };
        count();
        new MutationObserver((changes) => { for (const one of changes) drawn += one.addedNodes.length; })
            .observe(document.getElementById("transactions"), { childList: true });
    }""")
    tab.locator("#time").fill("0")
    tab.locator("#transactions .row").first.wait_for(state="detached")
    tab.locator("#time").fill("60")
    tab.locator("#transactions .row").nth(59).wait_for()
    most, frames = tab.evaluate("[window.most, window.frames]")
    assert most <= 6  # a slice is 5 ms
    assert frames >= 10


def test_what_stays_the_same_is_not_drawn_again(saved: Any) -> None:
    """The browser would lay it out again, and it would lose the focus."""
    tab = saved(many(60, 3))
    tab.locator("#requests tr").nth(59).wait_for()
    tab.evaluate("""() => { window.row = document.querySelector("#transactions .row");
        window.first = row.querySelector(".state"); window.request = document.querySelector("#requests tr:last-child");
        window.request.focus(); }""")
    tab.locator("#time").evaluate("(time) => { time.value = 30; time.dispatchEvent(new Event('input')); }")
    tab.locator("#requests tr").nth(30).wait_for(state="detached")
    assert tab.locator("#transactions .row").first.locator(".state").count() == 10
    assert tab.evaluate("row.isConnected && first.isConnected && request === document.activeElement")


def test_a_lane_shows_its_last_parts(saved: Any) -> None:
    """More would not be told apart, and be one long task."""
    tab = saved(many(450, 2))
    lane = tab.locator("#transactions .row", has_text="app-1")
    lane.locator("span", has_text="the last 200 of 225 drawn").wait_for()
    assert lane.locator(".state").count() == 200
    assert lane.locator(".state").last.get_attribute("aria-label").startswith("app-1: Empty, producer id 1 epoch 224")


def test_a_thousand_ids_hold_nobody_up(saved: Any) -> None:
    tab = saved(many(2000, 1000))
    tab.locator("#transactions-count", has_text="100 of 1000").wait_for()
    tab.locator("#filter").fill("app-999")
    tab.locator("#transactions .row").nth(1).wait_for(state="detached")
