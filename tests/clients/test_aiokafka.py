"""aiokafka against a running broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

aiokafka = pytest.importorskip("aiokafka")
from aiokafka import (  # noqa: E402
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRecord,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # noqa: E402
from aiokafka.errors import MessageSizeTooLargeError, ProducerFenced, TopicAlreadyExistsError  # noqa: E402

pytestmark = pytest.mark.clients

SECONDS = 30.0
Unique = Callable[[str], str]


@asynccontextmanager
async def admin_client(bootstrap: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[Any]:
    sender = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await sender.start()
    try:
        yield sender
    finally:
        await sender.stop()


@asynccontextmanager
async def consumer(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[Any]:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100, **config}
    reader = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **settings)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


async def create(bootstrap: str, name: str, partitions: int = 1) -> None:
    async with admin_client(bootstrap) as admin:
        response = await admin.create_topics([NewTopic(name, partitions, 1)])
        for topic in response.topic_errors:
            assert topic[1] in (0, TopicAlreadyExistsError.errno), topic
            if topic[1]:
                raise TopicAlreadyExistsError(name)


async def read_to_end(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[ConsumerRecord]:
    """Every message of partition 0 that this isolation level shows, up to the end offset as this level sees it."""
    place = TopicPartition(topic, 0)
    records: list[ConsumerRecord] = []
    async with consumer(bootstrap, isolation_level=isolation) as reader:
        reader.assign([place])
        end = (await reader.end_offsets([place]))[place]
        deadline = time.monotonic() + SECONDS
        while await reader.position(place) < end:
            assert time.monotonic() < deadline, f"position {await reader.position(place)} of {end}"
            batch = await reader.getmany(place, timeout_ms=200)
            records += batch.get(place, [])
    return records


def values(records: list[ConsumerRecord]) -> list[bytes]:
    return [record.value for record in records]


async def test_idempotent_produce_keeps_order_and_offsets(bootstrap: str, unique: Unique) -> None:
    topic = unique("aio")
    await create(bootstrap, topic)
    async with producer(bootstrap, enable_idempotence=True, acks="all", max_batch_size=200) as sender:
        waiting = [await sender.send(topic, b"%d" % number, partition=0) for number in range(300)]
        offsets = [(await one).offset for one in waiting]
    assert offsets == list(range(300))
    assert values(await read_to_end(bootstrap, topic)) == [b"%d" % number for number in range(300)]


async def test_commit_and_abort(bootstrap: str, unique: Unique) -> None:
    topic = unique("aio")
    await create(bootstrap, topic)
    async with producer(bootstrap, transactional_id=unique("tx")) as sender:
        async with sender.transaction():
            await sender.send_and_wait(topic, b"kept")
        with pytest.raises(ZeroDivisionError):
            async with sender.transaction():
                await sender.send_and_wait(topic, b"dropped")
                raise ZeroDivisionError
        async with sender.transaction():
            await sender.send_and_wait(topic, b"kept too")
    assert values(await read_to_end(bootstrap, topic)) == [b"kept", b"kept too"]
    assert values(await read_to_end(bootstrap, topic, "read_uncommitted")) == [b"kept", b"dropped", b"kept too"]


@pytest.mark.seed("447-1", semantics="kafka", how="aiokafka")
async def test_second_producer_fences_the_first(bootstrap: str, unique: Unique) -> None:
    topic, name = unique("aio"), unique("tx")
    await create(bootstrap, topic)
    async with producer(bootstrap, transactional_id=name) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"of the zombie")
        async with producer(bootstrap, transactional_id=name) as second, second.transaction():
            await second.send_and_wait(topic, b"of the living")
        with pytest.raises(ProducerFenced):
            await first.send_and_wait(topic, b"too late")
            await first.commit_transaction()
    assert values(await read_to_end(bootstrap, topic)) == [b"of the living"]


@pytest.mark.seed("447-2", semantics="kafka", how="aiokafka")
async def test_offsets_move_with_the_transaction(bootstrap: str, unique: Unique) -> None:
    source, target, group = unique("in"), unique("out"), unique("group")
    await create(bootstrap, source)
    await create(bootstrap, target)
    place = TopicPartition(source, 0)
    async with producer(bootstrap) as feeder:
        for number in range(10):
            await feeder.send_and_wait(source, b"%d" % number)
    async with (
        consumer(bootstrap, source, group_id=group, isolation_level="read_committed") as reader,
        producer(bootstrap, transactional_id=unique("tx")) as sender,
    ):
        taken = [await asyncio.wait_for(reader.getone(), SECONDS) for _ in range(10)]
        assert values(taken) == [b"%d" % number for number in range(10)]
        async with sender.transaction():
            await sender.send(target, b"4")
            await sender.send_offsets_to_transaction({place: OffsetAndMetadata(4, "")}, group)
        # The commit is answered before its marker reaches the group, and this client does not ask for stable offsets.
        await wait_until(reader.committed, place, 4)
        await sender.begin_transaction()
        await sender.send(target, b"9")
        await sender.send_offsets_to_transaction({place: OffsetAndMetadata(9, "")}, group)
        await sender.abort_transaction()
        async with sender.transaction():  # can only begin once the abort is complete
            await sender.send(target, b"end")
        assert await reader.committed(place) == 4
    assert values(await read_to_end(bootstrap, target)) == [b"4", b"end"]


async def wait_until(
    committed: Callable[[TopicPartition], Awaitable[int | None]], place: TopicPartition, offset: int
) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := await committed(place)) != offset:
        assert time.monotonic() < deadline, f"committed offset {found}, expected {offset}"
        await asyncio.sleep(0.02)


async def test_group_rebalances(bootstrap: str, unique: Unique) -> None:
    topic, group = unique("shared"), unique("group")
    await create(bootstrap, topic, 4)
    settings = {"group_id": group, "heartbeat_interval_ms": 200, "session_timeout_ms": 10000}
    async with consumer(bootstrap, topic, **settings) as one:
        await wait_for(lambda: len(one.assignment()) == 4)
        async with consumer(bootstrap, topic, **settings) as two:
            await wait_for(lambda: (len(one.assignment()), len(two.assignment())) == (2, 2))
            assert one.assignment() | two.assignment() == {TopicPartition(topic, index) for index in range(4)}
        await wait_for(lambda: len(one.assignment()) == 4)


async def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        await asyncio.sleep(0.05)


async def test_topics_are_created_listed_and_deleted(bootstrap: str, unique: Unique) -> None:
    topic = unique("made")
    await create(bootstrap, topic, 3)
    async with admin_client(bootstrap) as admin:
        described = await admin.describe_topics([topic])
        assert len(described[0]["partitions"]) == 3
        assert topic in await admin.list_topics()
        with pytest.raises(TopicAlreadyExistsError):
            await create(bootstrap, topic)
        await admin.delete_topics([topic])
        deadline = time.monotonic() + SECONDS
        while topic in await admin.list_topics():
            assert time.monotonic() < deadline


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_compressed_messages(bootstrap: str, unique: Unique, codec: str | None) -> None:
    topic = unique("aio")
    await create(bootstrap, topic)
    sent = [(b"%d " % number) * 500 for number in range(50)]
    async with producer(bootstrap, compression_type=codec, linger_ms=20, max_batch_size=200_000) as sender:
        for waiting in [await sender.send(topic, value, headers=[("h", b"v")]) for value in sent]:
            await waiting
    records = await read_to_end(bootstrap, topic)
    assert values(records) == sent
    assert records[0].headers == (("h", b"v"),)


async def test_large_messages_up_to_the_limit(bootstrap: str, unique: Unique) -> None:
    topic = unique("aio")
    await create(bootstrap, topic)
    async with producer(bootstrap, max_request_size=8_000_000) as sender:
        await sender.send_and_wait(topic, b"x" * 1_040_000)
        with pytest.raises(MessageSizeTooLargeError):
            await sender.send_and_wait(topic, b"x" * 2_000_000)
    assert [len(value) for value in values(await read_to_end(bootstrap, topic))] == [1_040_000]


async def test_seek_by_timestamp(bootstrap: str, unique: Unique) -> None:
    topic = unique("aio")
    await create(bootstrap, topic)
    start = int(time.time() * 1000) - 60_000
    async with producer(bootstrap) as sender:
        for number in range(10):
            await sender.send_and_wait(topic, b"%d" % number, timestamp_ms=start + number * 1000)
    place = TopicPartition(topic, 0)
    async with consumer(bootstrap) as reader:
        reader.assign([place])
        found = await reader.offsets_for_times({place: start + 4500})
        assert (found[place].offset, found[place].timestamp) == (5, start + 5000)
        assert (await reader.offsets_for_times({place: start + 60_000}))[place] is None
        reader.seek(place, 5)
        assert (await asyncio.wait_for(reader.getone(place), SECONDS)).value == b"5"
