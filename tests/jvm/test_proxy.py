"""A proxy in front of a real Kafka: it does nothing when it is asked nothing, and its faults are real there."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from check_program import Outcomes, declared_checks
from free_ports import free_ports
from jvm import JVM_TIER, POMS, compile_java, java_command
from real_kafka import RealKafka, real_kafka
from samples_of_pages import run_recipe
from toolchain import TESTS, Unavailable, go_program, node_program

from minibroker import Proxy
from minibroker.cli import main
from minibroker.client.cluster import ClusterClient
from minibroker.exit_codes import EXIT_BROKEN, EXIT_SKIPPED
from minibroker.faults import DropReply
from minibroker_lab.conformance import command as conformance
from minibroker_protocol.errors import ApiError, ErrorCode

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
CHECK_SECONDS = 400
KAFKAJS = "kafkajs"
MUSEUM = ("aiokafka-fenced-produce", "aiokafka-late-produce", "aiokafka-torn-commit", "librdkafka-lost-first-batch")
Three = tuple[list[RealKafka], Proxy]
RECIPES = ROOT / "docs" / "how-to" / "recipes" / "test_proxy_confluent.py"


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with real_kafka() as bootstrap:
        yield bootstrap


@pytest.mark.parametrize("release", POMS)
def test_the_suite_finds_what_it_finds_without_the_proxy(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    expectation = f"kafka-{release.rpartition('.')[0]}"
    with real_kafka(release=release) as kafka, Proxy(kafka) as proxy:
        for bootstrap in (kafka, proxy.bootstrap_servers):
            options = ["--bootstrap", bootstrap, "--expect", expectation]
            conformance.main([*options, "--skip-tag", "slow"])
            said = capsys.readouterr().out.splitlines()
            busy = [line.split()[1].rstrip(":") for line in said if line.startswith("FAIL")]
            for name in busy:  # as in test_conformance: what a busy machine made of it
                assert conformance.main([*options, "--only", name]) == 0, capsys.readouterr().out
            assert len(busy) <= 3, busy
            found.append(sorted(line.split(":")[0] for line in said if line.startswith(("skip", "n/a"))))
    capsys.readouterr()
    assert found[0] == found[1]


def test_the_recipes_work_as_they_stand(kafka: str) -> None:
    assert "4 passed" in run_recipe(RECIPES, "--minibroker-upstream", kafka)


@pytest.mark.parametrize("case", MUSEUM)
def test_a_case_of_the_museum_is_seen_in_front_of_kafka(
    case: str, kafka: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = main(["museum", "run", case, "--upstream", kafka])
    said = capsys.readouterr().out
    if ended == EXIT_SKIPPED:
        pytest.skip(said)
    assert ended == EXIT_BROKEN, said


def brokers_of_three() -> Iterator[RealKafka]:
    """The first is the controller too; all replicate to each other."""
    extra = "default.replication.factor=3\nmin.insync.replicas=2\noffsets.topic.replication.factor=3\n"
    extra += "transaction.state.log.replication.factor=3\ntransaction.state.log.min.isr=2\n"
    extra += "share.coordinator.state.topic.replication.factor=3\nshare.coordinator.state.topic.min.isr=2\n"
    extra += "share.coordinator.state.topic.num.partitions=3\n"
    extra += "offsets.topic.num.partitions=3\ntransaction.state.log.num.partitions=3\nbroker.session.timeout.ms=6000\n"
    first = RealKafka(extra)
    yield first
    for node_id in (2, 3):
        (port,) = free_ports(1)
        own = f"process.roles=broker\nnode.id={node_id}\nlog.dirs={{data}}\n"
        own += f"controller.quorum.voters=1@127.0.0.1:{first.controller_port}\n"
        own += f"listeners=PLAINTEXT://127.0.0.1:{port}\nadvertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        made = RealKafka(extra + own)
        made.port = port
        yield made


@pytest.fixture(scope="module")
def three() -> Iterator[Three]:
    """Three brokers, and a proxy in front of them."""
    brokers = list(brokers_of_three())
    try:
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.wait()
        with Proxy(",".join(broker.bootstrap for broker in brokers)) as proxy:
            yield brokers, proxy
    finally:
        for broker in brokers:
            broker.close()


def killed_and_back(broker: RealKafka, proxy: Proxy) -> None:
    """Kill the last of three brokers, and start it again once the others know, until they know of that too."""
    broker.kill()
    with ClusterClient(proxy.bootstrap_servers) as client:
        client.patiently(lambda: _names(client, 3, False), 60)
        broker.start()
        broker.wait()
        client.patiently(lambda: _names(client, 3, True), 60)


Program = Callable[[Path], list[str]]
"""Makes a program of checks in a folder, and gives its command line without the address."""


def java_checks(release: str) -> Program:
    def made(folder: Path) -> list[str]:
        programs = compile_java([JVM_TIER / "ClientChecks.java"], folder)
        return java_command("ClientChecks", extra=(programs,), release=release)

    return made


JAVA_CHECKS = JVM_TIER / "ClientChecks.java", r'^        run\("(\w+)"'
CLIENTS: dict[str, tuple[Program, Path, str]] = {
    **{f"java {release}": (java_checks(release), *JAVA_CHECKS) for release in POMS},
    "franz-go": (lambda folder: [go_program(".", folder)], TESTS / "go" / "main.go", r'^\trun\("(\w+)"'),
    KAFKAJS: (partial(node_program, "checks.mjs"), TESTS / "node" / "checks.mjs", r"^  async (\w+)\("),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_works_while_a_broker_of_three_is_killed_and_comes_back(
    client: str, three: Three, tmp_path: Path
) -> None:
    """The checks of each client's own tier: transactions, fencing, groups of either protocol, topics."""
    brokers, proxy = three
    made, source, pattern = CLIENTS[client]
    try:
        argv = [*made(tmp_path), proxy.bootstrap_servers]
    except Unavailable as missing:
        pytest.skip(str(missing))
    with (
        (tmp_path / "stderr").open("w") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            killed_and_back(brokers[2], proxy)
            said = first + process.communicate(timeout=CHECK_SECONDS)[0]
        finally:
            process.kill()  # otherwise a client that hangs is waited for
    if client == KAFKAJS:  # 2.2.4 hands the end of a connection to the application, with a proxy and without
        said = subprocess.run(argv, capture_output=True, text=True, timeout=CHECK_SECONDS).stdout
    outcomes = Outcomes(CompletedProcess(argv, process.returncode, said, (tmp_path / "stderr").read_text()))
    for check in declared_checks(source, pattern):
        outcomes.verify(check)


async def test_aiokafka_copies_exactly_once_while_a_broker_of_three_is_killed_and_comes_back(three: Three) -> None:
    """Two members of a group of the classic protocol, as aiokafka 0.14 has no other; the second joins later."""
    import aiokafka

    brokers, proxy = three
    proxy.create_topic("aio-in", partitions=3)
    proxy.create_topic("aio-out", partitions=3)
    servers = {"bootstrap_servers": proxy.bootstrap_servers}
    earliest = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    sent: list[bytes] = []
    found: list[bytes | None] = []
    is_back, all_found = asyncio.Event(), asyncio.Event()

    async def feed() -> None:
        async with aiokafka.AIOKafkaProducer(**servers, enable_idempotence=True) as source:
            while len(sent) < 300 or not is_back.is_set():
                value = b"%d" % len(sent)
                await source.send_and_wait("aio-in", value, partition=len(sent) % 3)
                sent.append(value)
                if len(sent) > 200:  # some of them while the broker is away
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(is_back.wait(), 0.2)

    async def copy(member: str) -> None:
        whole = asyncio.Lock()

        class Listener(aiokafka.ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: object) -> None:
                async with whole:  # aiokafka's offsets carry no generation, so no other member would fence it
                    pass

            async def on_partitions_assigned(self, assigned: object) -> None:
                pass

        async with (
            aiokafka.AIOKafkaProducer(**servers, transactional_id=f"aio-{member}") as producer,
            aiokafka.AIOKafkaConsumer(**servers, **earliest, group_id="aio", session_timeout_ms=45_000) as consumer,
        ):
            consumer.subscribe(["aio-in"], listener=Listener())
            while not all_found.is_set():
                async with whole:
                    messages = await consumer.getmany(timeout_ms=200, max_records=50)
                    if not messages:
                        continue
                    async with producer.transaction():
                        for place, batch in messages.items():
                            for message in batch:
                                await producer.send("aio-out", message.value, partition=place.partition)
                        after = {place: batch[-1].offset + 1 for place, batch in messages.items()}
                        await producer.send_offsets_to_transaction(after, "aio")

    async def read() -> None:
        committed = {"isolation_level": "read_committed", **earliest}
        async with aiokafka.AIOKafkaConsumer("aio-out", **servers, **committed) as reader:
            while not feeding.done() or len(set(found)) < len(sent):
                for batch in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(message.value for message in batch)
            all_found.set()
            assert await reader.getmany(timeout_ms=3000) == {}

    feeding = asyncio.create_task(feed())
    work = [feeding, asyncio.create_task(copy("first")), asyncio.create_task(read())]
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            while not found:
                await asyncio.wait(work, timeout=0.2, return_when=asyncio.FIRST_EXCEPTION)
            work.append(asyncio.create_task(copy("second")))
            await asyncio.to_thread(killed_and_back, brokers[2], proxy)
            is_back.set()
            await asyncio.gather(*work)
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    assert sorted(value or b"" for value in found) == sorted(sent)


def test_transactions_and_groups_go_on_while_a_broker_of_three_is_killed_and_comes_back(
    three: Three,
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    brokers, proxy = three
    proxy.create_topic("in", partitions=3)
    proxy.create_topic("out", partitions=3)
    servers = {"bootstrap.servers": proxy.bootstrap_servers}
    source = Producer(servers)
    for number in range(300):
        source.produce("in", b"%d" % number, partition=number % 3)
    source.flush(60)

    def copy(protocol: str, wanted: int) -> None:
        producer = Producer({**servers, "transactional.id": f"copier-{protocol}"})
        producer.init_transactions(120)
        group = {"group.id": f"copiers-{protocol}", "group.protocol": protocol, "enable.auto.commit": False}
        consumer = Consumer({**servers, **group, "auto.offset.reset": "earliest"})
        consumer.subscribe(["in"])
        copied = 0
        while copied < wanted:
            messages = [one for one in consumer.consume(20, 1.0) if one.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce("out", message.value(), key=protocol, partition=message.partition())
            after = {(one.topic(), one.partition()): one.offset() + 1 for one in messages}
            positions = [TopicPartition(*place, offset) for place, offset in after.items()]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 120)
            producer.commit_transaction(120)
            copied += len(messages)
        consumer.close()

    threads = [threading.Thread(target=copy, args=(protocol, 300)) for protocol in ("classic", "consumer")]
    for thread in threads:
        thread.start()
    killed_and_back(brokers[2], proxy)
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    reader = Consumer({**servers, "group.id": "reader", "isolation.level": "read_committed"})
    reader.assign([TopicPartition("out", partition, 0) for partition in range(3)])
    found: list[tuple[bytes, int]] = []
    while len(found) < 600:
        found += [(one.key(), int(one.value())) for one in reader.consume(600 - len(found), 30.0)]
    assert reader.consume(1, 3.0) == []
    reader.close()
    assert sorted(found) == sorted((key, n) for key in (b"classic", b"consumer") for n in range(300))


@pytest.mark.parametrize("release", POMS)
def test_a_share_group_goes_on_while_a_broker_of_three_is_killed_and_comes_back(
    release: str, three: Three, tmp_path: Path
) -> None:
    brokers, proxy = three
    programs = compile_java([JVM_TIER / "ShareConsumer.java"], tmp_path)
    lost = proxy.faults.inject("ShareFetch", DropReply(), nth=3)
    arguments = (proxy.bootstrap_servers, f"shared-{release}", "600")
    argv = java_command("ShareConsumer", *arguments, extra=(programs,), release=release)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            killed_and_back(brokers[2], proxy)
            said = process.communicate(timeout=CHECK_SECONDS)[0]
        finally:
            process.kill()
    assert "ok 600 released 60\n" in said, said
    assert lost.fired == 1


def _names(client: ClusterClient, node_id: int, wanted: bool) -> None:
    """Raise a retriable error unless Metadata names a broker, or does not."""
    if (node_id in {broker.node_id for broker in client.metadata([]).brokers}) != wanted:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "not yet")
