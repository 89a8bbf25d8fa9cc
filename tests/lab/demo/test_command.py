"""The demo ends with 0 on a broker that keeps its promises and with 1 on one that was broken on purpose."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from typing import Any

import pytest

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


def readers_see_aborted_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("minibroker_storage.log.PartitionLog.aborted_transactions", lambda *_, **__: [])


def zombies_are_let_in(patch: pytest.MonkeyPatch) -> None:
    """No epoch is compared any more, neither by the coordinator nor by partitions."""
    from minibroker.coordinators.transactions import end_txn as ends
    from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch

    original = ends.end_txn

    def end_txn(shard: Any, transactional_id: str, _: object, **more: Any) -> Any:
        entry = shard.entry(transactional_id)
        return original(shard, transactional_id, ProducerIdAndEpoch(entry.metadata.producer_id, entry.epoch), **more)

    patch.setattr(ends, "end_txn", end_txn)
    patch.setattr("minibroker.coordinators.transactions.partitions._require_producer", lambda *_: None)
    for module in ("producer_append", "producer_state"):
        patch.setattr(f"minibroker_storage.{module}.check_epoch", lambda *_: None)


def aborts_move_offsets(patch: pytest.MonkeyPatch) -> None:
    from minibroker.coordinator_runtime.group_service import GroupService

    original = GroupService.complete_transaction

    def complete(self: GroupService, partition: int, producer_id: int, producer_epoch: int, committed: bool) -> Any:
        return original(self, partition, producer_id, producer_epoch, True)

    patch.setattr(GroupService, "complete_transaction", complete)


BREAKS = {broken.__name__: broken for broken in (readers_see_aborted_records, zombies_are_let_in, aborts_move_offsets)}


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
