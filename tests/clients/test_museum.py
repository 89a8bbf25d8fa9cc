"""A quick case of the museum, its client installed by version: seen with its failures, not without them."""

from __future__ import annotations

import pytest

from minibroker.cli import main

pytestmark = pytest.mark.clients


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--calm"], 0)])
def test_a_case_is_seen_with_its_failures_only(
    options: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = main(["museum", "run", "aiokafka-torn-commit", *options])
    said = capsys.readouterr().out
    if ended == 77:
        pytest.skip(said)
    assert ended == status, said
