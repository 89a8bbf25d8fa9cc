"""A saved trace as one page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from pathlib import Path

import pytest

from minibroker.cli import main
from minibroker.trace.saved import NoTrace, Trace, as_lines, read
from minibroker.trace.view import MODULES, page

HOSTILE = "</script><script>alert(1)</script><b onmouseover=alert(1)>"
EXCHANGE = {
    "number": 1,
    "time_ms": 1_700_000_000_000,
    "took_ms": 0.5,
    "client_id": HOSTILE,
    "api": "EndTxn",
    "outcome": "answered",
    "errors": [],
    "request": {"transactional_id": HOSTILE, "producer_id": 1, "producer_epoch": 0, "committed": True},
    "response": {"error_code": 0},
}


def test_everything_is_in_the_page_and_nothing_of_the_data_is_markup() -> None:
    made = page(Trace([EXCHANGE], [HOSTILE]), "a <trace>")
    assert "<title>a &lt;trace&gt;</title>" in made
    assert HOSTILE not in made
    assert made.count("</script>") == 2
    (data,) = re.findall(r'<script type="application/jsonl" id="trace">(.*?)</script>', made, re.DOTALL)
    assert read(data.splitlines()) == ([EXCHANGE], [HOSTILE])
    assert not re.search(r"(src|href)=|^import |@import|url\(", made, re.MULTILINE)


def test_only_what_is_in_the_page_may_run() -> None:
    made = page(Trace([EXCHANGE], [HOSTILE]), "t")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', made)
    (style,) = re.findall(r"<style>(.*?)</style>", made, re.DOTALL)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', made, re.DOTALL)
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1 is no exchange: Expecting property name"),
        ("[" * 100_000, "line 1 is no exchange: the JSON is nested too deeply"),
        ("[]", "line 1 is no exchange: it is no JSON object"),
        ("{}", "line 1 is no exchange: number is missing"),
        (json.dumps({**EXCHANGE, "number": 2}) + "\n\n{}", "line 3 is no exchange: number is missing"),
    ],
)
def test_a_file_that_is_no_trace(text: str, reason: str) -> None:
    with pytest.raises(NoTrace, match=reason):
        read(text.splitlines())


def test_what_is_written_is_read() -> None:
    for trace in (Trace([]), Trace([EXCHANGE, {**EXCHANGE, "broken": ["x"]}], ["one", HOSTILE])):
        assert read(as_lines(trace).splitlines()) == (list(trace.exchanges), list(trace.said))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(EXCHANGE))
    assert main(["trace", "view", str(trace)]) == 0
    assert capsys.readouterr().out == f"{trace}.html: 1 exchange\n"
    assert main(["trace", "view", str(trace), "--out", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "trace.jsonl.html").read_text()
    for wrong, reason in (
        ("none", f"{tmp_path / 'none'}: No such file or directory"),
        ("trace.jsonl.html", "line 1 is no exchange: Expecting value"),
    ):
        assert main(["trace", "view", str(tmp_path / wrong)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line


def module(name: str) -> str:
    return (resources.files("minibroker.trace") / "page" / name).read_text(encoding="utf-8")


def loaded(name: str) -> set[str]:
    return set(re.findall(r'^import .* from "\./(.*)";$', module(name), re.MULTILINE))


def test_modules_load_what_is_listed_before_them() -> None:
    """The page of a file is all of them in one script, the site and the live page have them side by side."""
    for place, name in enumerate(MODULES):
        assert loaded(name) <= set(MODULES[:place]), name
    for name in ("saved.js", "hands.js", "start.js", "live.js"):
        assert loaded(name) <= {*MODULES, "hands.js", "start.js"}, name
    declares = re.compile(r"^(?:export )?(?:async )?(?:function\*? |const |let |class )(\w+)", re.MULTILINE)
    declared = [found for name in (*MODULES, "saved.js") for found in declares.findall(module(name))]
    assert len(set(declared)) == len(declared)  # in one script a name is declared once
