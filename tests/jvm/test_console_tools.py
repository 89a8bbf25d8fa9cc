"""Kafka's own command-line tools against a running broker."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

import pytest
from jvm import run_java

pytestmark = pytest.mark.jvm

TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "configs": "kafka.admin.ConfigCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "features": "org.apache.kafka.tools.FeatureCommand",
}
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """Run one of Kafka's tools; its standard output, once it has succeeded."""

    def run(name: str, *arguments: str, stdin: str = "") -> str:
        server = ("--bootstrap-server", bootstrap)
        # Of the tools with subcommands, this one alone wants its server behind them.
        words = (*arguments, *server) if name == "cluster" else (*server, *arguments)
        done = run_java(TOOLS[name], *words, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def topic(tool: Tool) -> str:
    """A topic of two partitions with the messages m0..m9, made by the tools themselves."""
    name = f"tools-{uuid.uuid4().hex[:8]}"
    assert f"Created topic {name}" in tool("topics", "--create", "--topic", name, "--partitions", "2")
    lines = "".join(f"k{number}:m{number}\n" for number in range(10))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tool("producer", "--topic", name, *keyed, stdin=lines)
    return name


def test_topics_are_described_and_listed(tool: Tool, topic: str) -> None:
    described = tool("topics", "--describe", "--topic", topic)
    assert re.search(r"PartitionCount:\s*2\s+ReplicationFactor:\s*1", described)
    assert "Leader: none" not in described
    assert topic in tool("topics", "--list").split()


def test_topics_are_altered_and_deleted(tool: Tool) -> None:
    name = f"tools-{uuid.uuid4().hex[:8]}"
    tool("topics", "--create", "--topic", name)
    tool("topics", "--alter", "--topic", name, "--partitions", "3")
    assert "PartitionCount: 3" in tool("topics", "--describe", "--topic", name)
    tool("configs", "--alter", "--entity-type", "topics", "--entity-name", name, "--add-config", "retention.ms=1234567")
    assert "retention.ms=1234567" in tool("configs", "--describe", "--entity-type", "topics", "--entity-name", name)
    tool("topics", "--delete", "--topic", name)
    deadline = time.monotonic() + 10
    while name in tool("topics", "--list").split():
        assert time.monotonic() < deadline


def test_consumer_and_its_group(tool: Tool, topic: str) -> None:
    group = f"tools-{uuid.uuid4().hex[:8]}"
    read = tool(
        "consumer",
        "--topic",
        topic,
        "--group",
        group,
        "--from-beginning",
        "--max-messages",
        "10",
        "--timeout-ms",
        "20000",
    )
    assert sorted(read.split()) == [f"m{number}" for number in range(10)]
    assert group in tool("consumer-groups", "--list").split()
    described = tool("consumer-groups", "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert sum(int(row[3]) for row in rows) == 10  # CURRENT-OFFSET of both partitions
    assert {row[5] for row in rows} == {"0"}  # LAG
    assert "Empty" in tool("consumer-groups", "--describe", "--group", group, "--state")
    tool("consumer-groups", "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute")
    assert "successful" in tool("consumer-groups", "--delete", "--group", group)
    assert group not in tool("consumer-groups", "--list").split()


def test_offsets(tool: Tool, topic: str) -> None:
    ends = [line.split(":") for line in tool("get-offsets", "--topic", topic).split()]
    assert [end[:2] for end in ends] == [[topic, "0"], [topic, "1"]]
    assert sum(int(end[2]) for end in ends) == 10


def test_transactions(tool: Tool, topic: str, bootstrap: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    name = f"tools-{uuid.uuid4().hex[:8]}"
    tool("topics", "--create", "--topic", name, "--partitions", "1")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush(30)
    listed = next(line.split() for line in tool("transactions", "list").splitlines() if line.startswith(name))
    assert listed[-1] == "Ongoing"
    described = tool("transactions", "describe", "--transactional-id", name)
    assert f"{name}-0" in described
    producers = tool("transactions", "describe-producers", "--topic", name, "--partition", "0")
    assert listed[2] in producers.split()  # the producer id
    hanging = tool("transactions", "find-hanging", "--broker-id", described.splitlines()[1].split()[0])
    assert name not in hanging  # open, but known to its coordinator
    producer.commit_transaction(30)
    assert "CompleteCommit" in tool("transactions", "describe", "--transactional-id", name)


def test_versions_features_and_cluster(tool: Tool) -> None:
    versions = tool("broker-api-versions")
    assert "Produce(0): 0 to 13" in versions
    assert "EndTxn(26): 0 to 5" in versions
    assert "transaction.version" in tool("features", "describe")
    assert "Cluster ID" in tool("cluster", "cluster-id")
    assert '"logDirs"' in tool("log-dirs", "--describe")
