"""What is measured. A scenario takes a running broker and returns figures by name; times of brokers are CPU times."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from statistics import median, quantiles
from typing import Any

from targets import Target, cpu_seconds
from wire import FETCH_VERSION, PRODUCE_VERSION, Connection, create_topic, fetch_frame, produce_frame

from minibroker_protocol.messages import FetchResponse, MetadataRequest, ProduceResponse
from minibroker_protocol.records import iter_batches

Figures = dict[str, float]

IN_FLIGHT = 5
RECORD_BYTES = 100
BULK_BATCH_RECORDS = 9_200  # with record overhead about one megabyte, the most a batch may be by default
BULK_BATCHES = 100
SMALL_REQUESTS = 8_000
LATENCY_SAMPLES = 2_000
UNEVEN_BYTES = (40, 160)
USERS_RECORDS = 300_000
FETCH_BYTES = 1 << 20
TRANSACTIONS = 300
TRANSACTION_RECORDS = 10
CLIENT_SECONDS = 30.0


class Meter:
    """Wall time and the broker's CPU time over a block, in seconds."""

    wall = 0.0
    cpu = float("nan")


@contextmanager
def metered(target: Target) -> Iterator[Meter]:
    meter = Meter()
    before, begin = cpu_seconds(target.pid), time.perf_counter()
    yield meter
    meter.wall = time.perf_counter() - begin
    after = cpu_seconds(target.pid)
    if before is not None and after is not None:
        meter.cpu = after - before


@contextmanager
def connected(target: Target) -> Iterator[Connection]:
    connection = Connection(target.bootstrap)
    try:
        yield connection
    finally:
        connection.close()


def new_topic(target: Target, connection: Connection) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    if target.creates_topics:
        create_topic(connection, name)
    else:
        topic = MetadataRequest.MetadataRequestTopic(name=name)
        connection.call(MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 9)
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def produced(connection: Connection) -> int:
    """Base offset that the next Produce response gives."""
    response = ProduceResponse.decode(connection.receive(True), PRODUCE_VERSION)
    partition = response.responses[0].partition_responses[0]
    if partition.error_code:
        raise RuntimeError(f"Produce: error {partition.error_code} {partition.error_message}")
    return partition.base_offset


def pipeline(connection: Connection, frame: bytearray, requests: int) -> None:
    """Send a Produce frame many times, IN_FLIGHT at once."""
    sent = 0
    for done in range(requests):
        while sent < requests and sent - done < IN_FLIGHT:
            connection.send(frame)
            sent += 1
        produced(connection)


def first_produce(connection: Connection, frame: bytearray) -> None:
    """One Produce outside the measurement: a topic just made may not have its leader at work yet."""
    deadline = time.monotonic() + CLIENT_SECONDS
    while True:
        connection.send(frame)
        try:
            produced(connection)
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def bulk(target: Target) -> Figures:
    """Batches of a megabyte into one partition."""
    megabytes = BULK_BATCHES * BULK_BATCH_RECORDS * RECORD_BYTES / 1e6
    with connected(target) as connection:
        frame = produce_frame(new_topic(target, connection), [RECORD_BYTES] * BULK_BATCH_RECORDS, now_ms())
        first_produce(connection, frame)
        with metered(target) as meter:
            pipeline(connection, frame, BULK_BATCHES)
    return {
        "produce 1 MB batches, MB/s": megabytes / meter.wall,
        "produce 1 MB batches, broker CPU µs per MB": 1e6 * meter.cpu / megabytes,
    }


def fetch(target: Target) -> Figures:
    """Batches of a megabyte out of one partition in fetches of a mebibyte."""
    megabytes = BULK_BATCHES * BULK_BATCH_RECORDS * RECORD_BYTES / 1e6
    with connected(target) as connection:
        topic = new_topic(target, connection)
        frame = produce_frame(topic, [RECORD_BYTES] * BULK_BATCH_RECORDS, now_ms())
        first_produce(connection, frame)
        pipeline(connection, frame, BULK_BATCHES)
        with metered(target) as meter:
            read_all(connection, topic, (BULK_BATCHES + 1) * BULK_BATCH_RECORDS)
    return {
        "fetch 1 MiB, MB/s": megabytes / meter.wall,
        "fetch 1 MiB, broker CPU µs per MB": 1e6 * meter.cpu / megabytes,
    }


def uneven(target: Target) -> Figures:
    """Batches of a megabyte whose records differ in size, so that no two neighbours are laid out alike."""
    rng = Random(1)
    sizes = [rng.randint(*UNEVEN_BYTES) for _ in range(BULK_BATCH_RECORDS)]
    megabytes = BULK_BATCHES * sum(sizes) / 1e6
    with connected(target) as connection:
        frame = produce_frame(new_topic(target, connection), sizes, now_ms())
        first_produce(connection, frame)
        with metered(target) as meter:
            pipeline(connection, frame, BULK_BATCHES)
    return {
        "produce 1 MB batches of uneven records, MB/s": megabytes / meter.wall,
        "produce 1 MB batches of uneven records, broker CPU µs per MB": 1e6 * meter.cpu / megabytes,
    }


