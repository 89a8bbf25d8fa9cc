"""confluent-kafka (librdkafka) against a running broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import (  # noqa: E402
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

pytestmark = pytest.mark.clients

SECONDS = 30.0
Unique = Callable[[str], str]


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient, unique: Unique) -> str:
    name = unique("confluent")
    create(admin, NewTopic(name, 1, 1))
    return name


def create(admin: AdminClient, *topics: NewTopic) -> None:
    for future in admin.create_topics(list(topics)).values():
        future.result(SECONDS)


def producer(bootstrap: str, **config: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, **{k.replace("_", "."): v for k, v in config.items()}}
    )


def transactional(bootstrap: str, transactional_id: str, **config: Any) -> Producer:
    made = producer(bootstrap, transactional_id=transactional_id, **config)
    made.init_transactions(SECONDS)
    return made


@contextmanager
def consumer(bootstrap: str, group: str = "none", **config: Any) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )
    try:
        yield made
    finally:
        made.close()


def read_to_end(bootstrap: str, topic: str, isolation: str = "read_committed", start: int = 0) -> list[Any]:
    """Every message of partition 0 that this isolation level shows, up to the partition's end as this level sees it."""
    messages: list[Any] = []
    with consumer(bootstrap, isolation_level=isolation, enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, start)])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return messages
            else:
                raise KafkaException(error)
    raise AssertionError(f"end of {topic} not reached, got {len(messages)} messages")


def values(messages: list[Any]) -> list[bytes]:
    return [message.value() for message in messages]


def test_idempotent_produce_keeps_order_and_offsets(bootstrap: str, topic: str) -> None:
    sender = producer(bootstrap, enable_idempotence=True, max_in_flight=5, batch_num_messages=7)
    offsets: list[int] = []
    failed: list[Any] = []
    for number in range(500):
        sender.produce(
            topic, b"%d" % number, on_delivery=lambda e, m: failed.append(e) if e else offsets.append(m.offset())
        )
        sender.poll(0)
    assert sender.flush(SECONDS) == 0
    assert failed == []
    assert offsets == list(range(500))
    assert values(read_to_end(bootstrap, topic)) == [b"%d" % number for number in range(500)]


def test_commit_and_abort(bootstrap: str, topic: str, unique: Unique) -> None:
    sender = transactional(bootstrap, unique("tx"))
    for word, end in (
        ("one", sender.commit_transaction),
        ("two", sender.abort_transaction),
        ("three", sender.commit_transaction),
    ):
        sender.begin_transaction()
        for number in range(3):
            sender.produce(topic, f"{word}-{number}".encode())
        sender.flush(SECONDS)
        end(SECONDS)
    kept = [f"{word}-{number}".encode() for word in ("one", "three") for number in range(3)]
    everything = [f"{word}-{number}".encode() for word in ("one", "two", "three") for number in range(3)]
    assert values(read_to_end(bootstrap, topic)) == kept
    uncommitted = read_to_end(bootstrap, topic, "read_uncommitted")
    assert values(uncommitted) == everything
    # Each end of a transaction takes one offset: 0-2, marker 3, 4-6, marker 7, 8-10.
    assert [message.offset() for message in uncommitted] == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def test_open_transaction_holds_read_committed_back(bootstrap: str, topic: str, unique: Unique) -> None:
    sender = transactional(bootstrap, unique("tx"))
    sender.begin_transaction()
    sender.produce(topic, b"open")
    sender.flush(SECONDS)
    plain = producer(bootstrap)
    plain.produce(topic, b"plain")
    assert plain.flush(SECONDS) == 0
    assert values(read_to_end(bootstrap, topic)) == []
    assert values(read_to_end(bootstrap, topic, "read_uncommitted")) == [b"open", b"plain"]
    sender.commit_transaction(SECONDS)
    assert values(read_to_end(bootstrap, topic)) == [b"open", b"plain"]


@pytest.mark.seed("447-1", "588-4", semantics="kafka", how="confluent-kafka")
def test_second_producer_fences_the_first(bootstrap: str, topic: str, unique: Unique) -> None:
    name = unique("tx")
    first = transactional(bootstrap, name)
    first.begin_transaction()
    first.produce(topic, b"of the zombie")
    first.flush(SECONDS)
    second = transactional(bootstrap, name)
    second.begin_transaction()
    second.produce(topic, b"of the living")
    second.commit_transaction(SECONDS)
    first.produce(topic, b"too late")
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(SECONDS)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert caught.value.args[0].fatal()
    assert values(read_to_end(bootstrap, topic)) == [b"of the living"]


