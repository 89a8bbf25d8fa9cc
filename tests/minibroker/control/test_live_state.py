"""What the live page is told of partitions, groups, transactional ids and brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from minibroker import Minibroker
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.control.live_state import AT_A_LOOK, GONE_KEPT, LiveState
from minibroker_protocol import messages as m
from minibroker_protocol.records import Record, build_batch


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster(topics={"orders": 2 * AT_A_LOOK})
    yield made
    made.stop()


def batch(producer: Producer, sequence: int) -> bytes:
    named = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    records = [Record(0, 1_700_000_000_000, None, b"v")] * 3
    return bytes(build_batch(records, base_sequence=sequence, transactional=True, **named))


def topic(name: str, partitions: int) -> m.CreateTopicsRequest.CreatableTopic:
    return m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )


def changes(state: LiveState, version: int = 0) -> tuple[int, list[dict[str, Any]]]:
    known = state.since(version)
    assert known is not None
    return known


def rows(state: LiveState, version: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["name"]): row for row in changes(state, version)[1]}


def create(cluster: MemoryCluster, made: m.CreateTopicsRequest.CreatableTopic) -> None:
    cluster.send(m.CreateTopicsRequest(topics=[made], timeout_ms=1000), 4)
    cluster.timers.advance(1000)


def delete(cluster: MemoryCluster, name: str) -> None:
    cluster.send(m.DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 4)
    cluster.timers.advance(1000)


def look_at_all(state: LiveState, partitions: int) -> None:
    """A whole round: the partitions and the broker."""
    for _ in range((partitions + 1) // AT_A_LOOK + 1):
        state.look()


def seen(cluster: Any) -> dict[tuple[str, str], dict[str, Any]]:
    state = LiveState(cluster)
    state.look()
    return rows(state)


def test_a_look_is_short_and_the_next_one_goes_on(cluster: MemoryCluster) -> None:
    state = LiveState(cluster.cluster)
    state.look()
    assert [row["name"] for row in changes(state)[1]] == [f"orders-{index}" for index in range(AT_A_LOOK)]
    state.look()
    state.look()
    assert len([key for key in rows(state) if key[0] == "partition"]) == 2 * AT_A_LOOK
    assert rows(state)["broker", "1"] == {"kind": "broker", "name": "1", "leads": 2 * AT_A_LOOK, "controller": True}


def test_what_is_as_before_is_not_told_again(cluster: MemoryCluster) -> None:
    state = LiveState(cluster.cluster)
    for _ in range(3):
        state.look()
    version, _ = changes(state)
    cluster.cluster.stop_controller()
    for _ in range(3):
        state.look()
    assert rows(state, version) == {
        ("broker", "1"): {"kind": "broker", "name": "1", "leads": 2 * AT_A_LOOK, "controller": False}
    }
    version, none = changes(state, changes(state)[0])
    assert none == []


def test_what_is_gone_is_told_once(cluster: MemoryCluster) -> None:
    state = LiveState(cluster.cluster)
    for _ in range(3):
        state.look()
    version, _ = changes(state)
    cluster.send(m.DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000), 4)
    cluster.timers.advance(1000)
    state.look()
    told = rows(state, version)
    assert told["partition", "orders-0"] == {"kind": "partition", "name": "orders-0", "gone": True}
    assert len(told) == 2 * AT_A_LOOK + 1  # the broker leads none now
    version, _ = changes(state)
    state.look()
    assert rows(state, version) == {}


def test_what_is_gone_is_not_told_to_who_comes_later(cluster: MemoryCluster) -> None:
    state = LiveState(cluster.cluster)
    for _ in range(3):
        state.look()
    cluster.send(m.DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000), 4)
    cluster.timers.advance(1000)
    state.look()
    assert list(rows(state)) == [("broker", "1")]


def test_only_some_of_what_is_gone_is_kept(cluster: MemoryCluster) -> None:
    """A page that is further behind begins again."""
    orders, many = 2 * AT_A_LOOK, GONE_KEPT + 10
    state = LiveState(cluster.cluster)
    create(cluster, topic("many", many))
    look_at_all(state, orders + many)
    version, _ = changes(state)
    delete(cluster, "many")
    look_at_all(state, orders)
    assert state.since(version) is None
    # Ten are forgotten, and the broker's own row changed before.
    assert len(changes(state, version + 10 + 1)[1]) == GONE_KEPT
    # What is there again is not removed with those that are gone.
    create(cluster, topic("many", many))
    look_at_all(state, orders + many)
    delete(cluster, "orders")
    look_at_all(state, many)
    assert len(rows(state)) == many + 1


def test_rows_have_offsets_states_and_members() -> None:
    with (
        Minibroker(ephemeral=True, topics={"orders": 1}) as broker,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        committed = client.init_producer_id("app", 60_000, transaction_version=2)
        client.produce(committed, "orders", 0, batch(committed, 0))
        client.commit_offset(committed, "g", "orders", 0, 7, "")
        client.end(committed, commit=True)
        aborted = client.init_producer_id("app", 60_000, transaction_version=2)
        client.produce(aborted, "orders", 0, batch(aborted, 0))
        client.end(aborted, commit=False)
        still = client.init_producer_id("app", 60_000, transaction_version=2)
        client.produce(still, "orders", 0, batch(still, 0))
        client.commit_offset(still, "g", "orders", 0, 9, "")
        found = broker.cluster.run(seen)
    partition = found["partition", "orders-0"]
    expected = {"leader": 1, "start": 0, "stable": 8, "high": 11, "end": 11, "isr": [1], "internal": False}
    assert partition.items() >= expected.items()
    assert partition["aborted"] == [[4, 7]]
    assert partition["open"] == [[8, still.producer_id]]
    group = found["group", "g"]
    assert (group["state"], group["committed"], group["pending"]) == ("Empty", {"orders-0": 7}, {"orders-0": 9})
    transaction = found["transaction", "app"]
    assert (transaction["state"], transaction["epoch"]) == ("Ongoing", still.producer_epoch)


def test_what_was_not_used_is_not_opened_to_be_seen(tmp_path: Path) -> None:
    """Looking makes no files, and a partition without a log has no offsets."""
    with Minibroker(data_dir=tmp_path, topics={"orders": 3}) as broker:
        files = sorted(tmp_path.rglob("*"))
        partition = broker.cluster.run(seen)["partition", "orders-2"]
        assert "end" not in partition
        assert sorted(tmp_path.rglob("*")) == files
