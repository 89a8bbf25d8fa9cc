"""No way of looking at a broker tells a password, a SASL token or the token of the control API."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from faulty import FaultyCluster

from minibroker import Minibroker
from minibroker.broker.connection import ConnectionInfo
from minibroker.client.connection import BrokerFailed
from minibroker.client.security import Security
from minibroker.kernel.addresses import parse_address
from minibroker.server.options import make_options
from minibroker.testing.in_thread import ThreadRunner
from minibroker.trace.pcapng import PcapngWriter
from minibroker.trace.recorder import Recorder, line_of
from minibroker_protocol.messages.configs import IncrementalAlterConfigsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.sasl import SaslAuthenticateResponse

PASSWORD = "correct-horse-battery"
TOKEN = "open-sesame-open"


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    config = {
        "minibroker.security.protocol": "SASL_PLAINTEXT",
        "minibroker.sasl.users": f"alice:{PASSWORD}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    }
    with Minibroker(config=config, ephemeral=True, process=True) as running:
        yield running


def forms(secret: bytes) -> list[bytes]:
    """The secret as it may stand in bytes, text and base64 at each of its three alignments."""
    aligned = [base64.b64encode(b"x" * shift + secret)[4 if shift else 0 : -4] for shift in range(3)]
    return [secret, secret.hex().encode(), *aligned]


def looks(broker: Minibroker) -> bytes:
    """Everything that can be looked at, one after the other."""
    control = broker.control
    capture = io.BytesIO()
    writer = PcapngWriter(capture)
    lines = []
    found: list[Any] = [control.refusals(), control.describe(), broker.faults.list()]
    for frames in (False, True):
        for exchange in control.exchanges(1000, frames=frames):
            found.append(exchange)
            lines.append(line_of(exchange))
            if frames:
                writer.write(exchange)
    return json.dumps(found).encode() + "\n".join(lines).encode() + capture.getvalue()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("password", [PASSWORD, "wrong-" + PASSWORD[::-1]], ids=["right", "wrong"])
def test_a_login_is_seen_and_its_secrets_are_not(
    broker: Minibroker, caplog: pytest.LogCaptureFixture, mechanism: str, password: str
) -> None:
    caplog.set_level(logging.DEBUG)
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{password}";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    broker.control.record(1000, frames=True)
    broker.faults.inject("SaslAuthenticate", {"name": "delay", "ms": 1}, times=None)
    try:
        with Security.of(given).connect(parse_address(broker.bootstrap_servers), 5):
            assert password == PASSWORD
    except BrokerFailed:
        assert password != PASSWORD
    seen = [e for e in broker.control.exchanges(1000, frames=True) if e["api"] == "SaslAuthenticate"]
    assert seen
    assert {e["request"]["auth_bytes"] for e in seen} == {"[hidden]"}
    assert {e["request_frame"] for e in seen} == {e["response_frame"] for e in seen} == {None}
    everything = looks(broker)
    broker.faults.clear()
    for form in forms(password.encode()):
        assert form not in everything
        assert form.decode() not in caplog.text
    assert b"SaslAuthenticate" in everything


@pytest.mark.parametrize(
    "name", ["minibroker.sasl.users", "ssl.keystore.certificate.chain", "listener.name.x.sasl.jaas.config"]
)
@pytest.mark.parametrize("before", [0, 300], ids=["alone", "past what is shown of a list"])
def test_a_secret_setting_is_told_neither_as_field_nor_as_bytes(name: str, before: int) -> None:
    cluster = FaultyCluster(topics={"t": 1})
    cluster.commands.call("trace.record", {"frames": True})
    config = IncrementalAlterConfigsRequest.AlterableConfig
    configs = [config(name="log.retention.ms", config_operation=0, value="5000") for _ in range(before)]
    configs.append(config(name=name, config_operation=0, value=PASSWORD))
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)
    cluster.send(IncrementalAlterConfigsRequest(resources=[resource], validate_only=True), 1)
    exchange = cluster.commands.call("trace.last", {"frames": True})[-1]
    cluster.stop()
    assert exchange["request_frame"] is None
    assert PASSWORD not in json.dumps(exchange)


@pytest.mark.parametrize("size", [10, 100_000], ids=["kept", "converted at once"])
def test_the_bytes_of_an_answer_with_a_secret_are_not_told(size: int) -> None:
    context = SimpleNamespace(
        broker=SimpleNamespace(node_id=1), connection=ConnectionInfo(), client_id="c", keeps_records=False,
        hear_refusals=lambda _: None,
    )  # fmt: skip
    tapped = SimpleNamespace(
        context=context, api=SimpleNamespace(name="SaslAuthenticate"), version=2, correlation_id=1, size=4, frame=b"f",
        request=MetadataRequest(topics=[]),
    )  # fmt: skip
    recorder = Recorder()
    recorder.keep_bytes = True
    recorded = recorder.begin(tapped, 0)  # type: ignore[arg-type]
    answer = SaslAuthenticateResponse(auth_bytes=PASSWORD.encode().ljust(size))
    recorded.answered(answer, size)
    recorder.end(recorded, [b"size", answer.encode(2)])
    told = json.dumps({**recorded.to_json(), **recorded.frames()}).encode()
    assert [form for form in forms(PASSWORD.encode()) if form in told] == []


def test_the_token_is_in_no_answer_no_log_and_no_picture_of_the_options(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = {"minibroker.sasl.users": f"alice:{PASSWORD}"}
    options = make_options(ephemeral=True, control=("127.0.0.1", 0), control_token=TOKEN, config=config)
    assert TOKEN not in repr(options)
    assert PASSWORD not in repr(options)
    running = ThreadRunner(options)
    running.start().result()
    try:
        from minibroker.control.http_client import HttpCaller

        assert running.service.control is not None
        host, port = running.service.control.address
        caller = HttpCaller(f"{host}:{port}", TOKEN)
        answers = [caller.description(), caller.call("cluster.describe", {}), caller.call("fault.list", {})]
        assert TOKEN not in json.dumps(answers)
    finally:
        running.stop().result()
        running.join()
    assert TOKEN not in caplog.text
    assert "control: " in caplog.text  # requests are logged, at this level
