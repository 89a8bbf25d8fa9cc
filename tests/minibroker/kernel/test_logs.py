from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

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


def test_configuring_twice_writes_once() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", io.StringIO())
    logs.configure("info", "json", stream)
    logs.get_logger("minibroker.x").info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_an_embedding_program_gets_the_lines_through_its_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    logs.get_logger("minibroker.x").warning("hello")
    assert "hello" in caplog.text


def test_structlog_is_imported_by_the_first_line_only() -> None:
    code = (
        "import sys; from minibroker.kernel import logs; logs.configure(); log = logs.get_logger('minibroker.x');"
        "log.debug('no'); assert 'structlog' not in sys.modules; log.info('yes'); assert 'structlog' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=30)
