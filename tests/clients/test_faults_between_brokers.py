"""Rules on what brokers send each other, seen by clients that nobody here wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from minibroker import Minibroker
from minibroker.faults import Close, Delay, Error, Hold, Throttle
from minibroker.kernel.fault_error import FaultError

pytestmark = pytest.mark.clients

SECONDS = 30.0
MARKER_ACTIONS = [Hold(), Hold(when="after"), Delay(300), Close(), Error("NOT_LEADER_OR_FOLLOWER")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Minibroker]:
    config = {"replica.fetch.backoff.ms": 100, "transaction.state.log.num.partitions": 3}
    with Minibroker(brokers=3, config=config) as running:
        yield running


@pytest.fixture
def topic(cluster: Minibroker, unique: Callable[[str], str]) -> Iterator[str]:
    name = unique("between")
    cluster.state.create_topic(topic=name, replication_factor=3)
    yield name
    cluster.faults.clear()


def producer(cluster: Minibroker, **config: Any) -> Producer:
    given = {name.replace("_", "."): value for name, value in config.items()}
    quick = {"linger.ms": 0, "retry.backoff.ms": 20, "log_level": 0}
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, **quick, **given})


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read(cluster: Minibroker, topic: str) -> list[bytes]:
    """What is committed in partition 0, to its last stable offset."""
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "none",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
    }
    reader = Consumer({**config, "log_level": 0})
    reader.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := reader.poll(SECONDS)) is not None and message.error() is None:
            found.append(message.value())
        assert message is not None
        assert message.error().code() == KafkaError._PARTITION_EOF
    finally:
        reader.close()
    return found


def test_a_follower_that_gets_no_answer_holds_up_acks_all_and_not_acks_1(cluster: Minibroker, topic: str) -> None:
    leader = cluster.cluster.leader(topic)
    follower = next(node for node in cluster.cluster.broker_ids if node != leader)
    sender = producer(cluster, acks="all")
    held = cluster.faults.inject(
        "Fetch", Hold(when="after"), between_brokers=True, client_id=f"broker-{follower}", broker=leader, times=None
    )
    held.wait(1)
    sender.produce(topic, b"1")
    assert sender.flush(0.3) == 1
    hasty = producer(cluster, acks=1)
    hasty.produce(topic, b"2")
    assert hasty.flush(SECONDS) == 0
    held.remove()
    assert sender.flush(SECONDS) == 0
    assert read(cluster, topic) == [b"1", b"2"]


@pytest.mark.parametrize(
    "action", [Hold(), Hold(when="after"), Delay(300), Close(), Error("NOT_LEADER_OR_FOLLOWER")], ids=repr
)
def test_markers_on_their_way(cluster: Minibroker, topic: str, unique: Callable[[str], str], action: Any) -> None:
    sender = producer(cluster, transactional_id=unique("x"))
    sender.init_transactions(SECONDS)
    rule = cluster.faults.inject("WriteTxnMarkers", action, between_brokers=True, topic=topic)
    sender.begin_transaction()
    sender.produce(topic, b"1")
    sender.commit_transaction(SECONDS)  # the commit is decided; what is missing are the markers
    rule.wait(1)
    if action == Hold():
        assert read(cluster, topic) == []
        assert rule.release() == 1
    # The next transaction of the same producer waits for the end of the one before.
    sender.begin_transaction()
    sender.produce(topic, b"2")
    if action == Hold(when="after"):
        until(lambda: rule.held == 1)  # it is written, which its answer does not say yet
        assert rule.release() == 1
    sender.commit_transaction(SECONDS)
    until(lambda: read(cluster, topic) == [b"1", b"2"])


def test_a_verification_that_fails_aborts_the_transaction(
    cluster: Minibroker, topic: str, unique: Callable[[str], str]
) -> None:
    """The leader asks the coordinator whether the partition is in the transaction (KIP-890)."""
    sender = producer(cluster, transactional_id=unique("x"))
    sender.init_transactions(SECONDS)
    rule = cluster.faults.inject(
        "AddPartitionsToTxn", Error("INVALID_TXN_STATE"), between_brokers=True, topic=topic, times=None
    )
    sender.begin_transaction()
    sender.produce(topic, b"1")
    with pytest.raises(KafkaException) as raised:
        sender.commit_transaction(SECONDS)
    assert raised.value.args[0].txn_requires_abort()
    assert rule.fired >= 1
    rule.remove()
    sender.abort_transaction(SECONDS)
    assert read(cluster, topic) == []
    # librdkafka counts the batch that was refused, so it takes another producer to go on.
    other = producer(cluster, transactional_id=unique("x"))
    other.init_transactions(SECONDS)
    other.begin_transaction()
    other.produce(topic, b"2")
    other.commit_transaction(SECONDS)
    assert read(cluster, topic) == [b"2"]


def test_an_in_sync_set_that_the_controller_does_not_change(cluster: Minibroker, topic: str) -> None:
    """A killed follower leaves the in-sync set by the controller's doing; coming back needs AlterPartition."""
    leader = cluster.cluster.leader(topic)
    follower = next(node for node in cluster.cluster.broker_ids if node != leader)
    refused = cluster.faults.inject("AlterPartition", Error("INVALID_UPDATE_VERSION"), between_brokers=True, times=None)
    cluster.state.restart_broker(broker=follower, clean=False)
    refused.wait(1)
    assert follower not in cluster.cluster.isr(topic)
    sender = producer(cluster, acks="all")
    sender.produce(topic, b"1")
    assert sender.flush(SECONDS) == 0
    refused.remove()
    until(lambda: follower in cluster.cluster.isr(topic))
    assert read(cluster, topic) == [b"1"]


def test_what_cannot_be_is_refused(cluster: Minibroker) -> None:
    with pytest.raises(FaultError, match="it is for clients"):
        cluster.faults.inject("Fetch", Throttle(5), between_brokers=True)
    with pytest.raises(FaultError, match="no broker sends"):
        cluster.faults.inject("JoinGroup", Close(), between_brokers=True)