@pytest.mark.seed("447-2", semantics="kafka", how="confluent-kafka")
def test_offsets_move_with_the_transaction(bootstrap: str, admin: AdminClient, unique: Unique) -> None:
    source, target, group = unique("in"), unique("out"), unique("group")
    create(admin, NewTopic(source, 1, 1), NewTopic(target, 1, 1))
    feeder = producer(bootstrap)
    for number in range(10):
        feeder.produce(source, b"%d" % number)
    assert feeder.flush(SECONDS) == 0
    sender = transactional(bootstrap, unique("tx"))
    with consumer(bootstrap, group) as reader:
        reader.subscribe([source])
        taken = take(reader, 10)
        assert len(taken) == 10
        place = TopicPartition(source, 0)
        for offset, end in ((4, sender.commit_transaction), (9, sender.abort_transaction)):
            sender.begin_transaction()
            sender.produce(target, b"%d" % offset)
            sender.send_offsets_to_transaction(
                [TopicPartition(source, 0, offset)], reader.consumer_group_metadata(), SECONDS
            )
            end(SECONDS)
            # What an abort leaves is what the last commit put there.
            assert reader.committed([place], SECONDS)[0].offset == 4
    assert values(read_to_end(bootstrap, target)) == [b"4"]


def take(reader: Consumer, count: int, seconds: float = SECONDS) -> list[Any]:
    taken: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(taken) < count and time.monotonic() < deadline:
        message = reader.poll(0.1)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            taken.append(message)
    return taken


@pytest.mark.seed("447-4", semantics="kafka", how="confluent-kafka")
def test_stale_group_generation_is_fenced(bootstrap: str, admin: AdminClient, unique: Unique) -> None:
    source, group = unique("in"), unique("group")
    create(admin, NewTopic(source, 1, 1))
    feeder = producer(bootstrap)
    feeder.produce(source, b"x")
    assert feeder.flush(SECONDS) == 0
    with consumer(bootstrap, group) as reader:
        reader.subscribe([source])
        assert take(reader, 1)
        stale = reader.consumer_group_metadata()
    with consumer(bootstrap, group) as reader:
        reader.subscribe([source])
        assert take(reader, 1)
        sender = transactional(bootstrap, unique("tx"))
        sender.begin_transaction()
        with pytest.raises(KafkaException) as caught:
            sender.send_offsets_to_transaction([TopicPartition(source, 0, 1)], stale, SECONDS)
        assert caught.value.args[0].txn_requires_abort()
        sender.abort_transaction(SECONDS)
        assert reader.committed([TopicPartition(source, 0)], SECONDS)[0].offset < 0


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_group_rebalances(bootstrap: str, admin: AdminClient, unique: Unique, strategy: str) -> None:
    name, group = unique("shared"), unique("group")
    create(admin, NewTopic(name, 4, 1))
    settings = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 200, "session_timeout_ms": 10000}
    with consumer(bootstrap, group, **settings) as one:
        one.subscribe([name])
        wait_for(lambda: sizes(one) == [4])
        with consumer(bootstrap, group, **settings) as two:
            two.subscribe([name])
            wait_for(lambda: sizes(one, two) == [2, 2])
            parts = [(p.topic, p.partition) for c in (one, two) for p in c.assignment()]
            assert sorted(parts) == [(name, index) for index in range(4)]
            described = admin.describe_consumer_groups([group])[group].result(SECONDS)
            assert described.state.name == "STABLE"
            assert len(described.members) == 2
        wait_for(lambda: sizes(one) == [4])


def sizes(*members: Consumer) -> list[int]:
    for member in members:
        message = member.poll(0.05)
        assert message is None or message.error() is None, message.error()
    return [len(member.assignment()) for member in members]


