"""The wire over sockets: Kafka's frames, answers as they come, nodes that vanish, links that are cut."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import patch

import pytest

from minibroker import Minibroker
from minibroker.cluster.socket_network import SocketNetwork
from minibroker.kernel.asyncio_runtime import LoopTimers
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.kernel.transport import CONTROLLER
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


SECRET = b"s" * 32


class Refused(list[str]):
    """What was said of connections that were closed."""

    def __call__(self, text: str, *values: object) -> None:
        self.append(text % values)


@pytest.fixture
def refused() -> Refused:
    return Refused()


@pytest.fixture
async def network(refused: Refused) -> AsyncIterator[SocketNetwork]:
    loop = asyncio.get_running_loop()
    network = SocketNetwork(
        loop,
        LoopTimers(loop),
        patience_ms=20_000,
        secret=SECRET,
        random_bytes=secrets.token_bytes,
        refused=refused,
    )
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
    network = SocketNetwork(loop, LoopTimers(loop), patience_ms=60, secret=SECRET, random_bytes=secrets.token_bytes)
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


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def authenticate(correlation_id: int, step: bytes) -> bytes:
    """SaslAuthenticate v1 of client "1", as Kafka's page of the protocol has it."""
    header = b"\0\x24\0\x01" + correlation_id.to_bytes(4, "big") + b"\0\x011"
    return framed(header + len(step).to_bytes(4, "big") + step)


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def ended(reader: asyncio.StreamReader) -> None:
    """Return once the other end has closed the connection; whatever it says before is left out."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()


async def connect(network: SocketNetwork, source: int = 1, target: int = 2) -> tuple[Any, Any, bytes, bytes]:
    """A connection whose other end has answered the greeting: reader, writer, both numbers, the other end's proof."""
    reader, writer = await asyncio.open_connection(*network.address(target))
    number = secrets.token_bytes(32)
    writer.write(authenticate(0, source.to_bytes(4, "big") + number))
    answer = await answer_of(reader)
    assert answer[:12] == b"\0\0\0\0\0\0\0\0\0\0\0\x40"  # NONE, an empty message as Kafka has it, 64 bytes
    assert len(answer) == 12 + 64 + 8
    return reader, writer, number + answer[12:44], answer[44:76]


def proof(role: bytes, numbers: bytes, *, secret: bytes = SECRET, source: int = 1, target: int = 2) -> bytes:
    ids = source.to_bytes(4, "big") + target.to_bytes(4, "big")
    return hmac.digest(secret, role + b"\0" + ids + numbers, "sha256")


FRAME = b"\0\x43\0\0\0\0\0\x09\0\x011\0" + request().encode(0)  # API 67 v0, correlation id 9, client id "1"


async def test_the_bytes_are_frames_of_kafka_and_garbage_ends_its_connection(
    network: SocketNetwork, refused: Refused
) -> None:
    network.attach(2, Node())
    reader, writer, numbers, theirs = await connect(network)
    assert theirs == proof(b"listening", numbers)
    writer.write(authenticate(1, proof(b"connecting", numbers)))
    assert (await answer_of(reader))[:6] == b"\0\0\0\1\0\0"
    assert parse_request_header(FRAME)[:4] == (67, 0, 9, "1")
    writer.write(framed(FRAME))
    assert await answer_of(reader) == b"\0\0\0\x09\0" + response().encode(0)
    writer.write(b"\xff\xff\xff\xffgarbage")
    assert await reader.read() == b""
    writer.close()
    assert len(refused) == 1


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (framed(FRAME), "AllocateProducerIdsRequest v0 comes before a proof"),
        (b"GET / HTTP/1.1\r\n\r\n", "0 and 256: these bytes are 'GET', so the client speaks HTTP"),
        (framed(b"\0\x24"), ""),
        (framed(b"\x7f\xff" + b"\0" * 20), "API key 32767 is not known"),
        (framed(b"\0\x24\0\x01" + b"\0" * 4 + b"\xff\xff" + b"\0\0\0\x7f"), ""),
        (authenticate(0, b""), "a greeting of 0 bytes"),
        (authenticate(0, b"x" * 36) + authenticate(1, b"y" * 32), "does not know the cluster's secret"),
        (authenticate(0, b"x" * 36) + framed(FRAME), "AllocateProducerIdsRequest v0 comes before a proof"),
        (framed(b"x" * 257), "size 257 is not between 0 and 256"),
    ],
)
async def test_a_stranger_gets_no_further(network: SocketNetwork, refused: Refused, sent: bytes, why: str) -> None:
    """One line, a closed connection, and the node hears of nothing."""
    node = Node()
    network.attach(2, node)
    reader, writer = await asyncio.open_connection(*network.address(2))
    writer.write(sent)
    await ended(reader)
    writer.close()
    assert (node.seen, len(refused)) == ([], 1)
    assert why in refused[0]
    assert "node 2" in refused[0]


@pytest.mark.parametrize("change", ["secret", "source", "role", "numbers"])
async def test_a_proof_is_for_one_connection_of_one_node(network: SocketNetwork, refused: Refused, change: str) -> None:
    """Neither an answer heard elsewhere, nor the other end's own, nor another node's."""
    node = Node()
    network.attach(2, node)
    _, other, others_numbers, _ = await connect(network)
    reader, writer, numbers, theirs = await connect(network)
    wrong = {
        "secret": proof(b"connecting", numbers, secret=b"t" * 32),
        "source": proof(b"connecting", numbers, source=3),
        "role": theirs,
        "numbers": proof(b"connecting", others_numbers),
    }
    writer.write(authenticate(1, wrong[change]) + framed(FRAME))
    await ended(reader)
    for one in (writer, other):
        one.close()
    assert node.seen == []
    assert "does not know the cluster's secret" in refused[0]


async def test_a_node_that_does_not_know_the_secret_is_sent_nothing(network: SocketNetwork, refused: Refused) -> None:
    loop = asyncio.get_running_loop()
    others = SocketNetwork(
        loop, LoopTimers(loop), secret=b"t" * 32, random_bytes=secrets.token_bytes, refused=Refused()
    )
    node = Node()
    others.attach(2, node)
    network.attach(1, Node())
    network.attach(2, Node())
    with patch.object(network._served[2], "address", others.address(2)):
        answer = network.endpoint(1).send(2, request(), 0)
        await until(lambda: answer.done)
    others.detach(2)
    assert node.seen == []
    assert ["the node that listens does not know the cluster's secret" in line for line in refused] == [True]
    with pytest.raises(ApiError) as unreachable:
        answer.result()
    assert unreachable.value.code == ErrorCode.NETWORK_EXCEPTION


async def test_a_connection_that_says_nothing_is_closed() -> None:
    loop = asyncio.get_running_loop()
    refused = Refused()
    network = SocketNetwork(
        loop, LoopTimers(loop), secret=SECRET, random_bytes=secrets.token_bytes, proof_ms=20, refused=refused
    )
    network.attach(2, Node())
    reader, writer = await asyncio.open_connection(*network.address(2))
    await ended(reader)
    writer.close()
    network.detach(2)
    assert ["said nothing that proves it for 0.02 s" in line for line in refused] == [True]


async def test_strangers_that_wait_keep_no_broker_out(network: SocketNetwork, refused: Refused) -> None:
    network.attach(1, Node())
    network.attach(2, Node())
    silent = [await asyncio.open_connection(*network.address(2)) for _ in range(70)]
    answer = network.endpoint(1).send(2, request(), 0)
    await until(lambda: answer.done)
    assert answer.result() == response()
    assert len(refused) == 7, "all but the 64 that came last"
    for _, writer in silent:
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
