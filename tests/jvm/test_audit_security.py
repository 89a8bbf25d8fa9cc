"""The audit of a real Kafka that lets in only clients with TLS and a login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_ports
from real_kafka import RealKafka
from toolchain import Unavailable

pytestmark = pytest.mark.jvm

confluent_kafka = pytest.importorskip("confluent_kafka")
pytest.importorskip("confluent_kafka.admin")
pytest.importorskip("pyarrow")

from minibroker.cli import main  # noqa: E402

CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
USER, PASSWORD = "ann", "se=cr,et"
MODULES = "org.apache.kafka.common.security"
SECURED = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{{secure}},CONTROLLER://127.0.0.1:{{controller_port}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{{secure}}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL
inter.broker.listener.name=PLAINTEXT
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";
listener.name.secure.scram-sha-256.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;
listener.name.secure.scram-sha-512.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;
listener.name.secure.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={CERTIFICATES / "server.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={CERTIFICATES / "ca.pem"}
"""


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    """HOST:PORT that wants a client certificate and a login, of a broker whose topic `t` has ten records."""
    port, secure = free_ports(2)
    extra = SECURED.replace("{port}", str(port)).replace("{secure}", str(secure))
    try:
        kafka = RealKafka(extra, port)
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        kafka.start()
        kafka.wait()
        users = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
        for mechanism in ("SCRAM_SHA_256", "SCRAM_SHA_512"):
            kind = confluent_kafka.admin.ScramCredentialInfo(
                getattr(confluent_kafka.admin.ScramMechanism, mechanism), 4096
            )
            change = confluent_kafka.admin.UserScramCredentialUpsertion(USER, kind, PASSWORD.encode())
            users.alter_user_scram_credentials([change])[USER].result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        for number in range(10):
            producer.produce("t", value=str(number))
        assert producer.flush(30) == 0
        yield f"127.0.0.1:{secure}"
    finally:
        kafka.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_cluster_with_tls_and_logins(
    mechanism: str, secured: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def audit(password: str) -> int:
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.truststore.location": CERTIFICATES / "ca.pem",
            "ssl.keystore.location": CERTIFICATES / "client.pem",
        }
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return main(["audit", "--bootstrap", secured, "--command-config", str(file), "--topic", "t", "--json", "-"])

    assert audit(PASSWORD) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["findings"]) == (10, {})
    assert audit("wrong") == 2
    assert "login refused" in capsys.readouterr().err
