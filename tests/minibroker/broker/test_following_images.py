"""A broker follows the controller's images."""

from __future__ import annotations

from dataclasses import replace

from memory_cluster import MemoryCluster

from minibroker_protocol.records import Record, build_batch
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
