"""Clients that hold what others need: a producer's large batches are appended all the same."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pytest
from attackers import Attackers, Waiting
from tls_files import LOCALHOST, trusting

from minibroker import Minibroker
from minibroker.client.connection import Connection
from minibroker.client.security import Security
from minibroker.kernel.addresses import Address, parse_address
from minibroker.security.protocols import SecurityProtocol
from minibroker.server.edge import Limits
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import Record, build_batch

KIB = 1024
MEMORY = 1024 * KIB
BATCH = build_batch([Record(value=bytes(200 * KIB))])
PATIENCE = 20.0


class Victim:
    """A producer of batches of 200 KiB."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def produce(self) -> None:
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=bytes(BATCH))]
                )
            ],
        )
        answer = self._connection.ask(request, 9, "victim", PATIENCE)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.fixture(params=SecurityProtocol, ids=lambda protocol: protocol.name, scope="module")
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[Address, SecurityProtocol]]:
    """A broker with 1 MiB for requests and for responses, which looks after its memory every 20 ms."""
    config = {
        "minibroker.security.protocol": request.param.name,
        "minibroker.sasl.users": "alice:secret",
        "ssl.keystore.location": str(LOCALHOST),
        "queued.max.request.bytes": str(MEMORY),
        "minibroker.queued.max.response.bytes": str(MEMORY),
        "group.initial.rebalance.delay.ms": "60000",
    }
    with pytest.MonkeyPatch.context() as patch:
        of = Limits.of
        patch.setattr(Limits, "of", lambda settings: of(settings)._replace(look_seconds=0.02))
        with Minibroker(config=config, topics={"t": 1}, host="localhost", ephemeral=True) as broker:
            yield parse_address(broker.bootstrap_servers), request.param


Connect = Callable[[], Connection]


@pytest.fixture
def connect(listening: tuple[Address, SecurityProtocol]) -> Connect:
    """A connection that is logged in."""
    address, protocol = listening
    security = Security(
        tls=protocol.tls,
        mechanism="PLAIN" if protocol.sasl else "",
        username="alice",
        password="secret",
        authorities=str(LOCALHOST),
    )
    return lambda: security.connect(address, PATIENCE)


@pytest.fixture
def victim(connect: Connect) -> Iterator[Victim]:
    with connect() as connection:
        yield Victim(connection)


@pytest.fixture
def waiting(connect: Connect) -> Iterator[Waiting]:
    with contextlib.closing(Waiting(connect)) as waiting:
        yield waiting


@pytest.fixture
def attackers(listening: tuple[Address, SecurityProtocol]) -> Iterator[Attackers]:
    address, protocol = listening
    with contextlib.closing(Attackers(address, trusting() if protocol.tls else None)) as attackers:
        yield attackers


def test_requests_that_are_announced_and_never_come(victim: Victim, attackers: Attackers) -> None:
    attackers.announce(8, 500 * KIB)
    for _ in range(2):
        victim.produce()


def test_requests_that_come_byte_by_byte(victim: Victim, attackers: Attackers) -> None:
    attackers.announce(5, 500 * KIB)
    with attackers.dribble():
        for _ in range(2):
            victim.produce()


def test_memory_that_is_filled_and_then_held(
    victim: Victim, attackers: Attackers, caplog: pytest.LogCaptureFixture
) -> None:
    attackers.announce(6, 300 * KIB, sent=270 * KIB)
    with attackers.dribble(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            victim.produce()
    assert "requests waiting for memory: " in caplog.text


def test_handshakes_that_stop(victim: Victim, attackers: Attackers) -> None:
    attackers.without_handshake(10)
    for _ in range(2):
        victim.produce()


def test_responses_that_are_never_read(victim: Victim, attackers: Attackers) -> None:
    attackers.never_read(4, 250)
    for _ in range(2):
        victim.produce()


def test_fetches_that_wait(victim: Victim, waiting: Waiting) -> None:
    waiting.fetch(6, "t", 300 * KIB)
    for _ in range(2):
        victim.produce()


def test_members_that_wait_for_their_group(victim: Victim, waiting: Waiting) -> None:
    waiting.join(6, "g", 300 * KIB)
    for _ in range(2):
        victim.produce()
