"""The demo ends with 0 on a broker that keeps its promises and with 1 on one that was broken on purpose."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from typing import Any

import pytest
from defects import named, plant

from minibroker_lab.demo import command


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("absent", ["confluent_kafka", "aiokafka"])
def test_a_missing_client_is_one_clear_line(
    absent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == absent else object())
    assert command.run(options()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert absent.replace("_", "-") in err
    assert '-m pip install "minibroker[demo]"' in err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--bootstrap", "x"], "'x' is not HOST:PORT"),
        (["--records", "0"], "--records: expected a number from 1 on, got '0'"),
        (["--timeout-ms", "-1"], "expected a number from 1 on, got '-1'"),
        (["--patience", "0"], "expected a time above 0, got '0'"),
        (["--patience", "soon"], "expected a time above 0, got 'soon'"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(
    wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options(*wrong)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("servers", ["127.0.0.1:{port}", "127.0.0.1:{port},127.0.0.1:{port}"])
def test_a_broker_that_is_not_there_is_one_line_and_no_wait(servers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        bootstrap = servers.format(port=held.getsockname()[1])
        assert command.run(options("--bootstrap", bootstrap)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"minibroker demo: cannot connect to {bootstrap.split(',')[0]}: Connection refused\n"


@pytest.mark.clients
@pytest.mark.seed("447-7", semantics="kafka", how="confluent-kafka")
def test_exactly_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minibroker", "demo", "--records", "500"],
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


@pytest.mark.clients
@pytest.mark.seed("447-7", semantics="kip", how="confluent-kafka")
def test_exactly_once_under_kip() -> None:
    from minibroker import Minibroker
    from minibroker_lab.demo.command import OWN_TIMEOUT_MS

    with Minibroker(semantics="kip", config=command.OWN_CONFIG) as broker:
        argv = [
            "demo",
            "--records",
            "300",
            "--timeout-ms",
            str(OWN_TIMEOUT_MS),
            "--bootstrap",
            broker.bootstrap_servers,
        ]
        done = subprocess.run([sys.executable, "-m", "minibroker", *argv], capture_output=True, text=True, timeout=120)
        left = broker.cluster.run(what_is_there)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "verdict: exactly once"
    assert left == ["__consumer_offsets", "__transaction_state"], "the demo takes away what it made"


def what_is_there(cluster: Any) -> list[str]:
    """Names of topics and groups."""
    groups = [
        group
        for broker in cluster.brokers.values()
        for _, shard in broker.coordinators.groups.host.shards()
        for group in shard.groups
    ]
    return sorted([*cluster.image.topics, *groups])


BREAKS = {
    "readers see aborted records": ["no-aborted-transactions"],
    "zombies are let in": ["end-with-any-epoch", "join-with-any-epoch", "accept-stale-epoch"],
    "aborts move offsets": ["aborted-offsets-kept"],
}


@pytest.mark.clients
@pytest.mark.parametrize("broken", list(BREAKS))
def test_a_broken_broker_is_found_out(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    from minibroker import Minibroker

    with plant(*named(BREAKS[broken])), Minibroker(ephemeral=True, config=command.OWN_CONFIG) as broker:
        asked = options("--bootstrap", broker.bootstrap_servers, "--timeout-ms", "2500", "--patience", "15")
        assert command.run(asked) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "verdict: NOT exactly once"
