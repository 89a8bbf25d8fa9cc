"""A client that is refused again and again does not fill the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import SimpleNamespace

import pytest

from minibroker.server.connection_log import ConnectionLog
from minibroker.server.edge import Edge, Limits
from minibroker.server.listeners import listen_all


async def test_what_is_too_much_for_a_second_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    connection_log = ConnectionLog(asyncio.get_running_loop(), 60)
    with caplog.at_level(logging.WARNING):
        for number in range(25):
            connection_log.say("closing number %d", number)
        connection_log.close()
        connection_log.close()
    assert [r.getMessage() for r in caplog.records] == [
        *(f"closing number {number}" for number in range(10)),
        "15 more connections were closed or refused within 60 s",
    ]


def test_each_second_with_lines_has_its_end() -> None:
    loop = SimpleNamespace(armed=[])
    loop.call_later = lambda *given: loop.armed.append(given) or SimpleNamespace(cancel=lambda: None)
    connection_log = ConnectionLog(loop, 1)
    for _ in range(2):
        connection_log.say("one")
        connection_log.say("two")
        _, fire, *arguments = loop.armed[-1]
        fire(*arguments)
    assert [seconds for seconds, *_ in loop.armed] == [1, 1]


async def test_after_that_time_it_speaks_again(caplog: pytest.LogCaptureFixture) -> None:
    connection_log = ConnectionLog(asyncio.get_running_loop(), 0.05)
    with caplog.at_level(logging.WARNING):
        for _ in range(11):
            connection_log.say("one")
        await asyncio.sleep(0.2)
        connection_log.say("again")
        connection_log.close()
    told = [record.getMessage() for record in caplog.records]
    assert told[10:] == ["1 more connections were closed or refused within 0.05 s", "again"]


async def test_refused_connections_and_garbage_are_told_by_it(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    (listener,) = listen_all("127.0.0.1", [0])
    port = listener.getsockname()[1]
    edge = Edge(loop, Limits(max_connections=1))
    edge.connection_log = ConnectionLog(loop, 60)
    await edge.listen(listener, lambda frame, info: None)
    with caplog.at_level(logging.WARNING):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(30):
            refused, other = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                await refused.read()
            other.close()
        writer.write(b"\xff\xff\xff\xff garbage")
        assert await reader.read() == b""
        writer.close()
        await edge.close()
    told = [record.getMessage() for record in caplog.records]
    assert sum("closing the newest connection" in text for text in told) == 10
    assert told[-1] == "21 more connections were closed or refused within 60 s"
