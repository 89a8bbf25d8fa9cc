"""The playground of the site in a Chromium: the simulation's stories, as they are here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from website import __main__ as website

pytestmark = pytest.mark.node


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """As `python -m http.server` serves it."""
    folder = tmp_path_factory.mktemp("site")
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    website.build(folder, with_playground=True)
    if not (folder / "playground.html").exists():
        pytest.skip("Pyodide cannot be fetched")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def story(seed: int) -> str:
    command = [sys.executable, "-m", "minibroker", "simulate", "--seed", str(seed)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    ).stdout


def test_a_seed_has_the_same_story_in_a_browser(browser: Any, address: str) -> None:
    opened = browser.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: said.append(request.url) if not request.url.startswith(address) else None)
    opened.goto(f"{address}playground.html#seed=91")
    ended = opened.locator("#state", has_text=re.compile("lines in|Error"))
    ended.wait_for(timeout=120_000)
    assert "Error" not in (ended.text_content() or "")
    assert opened.locator("#story").text_content() == story(91)
    page = opened.frame_locator("#page")
    page.locator("#said", has_text="seed 91:").wait_for()
    assert page.locator("#transactions .state.CompleteCommit").count()
    assert page.locator("#requests tr").count() == 100
    opened.locator("#seed").fill("20010")
    opened.locator("#seed").press("Enter")
    opened.locator("#story", has_text="seed 20010:").wait_for(timeout=120_000)
    assert opened.locator("#story").text_content() == story(20010)
    assert opened.url.endswith("#seed=20010"), "a link to it"
    page.locator("#said", has_text="seed 20010:").wait_for()
    opened.locator("#about").fill("broker 1")
    lines = opened.locator("#story").text_content().splitlines()
    assert lines
    assert all("broker 1" in line for line in lines)
    opened.goto(f"{address}playground.html#seed=x")
    opened.locator("#state", has_text="whole number").wait_for()
    opened.close()
    assert said == []
