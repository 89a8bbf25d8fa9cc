"""Real clients under each bundled script of failures."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from judge_page import PAGE, PLACES, columns, is_emptied, kept, table
from judged_applications import CLIENTS, OLD, command, hold, judged, reads_right, release
from judged_loops import ARGUMENTS, MISTAKES, NOTICED, find, notice, stay_silent

from minibroker import Minibroker
from minibroker.cli import main
from minibroker_lab.judge.scripts import bundled, load

pytestmark = pytest.mark.clients

MODULES = {"confluent-kafka": "confluent_kafka", "aiokafka": "aiokafka", "kafka-python": "kafka"}


GROUP_APIS = {"OffsetCommit", "TxnOffsetCommit", "JoinGroup", "Heartbeat"}


def applied() -> list[Any]:
    """The scripts about what the application does: it commits no offsets. Those that restart it or keep it waiting
    take seconds."""
    chosen = []
    for name in bundled():
        rules = [one.rule for one in load(name).steps]
        long = any(one.restart for one in load(name).steps) or any("close" in one["action"] for one in rules)
        if not rules or any(not GROUP_APIS.issuperset(one["api"]) for one in rules):
            chosen.append(pytest.param(name, marks=pytest.mark.slow) if long else name)
    return chosen


@pytest.mark.parametrize("script", applied())
@pytest.mark.parametrize("client", MODULES)
def test_exactly_once_holds(tmp_path: Path, client: str, script: str) -> None:
    pytest.importorskip(MODULES[client])
    hold(command(client, tmp_path), [script])


def test_a_producer_without_idempotence_is_found_out(tmp_path: Path) -> None:
    importlib.import_module("confluent_kafka")
    program = (
        "import os; from confluent_kafka import Producer\n"
        "p = Producer({'bootstrap.servers': os.environ['BOOTSTRAP_SERVERS'], 'acks': 'all', 'log_level': 0})\n"
        "for n in range(5): p.produce('orders', b'%d' % n); p.flush(20)\n"
    )
    report = tmp_path / "judge.json"
    arguments = [
        "--script",
        "lost-produce-replies",
        "--topic",
        "orders:1",
        "--report",
        "json",
        "--report-dir",
        str(tmp_path),
    ]
    assert main(["judge", *arguments, "--report-dir", str(tmp_path), "--", sys.executable, "-c", program]) == 1
    (verdict,) = json.loads(report.read_text())
    assert {one["rule"] for one in verdict["broken"]} == {"duplicate-record"}


LOOP = Path(__file__).parents[1] / "support" / "applications" / "loop_client.py"
RESTARTED = "offsets_outside"
"""Its loop is killed and started again."""


@pytest.mark.parametrize(
    "mistake", [name if name == RESTARTED else pytest.param(name, marks=pytest.mark.slow) for name in MISTAKES]
)
def test_a_mistake_in_a_loop_is_found(mistake: str) -> None:
    find([sys.executable, str(LOOP), mistake], mistake)


@pytest.mark.parametrize(
    ("refused", "verdict"), [("", "held"), ("InitProducerId", "undecided")], ids=["goes on", "ends with an error"]
)
def test_a_loop_whose_abort_is_refused(tmp_path: Path, refused: str, verdict: str) -> None:
    """With a new producer; where it gets none, its status says so."""
    faults = [("Produce", "TOPIC_AUTHORIZATION_FAILED", 2), ("EndTxn", "INVALID_TXN_STATE", 1)]
    faults += [(refused, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 3)] if refused else []
    script = tmp_path / "abort-refused.toml"
    script.write_text(
        "".join(
            f'[[fault]]\napi = "{api}"\naction = {{ name = "error", code = "{code}" }}\nnth = {nth}\n'
            for api, code, nth in faults
        )
    )
    exact = ("-c", "minibroker.not.yet.answers=false")  # the third producer's request is the third one
    (report,) = judged([sys.executable, str(LOOP), "right"], "--script", str(script), *exact, *ARGUMENTS)
    assert (report["verdict"], report["failures"], report["broken"]) == (verdict, len(faults), [])


@pytest.mark.parametrize("mistake", NOTICED)
def test_a_mistake_is_told_where_nothing_goes_wrong(mistake: str) -> None:
    notice([sys.executable, str(LOOP)], mistake)


@pytest.mark.slow
def test_the_right_loop_is_never_broken() -> None:
    stay_silent([sys.executable, str(LOOP), "right"])


@pytest.mark.slow
@pytest.mark.parametrize("client", MODULES)
def test_consumers_read_what_is_committed(client: str) -> None:
    reads_right([sys.executable, str(LOOP.with_name("read_client.py")), client])


@pytest.mark.slow
def test_a_late_commit_ends_the_next_transaction_of_a_client_before_kip_890(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("JUDGED_TIMEOUT_MS", "1500")
    arguments = ["--preset", "kip890", "--topic", "orders:1", "--timeout", "60"]
    assert main(["judge", *arguments, "--", *command("confluent-kafka", tmp_path)]) == 1
    said = {line.strip()[:12].strip(): line.split()[2] for line in capsys.readouterr().out.splitlines()[-3:]}
    assert (said["late commit"], said["late abort"]) == ("yes", "yes")


@pytest.mark.parametrize("ended", [True, False], ids=["its member has left", "it has a member"])
def test_what_a_loop_left_behind_is_removed(ended: bool) -> None:
    with Minibroker(ephemeral=True, topics={"in": 1, "out": 1}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        consumer = importlib.import_module("confluent_kafka").Consumer({**servers, "group.id": "loop"})
        consumer.subscribe(["in"])
        while not consumer.assignment():
            consumer.poll(0.1)
        if ended:
            consumer.close()
        assert is_emptied(broker.bootstrap_servers, 30 if ended else 1) is ended
        assert set(broker.control.describe()["topics"]) & {"in", "out"} == set()
        consumer.close()


def test_the_page_has_a_column_for_each_client_and_none_that_was_never_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    wanted = {f"{client} {version}" for client in CLIENTS for version in (*OLD[client], release(client))}
    assert wanted == set(columns())
    by_place = {place: kept(text, place) for place in PLACES}
    for place, cells in by_place.items():
        assert set(cells) <= wanted
        assert table(place, cells) in text
    assert {f"{client} {release(client)}" for client in CLIENTS} <= set(by_place["kafka"])
