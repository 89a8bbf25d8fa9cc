"""A Java consumer that committed offsets with their leader epoch, after its partition lost a tail."""

from __future__ import annotations

import re

import pytest
from jvm import run_java
from state_events import Load, Wire, create, new_producer

from minibroker import Minibroker

pytestmark = pytest.mark.jvm

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def test_java_reads_every_record_that_was_written_after_a_lost_tail() -> None:
    """It committed offset 15 of epoch 0, which ends at 6 now: it goes back there, as with Kafka 4.4.0."""
    with Minibroker(ephemeral=True) as broker, Wire(int(broker.bootstrap_servers.rsplit(":", 1)[1])) as wire:
        create(wire, "t", [1])
        load = Load(wire, "t")

        def read(records: int) -> list[int]:
            done = run_java(
                CONSUMER, "--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--group", "g",
                "--from-beginning", "--max-messages", str(records), "--timeout-ms", "20000",
                "--formatter-property", "print.offset=true",
            )  # fmt: skip
            return [int(offset) for offset in re.findall(r"Offset:(\d+)", done.stdout)]

        assert read(15) == list(range(15))
        broker.state.truncate_tail(topic="t", partition=0, offset=6)
        load.append(wire, new_producer(wire), 0, 12)
        assert read(12) == list(range(6, 18))
