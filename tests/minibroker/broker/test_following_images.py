"""A broker follows the controller's images."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from manual_time import ManualTimers
from many_brokers import ManyBrokers
from memory_cluster import MemoryCluster

from minibroker.broker.lifecycle import BrokerLifecycleManager
from minibroker.config.settings import Settings
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.transport import CONTROLLER
from minibroker_protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from minibroker_protocol.records import BatchHeader, Record, build_batch, decode_records, iter_batches
from minibroker_storage.log import PartitionLog
from minibroker_storage.origin import Origin


def test_a_topic_of_the_same_name_and_another_id_is_another_topic() -> None:
    """Deleted and made again while the broker did not look: nothing of the first is in the second."""
    cluster = MemoryCluster(topics={"t": 2, "other": 1})
    broker = cluster.broker
    batch = build_batch([Record(0, cluster.clock.now_ms(), b"k", b"v")])
    for topic in ("t", "other"):
        broker.partition(topic, 0).append(batch, origin=Origin.CLIENT, api_version=9)
    before = broker.image
    again = replace(before.topics["t"], topic_id=b"again" + bytes(11))
    broker.on_image(replace(before, topics={**before.topics, "t": again}), ["t"])
    cluster.timers.advance(1000)
    assert [broker.partition("t", index).topic_id for index in (0, 1)] == [again.topic_id] * 2
    ends = {topic: broker.partition(topic, 0).log.log_end_offset for topic in ("t", "other")}
    assert ends == {"t": 0, "other": 1}
    cluster.stop()


def test_each_partition_of_a_topic_follows_for_itself() -> None:
    """Of three, one goes to another broker; the others stay, with the topic's new configs."""
    cluster = MemoryCluster(topics={"t": 3})
    broker = cluster.broker
    before = broker.image
    topic = before.topics["t"]
    held = [broker.partition("t", index).log for index in range(3)]
    gone, *_ = topic.partitions
    moved = replace(gone, replicas=[2], isr=[2], leader=2, leader_epoch=gone.leader_epoch + 1)
    changed = replace(topic, partitions=[moved, *topic.partitions[1:]], configs={"retention.ms": "5"})
    broker.on_image(replace(before, topics={**before.topics, "t": changed}), ["t"])
    cluster.timers.advance(1000)
    assert sorted(one.index for one in broker.partitions() if one.topic == "t") == [1, 2]
    assert [log.config.retention_ms for log in held[1:]] == [5, 5]
    cluster.stop()


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize(
    ("name", "value", "rule", "expected"),
    [
        ("transaction.partition.verification.enable", "false", "verification_enabled", False),
        ("producer.id.expiration.ms", "1234", "producer_id_expiration_ms", 1234),
    ],
)
def test_an_altered_setting_reaches_the_rules_of_every_log(
    opened: str, name: str, value: str, rule: str, expected: object
) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    partition, image = cluster.broker.partition("t", 0), cluster.broker.image
    if opened == "before":
        assert getattr(partition.log.producers.rules, rule) != expected
    cluster.broker.on_image(replace(image, broker_configs={"": {name: value}}), [])
    cluster.timers.advance(10)
    assert getattr(partition.log.producers.rules, rule) == expected
    cluster.stop()


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize(
    ("meanwhile", "held"),
    [("nothing", [b"old"]), ("deleted", None), ("made again", [b"new", b"new"]), ("moved away", None)],
)
def test_what_became_of_a_replica_while_its_broker_was_down(how: str, meanwhile: str, held: list[bytes] | None) -> None:
    brokers = ManyBrokers(3)
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"old")
    brokers.settle(1000)
    (brokers.cluster.stop_broker if how == "stopped" else brokers.cluster.kill_broker)(3)
    if meanwhile in ("deleted", "made again"):
        brokers.call(1, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), DeleteTopicsResponse, 4)
        brokers.settle(100)
    if meanwhile == "made again":
        # All of its brokers are up when it is made; this one only hears of it at its start.
        brokers.create("t", [[1, 2]])
        brokers.cluster.reassign("t", 0, [1, 2, 3])
        for _ in range(2):
            brokers.produce("t", b"new", acks=1)
    if meanwhile == "moved away":
        brokers.cluster.reassign("t", 0, [1, 2])
        brokers.settle(100)
    brokers.cluster.start_broker(3)
    brokers.settle(5000)
    broker = brokers.cluster.brokers[3]
    if held is None:
        assert "t-0" not in broker.directory.disk.list()
        assert ("t", 0) not in broker.directory.high_watermarks
    else:
        log = broker.replica("t", 0).log
        found = [record for data, header in _batches(log) for record in decode_records(data, 0, header)]
        assert [bytes(record.value or b"") for record in found] == held
    brokers.stop()


def _batches(log: PartitionLog) -> list[tuple[memoryview, BatchHeader]]:
    data = memoryview(bytes(log.read(0, 1 << 20, bound=log.log_end_offset).records))
    return [(data[position : position + header.size], header) for position, header in iter_batches(data)]


@pytest.mark.parametrize(("brokers", "armed"), [(1, False), (2, True)])
def test_a_broker_that_is_alone_sends_no_heartbeats(brokers: int, armed: bool) -> None:
    timers = ManualTimers()
    image = SimpleNamespace(brokers=dict.fromkeys(range(brokers)))
    broker: Any = SimpleNamespace(image=image, settings=Settings({}), timers=timers)
    BrokerLifecycleManager(broker).start()
    assert timers.armed == armed


def test_a_heartbeat_says_what_the_broker_has_and_asks_for_nothing() -> None:
    timers, sent = ManualTimers(), []
    image = SimpleNamespace(brokers={1: None, 2: None}, offset=9)
    transport = SimpleNamespace(send=lambda to, request, version: sent.append((to, request)) or Deferred())
    broker: Any = SimpleNamespace(
        image=image, settings=Settings({}), timers=timers, node_id=2, epoch=5, transport=transport
    )
    BrokerLifecycleManager(broker).start()
    timers.advance(4000)
    [*_, (to, last)] = sent
    assert (len(sent), to) == (2, CONTROLLER)
    assert (last.broker_id, last.broker_epoch, last.current_metadata_offset) == (2, 5, 9)
    assert (last.want_fence, last.want_shut_down) == (False, False)
