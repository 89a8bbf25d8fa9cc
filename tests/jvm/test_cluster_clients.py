"""Kafka's Java clients go on while the brokers of a minibroker come and go."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jvm import java_command, run_java

from minibroker import Minibroker

pytestmark = pytest.mark.jvm

TOTAL = 600
CONFIG = {
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "replica.fetch.backoff.ms": "100",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
}


def restart_in_turn(broker: Minibroker) -> None:
    for node in broker.cluster.broker_ids:
        broker.cluster.stop_broker(node)
        time.sleep(0.2)
        broker.cluster.start_broker(node)
        wait_for_isr(broker)


def kill_in_turn(broker: Minibroker) -> None:
    for node in broker.cluster.broker_ids:
        broker.cluster.kill_broker(node)
        time.sleep(0.2)
        broker.cluster.start_broker(node)
        wait_for_isr(broker)


def move_everything(broker: Minibroker) -> None:
    for _ in range(3):
        for topic in ("input", "output"):
            broker.cluster.move_leader(topic, 0, (broker.cluster.leader(topic) or 0) % 3 + 1)
        transaction = broker.cluster.coordinator("transaction", "copier") or 0
        broker.cluster.move_coordinator("transaction", "copier", transaction % 3 + 1)
        group = broker.cluster.coordinator("group", "copiers") or 0
        broker.cluster.move_coordinator("group", "copiers", group % 3 + 1)
        time.sleep(0.3)
    added = broker.cluster.add_broker()
    broker.cluster.reassign("output", 0, [added])
    time.sleep(0.3)
    broker.cluster.reassign("output", 0, [1, 2, 3])
    broker.cluster.remove_broker(added)


def hang_and_lose_the_controller(broker: Minibroker) -> None:
    """A leader hangs until its session has ended; then one dies while nobody can elect another."""
    leader = broker.cluster.leader("output") or 0
    broker.cluster.pause_broker(leader)
    wait_for(lambda: broker.cluster.leader("output") not in (None, leader))
    broker.cluster.resume_broker(leader)
    wait_for_isr(broker)
    leader = broker.cluster.leader("output") or 0
    broker.cluster.stop_controller()
    broker.cluster.kill_broker(leader)
    time.sleep(0.5)
    broker.cluster.start_controller()
    broker.cluster.start_broker(leader)
    wait_for_isr(broker)


def wait_for_isr(broker: Minibroker) -> None:
    wait_for(lambda: all(len(broker.cluster.isr(topic)) == 3 for topic in ("input", "output")))


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("event", [restart_in_turn, kill_in_turn, move_everything, hang_and_lose_the_controller])
def test_a_java_loop_stays_exactly_once(programs: Path, event: Callable[[Minibroker], None]) -> None:
    topics = {"input": 1, "output": 1}
    with Minibroker(brokers=3, topics=topics, config=CONFIG, ephemeral=True) as broker:
        command = java_command("ExactlyOnceLoop", broker.bootstrap_servers, str(TOTAL), extra=(programs,))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as loop:
            assert loop.stdout is not None
            try:
                watchdog = threading.Timer(120, loop.kill)
                watchdog.start()
                assert loop.stdout.readline() == "COPYING\n"
                event(broker)
                rest, errors = loop.communicate()
                watchdog.cancel()
            finally:
                loop.kill()
        assert rest == "DONE\n", errors[-4000:]
        where = {"BOOTSTRAP_SERVERS": broker.bootstrap_servers, "MINIBROKER_TOPIC": "output"}
        read = run_java("ReadTopic", extra=(programs,), variables=where)
        values = [line.split()[1] for line in read.stdout.splitlines()]
        assert values == [*map(str, range(TOTAL)), "end"], read.stderr[-4000:]
