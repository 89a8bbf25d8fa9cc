"""Full garbage collections are short, and what the broker drops does not need them."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from large_requests import large_request, places
from long_batches import NOW
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.requests.dispatch import CloseConnection
from minibroker.server.edge import Edge, Limits
from minibroker.server.full_collections import FullCollections
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.headers import encode_request
from minibroker_protocol.records import Record, build_batch


class Loop:
    """`look` is its next timer."""

    def __init__(self) -> None:
        self._next: Callable[[], None] | None = None

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> Loop:
        self._next = callback
        return self

    def cancel(self) -> None:
        self._next = None

    def look(self) -> tuple[int, int]:
        """Full collections that were made, and by how many objects those that are kept out are more."""
        before, kept_out = full(), gc.get_freeze_count()
        assert self._next is not None
        self._next()
        return full() - before, gc.get_freeze_count() - kept_out


def full() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    collections = FullCollections(made.call_later)
    thresholds = gc.get_threshold()
    collections.start()
    yield made
    collections.stop()
    assert made._next is None, "its timer has ended"
    # What is kept out stays out: `gc.unfreeze` would have later tests go through all that was ever collected by pytest.
    assert gc.get_threshold() == thresholds


def grow(count: int) -> list[Any]:
    """More objects than the collector lets pass, usually."""
    before = full()
    held: list[Any] = [[] for _ in range(count)]
    assert full() == before
    return held


def test_what_is_new_is_gone_through_once(loop: Loop) -> None:
    assert loop.look() == (0, 0), "nothing is new"
    held = [grow(100_000)]
    made, kept_out = loop.look()
    assert made == 1
    assert kept_out >= 100_000
    assert loop.look()[0] == 0
    held.append(grow(100_000))
    assert loop.look()[0] == 1
    del held


def test_very_much_is_kept_out_unseen(loop: Loop) -> None:
    held = grow(200_000)
    made, kept_out = loop.look()
    assert made == 0
    assert kept_out >= 200_000
    held.clear()
    assert loop.look() == (0, 0)
    held = grow(100_000)
    assert loop.look()[0] == 1, "it has shrunk in between"
    del held


# -- no cycles --------------------------------------------------------------------------------------------------------


def serve(cluster: MemoryCluster, frame: bytes | bytearray) -> None:
    try:
        answer = cluster.dispatcher.dispatch(bytearray(frame), ConnectionInfo())
        if isinstance(answer, Deferred):
            for _ in range(50):
                if answer.done:
                    break
                cluster.timers.advance(100)
            answer.result()
    except CloseConnection:
        pass


def garbage(work: Callable[[], object], times: int = 5) -> list[str]:
    """Names of the types of what only the collector frees after `work`, which was done once before."""
    work()
    gc.freeze()  # a collection goes through what `work` leaves, and nothing else
    gc.disable()
    try:
        for _ in range(times):
            work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted({type(one).__name__ for one in gc.garbage})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster(topics={"wide": 4}, config={"unstable.api.versions.enable": "true"})
    for key_type in (0, 1):
        made.send(m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), 4)
        made.timers.advance(100)
    yield made
    made.stop()


def test_no_request_leaves_a_cycle(cluster: MemoryCluster) -> None:
    """Each list of each API once, most of them refused."""
    frames = {
        ".".join((api.name, *path)): cluster.frame(*large_request(api, path, 3, "wide")) for api, path in places()
    }
    for frame in frames.values():
        serve(cluster, frame)

    def found(frame: bytearray) -> list[str]:
        return garbage(lambda: serve(cluster, frame), 2)

    assert {name: left for name, frame in frames.items() if (left := found(frame))} == {}


def produce(topic: str, count: int, **batch: Any) -> m.ProduceRequest:
    records = bytes(build_batch([Record(0, NOW, None, b"v")], **batch))
    partitions = [m.ProduceRequest.PartitionProduceData(index=i, records=records) for i in range(count)]
    data = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)]
    return m.ProduceRequest(transactional_id="x" if batch else None, acks=-1, timeout_ms=30_000, topic_data=data)


def settled(cluster: MemoryCluster, request: Any, version: int) -> Any:
    answer = cluster.send(request, version)
    for _ in range(50):
        if answer.done:
            return answer.result()
        cluster.timers.advance(100)
    raise AssertionError(f"no answer to {type(request).__name__}")


def a_topic(cluster: MemoryCluster) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic(name="d", num_partitions=300, replication_factor=1)
    settled(cluster, m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    settled(cluster, produce("d", 300), 9)
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)
    topics = [m.FetchRequest.FetchTopic(topic="d", partitions=[partition])]
    waiting = m.FetchRequest(max_wait_ms=60_000, min_bytes=1 << 20, max_bytes=1 << 20, topics=topics)
    fetched = cluster.send(waiting, 11)
    settled(cluster, m.DeleteTopicsRequest(topic_names=["d"], timeout_ms=1000), 5)
    cluster.timers.advance(0)
    assert fetched.done


def a_transaction(cluster: MemoryCluster) -> None:
    """Committed, then one that times out."""
    for ends in (True, False):
        begun = settled(cluster, m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 5)
        batch = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch, "base_sequence": 0}
        written = settled(cluster, produce("wide", 2, transactional=True, **batch), 12)
        assert written.responses[0].partition_responses[0].error_code == 0
        if ends:
            end = m.EndTxnRequest(
                transactional_id="x",
                producer_id=begun.producer_id,
                producer_epoch=begun.producer_epoch,
                committed=True,
            )
            assert settled(cluster, end, 5).error_code == 0
    cluster.timers.advance(60_000)


def a_refused_batch(cluster: MemoryCluster) -> None:
    batch = bytearray(build_batch([Record(0, NOW, None, b"v")]))
    batch[-1] ^= 1
    partitions = [m.ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))]
    data = [m.ProduceRequest.TopicProduceData(name="wide", partition_data=partitions)]
    request = m.ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=data)
    assert settled(cluster, request, 9).responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE


def a_classic_member(cluster: MemoryCluster) -> None:
    """It joins, and its session ends."""
    join = m.JoinGroupRequest(
        group_id="h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    assert settled(cluster, join, 3).error_code == 0
    cluster.timers.advance(30_000)


def a_consumer_member(cluster: MemoryCluster) -> None:
    """It joins and leaves."""
    for epoch in (0, -1):
        beat = m.ConsumerGroupHeartbeatRequest(
            group_id="k",
            member_id="m",
            member_epoch=epoch,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["wide"],
            topic_partitions=[],
        )
        assert settled(cluster, beat, 1).error_code == 0


@pytest.mark.parametrize("story", [a_topic, a_refused_batch, a_transaction, a_classic_member, a_consumer_member])
def test_nothing_that_ends_leaves_a_cycle(cluster: MemoryCluster, story: Callable[[MemoryCluster], None]) -> None:
    assert garbage(lambda: story(cluster), 2) == []


@pytest.mark.parametrize(
    "how", ["asks", "is silent", "sends half a frame", "sends a frame that is too large", "asks too much"]
)
async def test_no_connection_is_part_of_a_cycle(cluster: MemoryCluster, how: str) -> None:
    """A transport of asyncio holds itself, but not what the broker made for it."""
    loop = asyncio.get_running_loop()
    edge = Edge(loop, Limits(), refusals=(CloseConnection,))
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    await edge.listen(listener, cluster.dispatcher.dispatch)
    body = encode_request(m.ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3, 1, "x")
    many = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")] * 300_000)
    much = encode_request(many, 1, 1, "x") if how == "asks too much" else b""
    sent = {
        "asks": len(body).to_bytes(4, "big") + body,
        "sends half a frame": b"\0\0\1\0abc",
        "sends a frame that is too large": b"\x7f\xff\xff\xff",
        "asks too much": len(much).to_bytes(4, "big") + much,
    }

    async def connect() -> None:
        with socket.create_connection(address) as client:
            client.setblocking(False)
            while not edge.connections:  # noqa: ASYNC110  (what is waited for is of the loop itself)
                await asyncio.sleep(0)
            if how in sent:
                await loop.sock_sendall(client, sent[how])
            if how == "asks":
                assert await loop.sock_recv(client, 4096)
            if how in ("sends a frame that is too large", "asks too much"):
                assert await loop.sock_recv(client, 4096) == b""
        while edge.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)

    await connect()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for _ in range(3):
            await connect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = {type(one) for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        await edge.close()
    assert not [kind for kind in left if "minibroker" in kind.__module__]
