from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from minibroker.kernel import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    logs.reset()


def test_json_where_nobody_watches() -> None:
    stream = io.StringIO()
    logs.configure("info", "auto", stream)
    logger = logs.get_logger("minibroker.somewhere")
    logger.info("refused %s", "it")
    logger.debug("not this")
    try:
        raise ValueError("boom")
    except ValueError:
        logger.exception("failed")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["level"], first["logger"]) == ("refused it", "info", "minibroker.somewhere")
    assert first["timestamp"].endswith("Z")
    assert "ValueError: boom" in second["exception"]


def test_text_on_a_terminal() -> None:
    stream = Terminal()
    logs.configure("warning", "auto", stream)
    logs.get_logger("minibroker.somewhere").warning("mind the gap")
    logs.get_logger("minibroker.somewhere").info("not this")
    assert "mind the gap" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_a_line_that_cannot_be_formatted_is_written_without(capsys: pytest.CaptureFixture[str]) -> None:
    """As at the limit of open files, where nothing can be imported."""
    stream = io.StringIO()
    logs.configure("info", "json", stream)

    class Failing(logs.JsonLine):
        def format(self, record: logging.LogRecord) -> str:
            raise OSError(24, "Too many open files")

    (handler,) = logging.getLogger("minibroker").handlers
    handler.setFormatter(Failing())
    logs.get_logger("minibroker.somewhere").warning("%s stays", "it")
    assert stream.getvalue() == "minibroker: it stays ([Errno 24] Too many open files)\n"
    stream.close()
    logs.get_logger("minibroker.somewhere").warning("nowhere to write")
    assert capsys.readouterr().err == ""


def test_configuring_twice_writes_once() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", io.StringIO())
    logs.configure("info", "json", stream)
    logs.get_logger("minibroker.x").info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_an_embedding_program_gets_the_lines_through_its_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    logs.get_logger("minibroker.x").warning("hello")
    assert "hello" in caplog.text


@pytest.mark.parametrize(("format", "loads"), [("json", False), ("text", True)])
def test_structlog_is_imported_by_the_first_line_of_text_only(format: str, loads: bool) -> None:
    code = (
        f"import sys; from minibroker.kernel import logs; logs.configure(format={format!r});"
        "log = logs.get_logger('minibroker.x');"
        "log.debug('no'); assert 'structlog' not in sys.modules;"
        f"log.info('yes'); assert ('structlog' in sys.modules) is {loads}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=30)


def test_a_line_of_json_is_the_one_that_structlog_writes() -> None:
    """The broker makes it itself: structlog takes longer to import than a line is worth."""
    final: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    first: list[Any] = [structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    theirs = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[*first, stamp], processors=final)
    for level, message, stack in (
        ("INFO", "a é 100 %", None),
        ("WARNING", 'a "b"\n', "Stack:\n  f"),
        ("CRITICAL", "", None),
    ):
        for failure in (None, ValueError("boom")):
            info = (type(failure), failure, None) if failure else None
            record = logging.LogRecord(
                "minibroker.x", getattr(logging, level), "x.py", 1, message, (), info, None, stack
            )
            ours, wanted = (json.loads(one.format(record), object_pairs_hook=list) for one in (logs.JsonLine(), theirs))
            assert without_time(ours) == without_time(wanted)


def without_time(line: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Its names and values in their order; the time is only looked at."""
    assert datetime.fromisoformat(dict(line)["timestamp"]).tzinfo is UTC
    assert len(dict(line)["timestamp"]) == len("2026-11-24T03:11:21.203145Z")
    return [(name, "" if name == "timestamp" else value) for name, value in line]


def test_a_line_has_the_time_of_its_record() -> None:
    record = logging.LogRecord("minibroker.x", logging.INFO, "x.py", 1, "", (), None)
    record.created = 1_790_000_000.25
    assert json.loads(logs.JsonLine().format(record))["timestamp"] == "2026-09-21T14:13:20.250000Z"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_text_from_outside_makes_no_line_and_moves_no_cursor(stream: io.StringIO) -> None:
    logs.configure("info", "text", stream)
    colours = logs.TextLine(colors=True)
    logger = logs.get_logger("minibroker.somewhere")
    outside = "x\x1b[2J\x07\r\n2026-01-01T00:00:00Z [error    ] all data is lost"
    logger.info("member %s", outside)
    try:
        raise ValueError(outside)
    except ValueError:
        logger.exception("failed")
    first, second, *below = stream.getvalue().split("\n")
    assert r"member x\x1b[2J\x07\r\n2026-01-01T00:00:00Z [error    ] all data is lost" in first
    assert "failed" in second
    assert below.pop() == ""
    assert below[0] == "  Traceback (most recent call last):"
    assert below[-2:] == [r"  ValueError: x\x1b[2J\x07\r", "  2026-01-01T00:00:00Z [error    ] all data is lost"]
    assert all(line.startswith("  ") for line in below)
    record = logging.LogRecord("minibroker", logging.INFO, "", 0, outside, (), None)
    assert colours.format(record).count("\x1b[2J") == 0


def test_a_line_without_its_formatter_is_printable_too() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream)

    class Refusing(logs.TextLine):
        def format(self, record: logging.LogRecord) -> str:
            raise OSError("no handle")

    (handler,) = logging.getLogger("minibroker").handlers
    handler.setFormatter(Refusing())
    logs.get_logger("minibroker.somewhere").warning("topic %s", "a\nb\x1b")
    assert stream.getvalue() == "minibroker: topic a\\nb\\x1b (no handle)\n"
