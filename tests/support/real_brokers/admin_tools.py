"""Kafka's own command-line tools at a broker with topics, groups, transactions and ACLs, and the page of results.

Each row of `ROWS` is one call. tests/jvm/test_admin_tools.py makes them all and holds the result against the row; run
as a program, this prints the page.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jvm import java_command

TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "TransactionalMessageCopier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "ClientCompatibilityTest": "org.apache.kafka.tools.ClientCompatibilityTest",
    "LogCompactionTester": "org.apache.kafka.tools.LogCompactionTester",
}
"""Script → main class."""
SERVER_LAST = frozenset({"kafka-cluster"})
"""Tools with subcommands that want the server behind them."""
ELSEWHERE = {
    "kafka-dump-log": "tests/jvm/test_dump_log_segments.py, on minibroker's files",
    "kafka-storage, kafka-server-start, kafka-server-stop, kafka-run-class": "start and stop Kafka's own broker",
    "kafka-metadata-shell": "reads a quorum's metadata log, which minibroker does not have",
    "kafka-jmx": "asks a JVM",
    "connect-*, trogdor, connect-plugin-path": "ask Kafka Connect or an agent, not a broker",
    "kafka-oauth-compatibility-test": "asks an OAuth server",
    "VerifiableShareConsumer": "share groups, as kafka-console-share-consumer",
}


@dataclass(frozen=True)
class Row:
    """words: the call, without the server; {name} is filled in by the test. wanted: a pattern of what the tool says,
    code: its exit status. served: "" where it gets what it asks for, else what is not served. stdin: what it reads."""

    tool: str
    words: str
    wanted: str
    code: int = 0
    served: str = ""
    stdin: str = ""
    server: str = "--bootstrap-server {servers}"

    def arguments(self, values: dict[str, str]) -> list[str]:
        server, words = self.server.split(), self.words.split()
        whole = [*words, *server] if self.tool in SERVER_LAST else [*server, *words]
        return [word.format_map(values) for word in whole]


class Runner:
    """One JVM that runs tools, see tests/jvm/ToolRunner.java."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(self, tool: str, arguments: list[str], stdin: str = "") -> tuple[int, str]:
        """Exit code, and what it said on stdout and stderr."""
        words = [TOOLS[tool], *arguments]
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack(">i", len(words)) + b"".join(map(_packed, [*words, stdin])))
        self._process.stdin.flush()
        code, size = struct.unpack(">ii", self._read(8))
        return code, self._read(size).decode(errors="replace")

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, "the JVM ended"
        return data


