"""What a type checker makes of the public API: `mypy` checks this file with the rest, and fails for an error that is
expected here and missing. Never run."""

from __future__ import annotations

from typing import Any, assert_type

from minibroker import Minibroker
from minibroker.faults import Do, DropReply, Error
from minibroker.testing.factories import ConfluentConsumerFactory, ConfluentProducerFactory


def calls(broker: Minibroker) -> None:
    assert_type(broker.clock.advance(minutes=2), int)
    assert_type(broker.state.truncate_tail(topic="orders", partition=0, offset=3), int)
    assert_type(broker.state.held_markers(), list[str])
    assert_type(broker.records("orders", isolation="read_committed")[0].value, bytes | None)
    assert_type(broker.committed("group"), dict[tuple[str, int], int])
    assert_type(broker.requests("EndTxn")[0].errors, tuple[str, ...])
    assert_type(broker.cluster.leader("orders"), int | None)
    assert_type(broker.faults.inject("EndTxn", DropReply(), transactional_id="app").hits, list[dict[str, Any]])
    broker.state.kill_broker()
    broker.cluster.start_broker()


def mistakes(broker: Minibroker) -> None:
    broker.state.kil_broker()  # type: ignore[attr-defined]
    broker.state.kill_broker(brokr=1)  # type: ignore[call-arg]
    broker.state.truncate_tail(topic="orders", partition="0", offset=3)  # type: ignore[arg-type]
    broker.clock.advance(minuts=2)  # type: ignore[call-arg]
    broker.faults.inject("EndTxn", DropReply(), topik="orders")  # type: ignore[call-arg]
    broker.records("orders", isolation="committed")  # type: ignore[arg-type]
    broker.cluster.kill_broker("1")  # type: ignore[arg-type]


def names(broker: Minibroker) -> None:
    """A name of a table is a type of its own."""
    broker.faults.inject(["EndTxn", "Produce"], "drop_reply", expected=False)
    broker.faults.inject(None, Error("NOT_COORDINATOR"))
    broker.faults.inject("EndTx", "drop_reply")  # type: ignore[arg-type]
    broker.faults.inject(["Produce", "EndTx"], "drop_reply")  # type: ignore[list-item]
    broker.faults.inject("EndTxn", "drop_replies")  # type: ignore[arg-type]
    Error("NOT_CORDINATOR")  # type: ignore[arg-type]
    Do("kil_broker")  # type: ignore[arg-type]
    broker.wait_for_transaction("app", "CompleteComit")  # type: ignore[arg-type]
    broker.state.lose_producers("orders", 0, cause="retention-time")  # type: ignore[arg-type]
    broker.requests("EndTx")  # type: ignore[arg-type]


def clients(confluent_producer: ConfluentProducerFactory, confluent_consumer: ConfluentConsumerFactory) -> None:
    """What the fixtures make has the types of the client."""
    producer = confluent_producer({"transactional.id": "app"})
    producer.comit_transaction()  # type: ignore[attr-defined]
    confluent_producer("app")  # type: ignore[arg-type]
    confluent_producer(transactional_id="app")  # type: ignore[call-arg]
    confluent_consumer().subscrib(["orders"])  # type: ignore[attr-defined]
