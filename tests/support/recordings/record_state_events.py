"""Records what a partition of a real Kafka answers after the events that operations of `state` stand for:

    python tests/support record_state_events tests/minibroker/faults/state_events_of_kafka_4_4_0.json

Needs Maven and confluent-kafka; no test runs it. Two brokers are started, and some events are waited for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from free_ports import free_ports
from real_kafka import RealKafka
from state_events import DELETED, NAME, Load, Wire, claim, create, described, new_producer, state_of_id
from write_healthy import Wire as TransactionsWire
from write_healthy import wait

from minibroker_protocol import messages as m

SETTINGS = """
broker.session.timeout.ms=6000
log.retention.check.interval.ms=500
producer.id.expiration.check.interval.ms=500
transactional.id.expiration.ms=5000
transaction.remove.expired.transaction.cleanup.interval.ms=500
auto.leader.rebalance.enable=false
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
"""


def reassign(wire: Wire, topic: str, replicas: list[int]) -> None:
    kind = m.AlterPartitionReassignmentsRequest
    moved = kind.ReassignablePartition(partition_index=0, replicas=replicas)
    topics = [kind.ReassignableTopic(name=topic, partitions=[moved])]
    answer = wire.call(kind(timeout_ms=30_000, topics=topics), 0)
    assert not answer.error_code, answer
    wait(
        lambda: described(wire, topic).replica_nodes == replicas and described(wire, topic).leader_id in replicas,
        f"{topic} was not moved",
    )


def delete_records(wire: Wire, topic: str, offset: int) -> None:
    kind = m.DeleteRecordsRequest
    topics = [
        kind.DeleteRecordsTopic(name=topic, partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=offset)])
    ]
    (answer,) = wire.call(kind(topics=topics, timeout_ms=30_000), 2).topics[0].partitions
    assert not answer.error_code, answer


def configure(wire: Wire, kind_of_resource: int, name: str, key: str, value: str) -> None:
    kind = m.IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(name=key, config_operation=0, value=value)
    resource = kind.AlterConfigsResource(resource_type=kind_of_resource, resource_name=name, configs=[config])
    (answer,) = wire.call(kind(resources=[resource], validate_only=False), 1).responses
    assert not answer.error_code, answer


def aborted_transaction(wire: TransactionsWire, topic: str) -> None:
    producer = wire.init("aborts")
    wire.send("aborts", producer, 0, topic, 0, count=1)
    wire.end("aborts", producer, commit=False)
    time.sleep(1)


class TwoBrokers:
    """Broker 1, which is the controller too, and broker 2. Broker 1 can go on as a controller only."""

    def __init__(self) -> None:
        self.first = RealKafka(SETTINGS)
        (port,) = free_ports(1)
        self.second = RealKafka(
            SETTINGS
            + "process.roles=broker\nnode.id=2\n"
            + f"controller.quorum.voters=1@127.0.0.1:{self.first.controller_port}\n"
            + f"listeners=PLAINTEXT://127.0.0.1:{port}\nadvertised.listeners=PLAINTEXT://127.0.0.1:{port}\n",
            port,
        )

    def start(self) -> None:
        for kafka in (self.first, self.second):
            kafka.start()
            kafka.wait()
        wire = self.wire(1)
        wait(lambda: len(wire.call(m.MetadataRequest(topics=[]), 9).brokers) == 2, "broker 2 is not there")
        time.sleep(2)

    def wire(self, node: int) -> Wire:
        return Wire((self.first if node == 1 else self.second).port)

    def controller_only(self) -> None:
        """Broker 1 dies; its controller comes back alone."""
        self.first.kill()
        properties = self.first.directory / "server.properties"
        lines = properties.read_text().splitlines()
        kept = [line for line in lines if not line.startswith(("process.roles", "listeners", "advertised.listeners"))]
        port = self.first.controller_port
        kept += ["process.roles=controller", f"listeners=CONTROLLER://127.0.0.1:{port}"]
        properties.write_text("\n".join(kept) + "\n")
        self.first.start()

    def close(self) -> None:
        self.second.close()
        self.first.close()


def record() -> dict[str, Any]:
    events: dict[str, Any] = {}
    brokers = TwoBrokers()
    try:
        brokers.start()
        first, two = brokers.wire(1), brokers.wire(2)

        def story(event: str, replicas: list[int], happens: Callable[[str], Wire], **configs: str) -> None:
            topic = event.replace(" ", "-").replace(",", "")
            create(first, topic, replicas, **configs)
            wait(lambda: getattr(described(first, topic), "leader_id", -1) == replicas[0], "no leader")
            time.sleep(1)
            load = Load(first if replicas[0] == 1 else two, topic)
            if event == "expiration of producer ids":
                wire = happens(topic)
                wait(lambda: not load.producers(wire), "the producers are still known")
            else:
                wire = happens(topic)
            events[event] = load.answers(wire)
            print(event, events[event], flush=True)

        def deleted(topic: str) -> Wire:
            delete_records(first, topic, DELETED)
            return first

        def deleted_and_moved(topic: str) -> Wire:
            delete_records(first, topic, DELETED)
            reassign(first, topic, [2])
            time.sleep(1)
            return two

        def expired_and_moved(topic: str) -> Wire:
            configure(first, 2, topic, "retention.ms", "1")
            wait(lambda: Load.of(topic).offset(first, -2)[0] == 15, "retention did not delete the segment")
            reassign(first, topic, [2])
            time.sleep(1)
            return two

        def retention_only(topic: str) -> Wire:
            configure(first, 2, topic, "retention.ms", "1")
            wait(lambda: Load.of(topic).offset(first, -2)[0] == 15, "retention did not delete the segment")
            return first

        def aborted(topic: str) -> Wire:
            aborted_transaction(TransactionsWire(brokers.first.bootstrap), topic)
            return first

        def moved(topic: str) -> Wire:
            reassign(first, topic, [2, 1])
            kind = m.ElectLeadersRequest
            first.call(
                kind(
                    election_type=0,
                    topic_partitions=[kind.TopicPartitions(topic=topic, partitions=[0])],
                    timeout_ms=9999,
                ),
                2,
            )
            wait(lambda: described(two, topic).leader_id == 2, "the leader did not move")
            time.sleep(1)
            return two

        story("DeleteRecords", [1], deleted)
        story("DeleteRecords, then a new replica", [1], deleted_and_moved)
        story("retention", [1], retention_only)
        story("retention, then a new replica", [1], expired_and_moved)
        story("aborted transaction", [1], aborted)
        story("preferred leader elected", [1, 2], moved)
        claim(first, NAME)
        wait(lambda: state_of_id(first)[0] == 105, "the id did not expire")
        events["expiration of a transactional id"] = state_of_id(first)

        def restarted(how: Callable[[], None]) -> Callable[[str], Wire]:
            def happens(topic: str) -> Wire:
                nonlocal two
                how()
                brokers.second.start()
                brokers.second.wait()
                wait(lambda: described(first, topic).leader_id == 2, "broker 2 does not lead again")
                time.sleep(1)
                two = brokers.wire(2)
                return two

            return happens

        story("clean restart", [2], restarted(brokers.second.stop))
        story("kill and start", [2], restarted(brokers.second.kill))

        def expired(topic: str) -> Wire:
            configure(first, 4, "", "producer.id.expiration.ms", "1000")
            return first

        story("expiration of producer ids", [1], expired)
        configure(first, 4, "", "producer.id.expiration.ms", "86400000")

        # An unclean election: broker 2 has the records below CUT, broker 1 dies with the rest.
        create(first, "unclean", [1, 2], unclean__leader__election__enable="true")
        wait(lambda: getattr(described(first, "unclean"), "leader_id", -1) == 1, "no leader")
        time.sleep(1)
        load = Load.of("unclean")
        load.a, load.b = new_producer(first), new_producer(first)
        load.append(first, load.a, 0, 6)
        time.sleep(1)
        brokers.second.stop()
        wait(lambda: described(first, "unclean").isr_nodes == [1], "broker 2 is still in sync")
        load.append(first, load.b, 0, 3)
        load.append(first, load.a, 6, 6)
        load.first_epoch = load.leader_epoch(first)
        brokers.controller_only()
        brokers.second.start()
        brokers.second.wait()
        two = brokers.wire(2)
        wait(
            lambda: getattr(described(two, "unclean"), "leader_id", -1) == 2,
            "no unclean election",
        )
        time.sleep(1)
        events["unclean election"] = load.answers(two)
        print(events["unclean election"])
    finally:
        brokers.close()
    return events


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1) + "\n")
