"""A proxy in front of a real Kafka: it does nothing when it is asked nothing, and its faults are real there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_ports
from real_kafka import RealKafka, real_kafka
from samples_of_pages import run_recipe

from minibroker import Proxy
from minibroker.client.cluster import ClusterClient
from minibroker_lab.conformance import command as conformance
from minibroker_protocol import messages as m

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "how-to" / "recipes" / "test_proxy_confluent.py"


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with real_kafka() as bootstrap:
        yield bootstrap


def test_the_suite_finds_what_it_finds_without_the_proxy(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    with Proxy(kafka) as proxy:
        for bootstrap in (kafka, proxy.bootstrap_servers):
            conformance.main(["--bootstrap", bootstrap, "--expect", "kafka-4.4", "--skip-tag", "slow"])
            said = capsys.readouterr().out.splitlines()
            busy = [line.split()[1].rstrip(":") for line in said if line.startswith("FAIL")]
            for name in busy:  # as in test_conformance: what a busy machine made of it
                assert conformance.main(["--bootstrap", bootstrap, "--expect", "kafka-4.4", "--only", name]) == 0
            assert len(busy) <= 3
            found.append(sorted(line.split(":")[0] for line in said if line.startswith(("skip", "n/a"))))
    capsys.readouterr()
    assert found[0] == found[1]


def test_the_recipes_work_as_they_stand(kafka: str) -> None:
    assert "4 passed" in run_recipe(RECIPES, "--minibroker-upstream", kafka)


def brokers_of_three() -> Iterator[RealKafka]:
    """The first is the controller too; all replicate to each other."""
    extra = "default.replication.factor=3\nmin.insync.replicas=2\noffsets.topic.replication.factor=3\n"
    extra += "transaction.state.log.replication.factor=3\ntransaction.state.log.min.isr=2\n"
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


def test_transactions_and_groups_go_on_while_a_broker_of_three_is_killed_and_comes_back() -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    brokers = list(brokers_of_three())
    try:
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.wait()
        with Proxy(",".join(broker.bootstrap for broker in brokers)) as proxy:
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
            brokers[2].kill()
            with ClusterClient(proxy.bootstrap_servers) as client:
                client.patiently(lambda: _without(client, 3), 60)
                brokers[2].start()
                brokers[2].wait()
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
    finally:
        for broker in brokers:
            broker.close()


def _without(client: ClusterClient, node_id: int) -> m.MetadataResponse:
    """Metadata that no longer names a broker."""
    answer = client.metadata([])
    if node_id in {broker.node_id for broker in answer.brokers}:
        from minibroker_protocol.errors import ApiError, ErrorCode

        raise ApiError(ErrorCode.NOT_CONTROLLER, "it is still there")
    return answer
