"""An application with franz-go and one with sarama under failures, and loops with a mistake of a user's, judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_applications import GO, SHORT, command, hold, reads_right
from judged_loops import FREQUENT, QUICK, find, stay_silent
from toolchain import Unavailable, go_program

pytestmark = pytest.mark.go


@pytest.mark.parametrize("client", GO)
def test_exactly_once_holds(tmp_path: Path, client: str) -> None:
    try:
        argv = command(client, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    hold(argv, SHORT)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, with franz-go; its argument is the mistake."""
    try:
        return go_program("./loop", tmp_path_factory.mktemp("loop"))
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("mistake", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FREQUENT)])
def test_a_mistake_in_a_loop_is_found(loop: str, mistake: str) -> None:
    find([loop, mistake], mistake)


@pytest.mark.slow
def test_the_right_loop_is_never_broken(loop: str) -> None:
    stay_silent([loop, "right"])


@pytest.mark.slow
@pytest.mark.parametrize("client", GO)
def test_a_consumer_reads_what_is_committed(tmp_path: Path, client: str) -> None:
    try:
        program = go_program("./reader", tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    reads_right([program, client])
