"""What members do all the time costs the same in a small group and in a large one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from group_client import GroupClient

from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode

SMALL, LARGE = 10, 400


def steps(call: Callable[[], object]) -> int:
    """Byte code instructions `call` runs; unlike time it does not depend on the machine's mood.

    The first run is for Python 3.12 and later, which do not tell every instruction of code traced for the first time.
    """
    _steps(call)
    return _steps(call)


def _steps(call: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def classic(size: int) -> tuple[GroupClient, str]:
    """A stable group of `size` members; one that does not lead."""
    client = GroupClient({"group.initial.rebalance.delay.ms": "3000"})
    waiting = [client.join_later() for _ in range(size)]
    client.advance(7000)
    names = [answer.result().member_id for answer in waiting]
    syncing = [client.sync_later(name, 1, dict.fromkeys(names, b"a") if name == names[0] else {}) for name in names]
    assert all(answer.result().error_code == ErrorCode.NONE for answer in syncing)
    return client, names[-1]


def consumer(size: int) -> tuple[GroupClient, str]:
    client = GroupClient()
    for number in range(size):
        enter(client, f"m{number}")
    name = f"m{size - 1}"
    beat(client, name)
    return client, name


def enter(client: GroupClient, name: str) -> None:
    request = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=name,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert client.call(request, m.ConsumerGroupHeartbeatResponse, 1).error_code == ErrorCode.NONE


def beat(client: GroupClient, name: str) -> None:
    epoch = client.shard().groups["g"].members[name].member_epoch  # type: ignore[union-attr]
    request = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=name, member_epoch=epoch)
    assert client.call(request, m.ConsumerGroupHeartbeatResponse, 1).error_code == ErrorCode.NONE


def commit(client: GroupClient, name: str, generation: int) -> None:
    assert client.commit({("t", 0): 5}, name, generation) == [ErrorCode.NONE]


CLASSIC: dict[str, Callable[[GroupClient, str], object]] = {
    "heartbeat": lambda client, name: client.heartbeat(name, 1),
    "commit": lambda client, name: commit(client, name, 1),
    "fetch": lambda client, name: client.fetch(("t", 0)),
    "sync": lambda client, name: client.sync(name, 1),
}


@pytest.mark.parametrize("what", CLASSIC)
def test_classic_members(what: str) -> None:
    costs = []
    for size in (SMALL, LARGE):
        client, name = classic(size)
        CLASSIC[what](client, name)  # compiles codecs
        costs.append(steps(lambda: CLASSIC[what](client, name)))  # noqa: B023
    small, large = costs
    assert large < small * 1.1


def test_native_members() -> None:
    costs = []
    for size in (SMALL, 100):
        client, name = consumer(size)
        beat(client, name)
        costs.append(steps(lambda: beat(client, name)))  # noqa: B023
    small, large = costs
    assert large < small * 1.1


def test_gathering_a_large_group_takes_one_pass_over_its_members() -> None:
    """Each join costs the same; only the end of the join phase and of the sync phase look at everybody."""
    costs = []
    for size in (SMALL, LARGE):
        client = GroupClient({"group.initial.rebalance.delay.ms": "3000"})
        for _ in range(size):
            client.join_later()
        costs.append(steps(client.join_later))
    small, large = costs
    assert large < small * 1.1
