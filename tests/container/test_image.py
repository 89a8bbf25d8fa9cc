"""The image: alone, under the stock modules of Testcontainers, and under our own.

Needs a Docker-compatible engine. MINIBROKER_IMAGE names an image that was built already.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("testcontainers", reason="testcontainers is not installed")
confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka.admin import AdminClient  # noqa: E402
from tls_files import LOCALHOST  # noqa: E402

pytestmark = [
    pytest.mark.container,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestWarning"),
]

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "java" / "LostReplyTest.java"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
SETUP = ROOT / "docs" / "how-to" / "setup.toml"
LARGEST_MB = 100  # on top of the base image
SECONDS = 30.0


@pytest.fixture(scope="session")
def image() -> str:
    named = os.environ.get("MINIBROKER_IMAGE")
    if named:
        return named
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("there is no container engine")
    base = base_image()
    argv = ["docker", "build", "-q", "-f", str(ROOT / "docker" / "Dockerfile"), "-t", "minibroker:test", str(ROOT)]
    # Without BuildKit, which not every engine that speaks Docker's language has.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    built = subprocess.run(
        [*argv, "--build-arg", f"PYTHON_IMAGE={base}"], capture_output=True, text=True, env=environment
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return "minibroker:test"


def base_image() -> str:
    """What the image is built on; without it the tests are skipped."""
    named = next(line for line in DOCKERFILE.splitlines() if line.startswith("ARG PYTHON_IMAGE=")).partition("=")[2]
    for argv in (["docker", "image", "inspect", named], ["docker", "pull", "-q", named]):
        if subprocess.run(argv, capture_output=True).returncode == 0:
            return named
    pytest.skip(f"the base image {named} is not to be had")


@pytest.fixture
def docker(image: str) -> Any:
    import docker

    client = docker.from_env()
    yield client
    client.close()


def round_trip(bootstrap: str, **more: str) -> None:
    """A committed and an aborted transaction, written and read by librdkafka."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    config = {"bootstrap.servers": bootstrap, "log_level": 0, **more}
    producer = confluent_kafka.Producer({**config, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(SECONDS)
    for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(SECONDS)
        end(SECONDS)
    reader = {"group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({**config, **reader})
    consumer.subscribe([topic])
    deadline = time.monotonic() + SECONDS
    message = None
    while message is None and time.monotonic() < deadline:
        message = consumer.poll(1)
    assert message is not None
    assert message.error() is None
    assert message.value() == b"yes"
    consumer.close()


@pytest.fixture
def container(docker: Any, image: str) -> Iterator[Any]:
    running = docker.containers.run(image, detach=True, ports={"9092/tcp": ("127.0.0.1", 9092)})
    yield running
    running.remove(force=True)


def wait_for_log(container: Any, text: str) -> None:
    deadline = time.monotonic() + SECONDS
    while text.encode() not in container.logs():
        assert time.monotonic() < deadline, container.logs().decode()
        time.sleep(0.1)


def test_docker_run_with_the_port_it_has(container: Any) -> None:
    """No setting at all: the host's clients are told localhost and the listener's port."""
    wait_for_log(container, "Kafka Server started")
    round_trip("localhost:9092")
    whoami = container.exec_run("id -u").output.decode().strip()
    assert whoami == "1000"
    assert container.exec_run("/etc/kafka/docker/healthcheck").exit_code == 0
    started = time.monotonic()
    container.stop(timeout=10)
    assert time.monotonic() - started < 9
    assert container.wait()["StatusCode"] == 0


def test_what_the_image_is_made_of(docker: Any, image: str) -> None:
    """Small, not root, with a health check, and nothing to compile or install with."""
    attributes = docker.images.get(image).attrs
    assert attributes["Config"]["User"] == "minibroker"
    if "Podman" in str(docker.version()):  # its images are of OCI's format, which has no place for a health check
        assert 'CMD ["/etc/kafka/docker/healthcheck"]' in DOCKERFILE
    else:
        assert "/etc/kafka/docker/healthcheck" in str(attributes["Config"]["Healthcheck"]["Test"])
    base = docker.images.get(base_image()).attrs
    assert (attributes["Size"] - base["Size"]) / 1e6 < LARGEST_MB
    assert "--only-binary=:all:" in DOCKERFILE
    look = "ls /opt/minibroker/bin; ls -d /src /tools /wheels; command -v cc gcc clang cargo hatchling"
    found = docker.containers.run(image, ["sh", "-c", f"{look}; true"], remove=True).decode().split()
    assert "minibroker" in found
    assert not [name for name in found if name.startswith("pip") or "/" in name]


def test_identity_and_tls_from_the_environment(docker: Any, image: str) -> None:
    """KAFKA_NODE_ID, CLUSTER_ID and a PEM file in /etc/kafka/secrets; clients are told the name they asked for."""
    made = docker.containers.run(
        image,
        detach=True,
        ports={"9093/tcp": ("127.0.0.1", 9093)},
        volumes={str(LOCALHOST.parent): {"bind": "/etc/kafka/secrets", "mode": "ro"}},
        environment={
            "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
            "KAFKA_NODE_ID": "5",
            "KAFKA_LISTENERS": "SSL://0.0.0.0:9093",
            "KAFKA_SSL_KEYSTORE_FILENAME": LOCALHOST.name,
            "KAFKA_NUM_NETWORK_THREADS": "8",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
        },
    )
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(LOCALHOST)}
    try:
        wait_for_log(made, "[KafkaServer id=5] started")
        round_trip("localhost:9093", **tls)
        cluster = AdminClient({"bootstrap.servers": "localhost:9093", **tls}).list_topics(timeout=SECONDS)
        assert cluster.cluster_id == "4L6g3nShT-eMCtK--X86sw"
        assert [(broker.host, broker.port) for broker in cluster.brokers.values()] == [("localhost", 9093)]
        assert list(cluster.brokers) == [5]
        assert made.exec_run("/etc/kafka/docker/healthcheck").exit_code == 0
        lines = made.logs().decode()
        assert "KAFKA_HEAP_OPTS" in lines
        assert "num.network.threads" in lines
    finally:
        made.remove(force=True)


def test_passwords_and_a_generated_certificate(docker: Any, image: str, tmp_path: Path) -> None:
    """The command of docs/how-to/container.md, with its own name."""
    page = (ROOT / "docs" / "how-to" / "container.md").read_text(encoding="utf-8")
    command = page[page.index("docker run -d --name secure") : page.index("docker exec secure")].replace("\\\n", " ")
    words = shlex.split(command)
    variables = [word for before, word in itertools.pairwise(words) if before == "-e"]
    assert words[-1] == "minibroker"
    made = docker.containers.run(image, detach=True, ports={"9093/tcp": ("127.0.0.1", 9093)}, environment=variables)
    try:
        wait_for_log(made, "Kafka Server started")
        trusted = tmp_path / "ca.pem"
        trusted.write_bytes(made.exec_run("cat /var/lib/minibroker/ca.pem").output)
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": "secret"}
        round_trip("localhost:9093", **login, **{"security.protocol": "sasl_ssl", "ssl.ca.location": str(trusted)})
        assert made.exec_run("/etc/kafka/docker/healthcheck").exit_code == 0
        needs = made.exec_run("minibroker audit /var/lib/minibroker/data").output.decode()
        assert "needs numpy and pyarrow" in needs
        assert "pip install" not in needs
    finally:
        made.remove(force=True)


def test_the_users_of_a_setup_file_log_in(docker: Any, image: str) -> None:
    """No variable of the image holds its port to PLAINTEXT."""
    file = SETUP.read_text()
    command = ["sh", "-c", f"cat >~/setup.toml <<'END'\n{file}\nEND\nexec /etc/kafka/docker/run"]
    running = docker.containers.run(
        image,
        command,
        detach=True,
        ports={"9092/tcp": ("127.0.0.1", 9092)},
        environment={"MINIBROKER_SETUP": "/home/minibroker/setup.toml"},
    )
    try:
        wait_for_log(running, "Kafka Server started")
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "app", "sasl.password": "app-secret"}
        client = confluent_kafka.Consumer(
            {"bootstrap.servers": "localhost:9092", "group.id": "g", "security.protocol": "sasl_plaintext", **login}
        )
        assert set(client.list_topics(timeout=SECONDS).topics) == {"orders", "payments"}
        client.close()
        assert running.exec_run("/etc/kafka/docker/healthcheck").exit_code == 0
    finally:
        running.remove(force=True)


def test_a_bad_setting_ends_it_with_one_line(docker: Any, image: str) -> None:
    made = docker.containers.run(image, detach=True, environment={"KAFKA_NUM_PARTITIONS": "many"})
    try:
        assert made.wait(timeout=30)["StatusCode"] == 2
        lines = made.logs().decode().strip().splitlines()
        assert len(lines) == 1
        assert "num.partitions" in lines[0]
    finally:
        made.remove(force=True)


def test_settings_of_the_environment(docker: Any, image: str) -> None:
    made = docker.containers.run(
        image,
        detach=True,
        ports={"9092/tcp": ("127.0.0.1", 19092)},
        environment={
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://127.0.0.1:19092",
            "KAFKA_NUM_PARTITIONS": "3",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
        },
    )
    try:
        wait_for_log(made, "Kafka Server started")
        round_trip("127.0.0.1:19092")
        admin = AdminClient({"bootstrap.servers": "127.0.0.1:19092"})
        topics = admin.list_topics(timeout=SECONDS).topics
        made_topic = next(topic for name, topic in topics.items() if name.startswith("t-"))
        assert len(made_topic.partitions) == 3
    finally:
        made.remove(force=True)


def test_any_user_and_nothing_to_write_but_the_volume(docker: Any, image: str) -> None:
    made = docker.containers.run(image, detach=True, user="12345", read_only=True)
    try:
        wait_for_log(made, "Kafka Server started")
        assert made.exec_run("id -u").output.decode().strip() == "12345"
    finally:
        made.remove(force=True)


@pytest.fixture
def network(docker: Any) -> Iterator[str]:
    made = docker.networks.create(f"minibroker-{uuid.uuid4().hex[:8]}")
    yield made.name
    made.remove()


def reached_from_a_container(docker: Any, image: str, network: str, bootstrap: str) -> bool:
    """Whether a command in another container gets to the broker and from there to a coordinator it is told."""
    argv = ["minibroker", "transactions", "list", "--bootstrap", bootstrap]
    asking = docker.containers.run(image, argv, detach=True, network=network)
    try:
        return bool(asking.wait(timeout=SECONDS)["StatusCode"] == 0)
    finally:
        asking.remove(force=True)


def test_another_container_of_the_network_without_any_setting(docker: Any, image: str, network: str) -> None:
    name = f"minibroker-{uuid.uuid4().hex[:8]}"
    broker = docker.containers.run(image, detach=True, name=name, network=network)
    try:
        wait_for_log(broker, "Kafka Server started")
        assert reached_from_a_container(docker, image, network, f"{name}:9092")
    finally:
        broker.remove(force=True)


def test_a_proxy_in_front_of_another_container(docker: Any, image: str, network: str) -> None:
    """With a login of its own to the broker, and TLS for clients."""
    name = f"minibroker-{uuid.uuid4().hex[:8]}"
    config = "security.protocol=SASL_PLAINTEXT sasl.mechanism=PLAIN sasl.username=alice sasl.password=secret"
    tls = "-c minibroker.security.protocol=SSL -c ssl.keystore.type=PEM"
    secured = {"KAFKA_MINIBROKER_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "KAFKA_MINIBROKER_SASL_USERS": "alice:secret"}
    broker = docker.containers.run(image, detach=True, name=name, network=network, environment=secured)
    proxy = docker.containers.create(
        image,
        ["sh", "-c", f"printf '%s\\n' {config} > ~/c; exec /etc/kafka/docker/run"],
        network=network,
        ports={"9092/tcp": ("127.0.0.1", 9092), "9093/tcp": ("127.0.0.1", 9093)},
        volumes={str(LOCALHOST.parent): {"bind": "/etc/kafka/secrets", "mode": "ro"}},
        environment={
            "UPSTREAM_BOOTSTRAP_SERVERS": f"{name}:9092",
            "UPSTREAM_COMMAND_CONFIG": "/home/minibroker/c",
            "MINIBROKER_ARGS": f"{tls} -c ssl.keystore.location=/etc/kafka/secrets/{LOCALHOST.name}",
        },
    )
    try:
        wait_for_log(broker, "Kafka Server started")
        proxy.start()
        wait_for_log(proxy, "bootstrap.servers=")
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}
        round_trip("localhost:9092", **login, **{"security.protocol": "sasl_ssl", "ssl.ca.location": str(LOCALHOST)})
        assert proxy.exec_run("/etc/kafka/docker/healthcheck").exit_code == 0
        broker.stop(timeout=10)
        proxy.restart()
        assert proxy.wait(timeout=60)["StatusCode"] == 1
        last = proxy.logs().decode().splitlines()[-1]
        assert last.startswith("minibroker: the upstream: ")
    finally:
        proxy.remove(force=True)
        broker.remove(force=True)


def test_the_settings_of_the_compose_file(docker: Any, image: str, network: str) -> None:
    """As compose starts it: the service's name is an alias in its network."""
    service = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["minibroker"]
    broker = docker.containers.create(
        image,
        network=network,
        networking_config={network: docker.api.create_endpoint_config(aliases=["minibroker"])},
        environment=service["environment"],
        ports={"9092/tcp": ("127.0.0.1", 9092)},
    )
    try:
        broker.start()
        wait_for_log(broker, "Kafka Server started")
        round_trip("localhost:9092")
        assert reached_from_a_container(docker, image, network, "minibroker:29092")
    finally:
        broker.remove(force=True)


def compose_program() -> list[str]:
    for argv in (["docker", "compose"], ["docker-compose"], ["podman-compose"]):
        try:
            if subprocess.run([*argv, "version"], capture_output=True).returncode == 0:
                return argv
        except FileNotFoundError:
            continue
    pytest.skip("there is no docker compose, docker-compose or podman-compose")


def test_the_compose_file_is_run(docker: Any, image: str, tmp_path: Path) -> None:
    """As it stands but for the image, which is built already; another service of the file reaches it by its name."""
    described = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    service = described["services"]["minibroker"]
    del service["build"]
    service["image"] = image
    asks = "until minibroker transactions list --bootstrap minibroker:29092; do sleep 0.2; done"
    described["services"]["asking"] = {"image": image, "command": ["sh", "-c", asks], "depends_on": ["minibroker"]}
    file = tmp_path / "compose.yaml"
    file.write_text(yaml.safe_dump(described))
    compose = [*compose_program(), "-p", f"mb{uuid.uuid4().hex[:8]}", "-f", str(file)]
    try:
        started = subprocess.run([*compose, "up", "-d"], capture_output=True, text=True, timeout=120)
        assert started.returncode == 0, started.stdout + started.stderr
        round_trip("localhost:9092")
        name = f"{compose[-3]}_asking"
        (asking,) = [one for one in docker.containers.list(all=True) if name in one.name.replace("-", "_")]
        assert asking.wait(timeout=SECONDS)["StatusCode"] == 0
    finally:
        subprocess.run([*compose, "down", "-v"], capture_output=True, timeout=120)


@pytest.mark.parametrize("kraft", [False, True], ids=["zookeeper", "kraft"])
def test_the_stock_python_module(image: str, kraft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        from testcontainers.community.kafka import KafkaContainer
    except ImportError:
        from testcontainers.kafka import KafkaContainer
    module = KafkaContainer(image)
    if kraft:
        # It reads a version from the tag, which an image of ours may not have.
        monkeypatch.setattr(KafkaContainer, "_verify_min_kraft_version", lambda self: None)
        module = module.with_kraft()
    with module as running:
        round_trip(running.get_bootstrap_server())


def test_our_module_with_faults_and_clock(image: str) -> None:
    from minibroker.faults import DropReply
    from minibroker.testing.container import MinibrokerContainer

    wanted = {"topics": {"orders": 3}, "transaction_version": 1, "config": {"transaction.max.timeout.ms": 70_000}}
    with MinibrokerContainer(image, **wanted).with_kraft().with_cluster_id("4L6g3nShT-eMCtK--X86sw") as broker:
        cluster = AdminClient({"bootstrap.servers": broker.get_bootstrap_server()}).list_topics(timeout=SECONDS)
        assert cluster.cluster_id == "4L6g3nShT-eMCtK--X86sw"
        with broker.faults.inject("EndTxn", DropReply()) as fault:
            round_trip(broker.get_bootstrap_server())
            assert fault.fired == 1
        before = broker.clock.freeze()
        assert broker.clock.advance(hours=1) == before + 3_600_000
        described = broker.control.describe()["topics"]
        assert (len(described["__transaction_state"]), len(described["orders"])) == (50, 3)


@pytest.fixture(scope="session")
def stock_modules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Class path of the Java programs that start the stock modules of Testcontainers for Java."""
    from toolchain import Unavailable, tool

    source, out = Path(__file__).parent / "java", tmp_path_factory.mktemp("classes")
    libs = source / "target" / "libs"
    try:
        if not libs.exists():
            argv = [tool("mvn"), "-q", "-B", "-f", source / "pom.xml", "dependency:copy-dependencies"]
            subprocess.run([*argv, f"-DoutputDirectory={libs}"], check=True, capture_output=True, timeout=600)
        programs = [source / "StockModules.java", HOW_TO]
        subprocess.run([tool("javac"), "-nowarn", "-cp", f"{libs}/*", "-d", out, *programs], check=True)
    except (Unavailable, subprocess.SubprocessError) as missing:
        pytest.skip(f"the Java modules are not to be had: {missing}")
    return f"{out}{os.pathsep}{libs}/*"


@pytest.mark.parametrize(
    "program", [("StockModules", "apache"), ("StockModules", "confluent"), ("LostReplyTest",)], ids=" ".join
)
def test_the_stock_java_modules(image: str, stock_modules: str, program: tuple[str, ...]) -> None:
    """Two round trips, and the how-to for Java as it stands."""
    name, *arguments = program
    argv = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", stock_modules, name]
    done = subprocess.run([*argv, image, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "done"
