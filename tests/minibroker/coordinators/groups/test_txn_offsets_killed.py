"""A broker that is killed in a TxnOffsetCommit: its offsets are one batch, so all of them are there afterwards or none.

The partitions are looked up in slices, with turns of the loop in between. Only the act writes, in a few calls of the
disk: the broker is killed before and in the middle of each.
"""

from __future__ import annotations

import pytest
from group_client import GroupClient

from minibroker_lab.simulation.faulty_disk import FaultyDisk, PowerLost
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

MOST_OF_A_TOPIC = 9000
CONFIG = {"message.max.bytes": str(64 << 20)}
NONE, ALL = {ErrorCode.NONE}, {ErrorCode.UNSTABLE_OFFSET_COMMIT}


def ready(disk: FaultyDisk, count: int) -> tuple[GroupClient, tuple[int, int], dict[tuple[str, int], int]]:
    """A broker with `count` partitions, and a producer whose transaction has the group's offsets partition."""
    client = GroupClient(CONFIG, disk=disk)
    topics = [f"t{number}" for number in range(-(-count // MOST_OF_A_TOPIC))]
    sizes = [min(MOST_OF_A_TOPIC, count - number * MOST_OF_A_TOPIC) for number in range(len(topics))]
    for name, size in zip(topics, sizes, strict=True):
        topic = m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=size, replication_factor=1, assignments=[], configs=[]
        )
        client.call(m.CreateTopicsRequest(topics=[topic], timeout_ms=60_000), m.CreateTopicsResponse, 5)
    producer = client.producer()
    assert client.add_offsets(producer) == ErrorCode.NONE
    return client, producer, {(name, i): 3 for name, size in zip(topics, sizes, strict=True) for i in range(size)}


def codes(client: GroupClient, offsets: dict[tuple[str, int], int]) -> set[int]:
    kind = m.OffsetFetchRequest
    indexes: dict[str, list[int]] = {}
    for name, index in offsets:
        indexes.setdefault(name, []).append(index)
    topics = [kind.OffsetFetchRequestTopics(name=name, partition_indexes=few) for name, few in indexes.items()]
    group = kind.OffsetFetchRequestGroup(group_id="g", topics=topics)
    answer = client.call(kind(groups=[group], require_stable=True), m.OffsetFetchResponse, 9)
    found = [one for topic in answer.groups[0].topics for one in topic.partitions]
    assert len(found) == len(offsets)
    return {one.error_code for one in found}


def check(count: int) -> None:
    outcomes = []
    for call in range(1, 20):
        disk = FaultyDisk()
        client, producer, offsets = ready(disk, count)
        disk.lose_power_at = disk.calls + call
        try:
            assert set(client.commit_in_txn(producer, offsets)) == NONE
            died = False
        except PowerLost:
            died = True
        disk.lose_power_at = 0
        again = GroupClient(CONFIG, disk=disk.after_kill(), now_ms=client.timers.now_ms(), seed=8)
        again.timers.advance(0)  # a long log is loaded in several turns
        outcomes.append(codes(again, offsets))
        again.stop()
        if not died:
            break
    assert not died
    assert all(outcome in (NONE, ALL) for outcome in outcomes)
    assert outcomes[0] == NONE  # killed in the middle of the batch
    assert outcomes[-1] == ALL


@pytest.mark.matrix
def test_a_kill_leaves_all_offsets_of_a_commit_or_none() -> None:
    check(300)


@pytest.mark.slow
def test_a_kill_leaves_all_offsets_of_a_very_long_commit_or_none() -> None:
    check(20_000)
