"""An application with kafkajs under failures, judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_applications import NODE, SHORT, command, hold
from toolchain import Unavailable

pytestmark = pytest.mark.node


def test_exactly_once_holds(tmp_path: Path) -> None:
    try:
        argv = command(NODE, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    hold(argv, SHORT)
