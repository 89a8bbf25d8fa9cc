"""Settings of what serves, each seen by what it changes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from minibroker import Minibroker
from minibroker.client.connection import Connection, ConnectionClosed
from minibroker.config.settings import Settings
from minibroker.kernel.addresses import parse_address
from minibroker.server.broker_disks import BrokerDisks
from minibroker.server.edge import Edge
from minibroker.server.options import make_options
from minibroker.testing.in_thread import ThreadRunner

_BACKLOG_OF_TCP_INFO = 28
"""Offset of ``tcpi_sacked``, which for a listening socket is the length of its queue."""


def listening_sockets() -> Iterator[socket.socket]:
    """Those of this process, each under a number of its own."""
    for name in os.listdir("/proc/self/fd"):
        try:
            candidate = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with candidate:
            if candidate.family == socket.AF_INET and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield candidate


def backlog(port: int) -> int:
    (found,) = (
        listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[_BACKLOG_OF_TCP_INFO:][:4]
        for listener in listening_sockets()
        if listener.getsockname()[1] == port
    )
    return int.from_bytes(found, sys.byteorder)


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")
def test_the_queue_of_connections_to_accept_has_the_length_of_the_setting() -> None:
    with Minibroker(config={"socket.listen.backlog.size": "33"}, ephemeral=True) as broker:
        port = parse_address(broker.bootstrap_servers)[1]
        assert backlog(port) == 33
        broker.state.restart_broker(broker=1)
        assert backlog(port) == 33


def test_connections_and_requests_have_their_limits() -> None:
    with Minibroker(config={"max.connections": "1", "socket.request.max.bytes": "1000"}, ephemeral=True) as broker:
        address = parse_address(broker.bootstrap_servers)
        with Connection(address, 5) as first, Connection(address, 5) as second:
            with pytest.raises(ConnectionClosed):
                second.receive(5)
            first.send((1001).to_bytes(4, "big"))
            with pytest.raises(ConnectionClosed):
                first.receive(5)


@pytest.mark.parametrize("uvloop", [True, False])
def test_the_event_loop_is_uvloops_where_the_setting_says_so(uvloop: bool) -> None:
    pytest.importorskip("uvloop")
    runner = ThreadRunner(make_options(config={"minibroker.uvloop": uvloop}, ephemeral=True))
    runner.loop.close()
    assert type(runner.loop).__module__.startswith("uvloop") is uvloop


def test_a_stop_waits_for_answers_as_long_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    drain = Edge.drain

    async def drained(edge: Edge, seconds: float) -> None:
        waited.append(seconds)
        await drain(edge, seconds)

    monkeypatch.setattr(Edge, "drain", drained)
    with Minibroker(config={"minibroker.shutdown.timeout.ms": "1250"}, ephemeral=True):
        pass
    assert waited == [1.25]


def test_what_is_kept_in_memory_is_bounded_over_all_brokers() -> None:
    options = make_options(ephemeral=True, brokers=2)
    disks = BrokerDisks(options, Settings({"minibroker.ephemeral.max.bytes": "2000000"}))
    assert [place.volume_bytes() for place in disks.brokers] == [(1_000_000, 1_000_000)] * 2
    disks.close()
