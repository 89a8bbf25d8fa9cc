"""Who describes a group or a transactional id changes nothing of it: a second look finds what the first one found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import pytest
from member_client import Members

from minibroker_protocol import messages as m

CLASSIC, NEW, OPEN, ENDING, ENDED = "classic", "new", "open", "ending", "ended"


def values(thing: Any) -> Mapping[str, Any]:
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    held = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    return {**held, **getattr(thing, "__dict__", {})}


def picture(thing: Any, seen: tuple[int, ...] = ()) -> Any:
    """Everything that a state holds, but functions and what stands around it."""
    if thing is None or isinstance(thing, str | bytes | int | float | Enum):
        return thing
    if id(thing) in seen or callable(thing) or type(thing).__module__.startswith("minibroker.kernel"):
        return type(thing).__name__
    seen = (*seen, id(thing))
    if isinstance(thing, Mapping):
        return [(picture(key, seen), picture(value, seen)) for key, value in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, (picture(one, seen) for one in thing)))
    if isinstance(thing, list | tuple):
        return [picture(one, seen) for one in thing]
    return type(thing).__name__, [(name, picture(value, seen)) for name, value in values(thing).items()]


def begin(cluster: Members, name: str) -> tuple[int, int]:
    init = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    while (begun := cluster.call(init, m.InitProducerIdResponse, 4)).error_code:
        pass
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    add = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=begun.producer_id,
        v3_and_below_producer_epoch=begun.producer_epoch,
        v3_and_below_topics=[topic],
    )
    cluster.call(add, m.AddPartitionsToTxnResponse, 3)
    return begun.producer_id, begun.producer_epoch


def end(cluster: Members, name: str) -> None:
    producer_id, epoch = begin(cluster, name)
    request = m.EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True)
    assert cluster.call(request, m.EndTxnResponse, 3).error_code == 0


@pytest.fixture(scope="module", params=["false", "true"], ids=["ready", "not yet"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Members]:
    """A group of each kind, and transactional ids whose transaction is open, is being ended, and has ended."""
    made = Members({"minibroker.not.yet.answers": request.param, "group.initial.rebalance.delay.ms": "0"})
    made.enter("m", group_id=NEW)
    join = m.JoinGroupRequest(
        group_id=CLASSIC,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    made.call(join, m.JoinGroupResponse, 2)
    begin(made, OPEN)
    end(made, ENDED)
    made.broker.coordinators.transactions.effects.hold()
    end(made, ENDING)
    yield made
    made.stop()


def groups(cluster: Members, name: str) -> Any:
    return cluster.shard(name).groups[name]


def transaction(cluster: Members, name: str) -> Any:
    return cluster.broker.coordinators.transactions.host.shard_for(name)[1].entries[name]


ASKED = m.ConsumerGroupDescribeRequest(group_ids=[NEW], include_authorized_operations=False)


@pytest.mark.parametrize(
    ("name", "held", "describe", "version", "state"),
    [
        (CLASSIC, groups, m.DescribeGroupsRequest(groups=[CLASSIC]), 5, "CompletingRebalance"),
        (
            NEW,
            groups,
            m.ConsumerGroupDescribeRequest(group_ids=[NEW], include_authorized_operations=False),
            1,
            "Stable",
        ),
        (OPEN, transaction, m.DescribeTransactionsRequest(transactional_ids=[OPEN]), 0, "Ongoing"),
        (ENDING, transaction, m.DescribeTransactionsRequest(transactional_ids=[ENDING]), 0, "PrepareCommit"),
        (ENDED, transaction, m.DescribeTransactionsRequest(transactional_ids=[ENDED]), 0, "CompleteCommit"),
        (ENDED, transaction, m.DescribeTransactionStateRequest(transactional_ids=[ENDED]), 0, "CompleteCommit"),
    ],
    ids=["classic", "consumer", "open", "ending", "ended", "ended, to a broker"],
)
def test_who_looks_twice_leaves_all_as_it_was(
    cluster: Members, name: str, held: Callable[[Members, str], Any], describe: Any, version: int, state: str
) -> None:
    before = picture(held(cluster, name))
    answers = [cluster.send(describe, version).result() for _ in range(2)]
    assert picture(held(cluster, name)) == before
    assert answers[0] == answers[1]
    assert state in repr(answers[0])
