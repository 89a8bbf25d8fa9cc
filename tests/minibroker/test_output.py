from __future__ import annotations

import ast
import io
import json

import pytest
from packages import PACKAGES, ROOT

from minibroker.output import json_text, printable, say, write_out

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[31m\r\n2026-01-01 forged\x9b31m\u2028\u202egnp.exe\ud800\t"


def test_what_does_not_print_is_shown_as_an_escape() -> None:
    assert printable(ESCAPES) == (
        r"\x1b]0;title\x07\x1b[2J\x1b[31m\r\n2026-01-01 forged\x9b31m\u2028\u202egnp.exe\ud800\t"
    )


@pytest.mark.parametrize("text", ["", "orders → 1", "Größe, 注文, 🙂", r"C:\temp\new", '{"a": "b"}'])
def test_what_prints_stays(text: str) -> None:
    assert printable(text) is text


def test_each_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    say("a\nb", "", "c", to=stream, flush=True)
    assert stream.getvalue() == "a\\nb\n\nc\n"
    say("to stdout")
    write_out("a\nb\x1b")
    assert capsys.readouterr().out == "to stdout\na\nb\x1b"


def test_json_escapes_what_does_not_print() -> None:
    value = {"name": ESCAPES + "\x7f\x9b\U000e0001", "city": "Größe 注文 🙂"}
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert json.loads(text) == value
        assert text.replace("\n", "").isprintable()
        assert "Größe 注文 🙂" in text


def test_nothing_else_prints() -> None:
    """A line of `say` is printable; `print` would pass on what a client, a file or another broker has sent."""
    sources = [
        source
        for folder in PACKAGES.values()
        for source in folder.rglob("*.py")
        if any(word in source.read_text(encoding="utf-8") for word in ("print(", "stdout.write("))
    ]
    found = {
        source.relative_to(ROOT).as_posix()
        for source in sources
        for node in ast.walk(ast.parse(source.read_bytes()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write")
    }
    assert found == {"minibroker/output.py"}
