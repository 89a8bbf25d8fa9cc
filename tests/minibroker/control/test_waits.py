"""What a cluster waits for, in lines: why a test hangs."""

from __future__ import annotations

import re
from typing import Any

from group_client import FIRST_GROUP, GroupClient
from seed_client import ID, OK, SeedClient

from minibroker.control.commands import Commands
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode


class Asked(SeedClient):
    """The commands of a broker in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = Commands(self.cluster.cluster, self.cluster.timers)

    def waits(self) -> list[str]:
        lines: list[str] = self.commands.call("cluster.waits", {})
        return lines


def waits_of(client: GroupClient) -> list[str]:
    lines: list[str] = Commands(client.cluster, client.timers).call("cluster.waits", {})
    return [re.sub(r"\([^)]*\)", "(id)", line) for line in lines if "looked up" not in line]


def test_a_broker_that_waits_for_nothing_says_nothing() -> None:
    asked = Asked()
    producer = asked.new()
    asked.add(producer)
    assert asked.produce(producer, 0).code == OK
    assert asked.end(producer, commit=True) == OK
    assert [line for line in asked.waits() if "looked up" not in line] == []
    asked.stop()


def test_an_open_transaction_and_who_reads_nothing_because_of_it() -> None:
    asked = Asked()
    producer = asked.new()
    asked.add(producer)
    assert asked.produce(producer, 0).code == OK
    asked.commands.call("clock.freeze", {})
    asked.commands.call("clock.advance", {"seconds": 5})
    frozen, transaction, readers, *_ = asked.waits()
    assert frozen == "the broker clock is frozen: no transaction times out, nothing expires"
    assert transaction == f"transaction of {ID} is Ongoing for 5.0 s (timeout 60.0 s) on t-0"
    assert readers == (
        "read_committed consumers get nothing of t-0 from offset 0 on: "
        f"a transaction of producer id {producer[0]} is open"
    )
    asked.stop()


def test_markers_that_are_held() -> None:
    asked = Asked()
    asked.commands.call("state.hold_markers", {})
    producer = asked.new()
    asked.add(producer)
    assert asked.end(producer, commit=True) == OK
    (transaction,) = [line for line in asked.waits() if line.startswith("transaction")]
    assert transaction.startswith(f"transaction of {ID} is PrepareCommit for ")
    assert transaction.endswith("; its markers are held")
    asked.commands.call("state.release_markers", {})
    asked.stop()


def test_a_rule_and_the_request_that_it_holds() -> None:
    asked = Asked()
    asked.commands.call("trace.record", {"kept": 10})
    rule = asked.commands.call("fault.add", {"api": "Heartbeat", "action": "hold"})["id"]
    asked.cluster.send(m.HeartbeatRequest(group_id="g", generation_id=1, member_id="x"), 4, client_id="app")
    held, request = asked.waits()[:2]
    assert held == f"rule {rule} (hold) holds 1 request"
    assert re.fullmatch(rf"Heartbeat of client app has waited \d+\.\d s for its answer, held by rule {rule}", request)
    asked.commands.close()
    asked.stop()


def test_lasting_faults_of_the_cluster() -> None:
    asked = Asked()
    for operation in ("fill_disk", "stop_controller", "pause_broker"):
        asked.commands.call(f"state.{operation}", {}).result()
    assert asked.waits()[:3] == [
        "the controller is stopped: requests for it wait",
        "broker 1 is paused: it answers no request",
        "the disk of broker 1 refuses every write",
    ]
    asked.commands.call("state.restore", {}).result()
    asked.stop()


def test_the_members_that_a_classic_rebalance_waits_for() -> None:
    client = GroupClient()
    leader = client.stable()
    second = client.join(version=5)
    assert second.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joining = client.join_later(second.member_id, version=5)
    assert waits_of(client) == [f"group {FIRST_GROUP} is PreparingRebalance: it waits for a JoinGroup of test (id)"]
    client.join_later(leader)
    client.timers.advance(0)
    assert joining.result().generation_id == 2
    (line,) = waits_of(client)
    assert line.startswith(f"group {FIRST_GROUP} is CompletingRebalance: it waits for a SyncGroup of ")
    assert line.count("which leads and assigns") == 1


def test_the_members_that_a_consumer_group_waits_for() -> None:
    client = GroupClient()

    def beat(member_id: str, epoch: int, **more: Any) -> m.ConsumerGroupHeartbeatResponse:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="c", member_id=member_id, member_epoch=epoch, rebalance_timeout_ms=1000, **more
        )
        return client.call(request, m.ConsumerGroupHeartbeatResponse, 1)

    beat("one", 0, subscribed_topic_names=["t"], topic_partitions=[])
    client.timers.advance(0)
    assert waits_of(client) == []
    beat("two", 0, subscribed_topic_names=["t"], topic_partitions=[])
    (line,) = waits_of(client)
    assert line.startswith("group c is Reconciling: it waits for test (id) to get its partitions")
