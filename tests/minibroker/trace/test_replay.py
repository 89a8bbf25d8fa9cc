"""`minibroker replay`: files that are no trace are one line on stderr."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from scripted_broker import scripted_broker

from minibroker.cli import main
from minibroker_protocol import messages as m
from minibroker_protocol.headers import encode_request


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "line 1 is no exchange: the JSON is nested too deeply"),
        ('{"a":' * 100_000, "line 1 is no exchange: the JSON is nested too deeply"),
        ("[]", "line 1 is no exchange: it is no JSON object"),
        ("nonsense", "line 1 is no exchange: Expecting value"),
        ("\udcff\udcfe", "line 1 is no exchange: Expecting value"),  # bytes that are no UTF-8
        ("{}", "the trace has no frames"),
    ],
)
def test_what_is_no_trace_is_one_line(text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text + "\n", errors="surrogateescape")
    assert main(["replay", "--bootstrap", "127.0.0.1:1", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert why in said


def test_a_refusal_of_api_versions_is_read_as_the_version_0_that_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = encode_request(m.ApiVersionsRequest(), 4, 1, "app")
    exchange = {
        "client": "a:1",
        "api": "ApiVersions",
        "version": 4,
        "outcome": "answered",
        "errors": ["UNSUPPORTED_VERSION (35)"],
        "response": {},
        "request_frame": base64.b64encode(frame).decode(),
        "response_frame": "AA==",
    }
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(exchange))
    own = m.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3)
    refusal = b"\0\0\0\1" + m.ApiVersionsResponse(error_code=35, api_keys=[own]).encode(0)
    with scripted_broker() as older:
        older.handlers[m.ApiVersionsRequest] = lambda request, version: refusal
        assert main(["replay", str(path), "--bootstrap", older.bootstrap]) == 0
    assert "the same errors" in capsys.readouterr().out
