"""The demo ends with 0 on a broker that keeps its promises and with 1 on one that was broken on purpose."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

import pytest

from minibroker.demo import command


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("absent", ["confluent_kafka", "aiokafka"])
def test_a_missing_client_is_one_clear_line(
    absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == absent else object())
    assert command.run(options()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert absent.replace("_", "-") in err
    assert "pip install 'minibroker[demo]'" in err


@pytest.mark.clients
def test_exactly_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minibroker.cli", "demo", "--records", "500"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {line[:20].strip(): line[20:].strip() for line in done.stdout.splitlines()}
    assert int(figures["records in"]) >= 500
    assert figures["records out"] == figures["records in"]
    assert (figures["duplicates"], figures["losses"], figures["fenced producers"]) == ("0", "0", "1")
    assert done.stdout.splitlines()[-1] == "verdict: exactly once"


def readers_see_aborted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    from minibroker_storage.log import PartitionLog

    monkeypatch.setattr(PartitionLog, "aborted_transactions", lambda *_, **__: [])


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {"readers_see_aborted_records": readers_see_aborted_records}


@pytest.mark.clients
@pytest.mark.parametrize("broken", list(BREAKS))
def test_a_broken_broker_is_found_out(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minibroker import Minibroker

    with Minibroker(ephemeral=True, config=command.OWN_CONFIG) as broker:
        BREAKS[broken](monkeypatch)
        asked = options("--bootstrap", broker.bootstrap_servers, "--timeout-ms", "2500", "--patience", "15")
        assert command.run(asked) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "verdict: NOT exactly once"
