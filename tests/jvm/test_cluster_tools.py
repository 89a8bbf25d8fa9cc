"""Kafka's own tools for brokers, leaders and replicas against a minibroker of three."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jvm import run_java

from minibroker import Minibroker

pytestmark = pytest.mark.jvm

TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "reassign": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "elect": "org.apache.kafka.tools.LeaderElectionCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(brokers=3, ephemeral=True) as running:
        yield running


@pytest.fixture(scope="module")
def tool(broker: Minibroker) -> Tool:
    def run(name: str, *arguments: str, stdin: str = "") -> str:
        server = ("--bootstrap-server", broker.bootstrap_servers)
        words = (*arguments, *server) if name == "cluster" else (*server, *arguments)
        done = run_java(TOOLS[name], *words, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_brokers_are_listed_with_their_state(broker: Minibroker, tool: Tool) -> None:
    broker.cluster.stop_broker(3)
    try:
        listed = tool("cluster", "list-endpoints", "--include-fenced-brokers")
        assert len(re.findall(r"\bunfenced\b", listed)) == 2, listed
        assert len(re.findall(r"(?<!un)\bfenced\b", listed)) == 1, listed
    finally:
        broker.cluster.start_broker(3)


def test_a_partition_moves_and_its_records_with_it(broker: Minibroker, tool: Tool, tmp_path: Path) -> None:
    tool("topics", "--create", "--topic", "moved", "--replica-assignment", "1:2")
    tool("producer", "--topic", "moved", stdin="".join(f"m{n}\n" for n in range(20)))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 2]}]}))
    assert "Successfully started" in tool("reassign", "--reassignment-json-file", str(plan), "--execute")
    assert "is completed" in tool("reassign", "--reassignment-json-file", str(plan), "--verify")
    assert broker.cluster.leader("moved") in (2, 3)
    described = tool("topics", "--describe", "--topic", "moved")
    assert re.search(r"Replicas:\s*3,2\s+Isr:\s*(2,3|3,2)", described), described
    assert "No partition reassignments found" in tool("reassign", "--list")
    read = tool("consumer", "--topic", "moved", "--from-beginning", "--max-messages", "20", "--timeout-ms", "20000")
    assert read.split() == [f"m{n}" for n in range(20)]


def test_a_reassignment_that_cannot_end_is_listed_and_cancelled(broker: Minibroker, tool: Tool, tmp_path: Path) -> None:
    tool("topics", "--create", "--topic", "stuck", "--replica-assignment", "1")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "stuck", "partition": 0, "replicas": [2]}]}))
    broker.cluster.stop_broker(2)
    try:
        # The tool itself does not begin a move to a broker that is down.
        broker.cluster.run(lambda cluster: cluster.reassign("stuck", 0, [2]) and None)
        listed = tool("reassign", "--list")
        assert re.search(r"stuck-0: replicas: 2,1\. adding: 2\. removing: 1\.", listed), listed
        # Throttles are a setting of every broker named, the dead one too.
        cancelled = tool("reassign", "--reassignment-json-file", str(plan), "--cancel", "--preserve-throttles")
        assert "Successfully cancelled partition reassignment for: stuck-0" in cancelled
        assert broker.cluster.leader("stuck") == 1
    finally:
        broker.cluster.start_broker(2)


def test_preferred_and_unclean_elections(broker: Minibroker, tool: Tool) -> None:
    tool("topics", "--create", "--topic", "elected", "--replica-assignment", "1:2")
    broker.cluster.stop_broker(1)
    assert broker.cluster.leader("elected") == 2
    broker.cluster.start_broker(1)
    _wait(lambda: broker.cluster.isr("elected") == [1, 2])
    done = tool("elect", "--election-type", "preferred", "--topic", "elected", "--partition", "0")
    assert "Successfully completed leader election (PREFERRED)" in done, done
    assert broker.cluster.leader("elected") == 1
    again = tool("elect", "--election-type", "preferred", "--topic", "elected", "--partition", "0")
    assert "Valid replica already elected" in again, again
    broker.cluster.kill_broker(2)
    tool("producer", "--topic", "elected", stdin="only broker 1 has this\n")
    broker.cluster.kill_broker(1)
    broker.cluster.start_broker(2)
    assert broker.cluster.leader("elected") is None
    done = tool("elect", "--election-type", "unclean", "--topic", "elected", "--partition", "0")
    assert "Successfully completed leader election (UNCLEAN)" in done, done
    assert broker.cluster.leader("elected") == 2
    broker.cluster.start_broker(1)


def test_a_stopped_broker_is_unregistered(broker: Minibroker, tool: Tool) -> None:
    added = broker.cluster.add_broker()
    broker.cluster.stop_broker(added)
    assert f"Broker {added} is no longer registered." in tool("cluster", "unregister", "--id", str(added))


def _wait(reached: Callable[[], bool]) -> None:
    import time

    end = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)
