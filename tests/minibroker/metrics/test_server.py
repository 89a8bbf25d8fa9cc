"""The metrics' HTTP server towards connections that ask for nothing."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from minibroker.metrics.server import MetricsServer


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    pytest.importorskip("prometheus_client")
    started = MetricsServer(("127.0.0.1", 0), lambda: {1: []}, max_connections=2)
    yield started
    started.close()


def test_silent_connections_do_not_keep_scrapes_out(server: MetricsServer) -> None:
    silent = [socket.create_connection(server.address, 10) for _ in range(4)]
    for early in silent[:2]:
        assert early.recv(1) == b""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/metrics", timeout=10) as response:
        assert response.status == 200
    for one in silent:
        one.close()


def test_headers_have_a_limit(server: MetricsServer) -> None:
    with socket.create_connection(server.address, 10) as connection:
        head = b"".join(b"X%d: %s\r\n" % (number, b"x" * 1000) for number in range(70))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n" + head)
        assert b" 431 " in connection.recv(100)
