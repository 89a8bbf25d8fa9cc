"""Connections: every wait has an end."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from minibroker.client.connection import Connection
from minibroker_lab.conformance.failure import ConnectionClosed, NoResponse, ScenarioFailed


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(listener.getsockname(), 1.0)
        peer, _ = listener.accept()
        with connection, peer:
            yield connection, peer


def test_frames_in_any_pieces(pair: tuple[Connection, socket.socket]) -> None:
    connection, peer = pair
    peer.sendall(b"\0\0\0\2ab\0\0\0\0\0\0\0\3c")
    assert connection.receive(1) == b"ab"
    assert connection.receive(1) == b""
    peer.sendall(b"de")
    assert connection.receive(1) == b"cde"


def test_a_response_that_trickles_is_late(pair: tuple[Connection, socket.socket]) -> None:
    connection, peer = pair
    stop = threading.Event()

    def trickle() -> None:
        peer.sendall(b"\0\0\1\0")
        while not stop.wait(0.05):
            peer.sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    start = time.monotonic()
    try:
        with pytest.raises(NoResponse, match=r"0\.3 s"):
            connection.receive(0.3)
        assert time.monotonic() - start < 1
    finally:
        stop.set()
        thread.join()


def test_a_response_that_stops_halfway_is_late(pair: tuple[Connection, socket.socket]) -> None:
    connection, peer = pair
    timer = threading.Timer(0.3, peer.sendall, [b"\0\0\1\0xx"])
    timer.start()
    start = time.monotonic()
    with pytest.raises(NoResponse):
        connection.receive(0.4)
    assert time.monotonic() - start < 0.6
    timer.join()


def test_a_peer_that_takes_nothing(pair: tuple[Connection, socket.socket]) -> None:
    connection, _ = pair
    with pytest.raises(NoResponse, match="took no bytes"):
        connection.send(bytes(64 << 20))


def test_closed_and_absurd(pair: tuple[Connection, socket.socket]) -> None:
    connection, peer = pair
    peer.sendall(b"\x7f\xff\xff\xff")
    with pytest.raises(ScenarioFailed, match="2147483647"):
        connection.receive(1)
    peer.close()
    with pytest.raises(ConnectionClosed):
        connection.receive(1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionClosed, match=f"cannot connect to 127.0.0.1:{port}"):
        Connection(("127.0.0.1", port), 1.0)


def test_a_name_that_no_resolver_takes() -> None:
    """Metadata of a cluster may name one."""
    with pytest.raises(ConnectionClosed, match=r"^cannot connect to a\.\.b:9092: "):
        Connection(("a..b", 9092), 1)
