"""An application with franz-go and one with sarama under failures, judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_applications import GO, SHORT, command, hold
from toolchain import Unavailable

pytestmark = pytest.mark.go


@pytest.mark.parametrize("client", GO)
def test_exactly_once_holds(tmp_path: Path, client: str) -> None:
    try:
        argv = command(client, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    hold(argv, SHORT)