def users(target: Target) -> Figures:
    """What users send: records of 40 to 160 bytes with keys of 1 to 20 bytes and a header, by librdkafka."""
    from confluent_kafka import Producer

    rng = Random(7)
    rows = [
        (rng.randbytes(rng.randint(1, 20)), rng.randbytes(rng.randint(*UNEVEN_BYTES)), [("trace", rng.randbytes(16))])
        for _ in range(5_000)
    ]
    with connected(target) as connection:
        topic = new_topic(target, connection)
    settings = {"bootstrap.servers": target.bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 2}
    producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    producer.produce(topic, b"x", partition=0)
    producer.flush(CLIENT_SECONDS)
    with metered(target) as meter:
        for number in range(USERS_RECORDS):
            key, value, headers = rows[number % len(rows)]
            producer.produce(topic, value, key, 0, headers=headers)
        if producer.flush(CLIENT_SECONDS):
            raise RuntimeError("not all records were taken")
    return {
        "produce uneven records with keys and a header by librdkafka, records/s": USERS_RECORDS / meter.wall,
        "produce uneven records with keys and a header by librdkafka, broker CPU µs a record": 1e6
        * meter.cpu
        / USERS_RECORDS,
    }


def read_all(connection: Connection, topic: str, end: int) -> None:
    offset = 0
    while offset < end:
        connection.send(fetch_frame(topic, offset, FETCH_BYTES))
        response = FetchResponse.decode(connection.receive(True), FETCH_VERSION)
        partition = response.responses[0].partitions[0]
        if partition.error_code:
            raise RuntimeError(f"Fetch: error {partition.error_code}")
        records: Any = partition.records
        for _, header in iter_batches(records):
            offset = header.next_offset


def small(target: Target) -> Figures:
    """Requests of one record, five in flight."""
    with connected(target) as connection:
        frame = produce_frame(new_topic(target, connection), [RECORD_BYTES], now_ms())
        first_produce(connection, frame)
        pipeline(connection, frame, SMALL_REQUESTS // 10)
        with metered(target) as meter:
            pipeline(connection, frame, SMALL_REQUESTS)
    return {
        "produce 1 record, 5 in flight, requests/s": SMALL_REQUESTS / meter.wall,
        "produce 1 record, 5 in flight, broker CPU µs": 1e6 * meter.cpu / SMALL_REQUESTS,
    }


def latency(target: Target) -> Figures:
    """One record at a time, from before it is sent until its answer is read."""
    times: list[float] = []
    with connected(target) as connection:
        frame = produce_frame(new_topic(target, connection), [RECORD_BYTES], now_ms())
        first_produce(connection, frame)
        for _ in range(LATENCY_SAMPLES + 100):
            begin = time.perf_counter()
            connection.send(frame)
            produced(connection)
            times.append(time.perf_counter() - begin)
    times = times[100:]
    return {
        "produce 1 record alone, p50 µs": 1e6 * median(times),
        "produce 1 record alone, p99 µs": 1e6 * quantiles(times, n=100)[98],
    }


def transactions(target: Target) -> Figures:
    """Transactions of ten records with librdkafka, which takes about 1.4 ms for each commit by itself."""
    from confluent_kafka import Producer

    with connected(target) as connection:
        topic = new_topic(target, connection)
    settings = {"bootstrap.servers": target.bootstrap, "transactional.id": topic, "linger.ms": 0, "log_level": 2}
    producer = Producer(settings)
    producer.init_transactions(CLIENT_SECONDS)

    def transact() -> float:
        producer.begin_transaction()
        for _ in range(TRANSACTION_RECORDS):
            producer.produce(topic, b"x" * RECORD_BYTES, partition=0)
        begin = time.perf_counter()
        producer.commit_transaction(CLIENT_SECONDS)
        return time.perf_counter() - begin

    for _ in range(TRANSACTIONS // 10):
        transact()
    with metered(target) as meter:
        times = [transact() for _ in range(TRANSACTIONS)]
    return {
        "transactions of 10 records, per s": TRANSACTIONS / meter.wall,
        "transaction, p50 ms of its commit": 1e3 * median(times),
        "transaction, broker CPU µs": 1e6 * meter.cpu / TRANSACTIONS,
    }


def fixture_cycle(target: Target) -> Figures:
    """What a small test does with a broker, by step, in seconds: start it, create a topic, produce ten records, consume
    ten in a group, and stop."""
    from confluent_kafka import Consumer, Producer

    figures: Figures = {}
    first = last = time.perf_counter()

    def done(step: str) -> None:
        nonlocal last
        now = time.perf_counter()
        figures[step], last = now - last, now

    target.start()
    try:
        done("start")
        with connected(target) as connection:
            topic = new_topic(target, connection)
        done("create the topic")
        producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0, "log_level": 2})
        for number in range(10):
            producer.produce(topic, b"%d" % number)
        if producer.flush(CLIENT_SECONDS):
            raise RuntimeError("not all records were taken")
        done("produce 10")
        settings = {"bootstrap.servers": target.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings | {"enable.auto.commit": False, "log_level": 2})
        consumer.subscribe([topic])
        got, deadline = 0, time.monotonic() + CLIENT_SECONDS
        while got < 10 and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            got += message is not None and message.error() is None
        done("consume 10 in a group")
        consumer.close()
        done("leave the group")
    finally:
        target.stop()
    done("stop")
    if got < 10:
        raise RuntimeError(f"only {got} of 10 records came back")
    return {"the whole cycle": last - first, **figures}


SCENARIOS: dict[str, Callable[[Target], Figures]] = {
    "bulk": bulk,
    "fetch": fetch,
    "uneven": uneven,
    "users": users,
    "small": small,
    "latency": latency,
    "transactions": transactions,
}
