"""TLS and SASL with clients nobody here wrote."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker

pytestmark = pytest.mark.clients

SECONDS = 30.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("tls") / "ca.pem")


@pytest.fixture(scope="module")
def servers(authority: str) -> Iterator[str]:
    """Two brokers that want TLS and a password."""
    config = {
        "minibroker.security.protocol": "SASL_SSL",
        "minibroker.ssl.ca.location": authority,
        "minibroker.sasl.users": "alice:secret",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    }
    with Minibroker(brokers=2, host="localhost", config=config, topics={"secured": 4}) as broker:
        yield broker.bootstrap_servers.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_over_sasl_ssl(servers: str, authority: str, mechanism: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    config = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    producer = confluent_kafka.Producer({**config, "transactional.id": f"t-{mechanism}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for partition in range(4):
        producer.produce("secured", mechanism.encode() * 20_000, partition=partition)
    producer.commit_transaction(SECONDS)
    consumer = confluent_kafka.Consumer(
        {**config, "group.id": mechanism, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.subscribe(["secured"])
    found = 0
    while found < 4:
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        found += message.value() == mechanism.encode() * 20_000
    consumer.close()


def test_confluent_kafka_hears_why_it_may_not_come_in(servers: str, authority: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "wrong",
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    for _ in range(int(SECONDS * 10)):
        producer.poll(0.1)
        if errors:
            break
    assert errors
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert "Invalid username or password" in errors[0].str()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_over_sasl_ssl(servers: str, authority: str, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def send() -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=authority),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="secret",
            enable_idempotence=True,
        )
        await producer.start()
        try:
            sent = await producer.send_and_wait("secured", b"x")
            return int(sent.offset)
        finally:
            await producer.stop()

    assert asyncio.run(send()) >= 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_over_sasl_ssl(servers: str, authority: str, mechanism: str) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers,
        security_protocol="SASL_SSL",
        ssl_cafile=authority,
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="secret",
    )
    try:
        assert producer.send("secured", b"x").get(timeout=SECONDS).offset >= 0
    finally:
        producer.close()


def test_kafka_python_shows_a_certificate(tmp_path: Path) -> None:
    kafka = pytest.importorskip("kafka")
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    config = {
        "minibroker.security.protocol": "SSL",
        "ssl.keystore.location": str(tmp_path / "server.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
    }
    with Minibroker(host="localhost", config=config) as broker:
        admin = kafka.KafkaAdminClient(
            bootstrap_servers=broker.bootstrap_servers.replace("127.0.0.1", "localhost"),
            security_protocol="SSL",
            ssl_cafile=str(tmp_path / "ca.pem"),
            ssl_certfile=str(tmp_path / "client.pem"),
        )
        try:
            assert admin.list_topics() == []
        finally:
            admin.close()


def test_librdkafka_meets_its_limits_and_goes_on_within_them(tmp_path: Path) -> None:
    """A transactional producer that may write one of two topics: what it may is committed, the rest is refused."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    config = {
        "minibroker.security.protocol": "SASL_PLAINTEXT",
        "minibroker.sasl.users": "admin:a,alice:a",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with Minibroker(config=config, topics={"mine": 1, "other": 1}) as broker:

        def login(user: str, **more: Any) -> dict[str, Any]:
            return {
                "bootstrap.servers": broker.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": "a",
                "log_level": 0,
                **more,
            }

        refused = confluent_kafka.Producer(login("alice", **{"transactional.id": "app-0"}))
        with pytest.raises(confluent_kafka.KafkaException) as error:
            refused.init_transactions(SECONDS)
        assert error.value.args[0].code() == confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        admin = AdminClient(login("admin"))
        prefixed, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
        given = [
            (ResourceType.TRANSACTIONAL_ID, "app-", prefixed, AclOperation.WRITE),
            (ResourceType.TOPIC, "mine", literal, AclOperation.WRITE),
            (ResourceType.TOPIC, "mine", literal, AclOperation.READ),
            (ResourceType.GROUP, "g", literal, AclOperation.READ),
        ]
        bindings = [
            AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operation in given
        ]
        for made in admin.create_acls(bindings).values():
            made.result(SECONDS)
        delivered: dict[str, Any] = {}
        producer = confluent_kafka.Producer(login("alice", **{"transactional.id": "app-1"}))
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for topic in ("mine", "other"):
            producer.produce(topic, b"no", on_delivery=lambda e, m: delivered.update({m.topic(): e}))
        producer.flush(SECONDS)
        assert delivered["other"].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        producer.abort_transaction(SECONDS)
        producer.begin_transaction()
        producer.produce("mine", b"yes")
        producer.commit_transaction(SECONDS)
        consumer = confluent_kafka.Consumer(login("alice", **{"group.id": "g", "auto.offset.reset": "earliest"}))
        consumer.subscribe(["mine"])
        message = consumer.poll(SECONDS)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"yes")
        consumer.close()