def wait_for(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def test_committed_offsets_are_resumed_from(bootstrap: str, topic: str, unique: Unique) -> None:
    group = unique("group")
    sender = producer(bootstrap)
    for number in range(6):
        sender.produce(topic, b"%d" % number)
    assert sender.flush(SECONDS) == 0
    with consumer(bootstrap, group) as reader:
        reader.subscribe([topic])
        assert values(take(reader, 3)) == [b"0", b"1", b"2"]
        reader.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    with consumer(bootstrap, group) as reader:
        reader.subscribe([topic])
        assert values(take(reader, 3)) == [b"3", b"4", b"5"]


def test_topics_are_created_listed_and_deleted(bootstrap: str, admin: AdminClient, unique: Unique) -> None:
    name = unique("made")
    create(admin, NewTopic(name, 3, 1, config={"retention.ms": "123456"}))
    assert len(admin.list_topics(name, timeout=SECONDS).topics[name].partitions) == 3
    assert name in admin.list_topics(timeout=SECONDS).topics
    resource = ConfigResource(ResourceType.TOPIC, name)
    config = admin.describe_configs([resource])[resource].result(SECONDS)
    assert config["retention.ms"].value == "123456"
    with pytest.raises(KafkaException) as caught:
        create(admin, NewTopic(name, 1, 1))
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(name, 5)])[name].result(SECONDS)
    wait_for(lambda: len(admin.list_topics(name, timeout=SECONDS).topics[name].partitions) == 5)
    admin.delete_topics([name])[name].result(SECONDS)
    wait_for(lambda: name not in admin.list_topics(timeout=SECONDS).topics)


def test_unknown_topic_is_created_by_its_first_producer(bootstrap: str, unique: Unique) -> None:
    name = unique("auto")
    sender = producer(bootstrap)
    sender.produce(name, b"first")
    assert sender.flush(SECONDS) == 0
    assert values(read_to_end(bootstrap, name)) == [b"first"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_messages(bootstrap: str, topic: str, codec: str) -> None:
    sender = producer(bootstrap, compression_type=codec, linger_ms=50, enable_idempotence=True)
    sent = [(b"%d " % number) * 500 for number in range(50)]
    for value in sent:
        sender.produce(topic, value, headers={"codec": codec})
    assert sender.flush(SECONDS) == 0
    got = read_to_end(bootstrap, topic)
    assert values(got) == sent
    assert got[0].headers() == [("codec", codec.encode())]


def test_large_messages_up_to_the_limit(bootstrap: str, topic: str) -> None:
    sender = producer(bootstrap, message_max_bytes=8_000_000)
    outcomes: list[Any] = []
    for size in (900_000, 1_040_000, 2_000_000):
        sender.produce(topic, b"x" * size, on_delivery=lambda e, m: outcomes.append(e and e.code()))
        assert sender.flush(SECONDS) == 0
    # max.message.bytes is 1048588 by default; the last message is above it.
    assert outcomes == [None, None, KafkaError.MSG_SIZE_TOO_LARGE]
    assert [len(value) for value in values(read_to_end(bootstrap, topic))] == [900_000, 1_040_000]


def test_seek_by_timestamp(bootstrap: str, topic: str) -> None:
    start = int(time.time() * 1000) - 60_000
    sender = producer(bootstrap)
    for number in range(10):
        sender.produce(topic, b"%d" % number, timestamp=start + number * 1000)
        assert sender.flush(SECONDS) == 0
    with consumer(bootstrap) as reader:
        found = reader.offsets_for_times([TopicPartition(topic, 0, start + 4500)], SECONDS)
        assert found[0].offset == 5
        assert reader.offsets_for_times([TopicPartition(topic, 0, start + 60_000)], SECONDS)[0].offset < 0
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (0, 10)
    assert values(read_to_end(bootstrap, topic, start=5))[0] == b"5"


def test_admin_sees_offsets_and_deletes_records(bootstrap: str, admin: AdminClient, topic: str) -> None:
    sender = producer(bootstrap)
    for number in range(10):
        sender.produce(topic, b"%d" % number)
    assert sender.flush(SECONDS) == 0
    place = TopicPartition(topic, 0)
    assert admin.list_offsets({place: OffsetSpec.latest()})[place].result(SECONDS).offset == 10
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(deleted.values())).result(SECONDS).low_watermark == 4
    assert admin.list_offsets({place: OffsetSpec.earliest()})[place].result(SECONDS).offset == 4
    assert values(read_to_end(bootstrap, topic, start=4))[0] == b"4"
