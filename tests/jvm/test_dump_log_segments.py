"""Kafka's DumpLogSegments reads the files a minibroker leaves behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from broker import start_minibroker
from jvm import run_java

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = pytest.mark.jvm

SECONDS = 30.0
TRANSACTIONS = 6
RECORDS = 4


@pytest.fixture(scope="module")
def data(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory after some transactions, every third aborted, with offsets committed in each."""
    directory = tmp_path_factory.mktemp("dump")
    arguments = ("--data-dir", str(directory / "data"), "--topic", "dumped:1")
    broker = start_minibroker(directory / "broker.log", *arguments, "-c", "log.index.interval.bytes=1")
    try:
        write(broker.bootstrap)
    finally:
        broker.stop()
    return directory / "data"


def write(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "dumper"})
    producer.init_transactions(SECONDS)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "dumpers"})
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for record in range(RECORDS):
            producer.produce("dumped", f"{number}-{record}", f"key-{record}", partition=0)
        place = confluent_kafka.TopicPartition("dumped", 0, number)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), SECONDS)
        producer.flush(SECONDS)  # an abort drops what was not sent yet
        end: Any = producer.abort_transaction if number % 3 == 2 else producer.commit_transaction
        end(SECONDS)
    consumer.close()


def find(data: Path, pattern: str) -> list[Path]:
    found = sorted(path for path in data.rglob(pattern) if path.stat().st_size)
    assert found, f"no {pattern} in {sorted(str(path.relative_to(data)) for path in data.rglob('*'))}"
    return found


def dump(*arguments: str) -> str:
    done = run_java("org.apache.kafka.tools.DumpLogSegments", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    for complaint in ("Found timestamp mismatch", "Mismatches in", "Non-consecutive", "isvalid: false", "Exception"):
        assert complaint not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout


def test_log(data: Path) -> None:
    (log,) = find(data, "dumped-0/*.log")
    text = dump("--files", str(log), "--print-data-log", "--deep-iteration")
    assert text.count("endTxnMarker: COMMIT") == TRANSACTIONS - TRANSACTIONS // 3
    assert text.count("endTxnMarker: ABORT") == TRANSACTIONS // 3
    payloads = re.findall(r"payload: (\d-\d)", text)
    assert payloads == [f"{number}-{record}" for number in range(TRANSACTIONS) for record in range(RECORDS)]
    offsets = [int(offset) for offset in re.findall(r"\| offset: (\d+)", text)]
    assert offsets == list(range(TRANSACTIONS * (RECORDS + 1)))


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "snapshot"])
def test_files_beside_the_log(data: Path, kind: str) -> None:
    for path in find(data, f"dumped-0/*.{kind}"):
        text = dump("--files", str(path), "--verify-index-only") if kind == "index" else dump("--files", str(path))
        if kind == "txnindex":
            assert len(re.findall(r"producerId: \d+", text)) == TRANSACTIONS // 3
        if kind == "snapshot":
            assert len(re.findall(r"producerId: \d+", text)) == 1


def test_coordinators_logs(data: Path) -> None:
    (states,) = find(data, "__transaction_state-*/*.log")
    text = dump("--files", str(states), "--transaction-log-decoder")
    assert '"transactionalId":"dumper"' in text
    (offsets,) = find(data, "__consumer_offsets-*/*.log")
    text = dump("--files", str(offsets), "--offsets-decoder")
    assert text.count('"group":"dumpers"') == TRANSACTIONS
