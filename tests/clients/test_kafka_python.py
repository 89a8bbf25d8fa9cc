"""kafka-python against a running broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

kafka = pytest.importorskip("kafka")
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition  # noqa: E402
from kafka.admin import NewTopic  # noqa: E402
from kafka.errors import (  # noqa: E402
    InvalidProducerEpochError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    TopicAlreadyExistsError,
)

pytestmark = pytest.mark.clients

SECONDS = 30.0
Unique = Callable[[str], str]


@contextmanager
def closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.close()


def admin_client(bootstrap: str) -> Any:
    return closing(KafkaAdminClient(bootstrap_servers=bootstrap))


def producer(bootstrap: str, **config: Any) -> Any:
    return closing(KafkaProducer(bootstrap_servers=bootstrap, **config))


def consumer(bootstrap: str, *topics: str, **config: Any) -> Any:
    settings = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 100,
        # The client can miss a topic that is being created; it asks again only this often.
        "metadata_max_age_ms": 2000,
        **config,
    }
    return closing(KafkaConsumer(*topics, bootstrap_servers=bootstrap, **settings))


@pytest.fixture
def topic(bootstrap: str, unique: Unique) -> str:
    name = unique("kpy")
    create(bootstrap, name)
    return name


def create(bootstrap: str, name: str, partitions: int = 1) -> None:
    with admin_client(bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])


def read_to_end(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    place = TopicPartition(topic, 0)
    records: list[Any] = []
    with consumer(bootstrap, isolation_level=isolation) as reader:
        reader.assign([place])
        end = reader.end_offsets([place])[place]
        deadline = time.monotonic() + SECONDS
        while reader.position(place) < end:
            assert time.monotonic() < deadline, f"position {reader.position(place)} of {end}"
            records += reader.poll(200).get(place, [])
    return records


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def test_idempotent_produce_keeps_order_and_offsets(bootstrap: str, topic: str) -> None:
    with producer(
        bootstrap, enable_idempotence=True, batch_size=200, max_in_flight_requests_per_connection=5
    ) as sender:
        waiting = [sender.send(topic, b"%d" % number, partition=0) for number in range(300)]
        assert [one.get(SECONDS).offset for one in waiting] == list(range(300))
    assert values(read_to_end(bootstrap, topic)) == [b"%d" % number for number in range(300)]


def test_commit_and_abort(bootstrap: str, topic: str, unique: Unique) -> None:
    with producer(bootstrap, transactional_id=unique("tx")) as sender:
        sender.init_transactions()
        ends = (("kept", sender.commit_transaction), ("dropped", sender.abort_transaction))
        for word, end in (*ends, ("kept too", sender.commit_transaction)):
            sender.begin_transaction()
            sender.send(topic, word.encode()).get(SECONDS)
            end()
    assert values(read_to_end(bootstrap, topic)) == [b"kept", b"kept too"]
    assert values(read_to_end(bootstrap, topic, "read_uncommitted")) == [b"kept", b"dropped", b"kept too"]


@pytest.mark.seed("447-1", semantics="kafka", how="kafka-python")
def test_second_producer_fences_the_first(bootstrap: str, topic: str, unique: Unique) -> None:
    name = unique("tx")
    with producer(bootstrap, transactional_id=name) as first, producer(bootstrap, transactional_id=name) as second:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"of the zombie").get(SECONDS)
        second.init_transactions()
        second.begin_transaction()
        second.send(topic, b"of the living").get(SECONDS)
        second.commit_transaction()
        with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
            first.send(topic, b"too late").get(SECONDS)
            first.commit_transaction()
    assert values(read_to_end(bootstrap, topic)) == [b"of the living"]


@pytest.mark.seed("447-2", semantics="kafka", how="kafka-python")
def test_offsets_move_with_the_transaction(bootstrap: str, topic: str, unique: Unique) -> None:
    target, group = unique("out"), unique("group")
    create(bootstrap, target)
    place = TopicPartition(topic, 0)
    with producer(bootstrap) as feeder:
        for number in range(10):
            feeder.send(topic, b"%d" % number).get(SECONDS)
    with (
        consumer(bootstrap, topic, group_id=group) as reader,
        producer(bootstrap, transactional_id=unique("tx")) as sender,
    ):
        assert values(take(reader, 10)) == [b"%d" % number for number in range(10)]
        sender.init_transactions()
        for offset, end in ((4, sender.commit_transaction), (9, sender.abort_transaction)):
            sender.begin_transaction()
            sender.send(target, b"%d" % offset)
            sender.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "", -1)}, reader.group_metadata())
            end()
            # A commit is answered before its marker reaches the group, and this client does not ask for stable offsets.
            wait_for(lambda: reader.committed(place) == 4)
        sender.begin_transaction()  # the first send of this one waits until the abort is complete
        sender.send(target, b"end").get(SECONDS)
        sender.commit_transaction()
        assert reader.committed(place) == 4
    assert values(read_to_end(bootstrap, target)) == [b"4", b"end"]


def take(reader: Any, count: int) -> list[Any]:
    taken: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(taken) < count and time.monotonic() < deadline:
        for records in reader.poll(200).values():
            taken += records
    return taken


def test_group_rebalances(bootstrap: str, unique: Unique) -> None:
    name, group = unique("shared"), unique("group")
    create(bootstrap, name, 4)
    settings = {"group_id": group, "heartbeat_interval_ms": 200, "session_timeout_ms": 10000}
    with consumer(bootstrap, name, **settings) as one:
        wait_for(lambda: sizes(one) == [4])
        with consumer(bootstrap, name, **settings) as two:
            wait_for(lambda: sizes(one, two) == [2, 2])
            assert one.assignment() | two.assignment() == {TopicPartition(name, index) for index in range(4)}
        wait_for(lambda: sizes(one) == [4])
    with admin_client(bootstrap) as admin:
        assert group in [listed["group_id"] for listed in admin.list_groups()]


def sizes(*members: Any) -> list[int]:
    for member in members:
        member.poll(50)
    return [len(member.assignment()) for member in members]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"


def test_topics_are_created_listed_and_deleted(bootstrap: str, unique: Unique) -> None:
    name = unique("made")
    create(bootstrap, name, 3)
    with admin_client(bootstrap) as admin:
        assert len(admin.describe_topics([name])[0]["partitions"]) == 3
        assert name in listed(admin)
        with pytest.raises(TopicAlreadyExistsError):
            create(bootstrap, name)
        admin.delete_topics([name])
        wait_for(lambda: name not in listed(admin))


def listed(admin: Any) -> list[str]:
    return [topic if isinstance(topic, str) else topic["name"] for topic in admin.list_topics()]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_compressed_messages(bootstrap: str, topic: str, codec: str | None) -> None:
    module = {"snappy": "snappy", "lz4": "lz4", "zstd": "zstandard"}.get(codec or "")
    if module:
        pytest.importorskip(module)
    sent = [(b"%d " % number) * 500 for number in range(50)]
    with producer(bootstrap, compression_type=codec, linger_ms=20, batch_size=200_000) as sender:
        for waiting in [sender.send(topic, value, headers=[("h", b"v")]) for value in sent]:
            waiting.get(SECONDS)
    records = read_to_end(bootstrap, topic)
    assert values(records) == sent
    assert list(records[0].headers) == [("h", b"v")]


def test_large_messages_up_to_the_limit(bootstrap: str, topic: str) -> None:
    with producer(bootstrap, max_request_size=8_000_000) as sender:
        sender.send(topic, b"x" * 1_040_000).get(SECONDS)
        with pytest.raises(MessageSizeTooLargeError):
            sender.send(topic, b"x" * 2_000_000).get(SECONDS)
    assert [len(value) for value in values(read_to_end(bootstrap, topic))] == [1_040_000]


def test_seek_by_timestamp(bootstrap: str, topic: str) -> None:
    start = int(time.time() * 1000) - 60_000
    with producer(bootstrap) as sender:
        for number in range(10):
            sender.send(topic, b"%d" % number, timestamp_ms=start + number * 1000).get(SECONDS)
    place = TopicPartition(topic, 0)
    with consumer(bootstrap) as reader:
        reader.assign([place])
        found = reader.offsets_for_times({place: start + 4500})[place]
        assert (found.offset, found.timestamp) == (5, start + 5000)
        assert reader.offsets_for_times({place: start + 60_000})[place] is None
        reader.seek(place, 5)
        assert take(reader, 1)[0].value == b"5"
