"""A producer that goes away in the middle of its transaction, and the command that commits it, against any cluster."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.cli import main
from minibroker.client.transactions import TransactionsClient

ID = "sink-1"
PATIENCE = 30.0


def abandon(bootstrap: str, topic: str = "t") -> None:
    """Two records on partition 0, one on partition 1, the offset 1 of group g; no commit and no abort."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": ID, "transaction.timeout.ms": 600_000})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for partition, value in ((0, b"a"), (0, b"b"), (1, b"c")):
        producer.produce(topic, value, partition=partition)
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    producer.send_offsets_to_transaction([TopicPartition(topic, 1, 1)], group.consumer_group_metadata(), PATIENCE)
    group.close()
    assert producer.flush(PATIENCE) == 0


def committed_values(bootstrap: str, topic: str = "t") -> list[bytes]:
    """What a read_committed consumer is given up to the ends that it is told."""
    settings = {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}
    settings["fetch.wait.max.ms"] = "10"  # an end is told by an empty answer
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    values, ends = [], 0
    while ends < 2:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error():
            ends += 1
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


def stored_offset(bootstrap: str, topic: str = "t") -> int:
    """What the group g has on partition 1; below 0: nothing."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    (committed,) = consumer.committed([TopicPartition(topic, 1)], PATIENCE)
    consumer.close()
    return int(committed.offset)


def rows(bootstrap: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """What `minibroker transactions` prints with --json."""
    capsys.readouterr()
    action, *rest = arguments
    assert main(["transactions", action, "--bootstrap", bootstrap, "--json", *rest]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def check_commit(bootstrap: str, capsys: pytest.CaptureFixture[str], *, bumps: bool) -> None:
    """Announces what it would show, shows nothing while dry, then commits all of it. `bumps`: transaction.version 2."""
    abandon(bootstrap)
    with TransactionsClient(bootstrap) as client:
        held = client.describe(ID)[1]
        command = ("commit", ID, "--producer-id", str(held.producer_id), "--epoch", str(held.producer_epoch))
        *partitions, outcome = rows(bootstrap, capsys, *command, "--dry-run")
        offsets = partitions.pop(0)
        assert (offsets["topic"], offsets["records"], offsets["group_offsets"]) == (
            "__consumer_offsets",
            1,
            ["g:t-1@1"],
        )
        assert [tuple(row.values()) for row in partitions] == [("t", 0, 0, 1, 2, []), ("t", 1, 0, 0, 1, [])]
        assert (outcome["records"], outcome["state"], outcome["dry_run"]) == (4, "Ongoing", True)
        assert client.describe(ID)[1].transaction_state == "Ongoing"
        assert committed_values(bootstrap) == []

        *announced, outcome = rows(bootstrap, capsys, *command)
        assert announced == [offsets, *partitions]
        assert (outcome["state"], outcome["dry_run"]) == ("CompleteCommit", False)
        assert committed_values(bootstrap) == [b"a", b"b", b"c"]
        assert stored_offset(bootstrap) == 1
        assert client.describe(ID)[1].producer_epoch == held.producer_epoch + bumps
