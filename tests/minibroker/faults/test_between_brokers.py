"""Rules on what brokers send each other: only those that say so, and each action with its effect on the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from many_brokers import ManyBrokers
from seed_client import OK, SeedClient

from minibroker.control.commands import Commands
from minibroker.faults import FaultError
from minibroker.faults.engine import SetRule
from minibroker.faults.rules import rule_from, rule_to
from minibroker.handlers.table import apis_of_brokers
from minibroker.releases.semantics import KAFKA
from minibroker_protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse


class Faulty(ManyBrokers):
    def __init__(self) -> None:
        lasting = dict.fromkeys(("replica.lag.time.max.ms", "broker.session.timeout.ms"), "3600000")
        super().__init__(3, {**lasting, "replica.fetch.backoff.ms": "100"})
        self.commands = Commands(self.cluster, self.timers)

    def inject(self, api: str | None, action: Any, **rule: Any) -> SetRule:
        given = {"action": action, "between_brokers": True, **rule}
        if api is not None:
            given["api"] = api
        return self.commands.engine.add(rule_from(given))

    def ends(self) -> list[int]:
        return [self.partition(node, "t").log_end_offset for node in sorted(self.cluster.brokers)]


@pytest.fixture
def brokers() -> Iterator[Faulty]:
    many = Faulty()
    many.create("t", [[1, 2, 3]])
    yield many
    many.commands.close()


def test_a_rule_for_clients_leaves_brokers_alone_and_the_reverse(brokers: Faulty) -> None:
    of_clients = brokers.commands.engine.add(rule_from({"api": "Fetch", "action": "close", "times": None}))
    assert brokers.produce("t", b"1").error_code == 0
    assert of_clients.matched == 0
    brokers.commands.engine.clear()
    between = brokers.inject("Fetch", {"name": "delay", "ms": 1}, times=None)
    assert brokers.values("t") == [b"1"]
    assert {hit.client_id for hit in between.hits} <= {"broker-2", "broker-3"}


@pytest.mark.parametrize(
    "action",
    [
        {"name": "error", "code": "NOT_LEADER_OR_FOLLOWER"},
        {"name": "apply_then_error", "code": "UNKNOWN_SERVER_ERROR"},
        "drop_reply",
        {"name": "delay", "ms": 100},
        {"name": "delay", "ms": 100, "when": "after"},
        "duplicate",
        "truncate",
        "corrupt",
        "close",
        "reset",
        {"name": "reorder", "within_ms": 50},
    ],
    ids=str,
)
def test_followers_get_over_every_trouble_with_a_fetch(brokers: Faulty, action: Any) -> None:
    brokers.settle(600)
    rule = brokers.inject("Fetch", action, client_id="broker-2", broker=1, times=3)
    for value in (b"1", b"2", b"3", b"4"):
        assert brokers.produce("t", value).error_code == 0
        brokers.settle(600)
    assert rule.fired == 3
    brokers.settle(3000)
    assert brokers.ends() == [4, 4, 4]
    assert brokers.values("t") == [b"1", b"2", b"3", b"4"]
    assert brokers.partition(2, "t").log.read(0, 1 << 20, bound=4) is not None


def test_a_held_follower_leaves_acks_all_waiting(brokers: Faulty) -> None:
    rule = brokers.inject("Fetch", "hold", client_id="broker-3", times=None)
    brokers.settle(600)
    answer = brokers.send(1, brokers.produce_request("t", _batch(b"1")), 9)
    brokers.settle(500)
    assert (answer.done, brokers.ends(), rule.held) == (False, [1, 1, 0], 1)
    brokers.commands.engine.remove(rule.number)
    brokers.settle(2000)
    assert (answer.done, brokers.ends()) == (True, [1, 1, 1])


def test_a_broker_in_a_black_hole_is_answered_nothing(brokers: Faulty) -> None:
    rule = brokers.inject(None, "black_hole", client_id="broker-2")
    brokers.settle(1200)
    assert brokers.produce("t", b"1", acks=1).error_code == 0
    brokers.settle(5000)
    assert brokers.ends() == [1, 0, 1]
    brokers.commands.engine.remove(rule.number)
    brokers.settle(3000)
    assert brokers.ends() == [1, 1, 1]


def test_what_goes_to_the_controller(brokers: Faulty) -> None:
    rule = brokers.inject("AllocateProducerIds", {"name": "error", "code": "STALE_BROKER_EPOCH"}, broker=-1)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answer = brokers.call(1, request, InitProducerIdResponse, 4, wait_ms=2000)
    assert rule.fired == 1
    again = brokers.call(1, request, InitProducerIdResponse, 4, wait_ms=2000)
    assert (again.error_code, again.producer_id >= 0) == (0, True)
    assert answer.error_code == 0 or answer.producer_id == -1


@pytest.mark.parametrize("action", ["hold", {"name": "duplicate", "after_ms": 300}, {"name": "reorder"}], ids=str)
def test_what_was_kept_from_a_broker_that_died_is_never_sent(brokers: Faulty, action: Any) -> None:
    rule = brokers.inject("Fetch", action, client_id="broker-2", times=None)
    while not rule.fired:
        brokers.settle(5)
    brokers.cluster.kill_broker(2)
    sent: list[int] = []
    network: Any = brokers.cluster.network
    plain = network.send

    def send(source: int, *rest: Any) -> Any:
        sent.append(source)
        return plain(source, *rest)

    network.send = send
    rule.release()
    brokers.settle(600)
    assert 3 in sent
    assert 2 not in sent
    assert brokers.produce("t", b"1").error_code == 0


def test_a_broker_that_starts_later_is_under_the_rules_too(brokers: Faulty) -> None:
    rule = brokers.inject("Fetch", {"name": "delay", "ms": 0}, client_id="broker-2", times=None)
    brokers.cluster.kill_broker(2)
    before = rule.fired
    brokers.settle(2000)
    assert rule.fired == before
    brokers.cluster.start_broker(2)
    brokers.settle(2000)
    assert rule.fired > before


@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "WriteTxnMarkers"])
def test_what_a_broker_asks_itself_is_a_request_too_while_a_rule_is_about_it(api: str) -> None:
    client = SeedClient(KAFKA)
    commands = Commands(client.cluster.cluster, client.cluster.timers)
    rule = commands.engine.add(rule_from({"api": api, "action": "hold", "between_brokers": True}))
    producer = client.new()
    assert client.add(producer) == OK
    if api == "AddPartitionsToTxn":
        with pytest.raises(RuntimeError, match="not resolved"):
            client.produce(producer, 0)
    else:
        assert client.produce(producer, 0).code == OK
        assert client.end(producer, commit=True) == OK
    assert (rule.fired, rule.held, rule.hits[0].client_id) == (1, 1, "broker-1")
    commands.close()
    client.stop()


def test_brokers_are_not_throttled_and_send_only_what_they_send(brokers: Faulty) -> None:
    with pytest.raises(FaultError, match="for clients"):
        brokers.inject("Fetch", {"name": "throttle", "ms": 5})
    with pytest.raises(FaultError, match="for clients"):
        brokers.inject("Fetch", {"name": "corrupt", "of": "request"})
    with pytest.raises(FaultError, match="no broker sends 'Produce'"):
        brokers.inject("Produce", "close")
    with pytest.raises(FaultError, match="true or false"):
        rule_from({"action": "close", "between_brokers": "yes"})


def test_a_rule_says_whom_it_is_for(brokers: Faulty) -> None:
    rule = rule_from({"action": "close", "api": "Fetch", "between_brokers": True})
    assert rule_to(rule)["between_brokers"] is True
    assert "between_brokers" not in rule_to(rule_from({"action": "close"}))


def test_everything_the_controller_serves_can_be_named(brokers: Faulty) -> None:
    served = set(brokers.cluster.controller._handlers)
    rows = apis_of_brokers().values()
    assert served <= {api.request for api in rows}
    # Nor does a row send to the controller what that does not know: the last is the one whose meaning has versions.
    assert {api.request for api in rows if api.controller} <= served
    assert {api.name for api in rows if not api.clients and api.request not in served} == {"AlterPartition"}


def _batch(value: bytes) -> bytes:
    from minibroker_protocol.records import Record, build_batch

    return bytes(build_batch([Record(0, 1_700_000_000_000, None, value)]))
