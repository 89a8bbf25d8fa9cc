"""The wire over sockets: Kafka's frames, answers as they come, nodes that vanish, links that are cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from minibroker import Minibroker
from minibroker.cluster.socket_network import SocketNetwork
from minibroker.cluster.transport import CONTROLLER
from minibroker.runtime.asyncio_runtime import LoopTimers
from minibroker.runtime.deferred import Deferred, resolved
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.headers import parse_request_header
from minibroker_protocol.messages.inter_broker import AllocateProducerIdsRequest, AllocateProducerIdsResponse


def request(number: int = 7) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest(broker_id=1, broker_epoch=number)


def response(number: int = 1000) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=number, producer_id_len=10)


class Node:
    """Answers in the order in which the test says."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.seen: list[Request] = []
        self.answers: list[Deferred[Response]] = []
        self._at_once = at_once

    def __call__(self, asked: Request, version: int) -> Deferred[Response]:
        self.seen.append(asked)
        self.answers.append(resolved(response()) if self._at_once else Deferred())
        return self.answers[-1]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.fixture
async def network() -> AsyncIterator[SocketNetwork]:
    loop = asyncio.get_running_loop()
    network = SocketNetwork(loop, LoopTimers(loop), patience_ms=20_000)
    yield network
    for node_id in (CONTROLLER, 1, 2):
        network.detach(node_id)
    await asyncio.sleep(0.01)


async def test_requests_arrive_as_copies_and_so_do_answers(network: SocketNetwork) -> None:
    one, two, controller = Node(), Node(), Node()
    for node_id, node in ((1, one), (2, two), (CONTROLLER, controller)):
        network.attach(node_id, node)
    asked = request()
    answer, other = (network.endpoint(1).send(target, asked, 0) for target in (2, CONTROLLER))
    assert two.seen == []
    await until(lambda: answer.done and other.done)
    assert two.seen == controller.seen == [asked]
    assert two.seen[0] is not asked
    assert answer.result() == response()
    own = network.endpoint(1).send(1, asked, 0)
    assert own.done
    assert one.seen[0] is asked


async def test_an_answer_that_takes_long_holds_up_no_other(network: SocketNetwork) -> None:
    node = Node(at_once=False)
    network.attach(1, Node())
    network.attach(2, node)
    first, second = (network.endpoint(1).send(2, request(number), 0) for number in (1, 2))
    await until(lambda: len(node.seen) == 2)
    node.answers[1].resolve(response(2))
    await until(lambda: second.done)
    assert not first.done
    node.answers[0].resolve(response(1))
    await until(lambda: first.done)
    assert [a.result() for a in (first, second)] == [response(1), response(2)]


async def test_who_asks_a_node_that_goes_learns_it(network: SocketNetwork) -> None:
    node = Node(at_once=False)
    network.attach(1, Node())
    network.attach(2, node)
    waiting = network.endpoint(1).send(2, request(), 0)
    await until(lambda: len(node.seen) == 1)
    network.detach(2)
    later = network.endpoint(1).send(2, request(), 0)
    await until(lambda: waiting.done and later.done)
    for answer in (waiting, later):
        with pytest.raises(ApiError) as gone:
            answer.result()
        assert gone.value.code == ErrorCode.NETWORK_EXCEPTION
    network.attach(2, Node())
    again = network.endpoint(1).send(2, request(), 0)
    await until(lambda: again.done)
    assert again.result() == response()


async def test_nobody_answers_a_node_that_is_gone(network: SocketNetwork) -> None:
    node = Node(at_once=False)
    network.attach(1, Node())
    network.attach(2, node)
    waiting = network.endpoint(1).send(2, request(), 0)
    await until(lambda: len(node.seen) == 1)
    network.detach(1)
    node.answers[0].resolve(response())
    await asyncio.sleep(0.05)
    assert not waiting.done


async def test_a_cut_link_holds_requests_answers_and_news(network: SocketNetwork) -> None:
    node = Node(at_once=False)
    network.attach(1, Node())
    network.attach(2, node)
    news: list[int] = []
    early = network.endpoint(1).send(2, request(1), 0)
    await until(lambda: len(node.seen) == 1)
    network.cut(1, 2)
    network.cut(2, CONTROLLER)
    node.answers[0].resolve(response(1))
    network.endpoint(1).send(2, request(2), 0)
    network.publish(2, lambda: news.append(1))
    await asyncio.sleep(0.05)
    assert (early.done, len(node.seen), news) == (False, 1, [])
    network.mend(2, 1)
    network.mend(2, CONTROLLER)
    await until(lambda: early.done and len(node.seen) == 2)
    assert news == [1]


async def test_a_sender_does_not_wait_for_ever() -> None:
    loop = asyncio.get_running_loop()
    network = SocketNetwork(loop, LoopTimers(loop), patience_ms=60)
    network.attach(1, Node())
    network.attach(2, Node(at_once=False))
    answer = network.endpoint(1).send(2, request(), 0)
    await until(lambda: answer.done)
    with pytest.raises(ApiError) as late:
        answer.result()
    assert late.value.code == ErrorCode.NETWORK_EXCEPTION
    for node_id in (1, 2):
        network.detach(node_id)
    await asyncio.sleep(0.01)


async def test_an_error_of_the_node_is_an_error_in_its_answer(network: SocketNetwork) -> None:
    node = Node(at_once=False)
    network.attach(1, Node())
    network.attach(2, node)
    answer = network.endpoint(1).send(2, request(), 0)
    await until(lambda: len(node.seen) == 1)
    node.answers[0].fail(ApiError(ErrorCode.STALE_BROKER_EPOCH, "of an earlier life"))
    await until(lambda: answer.done)
    found = answer.result()
    assert isinstance(found, AllocateProducerIdsResponse)
    assert found.error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_the_bytes_are_frames_of_kafka_and_garbage_ends_its_connection(network: SocketNetwork) -> None:
    network.attach(2, Node())
    reader, writer = await asyncio.open_connection(*network.address(2))
    frame = b"\0\x43\0\0\0\0\0\x09\0\x011\0" + request().encode(0)  # API 67 v0, correlation id 9, client id "1"
    assert parse_request_header(frame)[:4] == (67, 0, 9, "1")
    writer.write(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(size)
    assert answer == b"\0\0\0\x09\0" + response().encode(0)
    writer.write(b"\xff\xff\xff\xffgarbage")
    assert await reader.read() == b""
    writer.close()


def test_a_cluster_over_sockets_replicates_and_fails_over() -> None:
    config = {
        "minibroker.inter.broker.sockets": "true",
        "default.replication.factor": "3",
        "replica.fetch.backoff.ms": "100",
    }
    with Minibroker(brokers=3, topics={"t": 1}, config=config, ephemeral=True) as broker:
        leader = broker.cluster.leader("t")
        assert leader is not None
        network = broker.cluster.run(lambda cluster: cluster.network)
        assert isinstance(network, SocketNetwork)
        assert len({network.address(node) for node in (CONTROLLER, 1, 2, 3)}) == 4
        broker.cluster.kill_broker(leader)
        assert broker.cluster.leader("t") not in (None, leader)
        broker.cluster.start_broker(leader)

        end = time.monotonic() + 30
        while broker.cluster.isr("t") != [1, 2, 3]:
            assert time.monotonic() < end
            time.sleep(0.02)