@contextmanager
def tool_runner(programs: Path) -> Iterator[Runner]:
    """programs: where tests/jvm is compiled to."""
    process = subprocess.Popen(
        java_command("ToolRunner", extra=(programs,)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Runner(process)
    finally:
        process.kill()
        process.communicate()


def _packed(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


SHARES = "share groups (KIP-932)"
STREAMS = "streams groups (KIP-1071)"
TOKENS = "delegation tokens"
QUOTAS = "quotas"
ROWS = [
    Row("kafka-topics", "--create --topic new --partitions 2 --config retention.ms=60000", "Created topic new"),
    Row("kafka-topics", "--list", r"(?m)^orders$"),
    Row("kafka-topics", "--describe --topic orders", r"PartitionCount: 2\s+ReplicationFactor: 1"),
    Row("kafka-topics", "--describe --topics-with-overrides", r"Topic: new.*retention.ms=60000"),
    Row("kafka-topics", "--describe --under-replicated-partitions", r"^\s*$"),
    Row("kafka-topics", "--describe --at-min-isr-partitions", r"Topic: orders\s+Partition: 0"),
    Row("kafka-topics", "--alter --topic new --partitions 3", r"^\s*$"),
    Row("kafka-topics", "--delete --topic new", r"^\s*$"),
    Row("kafka-console-producer", "--topic one", "", stdin="a\nb\nc\n"),
    Row(
        "kafka-console-consumer",
        "--topic one --from-beginning --max-messages 3 --group console --isolation-level read_committed "
        "--timeout-ms 20000",
        r"a\s+b\s+c\s+Processed a total of 3 messages",
    ),
    Row(
        "kafka-console-consumer",
        "--topic __transaction_state --from-beginning --max-messages 1 --timeout-ms 20000 "
        "--formatter org.apache.kafka.tools.consumer.TransactionLogMessageFormatter",
        r'"transactionalId":"app-1"',
    ),
    Row(
        "kafka-console-consumer",
        "--topic one --group new-protocol --from-beginning --max-messages 3 "
        "--command-property group.protocol=consumer --timeout-ms 20000",
        "Processed a total of 3 messages",
    ),
    Row(
        "kafka-console-share-consumer",
        "--topic one --max-messages 1 --timeout-ms 3000",
        "does not support SHARE_GROUP_HEARTBEAT",
        served=SHARES,
    ),
    Row("kafka-consumer-groups", "--list --state", r"console\s+Empty"),
    Row("kafka-consumer-groups", "--list --type", r"(?s)(?=.*console\s+Classic).*new-protocol\s+Consumer"),
    Row("kafka-consumer-groups", "--describe --group console", r"console\s+one\s+0\s+3\s+3\s+0"),
    Row("kafka-consumer-groups", "--describe --group console --state", r"console\s.*Empty\s+0"),
    Row("kafka-consumer-groups", "--describe --group console --members --verbose", "has no active members"),
    Row(
        "kafka-consumer-groups",
        "--reset-offsets --group console --topic one --to-earliest --execute",
        r"console\s+one\s+0\s+0",
    ),
    Row(
        "kafka-consumer-groups",
        "--reset-offsets --group console --topic one --by-duration PT1H --dry-run",
        r"console\s+one\s+0\s+0",
    ),
    Row("kafka-consumer-groups", "--delete-offsets --group console --topic one", r"one\s+0\s+Successful"),
    Row("kafka-consumer-groups", "--delete --group console", "was successful"),
    Row("kafka-consumer-groups", "--validate-regex on.*", "is valid"),
    Row("kafka-groups", "--list", r"new-protocol\s+Consumer"),
    Row("kafka-share-groups", "--list", r"^\s*$"),
    Row("kafka-share-groups", "--describe --group s", "does not support SHARE_GROUP_DESCRIBE", served=SHARES),
    Row("kafka-streams-groups", "--list", r"^\s*$"),
    Row(
        "kafka-streams-groups",
        "--describe --group s",
        "does not support STREAMS_GROUP_DESCRIBE",
        code=1,
        served=STREAMS,
    ),
    Row(
        "kafka-streams-application-reset",
        "--application-id copier --input-topics one --dry-run",
        "Topic: one Partition: 0 Offset: 0",
    ),
    Row("kafka-transactions", "list", r"app-1\s+\d+\s+\d+\s+Ongoing"),
    Row("kafka-transactions", "list --transactional-id-pattern app.*", r"app-1\s+\d+\s+\d+\s+Ongoing"),
    Row("kafka-transactions", "describe --transactional-id app-1", r"Ongoing\s+600000\s.*held-0"),
    Row(
        "kafka-transactions", "describe-producers --topic held --partition 0", r"(?m)^\d+\s+0\s+-?\d+\s+0\s+\d+\s+0\s*$"
    ),
    Row("kafka-transactions", "find-hanging --broker-id 1", r"^Topic\s+Partition\s+ProducerId.*\n?\s*$"),
    Row("kafka-transactions", "forceTerminateTransaction --transactionalId app-1", r"^\s*$"),
    Row("kafka-transactions", "describe --transactional-id app-1", r"app-1\s+\d+\s+2\s+Empty"),
    Row("kafka-configs", "--describe --entity-type topics --entity-name orders --all", r"cleanup\.policy=delete"),
    Row(
        "kafka-configs",
        "--alter --entity-type topics --entity-name orders --add-config retention.ms=1234567",
        "Completed updating config for topic orders",
    ),
    Row("kafka-configs", "--describe --entity-type brokers --entity-name 1 --all", r"num\.partitions=1 "),
    Row(
        "kafka-configs",
        "--alter --entity-type brokers --entity-default --add-config log.retention.ms=1234567",
        "Completed updating default config",
    ),
    Row("kafka-configs", "--describe --entity-type brokers --entity-default", r"log\.retention\.ms=1234567"),
    Row("kafka-configs", "--describe --entity-type broker-loggers --entity-name 1", r"minibroker\.\w+"),
    Row(
        "kafka-configs",
        "--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=46000",
        "Completed updating config for group g",
    ),
    Row("kafka-configs", "--describe --entity-type groups --entity-name g", r"consumer\.session\.timeout\.ms=46000"),
    Row("kafka-configs", "--describe --entity-type users", r"^\s*$"),
    Row(
        "kafka-configs",
        "--alter --entity-type users --entity-name alice --add-config SCRAM-SHA-256=[iterations=4096,password=secret]",
        "Completed updating config for user alice",
    ),
    Row(
        "kafka-configs",
        "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1024",
        "does not support ALTER_CLIENT_QUOTAS",
        code=1,
        served=QUOTAS,
    ),
    Row(
        "kafka-client-metrics",
        "--alter --name m --metrics org.apache.kafka.producer. --interval 30000",
        "Altered client metrics config for m",
    ),
    Row("kafka-client-metrics", "--describe", r"interval\.ms=30000"),
    Row("kafka-acls", "--add --allow-principal User:bob --operation Read --topic orders --force", "Adding ACLs"),
    Row("kafka-acls", "--list", r"principal=User:bob, host=\*, operation=READ, permissionType=ALLOW"),
    Row("kafka-acls", "--remove --topic orders --force", ""),
    Row(
        "kafka-delegation-tokens",
        "--describe --command-config {empty}",
        "does not support DESCRIBE_DELEGATION_TOKEN",
        code=1,
        served=TOKENS,
    ),
    Row("kafka-get-offsets", "--topic one", r"^one:0:3$"),
    Row("kafka-get-offsets", "--topic one --time earliest", r"^one:0:0$"),
    Row("kafka-get-offsets", "--topic one --time max-timestamp", r"^one:0:\d$"),
    Row("kafka-get-offsets", "--topic one --time earliest-local", r"^one:0:0$"),
    Row("kafka-get-offsets", "--topic one --time latest-tiered", r"^\s*$"),
    Row("kafka-delete-records", "--offset-json-file {delete}", r"one-0\s+low_watermark: 1"),
    Row("kafka-log-dirs", "--describe --topic-list one", r'"partition":"one-0","size":\d+,"offsetLag":0'),
    Row("kafka-broker-api-versions", "", r"EndTxn\(26\): 0 to 5"),
    Row("kafka-features", "describe", r"transaction\.version\s.*FinalizedVersionLevel: 2"),
    Row("kafka-features", "upgrade --feature transaction.version=2 --dry-run", "can be upgraded to 2"),
    Row("kafka-features", "downgrade --feature transaction.version=1 --dry-run", "can be downgraded to 1"),
    Row("kafka-cluster", "cluster-id", r"Cluster ID: \S+"),
    Row("kafka-cluster", "list-endpoints", r"(?m)^1 .*unfenced\s+broker"),
    Row("kafka-cluster", "unregister --id 77", "Broker ID 77 is not currently registered", code=1),
    Row("kafka-metadata-quorum", "describe --status", r"LeaderId:\s+1"),
    Row("kafka-metadata-quorum", "describe --replication", r"(?m)^2\s.*Observer"),
    Row(
        "kafka-metadata-quorum",
        "remove-controller --controller-id 1 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAA",
        "does not support REMOVE_RAFT_VOTER",
        code=1,
        served="changes of the quorum",
    ),
    Row("kafka-leader-election", "--election-type preferred --all-topic-partitions", ""),
    Row(
        "kafka-reassign-partitions",
        "--generate --topics-to-move-json-file {topics} --broker-list 1,2",
        "Proposed partition reassignment",
    ),
    Row("kafka-reassign-partitions", "--execute --reassignment-json-file {plan}", "Successfully started"),
    Row("kafka-reassign-partitions", "--verify --reassignment-json-file {plan}", "copied-0 is completed"),
    Row("kafka-reassign-partitions", "--list", "No partition reassignments found"),
    Row(
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {plan} --throttle 1000000",
        "Successfully started",
        served="throttled replication; the rate is kept and changes nothing",
    ),
    Row("kafka-reassign-partitions", "--cancel --reassignment-json-file {plan}", "None of the specified"),
    Row(
        "kafka-producer-perf-test",
        "--topic one --num-records 50 --record-size 10 --throughput -1 --transactional-id perf "
        "--transaction-duration-ms 100",
        "50 records sent",
    ),
    Row("kafka-consumer-perf-test", "--topic one --num-records 40 --timeout 20000", r"data\.consumed\.in\.nMsg"),
    Row(
        "kafka-share-consumer-perf-test",
        "--topic one --num-records 1 --timeout 3000",
        "does not support the share group protocol",
        code=1,
        served=SHARES,
    ),
    Row("kafka-e2e-latency", "--topic held --num-records 3 --producer-acks 1 --record-size 10", "Avg latency"),
    Row("kafka-verifiable-producer", "--topic one --max-messages 3", "startup_complete"),
    Row(
        "TransactionalMessageCopier",
        "--broker-list {servers} --input-topic one --input-partition 0 --output-topic copied "
        "--max-messages 4 --transaction-size 2 --transactional-id copier --consumer-group copiers",
        '"totalProcessed":2',
        server="",
    ),
    Row(
        "ClientCompatibilityTest",
        "--topic compat --num-cluster-nodes 2 --offsets-for-times-supported true "
        "--cluster-id-supported true --describe-acls-supported true --describe-configs-supported true "
        "--create-topics-supported true --idempotent-producer-supported true --expect-record-too-large-exception false",
        "SUCCESS",
    ),
]
"""In the order in which they are called: each finds what those before left."""

OTHERS = """## Other tools

kcat 1.7.1 (Debian) lists, produces idempotently, reads from an offset, asks for offsets and reads in a group: the same file
of tests. The requests of the others are read from their sources:

| tool | source | not served |
|---|---|---|
| kafbat UI | ab8c9ceb8, 2026-07-31 | AlterClientQuotas, AlterReplicaLogDirs |
| AKHQ | 91aa445f, 2025-02-16 | nothing |
| Kafdrop | dd68ef7, 2026-06-18 | nothing |
| Redpanda Console | 12ba56d5f, 2026-08-21 | AlterClientQuotas |
| kaf | fd9c0ca, 2026-04-19 | nothing |
| kcl | 4658a75, 2026-05-26 | AlterClientQuotas, AlterReplicaLogDirs, delegation tokens, share groups |
"""  # noqa: E501
HEAD = """# Kafka's command-line tools

`tests/jvm/test_admin_tools.py` calls every tool of Kafka 4.3.1 that sends requests to a broker
(`tests/support/real_brokers/admin_tools.py` lists the calls and prints this page). These work in full:

"""
TABLE = """
What the others lack:

| tool | not served |
|---|---|
"""


def document() -> str:
    """Contents of benchmarks/results/admin-tools.md."""
    calls: dict[str, list[Row]] = {}
    for row in ROWS:
        calls.setdefault(row.tool, []).append(row)
    partly = {tool: [row for row in rows if row.served] for tool, rows in calls.items()}
    whole = ", ".join(f"`{tool}`" for tool, rows in partly.items() if not rows)
    rows = [
        f"| `{tool}` | {'; '.join(f'{_arguments(row)}: {row.served}' for row in rows)} |"
        for tool, rows in partly.items()
        if rows
    ]
    others = [f"- {tool}: {why}" for tool, why in ELSEWHERE.items()]
    return f"{HEAD}{whole}.\n{TABLE}" + "\n".join(
        [
            *rows,
            "",
            "Not called:",
            "",
            *others,
            "",
            OTHERS,
        ]
    )


def _arguments(row: Row) -> str:
    text = row.words.replace(" --bootstrap-server {servers}", "").replace("--broker-list {servers} ", "")
    return f"`{text}`" if text else "only the server"


if __name__ == "__main__":
    print(document(), end="")
