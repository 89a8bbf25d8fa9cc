"""Real clients under each bundled script of failures."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from judge_page import PAGE, SEMANTICS, columns, kept, table
from judged_applications import CLIENTS, OLD, command, hold, release

from minibroker.cli import main
from minibroker_lab.judge.scripts import bundled

pytestmark = pytest.mark.clients

MODULES = {"confluent-kafka": "confluent_kafka", "aiokafka": "aiokafka", "kafka-python": "kafka"}


@pytest.mark.parametrize("script", bundled())
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


def test_the_page_has_every_old_version_beside_the_new_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cells = kept(text, "kafka")
    assert sorted(cells) == sorted(columns())
    assert {f"{client} {version}" for client in CLIENTS for version in (*OLD[client], release(client))} == set(cells)
    assert all(table(semantics, kept(text, semantics)) in text for semantics in SEMANTICS)
