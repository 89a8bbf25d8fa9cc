"""Kafka's own tools at a broker that wants TLS, a password and the right to ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jvm import run_java

from minibroker import Minibroker

pytestmark = pytest.mark.jvm

ACLS = "org.apache.kafka.tools.AclCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Bootstrap servers, and a directory with the properties of admin and alice."""
    directory = tmp_path_factory.mktemp("secured")
    authority = directory / "ca.pem"
    config = {
        "minibroker.security.protocol": "SASL_SSL",
        "minibroker.ssl.ca.location": str(authority),
        "minibroker.sasl.users": "admin:a,alice:b",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with Minibroker(host="localhost", config=config, topics={"t": 1}) as broker:
        for user, password in (("admin", "a"), ("alice", "b")):
            (directory / user).write_text(
                "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
                f"ssl.truststore.location={authority}\nsasl.mechanism=SCRAM-SHA-512\n"
                f'sasl.jaas.config={LOGIN} required username="{user}" password="{password}";\n'
            )
        yield broker.bootstrap_servers.replace("127.0.0.1", "localhost"), directory


def test_kafka_acls_gives_a_right_that_the_console_tools_then_have(secured: tuple[str, Path]) -> None:
    servers, directory = secured
    admin = ("--bootstrap-server", servers, "--command-config", str(directory / "admin"))
    alice = ("--bootstrap-server", servers, "--command-config", str(directory / "alice"))
    assert run_java(TOPICS, *alice, "--list").stdout.split() == []
    added = run_java(ACLS, *admin, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "t")
    assert added.returncode == 0, added.stdout + added.stderr
    listed = run_java(ACLS, *admin, "--list")
    assert "User:alice" in listed.stdout, listed.stdout + listed.stderr
    assert "operation=WRITE" in listed.stdout
    assert run_java(TOPICS, *alice, "--list").stdout.split() == ["t"]
    refused = run_java(ACLS, *alice, "--list")
    assert "ClusterAuthorizationException" in refused.stdout + refused.stderr
    sent = run_java(
        PRODUCER,
        "--bootstrap-server",
        servers,
        "--topic",
        "t",
        "--command-config",
        str(directory / "alice"),
        stdin="x\n",
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert "Exception" not in sent.stdout + sent.stderr
