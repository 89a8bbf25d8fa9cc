"""All of Kafka's command-line tools against a broker with content; results: benchmarks/results/admin-tools.md."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_tools import ROWS, Row, Runner, tool_runner

from minibroker import Minibroker

pytestmark = pytest.mark.jvm

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPICS = {"orders": 2, "one": 1, "held": 1, "copied": 1, "compat": 1}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Two brokers, with a transaction of `app-1` open on held-0."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    with Minibroker(brokers=2, topics=TOPICS, config=CONFIG) as broker:
        settings = {"transactional.id": "app-1", "transaction.timeout.ms": 600_000}
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("held", b"x", partition=0)
        producer.flush(30)
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def values(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the names in braces."""
    directory = tmp_path_factory.mktemp("tools")

    def file(name: str, content: Any) -> str:
        (directory / name).write_text(json.dumps(content) if content else "")
        return str(directory / name)

    return {
        "servers": bootstrap,
        "empty": file("empty", None),
        "delete": file("delete", {"version": 1, "partitions": [{"topic": "one", "partition": 0, "offset": 1}]}),
        "topics": file("topics", {"version": 1, "topics": [{"topic": "orders"}]}),
        "plan": file("plan", {"version": 1, "partitions": [{"topic": "copied", "partition": 0, "replicas": [2]}]}),
    }


@pytest.fixture(scope="module")
def runner(programs: Path) -> Iterator[Runner]:
    with tool_runner(programs) as running:
        yield running


def test_every_tool_gets_what_the_page_says(runner: Runner, values: dict[str, str]) -> None:
    wrong = [f"{row.tool} {row.words}: {found}" for row in ROWS if (found := _wrong(runner, row, values))]
    assert not wrong, "\n\n".join(wrong)


def _wrong(runner: Runner, row: Row, values: dict[str, str]) -> str | None:
    code, said = runner.run(row.tool, row.arguments(values), row.stdin)
    if code == row.code and re.search(row.wanted, said.strip()):
        return None
    return f"exit {code}, expected {row.code} and {row.wanted!r} in\n{said[:2000]}"


KCAT = (
    ("-L -J", r'"topic":"orders"'),
    ("-P -t kcat -p 0 -X enable.idempotence=true", ""),
    ("-C -t kcat -p 0 -o beginning -e -q", "a\nb"),
    ("-Q -t kcat:0:-1", r"kcat \[0\] offset 2"),
    ("-G kcat-group kcat -e -q -X auto.offset.reset=earliest -X isolation.level=read_committed", "a\nb"),
)


def test_kcat(bootstrap: str) -> None:
    """Debian's package of kcat, where it is installed."""
    import shutil

    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed")
    for words, wanted in KCAT:
        done = subprocess.run(
            [kcat, "-b", bootstrap, *words.split()], input="a\nb\n", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert re.search(wanted, done.stdout + done.stderr), (words, done.stdout, done.stderr)
