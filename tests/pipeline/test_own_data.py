"""What minibroker itself writes, for clients nobody here wrote, gives no finding: every transaction.version, both
semantics, fencing, open transactions, offsets in transactions, several brokers and a leader that moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.clients

confluent_kafka = pytest.importorskip("confluent_kafka.admin") and pytest.importorskip("confluent_kafka")
pytest.importorskip("pyarrow")

from minibroker.cli import main  # noqa: E402
from minibroker.testing.embedded import Minibroker  # noqa: E402

CASES: list[dict[str, Any]] = [
    {"transaction_version": 0},
    {"transaction_version": 1},
    {"transaction_version": 2},
    {"semantics": "kip"},
    {
        "semantics": "kip",
        "transaction_version": 1,
        "config": {"minibroker.semantics.transaction_state_layout": "kip-360"},
    },
    {"brokers": 3, "config": {"default.replication.factor": "3"}},
]


def producer(bootstrap: str, transactional_id: str) -> Any:
    made = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    made.init_transactions(30)
    return made


def work(bootstrap: str) -> None:
    """Commits, aborts, a fenced producer, offsets in transactions, an idempotent producer, a transaction left open."""
    first = producer(bootstrap, "first")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    for number in range(6):
        first.begin_transaction()
        for key in range(20):
            first.produce("t", key=f"{number}-{key}", value=b"v" * key, partition=key % 2)
        offsets = [confluent_kafka.TopicPartition("t", 0, number + 1)]
        first.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        first.flush()
        (first.abort_transaction if number % 3 == 1 else first.commit_transaction)(30)
    first.begin_transaction()
    first.produce("t", value=b"fenced", partition=0)
    first.flush()
    second = producer(bootstrap, "first")
    second.begin_transaction()
    second.produce("t", value=b"open", partition=1)
    second.flush()
    idempotent = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for key in range(50):
        idempotent.produce("t", value=b"v", partition=key % 2)
    idempotent.flush()
    consumer.close()


@pytest.mark.parametrize("options", CASES, ids=str)
def test_no_finding(options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Minibroker(data_dir=str(tmp_path / "data"), topics={"t": 2}, **options) as broker:
        work(broker.bootstrap_servers)
        assert main(["audit", "--bootstrap", broker.bootstrap_servers, "--json", "-"]) == 0, capsys.readouterr().out
        live = json.loads(capsys.readouterr().out)
    code = main(["audit", str(tmp_path / "data"), "--json", "-"])
    stored = json.loads(capsys.readouterr().out)
    assert (code, stored["shown"]) == (0, [])
    copies = 3 if "brokers" in options else 1
    assert stored["transactions"]["COMMIT"] == copies * live["transactions"]["COMMIT"]
    assert live["transactions"]["COMMIT"] == 4 * 3  # two partitions and the offsets
    assert live["transactions"]["ABORT"] == 2 * 3 + 1
    assert live["transactions"]["OPEN"] == 1


def audit(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    main(["audit", str(path), "--json", "-", *more])
    shown: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["shown"]
    return shown


def test_partitions_that_went_to_an_empty_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new replica knows only producers that are still in the log, and the log begins later."""
    with Minibroker(data_dir=str(tmp_path), brokers=2, topics={"t": 2}) as broker:
        work(broker.bootstrap_servers)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        shorter = [confluent_kafka.TopicPartition("t", 0, 30)]
        for future in admin.delete_records(shorter).values():
            future.result(30)
        for partition in (0, 1):
            away = [n for n in broker.cluster.broker_ids if n != broker.cluster.leader("t", partition)]
            broker.cluster.reassign("t", partition, away)
        work(broker.bootstrap_servers)
    assert audit(tmp_path, capsys) == []


def test_killed_coordinators_and_leaders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"default.replication.factor": "3", "min.insync.replicas": "1"}
    with Minibroker(data_dir=str(tmp_path), brokers=3, topics={"t": 2}, config=config) as broker:
        work(broker.bootstrap_servers)
        victim = broker.cluster.coordinator("transaction", "first")
        assert victim is not None
        broker.cluster.kill_broker(victim)
        work(broker.bootstrap_servers)
        broker.cluster.start_broker(victim)
        work(broker.bootstrap_servers)
    assert [one for one in audit(tmp_path, capsys) if one["severity"] == "error"] == []
