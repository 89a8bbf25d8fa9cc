"""Each operation on the state leaves what the event that it stands for left on a real Kafka 4.4.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from state_events import CUT, DELETED, NAME, Load, Wire, claim, create, state_of_id

from minibroker import Minibroker
from minibroker_protocol import messages as m

RECORDED = json.loads(Path(__file__).with_name("state_events_of_kafka_4_4_0.json").read_text())


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(brokers=2, ephemeral=True) as broker:
        yield broker


def _wire(broker: Minibroker, node: int) -> Wire:
    with Wire(int(broker.bootstrap_servers.split(",")[0].rsplit(":", 1)[1])) as first:
        answer = first.call(m.MetadataRequest(topics=[]), 9)
    return Wire(next(known.port for known in answer.brokers if known.node_id == node))


Operation = Callable[[Minibroker, str], object]
OPERATIONS: list[tuple[str, str, list[int], int, Operation]] = [
    ("delete_records", "DeleteRecords", [1], 1,
     lambda broker, topic: broker.state.delete_records(topic=topic, partition=0, offset=DELETED)),
    ("lose_producers delete-records", "DeleteRecords, then a new replica", [1], 1,
     lambda broker, topic: broker.state.lose_producers(
         topic=topic, partition=0, cause="delete-records", offset=DELETED)),
    ("lose_producers retention", "retention, then a new replica", [1], 1,
     lambda broker, topic: broker.state.lose_producers(topic=topic, partition=0, cause="retention")),
    ("lose_producers lost-tail", "unclean election", [1], 1,
     lambda broker, topic: broker.state.lose_producers(topic=topic, partition=0, cause="lost-tail", offset=CUT)),
    ("lose_producers expiration", "expiration of producer ids", [1], 1,
     lambda broker, topic: broker.state.lose_producers(topic=topic, partition=0, cause="expiration")),
    ("lose_producer_state", "expiration of producer ids", [1], 1,
     lambda broker, topic: broker.state.lose_producer_state(topic=topic, partition=0)),
    ("truncate_tail", "unclean election", [1], 1,
     lambda broker, topic: broker.state.truncate_tail(topic=topic, partition=0, offset=CUT)),
    ("truncate_tail of two replicas", "unclean election", [1, 2], 1,
     lambda broker, topic: broker.state.truncate_tail(topic=topic, partition=0, offset=CUT)),
    ("append_aborted", "aborted transaction", [1], 1,
     lambda broker, topic: broker.state.append_aborted(topic=topic, partition=0)),
    ("move_leader", "preferred leader elected", [1, 2], 2,
     lambda broker, topic: broker.state.move_leader(topic=topic, partition=0, to=2)),
    ("restart_broker", "clean restart", [2], 2, lambda broker, _: broker.state.restart_broker(broker=2)),
    ("restart_broker clean=False", "kill and start", [2], 2,
     lambda broker, _: broker.state.restart_broker(broker=2, clean=False)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "replicas", "leader", "operation"),
    [row[1:] for row in OPERATIONS],
    ids=[row[0].replace(" ", "-") for row in OPERATIONS],
)
def test_the_operation_leaves_what_the_event_leaves(
    broker: Minibroker,
    request: pytest.FixtureRequest,
    event: str,
    replicas: list[int],
    leader: int,
    operation: Operation,
) -> None:
    topic = request.node.callspec.id.replace("=", "-")
    with _wire(broker, replicas[0]) as wire:
        create(wire, topic, replicas)
        load = Load(wire, topic)
    operation(broker, topic)
    with _wire(broker, leader) as wire:
        assert load.answers(wire) == RECORDED[event]


def test_a_forgotten_transactional_id_is_unknown(broker: Minibroker) -> None:
    with _wire(broker, broker.cluster.coordinator("transaction", NAME) or 1) as wire:
        claim(wire, NAME)
        broker.state.expire_transactional_id(transactional_id=NAME)
        assert state_of_id(wire) == RECORDED["expiration of a transactional id"]
