"""`minibroker replay`: files that are no trace are one line on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.cli import main


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "line 1 is no exchange: the JSON is nested too deeply"),
        ('{"a":' * 100_000, "line 1 is no exchange: the JSON is nested too deeply"),
        ("[]", "line 1 is no exchange: it is no JSON object"),
        ("nonsense", "line 1 is no exchange: Expecting value"),
        ("{}", "the trace has no frames"),
    ],
)
def test_what_is_no_trace_is_one_line(text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text + "\n")
    assert main(["replay", "--bootstrap", "127.0.0.1:1", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert why in said
