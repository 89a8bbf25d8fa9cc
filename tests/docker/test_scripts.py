"""The image's two scripts, run without an engine: what they start, and what they call healthy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_port
from tls_files import LOCALHOST

from minibroker import Minibroker

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the image's scripts are for its shell")

SHIMS = Path(__file__).resolve().parents[2] / "docker" / "shims" / "etc" / "kafka" / "docker"
STAND_IN = """#!/bin/sh
printf '%s\\n' "$@"
env | grep -e ^KAFKA_ | sort
"""


def run(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """stdout: arguments and KAFKA_* variables with which `run` starts minibroker. stderr: what it says."""
    stand_in = directory / "minibroker"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environment = {"PATH": f"{directory}:{os.environ['PATH']}", "MINIBROKER_SECRETS": str(directory), **variables}
    done = subprocess.run(["bash", SHIMS / "run", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def started(directory: Path, *arguments: str, **variables: str) -> list[str]:
    """The same where every variable counts."""
    done = run(directory, *arguments, **variables)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_without_variables(tmp_path: Path) -> None:
    assert started(tmp_path) == [
        "serve",
        "--like-kafka-image",
        "--host",
        "0.0.0.0",
        "--data-dir",
        "/var/lib/minibroker/data",
    ]


def test_a_proxy(tmp_path: Path) -> None:
    assert started(
        tmp_path,
        "--page",
        UPSTREAM_BOOTSTRAP_SERVERS="kafka:9092",
        UPSTREAM_COMMAND_CONFIG="/with a space",
        MINIBROKER_ARGS="--advertised-host localhost",
        MINIBROKER_CONTROL_TOKEN="token",
    ) == [
        *("proxy", "--upstream", "kafka:9092", "--host", "0.0.0.0", "--port", "9092"),
        *("--command-config", "/with a space", "--control", "0.0.0.0:9094"),
        *("--advertised-host", "localhost", "--page"),
    ]


def test_variables_that_do_not_count_are_named(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        UPSTREAM_BOOTSTRAP_SERVERS="kafka:9092",
        CLUSTER_ID="4L6g3nShT-eMCtK--X86sw",
        KAFKA_LISTENERS="SSL://:9093",
        KAFKA_NUM_PARTITIONS="3",
        MINIBROKER_METRICS="0.0.0.0:9404",
        MINIBROKER_SETUP="/setup.toml",
    )
    assert done.stdout.startswith("proxy\n--upstream\nkafka:9092\n")
    names = ("CLUSTER_ID", "MINIBROKER_METRICS", "KAFKA_LISTENERS", "KAFKA_NUM_PARTITIONS")
    assert done.stderr.splitlines() == [
        *(f"minibroker: {name} is set, and has no effect on a proxy" for name in names),
        "minibroker: the setup file /setup.toml has no effect on a proxy",
    ]
    said = "minibroker: UPSTREAM_COMMAND_CONFIG is set, and has no effect without UPSTREAM_BOOTSTRAP_SERVERS\n"
    assert run(tmp_path, UPSTREAM_COMMAND_CONFIG="/client.properties").stderr == said


def test_the_protocol_of_the_port_without_listeners(tmp_path: Path) -> None:
    """No variable of the image fixes it: it may be that of a setup file."""
    assert not [line for line in started(tmp_path, KAFKA_LISTENERS="") if line.startswith("KAFKA_")]
    lines = started(tmp_path, KAFKA_ADVERTISED_LISTENERS="SASL_SSL://localhost:19092")
    assert "KAFKA_LISTENERS=SASL_SSL://0.0.0.0:9092" in lines
    assert "--host" not in lines


def test_a_setup_file_is_named(tmp_path: Path) -> None:
    lines = started(tmp_path, MINIBROKER_SETUP="/with a space.toml")
    assert lines[lines.index("--setup") + 1] == "/with a space.toml"


def test_variables_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    lines = started(
        tmp_path,
        "--topic",
        "orders:3",
        CLUSTER_ID="4L6g3nShT-eMCtK--X86sw",
        KAFKA_LOG_DIRS="/data",
        KAFKA_LISTENERS="SSL://:9093",
        KAFKA_SSL_KEYSTORE_FILENAME="key.pem",
        KAFKA_SSL_KEYSTORE_CREDENTIALS="password",
        KAFKA_SSL_KEY_CREDENTIALS="password",
        KAFKA_SSL_TRUSTSTORE_FILENAME="trust.pem",
        KAFKA_SSL_TRUSTSTORE_CREDENTIALS="password",
        MINIBROKER_ARGS="--semantics kip -c num.partitions=2",
        MINIBROKER_CONTROL_TOKEN="token",
        MINIBROKER_METRICS="0.0.0.0:9404",
    )
    assert lines == [
        "serve",
        "--like-kafka-image",
        "-c",
        "minibroker.cluster.id=4L6g3nShT-eMCtK--X86sw",
        "--control",
        "0.0.0.0:9094",
        "--metrics",
        "0.0.0.0:9404",
        "--semantics",
        "kip",
        "-c",
        "num.partitions=2",
        "--topic",
        "orders:3",
        "KAFKA_LISTENERS=SSL://:9093",
        "KAFKA_LOG_DIRS=/data",
        f"KAFKA_SSL_KEYSTORE_LOCATION={tmp_path}/key.pem",
        "KAFKA_SSL_KEY_PASSWORD=secret",
        f"KAFKA_SSL_TRUSTSTORE_LOCATION={tmp_path}/trust.pem",
    ]


def test_a_file_that_is_not_there_ends_it(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "MINIBROKER_SECRETS": str(tmp_path),
        "KAFKA_SSL_KEY_CREDENTIALS": "missing",
    }
    done = subprocess.run(["bash", SHIMS / "run"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "missing" in done.stderr


@pytest.mark.parametrize(
    ("name", "protocol"),
    [("PLAINTEXT", "PLAINTEXT"), ("SSL", "SSL"), ("OUTSIDE", "SSL"), ("IN", "SASL_SSL"), ("IN", "SASL_PLAINTEXT")],
)
def test_health(name: str, protocol: str, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    variables = {
        "KAFKA_LISTENERS": f"{name}://0.0.0.0:{free_port()},MORE://0.0.0.0:{free_port()}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": f"{name}:{protocol},MORE:PLAINTEXT",
    }
    check = ["sh", SHIMS / "healthcheck"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    config = {key.removeprefix("KAFKA_").lower().replace("_", "."): value for key, value in variables.items()}
    config |= {"ssl.keystore.location": str(LOCALHOST), "minibroker.sasl.users": "alice:secret"}
    with Minibroker(config=config):
        assert subprocess.run(check, env=environment, timeout=20).returncode == 0
    assert subprocess.run(check, env=environment, timeout=20, capture_output=True).returncode != 0


def test_health_of_a_port_whose_protocol_no_variable_names(tmp_path: Path) -> None:
    """A setup file, or arguments, may have named SSL."""
    (tmp_path / "python3").symlink_to(sys.executable)
    port = free_port()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{port}"}
    check = ["sh", SHIMS / "healthcheck"]
    with Minibroker(config={"listeners": f"SSL://0.0.0.0:{port}", "ssl.keystore.location": str(LOCALHOST)}):
        assert subprocess.run(check, env=environment, timeout=20).returncode == 0
    assert subprocess.run(check, env=environment, timeout=20, capture_output=True).returncode != 0


def test_a_proxy_is_healthy_once_it_can_be_reached(tmp_path: Path) -> None:
    """Whatever protocol it has. The connection here goes nowhere: nothing can be sent on it."""
    (tmp_path / "python3").symlink_to(sys.executable)
    (tmp_path / "sitecustomize.py").write_text(
        "import socket\nsocket.create_connection = lambda *arguments: print(*arguments) or socket.socket()\n"
    )
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "UPSTREAM_BOOTSTRAP_SERVERS": "kafka:9092",
        "KAFKA_LISTENERS": "SSL://:9093",
    }
    done = subprocess.run(["sh", SHIMS / "healthcheck"], env=environment, timeout=20, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "('127.0.0.1', 9092) 3\n"), done.stderr
