"""README's two programs, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from minibroker import Minibroker

pytestmark = pytest.mark.clients

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
CLIENT, FIXTURE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_client() -> None:
    with Minibroker() as broker:
        exec(CLIENT.replace("127.0.0.1:9092", broker.bootstrap_servers), {})
        assert [one.value for one in broker.wait_for_records("orders", 1, isolation="read_committed")] == [b"one"]


def test_the_fixture() -> None:
    def application(bootstrap: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "app-1"})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in (b"one", b"two"):
            producer.produce("orders", value)
        producer.commit_transaction(20)

    exec(FIXTURE, {"run_my_application": application})
