"""An application with Kafka's Java client under failures, judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_applications import JAVA, SHORT, command, hold
from toolchain import Unavailable

pytestmark = pytest.mark.jvm


def test_exactly_once_holds(tmp_path: Path) -> None:
    try:
        argv = command(JAVA, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    hold(argv, SHORT)
