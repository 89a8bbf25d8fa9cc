from __future__ import annotations

import asyncio
import contextlib
import errno
import selectors
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.config.settings import Settings
from minibroker.kernel.addresses import format_address
from minibroker.server.listeners import ListenError, listen_all, local_address, why_not
from minibroker.server.ports import BrokerPorts


def test_free_ports_are_bound_distinct_and_accept_before_anybody_serves_them() -> None:
    listeners = listen_all("127.0.0.1", [0, 0, 0])
    try:
        addresses = [local_address(listener) for listener in listeners]
        assert len(set(addresses)) == 3
        for address in addresses:
            with socket.create_connection(address, timeout=60):
                pass
    finally:
        for listener in listeners:
            listener.close()


def test_a_taken_port_is_named_and_nothing_stays_bound() -> None:
    (taken,) = listen_all("127.0.0.1", [0])
    (free,) = listen_all("127.0.0.1", [0])
    taken_port, free_port = taken.getsockname()[1], free.getsockname()[1]
    free.close()
    with pytest.raises(ListenError, match=f"127.0.0.1:{taken_port} is in use"):
        listen_all("127.0.0.1", [free_port, taken_port])
    taken.close()
    for listener in listen_all("127.0.0.1", [free_port, taken_port]):
        listener.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.77"])
def test_a_host_that_is_not_here_is_named(host: str) -> None:
    with pytest.raises(ListenError, match=host):
        listen_all(host, [0])


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EADDRINUSE, "in use by another program; choose another port"),
        (errno.EACCES, "needs more rights than this program has; choose a port above 1023"),
        (errno.EADDRNOTAVAIL, "h is not an address of this machine"),
        (errno.EMFILE, "cannot be listened on: too many"),
    ],
)
def test_why_a_port_cannot_be_had(number: int, said: str) -> None:
    assert said in why_not(OSError(number, "too many"), "h", 80)


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("localhost", "127.0.0.1")])
def test_the_address_told_is_one_that_can_be_reached(host: str, reached: str) -> None:
    (listener,) = listen_all(host, [0])
    assert local_address(listener)[0] == reached
    listener.close()


def test_a_name_with_several_addresses_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost may be both, and clients try 127.0.0.1 first."""
    found: list[tuple[Any, ...]] = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    (listener,) = listen_all("localhost", [0])
    with listener:
        assert listener.family == socket.AF_INET


def test_ipv6() -> None:
    try:
        (listener,) = listen_all("::1", [0])
    except ListenError:
        pytest.skip("no IPv6 here")
    host, port = local_address(listener)
    assert format_address(host, port) == f"[::1]:{port}"
    listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cap what they hold lower")
def test_hundreds_may_come_at_once_before_one_is_accepted() -> None:
    (listener,) = listen_all("127.0.0.1", [0], Settings({}).get_int("socket.listen.backlog.size"))
    with listener, contextlib.ExitStack() as clients, selectors.DefaultSelector() as waiting:
        for _ in range(300):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(local_address(listener))
            waiting.register(client, selectors.EVENT_WRITE)
        deadline = time.monotonic() + 0.9  # the system sends again what it had no room for after a second
        while waiting.get_map() and time.monotonic() < deadline:
            for ready, _ in waiting.select(0.1):
                waiting.unregister(ready.fileobj)
        assert len(waiting.get_map()) == 0


async def test_settled_waits_for_ports_that_are_being_opened() -> None:
    """A stop that comes right after a restart must find every socket in somebody's hands."""
    opened: list[int] = []

    class SlowEdge:
        loop = asyncio.get_running_loop()

        async def listen(self, listener: socket.socket, dispatch: Any, tls: Any) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            opened.append(listener.getsockname()[1])
            listener.close()

    listeners = listen_all("127.0.0.1", [0, 0, 0])
    wanted = [listener.getsockname()[1] for listener in listeners]
    ports = BrokerPorts(SlowEdge(), "127.0.0.1", 8, {1: listeners[0]}, {1: listeners[1:]})  # type: ignore[arg-type]
    ports.started(1, SimpleNamespace(dispatch=None))  # type: ignore[arg-type]
    await ports.settled()
    assert opened == wanted


async def test_a_port_that_is_not_free_at_once_is_held_later() -> None:
    served: list[socket.socket] = []

    class SlowEdge:
        """Closes what it was given in a later turn."""

        loop = asyncio.get_running_loop()

        async def listen(self, listener: socket.socket, dispatch: Any, tls: Any) -> None:
            served.append(listener)

        def unlisten(self, dispatch: Any) -> None:
            served[0].close()

    def free(port: int) -> bool:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    listeners = listen_all("127.0.0.1", [0, 0])
    wanted = [listener.getsockname()[1] for listener in listeners]
    ports = BrokerPorts(SlowEdge(), "127.0.0.1", 8, {1: listeners[0]}, {1: listeners[1:]})  # type: ignore[arg-type]
    ports.started(1, SimpleNamespace(dispatch=None))  # type: ignore[arg-type]
    await ports.opened()
    ports.stopped(1)
    assert free(wanted[0]), "neither port is held where one cannot be"
    served[1].close()
    async with asyncio.timeout(60):
        while any(map(free, wanted)):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)
    ports.removed(1)
    assert [free(port) for port in wanted] == [True, True]


async def test_ports_that_no_broker_took_are_given_back() -> None:
    listeners = listen_all("127.0.0.1", [0, 0])
    ports = BrokerPorts(SimpleNamespace(), "127.0.0.1", 8, {1: listeners[0]}, {1: listeners[1:]})  # type: ignore[arg-type]
    ports.close()
    assert [listener.fileno() for listener in listeners] == [-1, -1]


async def test_a_port_that_another_keeps_is_given_up() -> None:
    later: list[tuple[float, Any, tuple[Any, ...]]] = []
    loop = SimpleNamespace(
        call_later=lambda seconds, call, *values: later.append((seconds, call, values)),
        create_task=asyncio.get_running_loop().create_task,
    )
    (taken,) = listen_all("127.0.0.1", [0])

    async def listen(*_: Any) -> None: ...

    edge = SimpleNamespace(loop=loop, listen=listen, unlisten=lambda _: None)  # which keeps the port
    ports = BrokerPorts(edge, "127.0.0.1", 8, {1: taken})  # type: ignore[arg-type]
    ports.started(1, SimpleNamespace(dispatch=None))  # type: ignore[arg-type]
    await ports.opened()
    ports.stopped(1)
    tries, waited = 0, 0.0
    while later and tries < 1000:
        seconds, call, values = later.pop()
        tries, waited = tries + 1, waited + seconds
        call(*values)
    assert (tries, round(waited)) == (100, 1)
    taken.close()
