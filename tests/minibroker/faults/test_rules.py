"""Which rules can be set, and which requests they fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from faulty import FaultyCluster, produce_request

from minibroker.faults import FaultError
from minibroker.faults.actions import ACTIONS
from minibroker.faults.facts import Facts, ProducerFact
from minibroker.faults.rules import Match, rule_from, rule_to
from minibroker.handlers.table import apis
from minibroker.requests.chain import Place
from minibroker_protocol.messages.groups import HeartbeatRequest
from minibroker_protocol.messages.transactions import EndTxnRequest


def _do(operation: str, **arguments: object) -> dict[str, object]:
    return {"name": "do", "operation": operation, "arguments": arguments}


@pytest.fixture
def broker() -> Iterator[FaultyCluster]:
    cluster = FaultyCluster(topics={"t": 2})
    yield cluster
    cluster.stop()


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"api": "EndTxx", "action": "close"}, "no API 'EndTxx', did you mean EndTxn"),
        ({"api": "EndTxn", "action": "clsoe"}, "no action 'clsoe', did you mean close"),
        ({"api": "EndTxn"}, "needs an action"),
        ({"api": "EndTxn", "action": {"name": "error"}}, 'error needs code, as in {"name": "error", "code": …}'),
        ({"api": "EndTxn", "action": {"name": "error", "code": "NOT_CORDINATOR"}}, "did you mean NOT_COORDINATOR"),
        ({"api": "EndTxn", "action": {"name": "error", "code": 4711}}, "no error 4711"),
        ({"api": "EndTxn", "action": {"name": "delay"}}, "delay needs ms"),
        ({"api": "EndTxn", "action": {"name": "delay", "ms": -1}}, "0 or more"),
        ({"api": "EndTxn", "action": {"name": "delay", "ms": 1, "when": "later"}}, "before or after"),
        ({"api": "EndTxn", "action": {"name": "close", "ms": 1}}, "close has no 'ms'"),
        ({"api": "EndTxn", "action": {"name": "error", "code": 16, "message": 3}}, "message is text"),
        ({"api": "EndTxn", "action": {"name": "error", "code": 16, "message": "x" * 32768}}, "at most 32767 bytes"),
        ({"api": "EndTxn", "action": {"name": "error", "code": 16, "message": "\ud800"}}, "message is text"),
        ({"api": "EndTxn", "action": {"name": "error", "code": [16]}}, "code is the name or the number"),
        ({"api": "EndTxn", "action": {"name": "error", "code": True}}, "code is the name or the number"),
        ({"api": "EndTxn", "action": {"name": "do", "operation": ["heal_disk"]}}, "operation is the name"),
        (
            {"api": "EndTxn", "action": {"name": "do", "operation": "heal_disk", "arguments": [1]}},
            "arguments is an object",
        ),
        ({"api": "EndTxn", "action": {"name": ["close"]}}, "needs an action"),
        ({"api": "Produce", "action": "no_records"}, "an answer of Produce has no records"),
        ({"api": "EndTxn", "action": "close", "topic": "t"}, "EndTxn has no topic"),
        ({"api": "Heartbeat", "action": "close", "transactional_id": "t"}, "Heartbeat has no transactional_id"),
        ({"api": "Fetch", "action": "close", "sequence": 7}, "Fetch has no sequence"),
        ({"api": "Produce", "action": "close", "partition": 0}, "a partition needs a topic"),
        ({"api": "Produce", "action": "close", "sequence": [9, 7]}, "9 is above 7"),
        ({"api": "Produce", "action": "close", "versions": [90, 99]}, "served in versions 3-13"),
        ({"api": "Produce", "action": "close", "times": 0}, "1 or more"),
        ({"api": "Produce", "action": "close", "probability": 0}, "above 0"),
        ({"api": "Produce", "action": "close", "nth": "one"}, "nth is a number"),
        ({"api": "Produce", "action": "close", "topik": "t"}, "no field 'topik', did you mean topic"),
        (
            {"api": "EndTxn", "action": {"name": "error"}, "code": 16},
            'no field \'code\': it belongs into the action, as in {"name": "error", "code": …}',
        ),
        ({"api": "Fetch", "action": "throttle", "ms": 5}, 'as in {"name": "throttle", "ms": …}'),
        ({"api": "EndTxn", "action": "close", "code": 16}, 'as in {"name": "error", "code": …}'),
        ({"ap": "Produce"}, "no field 'ap', did you mean api"),  # rather than that the action is missing
        ({"api": "Produce", "action": "close", "topic": 7}, "topic is a text"),
        ({"action": "close", "group": "g", "sequence": 1}, "no request has all of"),
        ({"api": "WriteTxnMarkers", "action": {"name": "throttle", "ms": 1}}, "WriteTxnMarkers has no throttle time"),
        ({"api": "EndTxn", "action": {"name": "do", "operation": "explode"}}, "no operation 'explode'"),
        ({"api": "EndTxn", "action": {"name": "do", "operation": "move_coordinator"}}, "move_coordinator needs to"),
        (
            {"api": "EndTxn", "action": _do("truncate_tail", topic="$topic", partition=0, offset=0)},
            "EndTxn names no topic",
        ),
        (
            {"api": "Produce", "action": _do("truncate_tail", topic="$topik", partition=0, offset=0)},
            "[$]topik is nothing that a request has, did you mean [$]topic",
        ),
        (
            {"api": "Produce", "action": _do("truncate_tail", topic="$partition", partition=0, offset=0)},
            "topic is text, not 0",
        ),
    ],
)
def test_a_rule_that_cannot_be_is_refused_when_it_is_set(
    broker: FaultyCluster, rule: dict[str, Any], reason: str
) -> None:
    with pytest.raises(FaultError, match=reason):
        broker.commands.call("fault.add", rule)
    assert broker.commands.call("fault.list", {}) == []


def test_rules_and_json_say_the_same() -> None:
    given = {
        "api": ["Produce", "EndTxn"],
        "versions": [3, 9],
        "transactional_id": "app-*",
        "topic": "orders",
        "partition": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "action": {"name": "error", "code": "NOT_COORDINATOR"},
        "nth": 2,
        "times": None,
        "probability": 0.5,
        "seed": 7,
    }
    assert rule_to(rule_from(given)) == given


def test_every_action_says_what_it_does() -> None:
    for name, kind in ACTIONS.items():
        assert kind.__doc__, name


def end_txn(transactional_id: str = "a", producer_id: int = 5, epoch: int = 1) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
    )


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({}, True),
        ({"api": "EndTxn"}, True),
        ({"api": ["Fetch", "EndTxn"]}, True),
        ({"api": "Fetch"}, False),
        ({"versions": [0, 3]}, True),
        ({"versions": [4, 5]}, False),
        ({"client_id": "tes?"}, True),
        ({"client_id": "other"}, False),
        ({"transactional_id": "a"}, True),
        ({"transactional_id": "b"}, False),
        ({"producer_id": 5, "producer_epoch": 1}, True),
        ({"producer_id": 5, "producer_epoch": 2}, False),
        ({"broker": 1}, True),
        ({"broker": 2}, False),
        ({"group": "g"}, False),
    ],
)
def test_what_fits_a_request_without_batches(broker: FaultyCluster, match: dict[str, Any], fits: bool) -> None:
    rule = broker.inject(match.pop("api", None), {"name": "error", "code": "NOT_COORDINATOR"}, **match)
    broker.send(end_txn(), 3)
    assert (rule.matched, rule.fired) == ((1, 1) if fits else (0, 0))


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({"topic": "t"}, True),
        ({"topic": "t*", "partition": 1}, True),
        ({"topic": "t", "partition": 0}, False),
        ({"topic": "u"}, False),
        ({"producer_id": 5, "producer_epoch": 0, "sequence": [0, 0]}, True),
        ({"sequence": 2}, True),
        ({"sequence": [3, 9]}, False),
        ({"producer_id": 6}, False),
    ],
)
def test_what_fits_a_batch(broker: FaultyCluster, match: dict[str, Any], fits: bool) -> None:
    rule = broker.inject("Produce", {"name": "error", "code": "NOT_LEADER_OR_FOLLOWER"}, **match)
    broker.send(produce_request("t", 1, producer_id=5, epoch=0, sequence=0, count=3), 9)
    assert rule.fired == fits


def heartbeat(broker: FaultyCluster) -> int:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    code: int = broker.send(request, 4).result().error_code
    return code


REBALANCE_IN_PROGRESS = 27


def test_nth_and_times(broker: FaultyCluster) -> None:
    rule = broker.inject("Heartbeat", {"name": "error", "code": "REBALANCE_IN_PROGRESS"}, nth=3, times=2)
    codes = [heartbeat(broker) == REBALANCE_IN_PROGRESS for _ in range(6)]
    assert codes == [False, False, True, True, False, False]
    assert (rule.matched, rule.fired) == (4, 2)


def test_probability_follows_the_seed(broker: FaultyCluster) -> None:
    def run(seed: int) -> list[bool]:
        action = {"name": "error", "code": "REBALANCE_IN_PROGRESS"}
        rule = broker.inject("Heartbeat", action, probability=0.5, seed=seed, times=None)
        found = [heartbeat(broker) == REBALANCE_IN_PROGRESS for _ in range(40)]
        broker.commands.engine.remove(rule.number)
        return found

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 8 < sum(run(1)) < 32


def test_the_first_rule_that_fits_acts(broker: FaultyCluster) -> None:
    first = broker.inject("Heartbeat", {"name": "error", "code": "REBALANCE_IN_PROGRESS"})
    second = broker.inject("Heartbeat", {"name": "error", "code": "COORDINATOR_NOT_AVAILABLE"})
    heartbeat(broker)
    assert (first.fired, second.fired) == (1, 0)


def test_every_field_of_a_rule_can_be_carried_by_some_request() -> None:
    from minibroker.faults.facts import carried_by

    carried = frozenset().union(*(carried_by(api.request) for api in apis().values()))
    assert carried == {"topic", "partition", "group", "transactional_id", "producer_id", "producer_epoch", "sequence"}


def test_requests_go_straight_to_the_handlers_without_rules(broker: FaultyCluster) -> None:
    assert broker.dispatcher.link_at(Place.FAULTS_AND_TRACE) is None
    rule = broker.inject("Heartbeat", "close")
    assert broker.dispatcher.link_at(Place.FAULTS_AND_TRACE) is not None
    broker.commands.call("fault.remove", {"id": rule.number})
    assert broker.dispatcher.link_at(Place.FAULTS_AND_TRACE) is None


def test_a_filter_by_producer_id_is_about_that_producer() -> None:
    from minibroker.faults.facts import ProducerFact, facts_of
    from minibroker_protocol.messages.transactions import ListTransactionsRequest

    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[7])
    assert facts_of(request).producers == [ProducerFact(7, -1)]


@pytest.mark.parametrize(
    ("first", "last", "wanted", "fits"),
    [
        (5, 9, (9, 12), True),
        (5, 9, (0, 5), True),
        (5, 9, (6, 7), True),
        (5, 9, (0, 4), False),
        (5, 9, (10, 12), False),
        # 2^31 - 2, 2^31 - 1, 0, 1
        (2**31 - 2, 1, (0, 0), True),
        (2**31 - 2, 1, (1, 9), True),
        (2**31 - 2, 1, (2**31 - 1, 2**31 - 1), True),
        (2**31 - 2, 1, (7, 2**31 - 2), True),
        (2**31 - 2, 1, (2, 9), False),
        (2**31 - 2, 1, (2, 2**31 - 3), False),
        (-1, -1, (0, 9), False),
    ],
)
def test_a_range_of_sequences_fits_batches_that_have_one_of_them(
    first: int, last: int, wanted: tuple[int, int], fits: bool
) -> None:
    facts = Facts(producers=[ProducerFact(7, 0, first, last)])
    assert Match(sequence=wanted).fits(facts) == fits
