"""An application with Kafka's Java client under failures, and loops with a mistake of a user's, judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_applications import JAVA, SHORT, command, hold, reads_right
from judged_loops import FREQUENT, QUICK, find, stay_silent
from jvm import NEWEST, java_command
from toolchain import Unavailable

pytestmark = pytest.mark.jvm


def test_exactly_once_holds(tmp_path: Path) -> None:
    try:
        argv = command(JAVA, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    hold(argv, SHORT)


def loop(programs: Path, mistake: str) -> list[str]:
    return java_command("LoopClient", mistake, extra=(programs,), release=NEWEST)


@pytest.mark.parametrize("mistake", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FREQUENT)])
def test_a_mistake_in_a_loop_is_found(programs: Path, mistake: str) -> None:
    find(loop(programs, mistake), mistake)


@pytest.mark.slow
def test_the_right_loop_is_never_broken(programs: Path) -> None:
    stay_silent(loop(programs, "right"))


@pytest.mark.slow
def test_a_consumer_reads_what_is_committed(programs: Path) -> None:
    reads_right(java_command("ReadTopic", extra=(programs,), release=NEWEST))
