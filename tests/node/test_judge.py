"""An application with kafkajs under failures, judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_applications import NODE, SHORT, command, hold
from toolchain import Unavailable, node_program

from minibroker.cli import main

pytestmark = pytest.mark.node


def test_exactly_once_holds(tmp_path: Path) -> None:
    try:
        argv = command(NODE, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    hold(argv, SHORT)


@pytest.mark.slow
def test_a_consumer_of_aborted_records_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kafkajs 2.2.4 (museum: kafkajs-aborted-order, kafkajs-zero-key)."""
    try:
        argv = node_program("reader.mjs", tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert main(["judge", "--readers", "--timeout", "60", "--", *argv]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "12 right, 6 wrong, 0 undecided"
