"""Clients nobody here wrote, over TLS, told the name they asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from free_ports import free_port
from tls_files import LOCALHOST, trusting

from minibroker import Minibroker

pytestmark = pytest.mark.clients
SECONDS = 30


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    port = free_port()
    config = {"listeners": f"SSL://0.0.0.0:{port}", "ssl.keystore.location": str(LOCALHOST)}
    with Minibroker(topics={"confluent": 1, "aiokafka": 1, "python": 1}, config=config):
        yield f"localhost:{port}"


def test_confluent_kafka(bootstrap: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    tls = {"bootstrap.servers": bootstrap, "security.protocol": "ssl", "ssl.ca.location": str(LOCALHOST)}
    producer = confluent_kafka.Producer({**tls, "transactional.id": "app"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    sent = [b"%d" % number * 1000 for number in range(1000)]  # some megabytes
    for value in sent:
        producer.produce("confluent", value)
    producer.commit_transaction(SECONDS)
    consumer = confluent_kafka.Consumer({**tls, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    found: list[bytes] = []
    while len(found) < len(sent):
        messages = consumer.consume(100, SECONDS)
        assert messages
        found += [message.value() for message in messages]
    consumer.close()
    assert found == sent


def test_aiokafka(bootstrap: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    tls = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": trusting()}

    async def story() -> bytes:
        async with aiokafka.AIOKafkaProducer(**tls, transactional_id="aio") as producer, producer.transaction():
            await producer.send("aiokafka", b"order")
        reading = {"group_id": "g", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        async with aiokafka.AIOKafkaConsumer("aiokafka", **tls, **reading) as consumer:
            return bytes((await consumer.getone()).value)

    assert asyncio.run(asyncio.wait_for(story(), SECONDS)) == b"order"


def test_kafka_python(bootstrap: str) -> None:
    kafka = pytest.importorskip("kafka")
    tls = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_cafile": str(LOCALHOST)}
    producer = kafka.KafkaProducer(**tls)
    producer.send("python", b"order").get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "python", **tls, group_id="g", auto_offset_reset="earliest", consumer_timeout_ms=SECONDS * 1000
    )
    assert next(iter(consumer)).value == b"order"
    consumer.close()
