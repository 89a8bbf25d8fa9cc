"""The two kinds of API: what is cut, what is joined, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from manual_time import ManualTimers
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers import group_admin, partitions
from minibroker.handlers.table import apis
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Abandoned
from minibroker.kernel.turns import STEPS_AT_ONCE, Lane
from minibroker.requests.answers import later, outcome_of
from minibroker.requests.context import CloseConnection, RequestContext
from minibroker.requests.kinds import Each
from minibroker.requests.slices import Slices, cut
from minibroker.server.edge import Edge, Limits
from minibroker.server.listeners import listen_all
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.structs import struct_of

EACH = {api.name: api for api in apis().values() if isinstance(api.kind, Each)}
LONG = 4 * STEPS_AT_ONCE


def test_which_items_are_independent_of_each_other() -> None:
    """Kafka has an error at the top, one batch or one look at the whole list for every other API with a list."""
    assert set(EACH) == {
        "ConsumerGroupDescribe", "DeleteGroups", "DeleteRecords", "DescribeGroups", "DescribeProducers",
        "DescribeTransactionState", "DescribeTransactions", "FindCoordinator", "OffsetForLeaderEpoch",
    }  # fmt: skip


@pytest.mark.parametrize("name", EACH)
def test_the_answer_has_a_list_as_deep_as_the_one_of_the_request(name: str) -> None:
    api = EACH[name]
    kind: Any = api.kind
    holder: Any = api.request
    *outer, last = kind.items.split(".")
    for field_name in outer:
        holder = struct_of(api.request, next(f for f in holder.__fields__ if f.name == field_name))
    assert next(field for field in holder.__fields__ if field.name == last).array
    held: Any = api.response
    for _ in kind.items.split("."):
        (field, *_) = [field for field in held.__fields__ if field.array]
        held = struct_of(api.response, field)


def topics(sizes: list[int]) -> list[Any]:
    kind = m.DescribeProducersRequest.TopicRequest
    return [kind(name=f"t{number}", partition_indexes=list(range(size))) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("seed", range(20))
def test_every_part_of_every_item_is_in_one_slice_and_in_order(seed: int) -> None:
    random = Random(seed)
    size = random.randint(2, 9)
    items = topics([random.choice((0, 1, size - 1, size, 3 * size)) for _ in range(random.randint(1, 12))])
    slices = list(cut(items, "partition_indexes", size))
    joined: list[list[Any]] = []
    for goes_on, few in slices:
        assert 0 < len(few) + sum(len(topic.partition_indexes) for topic in few) <= size
        for number, topic in enumerate(few):
            if goes_on and number == 0:
                assert joined[-1][0] == topic.name
                joined[-1][1] += topic.partition_indexes
            else:
                joined.append([topic.name, list(topic.partition_indexes)])
    assert joined == [[topic.name, topic.partition_indexes] for topic in items]


def test_works_have_their_turns_one_after_the_other() -> None:
    timers = ManualTimers()
    lane = Lane(timers)
    turns: list[str] = []

    def work(name: str, times: int) -> None:
        turns.append(name)
        if times > 1:
            lane.turn(lambda: work(name, times - 1))

    lane.turn(lambda: work("long", 3))
    lane.turn(lambda: work("other", 2))
    assert (turns, timers.armed) == ([], 1)  # one turn of the loop at a time, however many wait
    timers.advance(0)
    assert turns == ["long", "other", "long", "other", "long"]


def test_a_work_that_fails_leaves_the_others_their_turns() -> None:
    timers = ManualTimers()
    lane = Lane(timers)
    done: list[int] = []
    lane.turn(lambda: 1 // 0)
    lane.turn(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        timers.advance(0)
    timers.advance(0)
    assert done == [1]


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster(topics={"t": 2})
    yield made
    made.stop()


def producers(name: str, count: int = LONG) -> m.DescribeProducersRequest:
    kind = m.DescribeProducersRequest
    return kind(topics=[kind.TopicRequest(name=name, partition_indexes=list(range(count)))])


class Noted:
    """The handler of an API behind the link that cuts its requests; `slices` has whose slices it was given."""

    def __init__(self, cluster: MemoryCluster, api: Any, handler: Any) -> None:
        self._cluster, self._api = cluster, api
        self._served = Slices().around(api, lambda ctx, request: self._serve(handler, ctx, request))
        self.slices: list[str] = []

    def _serve(self, handler: Any, ctx: RequestContext, request: Any) -> Any:
        self.slices.append(ctx.connection.client_host)
        return handler(ctx, request)

    def send(self, request: Any, connection: ConnectionInfo) -> Deferred[Any]:
        ctx = RequestContext(self._cluster.broker, self._api.key, self._api.max_version, None, connection)
        return later(ctx, self._served, request)


def describing(cluster: MemoryCluster) -> Noted:
    return Noted(cluster, EACH["DescribeProducers"], partitions.describe_producers)


def test_a_short_list_is_one_slice(cluster: MemoryCluster) -> None:
    noted = describing(cluster)
    answer = noted.send(producers("t", STEPS_AT_ONCE - 1), ConnectionInfo(client_host="a"))
    assert answer.done
    assert noted.slices == ["a"]


def test_long_requests_of_two_connections_have_as_many_turns_each(cluster: MemoryCluster) -> None:
    noted = describing(cluster)
    answers = [noted.send(producers("t"), ConnectionInfo(client_host=host)) for host in ("a", "b")]
    assert noted.slices == ["a", "b"]
    cluster.timers.advance(0)
    assert noted.slices == ["a", "b"] * 5
    for answer in answers:
        (topic,) = answer.result().topics
        assert [one.partition_index for one in topic.partitions] == list(range(LONG))


def test_what_nobody_waits_for_any_more_is_dropped(cluster: MemoryCluster) -> None:
    noted, left = describing(cluster), ConnectionInfo(client_host="a")
    answer = noted.send(producers("t"), left)
    stays = noted.send(producers("t"), ConnectionInfo(client_host="b"))
    left.gone = True
    cluster.timers.advance(0)
    assert noted.slices == ["a", *["b"] * 5]
    assert stays.result().topics
    with pytest.raises(Abandoned):
        answer.result()


def test_what_changes_something_is_done_to_its_end(cluster: MemoryCluster) -> None:
    noted, left = Noted(cluster, EACH["DeleteGroups"], group_admin.delete_groups), ConnectionInfo(client_host="a")
    request = m.DeleteGroupsRequest(groups_names=[f"g{number}" for number in range(LONG)] * 2)
    answer = noted.send(request, left)
    left.gone = True
    cluster.timers.advance(0)
    assert noted.slices == ["a"] * 4  # each group once
    assert [result.group_id for result in answer.result().results] == request.groups_names[:LONG]


def test_no_later_request_of_a_connection_overtakes_a_long_one(cluster: MemoryCluster) -> None:
    served: list[bytes] = []
    begun = asyncio.Event()

    def dispatch(frame: Any, info: ConnectionInfo) -> Any:
        served.append(bytes(frame[4:8]))
        begun.set()
        return cluster.dispatcher.dispatch(frame, info)

    async def story() -> list[bytes]:
        edge = Edge(asyncio.get_running_loop(), Limits(), refusals=(CloseConnection,))
        (listener,) = listen_all("127.0.0.1", [0])
        port = listener.getsockname()[1]
        await edge.listen(listener, dispatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frames = [
            cluster.frame(request, 0, correlation_id=number)
            for number, request in enumerate(
                (producers("t"), m.DescribeClusterRequest(include_cluster_authorized_operations=False)), start=1
            )
        ]
        writer.write(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        answers = []
        try:
            await begun.wait()
            assert cluster.timers.armed
            assert served == [b"\0\0\0\1"]
            cluster.timers.advance(0)
            for _ in frames:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answers.append((await reader.readexactly(size))[:4])
        finally:
            writer.close()
            await edge.close()
        return answers

    assert asyncio.run(story()) == served == [b"\0\0\0\1", b"\0\0\0\2"]


def test_what_a_refusal_raises_fails_the_answer() -> None:
    """Else nobody would be answered, and what else waits for the same would not be called."""
    pending: Deferred[int] = Deferred()

    def refused(error: ApiError) -> int:
        raise ValueError(error.code.name)

    answer = outcome_of(lambda: pending, lambda value: value, refused)
    seen: list[object] = []
    pending.then(seen.append)
    pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert seen == [pending]
    with pytest.raises(ValueError, match="REQUEST_TIMED_OUT"):
        answer.result()  # type: ignore[union-attr]


def test_what_is_raised_after_the_value_is_there_is_no_refusal() -> None:
    def then(value: int) -> int:
        raise ApiError(ErrorCode.INVALID_REQUEST)

    pending: Deferred[int] = Deferred()
    answer = outcome_of(lambda: pending, then, lambda error: -1)
    pending.resolve(1)
    with pytest.raises(ApiError, match="INVALID_REQUEST"):
        answer.result()  # type: ignore[union-attr]
