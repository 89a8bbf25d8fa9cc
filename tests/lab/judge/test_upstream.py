"""`judge --upstream`: the same verdicts in front of a cluster that runs elsewhere and has data of others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.transactional import TransactionalClient
from minibroker_protocol.records import Record, build_batch

pytestmark = pytest.mark.waits

CLIENT = Path(__file__).parents[2] / "support" / "applications" / "wrong_client.py"
TOPICS = ["--topic", "orders:1", "--topic", "in:1", "--topic", "out:2", "--lineage", "in=out"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Minibroker]:
    """One for all tests: each finds what those before it left."""
    settings = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with Minibroker(ephemeral=True, topics={"orders": 1, "in": 1}, config=settings) as running:
        yield running


def judged(tmp_path: Path, cluster: Minibroker, way: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and reports of one run of the mini-client for each script."""
    reports = ["--report", "json", "--report-dir", str(tmp_path), "--upstream", cluster.bootstrap_servers]
    status = main(["judge", *TOPICS, *reports, "--timeout", "30", *options, "--", sys.executable, str(CLIENT), way])
    return status, json.loads((tmp_path / "judge.json").read_text())


def test_scripts_that_need_the_brokers_do_not_apply_and_the_others_act(tmp_path: Path, cluster: Minibroker) -> None:
    scripts = ["broker-killed", "timeout-mid-transaction", "lost-end-txn-reply", "calm"]
    status, reports = judged(tmp_path, cluster, "right", *(word for name in scripts for word in ("--script", name)))
    said = {report["script"]: (report["verdict"], report["failures"], report["doubt"]) for report in reports}
    assert said == {
        "broker-killed": (
            "not applicable",
            0,
            "do acts on what brokers keep, and those of the upstream are not ours",
        ),
        "timeout-mid-transaction": ("not applicable", 0, "3600 s would have to pass, which is more than --timeout"),
        "lost-end-txn-reply": ("held", 1, ""),
        "calm": ("held", 0, ""),
    }
    assert status == 4
    assert len(cluster.control.describe()["topics"]["out"]) == 2


@pytest.mark.slow  # as the same without --upstream, which tell of the rules
@pytest.mark.parametrize(
    ("way", "rule", "script"),
    [
        ("duplicate_record", "duplicate-record", "lost-produce-replies"),
        ("lost_record", "lost-record", "calm"),
        ("torn_transaction", "torn-transaction", "calm"),
        ("lineage_lost", "lineage-lost", "calm"),
    ],
)
def test_a_wrong_client_breaks_its_rule_and_no_other(
    tmp_path: Path, cluster: Minibroker, way: str, rule: str, script: str
) -> None:
    status, (report,) = judged(tmp_path, cluster, way, "--script", script)
    assert (status, {broken["rule"] for broken in report["broken"]}) == (1, {rule})


def test_only_what_the_run_did_is_judged(tmp_path: Path, cluster: Minibroker) -> None:
    """Of input from before the run it is not known who read it. An offset of the run past the end of a partition is
    found out."""
    with TransactionalClient(cluster.bootstrap_servers) as others:
        producer = others.init_producer_id("others", 60_000)
        records = [Record(value=value, timestamp=0, offset=at) for at, value in enumerate((b"a", b"b"))]
        others.add_partitions(producer, "in", [0])
        header = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "base_sequence": 0}
        others.produce(producer, "in", 0, build_batch(records, transactional=True, **header))
        others.end(producer, commit=True)
    status, (report,) = judged(tmp_path, cluster, "lineage_stray")
    assert (status, report["broken"]) == (4, [])
    status, (report,) = judged(tmp_path, cluster, "offset_end")
    assert (status, [(broken["rule"], broken["exchange"]) for broken in report["broken"]]) == (1, [("offset-end", 2)])


def test_a_topic_with_too_few_partitions_is_refused(cluster: Minibroker, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--upstream", cluster.bootstrap_servers, "--topic", "orders:2"]
    assert main(["judge", *options, "--script", "calm", "--", sys.executable, "-c", ""]) == 2
    assert "minibroker: the upstream: topic orders has 1 partition, not 2\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--upstream", "127.0.0.1:1"], "the upstream: cannot connect to 127.0.0.1:1"),
        (["--upstream", "127.0.0.1:1", "--semantics", "kip"], "--semantics is for a broker of our own"),
        (["--upstream", "127.0.0.1:1", "-c", "a=b"], "--config is for a broker of our own"),
        (["--upstream", "127.0.0.1:1", "--readers"], "--readers is for a broker of our own"),
        (["--upstream", "127.0.0.1:1", "--command-config", "nowhere"], "nowhere"),
        (["--command-config", "nowhere"], "the cluster of --upstream, which is missing"),
    ],
)
def test_what_makes_no_sense(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main(["judge", *options, "--", sys.executable, "-c", ""]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
