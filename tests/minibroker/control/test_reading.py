"""What a test sees without a client of its own: records, offsets, transactions, requests; from Python, from coroutines,
over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from asyncio import _set_running_loop  # for those who write event loops
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from faulty import produce_request
from seed_client import GROUP, ID, OK, TOPIC, SeedClient

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.client.connection import Connection
from minibroker.control import read_commands
from minibroker.control.commands import Commands
from minibroker.faults import FaultError
from minibroker.kernel.addresses import parse_address
from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.records import Record, build_batch

SECONDS = 10.0


# -- what is told, on a broker in memory -------------------------------------------------------------------------------


class Told(SeedClient):
    """The commands of a broker in memory."""

    def ask(self, name: str, *, wait_ms: int = 0, **arguments: Any) -> Any:
        """The result; real time goes on until there is one, for `wait_ms` at most."""
        if not hasattr(self, "commands"):
            self.commands = Commands(self.cluster.cluster, self.cluster.timers)
        found = self.commands.call(f"read.{name}", arguments)
        for _ in range(wait_ms // 10 + 20):
            if isinstance(found, Deferred) and not found.done:
                self.cluster.timers.advance(10)
        return found.result() if isinstance(found, Deferred) else found

    def values(self, isolation: str = "read_uncommitted", **arguments: Any) -> list[Any]:
        return [record["value"] for record in self.ask("records", topic=TOPIC, isolation=isolation, **arguments)]


@pytest.fixture
def told() -> Iterator[Told]:
    client = Told()
    yield client
    client.stop()


def test_records_are_what_a_consumer_with_that_isolation_reads(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two segments and more reads: committed, aborted and open transactions, and a record outside of any."""
    monkeypatch.setattr(read_commands, "_SLICE_BYTES", 100)
    producer = told.new()
    sequence = 0
    for commit in (True, False, True):
        told.add(producer)
        assert told.produce(producer, sequence, count=3).code == OK
        assert told.end(producer, commit=commit) == OK
        sequence += 3
        if sequence == 6:
            told.cluster.broker.partition(TOPIC, 0).log.roll(told.cluster.clock.now_ms())
    told.add(producer)
    assert told.produce(producer, sequence).code == OK  # stays open
    assert told.produce((77, 0), 50, transactional=False).code == OK
    assert told.values("read_uncommitted") == [*(str(n) for n in range(10)), "50"]
    assert told.values("read_committed") == ["0", "1", "2", "6", "7", "8"]  # "50" is above the last stable offset
    assert told.end(producer, commit=False) == OK
    assert told.values("read_committed") == ["0", "1", "2", "6", "7", "8", "50"]
    offsets = [record["offset"] for record in told.ask("records", topic=TOPIC)]
    assert offsets == [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13]


def test_partitions_come_in_order_and_one_alone(told: Told) -> None:
    for partition, value in ((1, 10), (0, 20)):
        assert told.produce((77 + partition, 0), value, partition=partition, transactional=False).code == OK
    assert told.values() == ["20", "10"]
    assert told.values(partition=1) == ["10"]
    for arguments, words in (
        ({"partition": 2}, "has no partition 2"),
        ({"topic": "tt"}, "no topic 'tt', did you mean t?"),
    ):
        with pytest.raises(ApiError, match=words) as raised:
            told.ask("records", **{"topic": TOPIC, **arguments})
        assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(FaultError, match="isolation is read_uncommitted or read_committed, not 'none'"):
        told.values("none")


def test_records_below_the_log_start_are_gone(told: Told) -> None:
    assert told.produce((77, 0), 0, count=4, transactional=False).code == OK
    told.cluster.broker.partition(TOPIC, 0).log.delete_records(2)  # within the batch
    assert told.values() == ["2", "3"]


def test_a_transaction_is_seen_with_its_state_and_its_offsets_once_it_is_committed(told: Told) -> None:
    assert told.ask("transactions") == []
    assert told.ask("committed", group=GROUP) == []
    producer = told.new()
    told.add(producer)
    told.add_offsets(producer)
    assert told.produce(producer, 0).code == OK
    assert told.commit_offset(producer, 5) == OK
    (open_one,) = told.ask("transactions", transactional_id="t*")
    assert (open_one["state"], open_one["producer_id"]) == ("Ongoing", producer[0])
    assert [TOPIC, 0] in open_one["partitions"]
    assert open_one["started_ms"] == told.cluster.clock.now_ms()
    assert told.ask("committed", group=GROUP) == []
    assert told.end(producer, commit=True) == OK
    (ended,) = told.ask("transactions", transactional_id=ID)
    assert (ended["state"], ended["partitions"]) == ("CompleteCommit", [])
    assert told.ask("committed", group=GROUP) == [{"topic": TOPIC, "partition": 0, "offset": 5, "metadata": "m"}]
    assert told.ask("transactions", transactional_id="other") == []


def test_waiting_ends_with_the_records_or_says_what_there_is(told: Told) -> None:
    assert told.produce((77, 0), 0, transactional=False).code == OK
    waiting = Commands(told.cluster.cluster, told.cluster.timers).call(
        "read.wait_for_records", {"topic": TOPIC, "count": 2}
    )
    told.cluster.timers.advance(100)
    assert not waiting.done
    assert told.produce((77, 0), 1, partition=0, transactional=False).code == OK
    told.cluster.timers.advance(100)
    assert [record["value"] for record in waiting.result()] == ["0", "1"]
    with pytest.raises(ApiError, match="t has 2 of 3 records") as raised:
        told.ask("wait_for_records", wait_ms=600, topic=TOPIC, count=3, timeout_ms=500)
    assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(ApiError, match="there is no topic 'later' after 500 ms"):
        told.ask("wait_for_records", wait_ms=600, topic="later", timeout_ms=500)
    with pytest.raises(FaultError, match="count is 1 or more"):
        told.ask("wait_for_records", topic=TOPIC, count=0)


def test_committed_offsets_are_waited_for_and_an_open_transaction_is_named(told: Told) -> None:
    commands = Commands(told.cluster.cluster, told.cluster.timers)
    wanted = {"group": GROUP, "topic": TOPIC, "offset": 5}
    waiting = commands.call("read.wait_for_committed", wanted)
    producer = told.new()
    told.add(producer)
    told.add_offsets(producer)
    assert told.commit_offset(producer, 5) == OK
    told.cluster.timers.advance(100)
    assert not waiting.done
    nothing = f"group {GROUP} has committed no offset of t-0, not 5 after 500 ms; offsets of transactions that have not"
    with pytest.raises(ApiError, match=f"{nothing} ended do not count: {ID}$") as raised:
        told.ask("wait_for_committed", wait_ms=600, timeout_ms=500, **wanted)
    assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert told.end(producer, commit=True) == OK
    told.cluster.timers.advance(100)
    assert [one["offset"] for one in waiting.result()] == [5]
    assert told.ask("wait_for_committed", group=GROUP, topic=TOPIC, offset=4) == waiting.result()
    with pytest.raises(ApiError, match=r"has committed offset 5 of t-0, not 6 after 500 ms$"):
        told.ask("wait_for_committed", wait_ms=600, timeout_ms=500, **{**wanted, "offset": 6})


def test_a_transactions_state_is_waited_for_and_another_is_said(told: Told) -> None:
    commands = Commands(told.cluster.cluster, told.cluster.timers)
    waiting = commands.call("read.wait_for_transaction", {"transactional_id": ID, "state": "CompleteAbort"})
    with pytest.raises(ApiError, match=f"there is no transactional id '{ID}' after 500 ms"):
        told.ask("wait_for_transaction", wait_ms=600, transactional_id=ID, state="Ongoing", timeout_ms=500)
    producer = told.new()
    told.add(producer)
    assert told.ask("wait_for_transaction", transactional_id=ID, state="Ongoing")["partitions"] == [[TOPIC, 0]]
    assert not waiting.done
    commands.call("state.hold_markers", {"transactional_id": ID})
    assert told.end(producer, commit=False) == OK
    with pytest.raises(ApiError, match=f"{ID} is PrepareAbort, not CompleteAbort, after 500 ms; its markers are held"):
        told.ask("wait_for_transaction", wait_ms=600, transactional_id=ID, state="CompleteAbort", timeout_ms=500)
    commands.call("state.release_markers", {})
    told.cluster.timers.advance(100)
    assert waiting.result()["state"] == "CompleteAbort"
    with pytest.raises(FaultError, match="no state 'CompleteCommmit', did you mean CompleteCommit"):
        told.ask("wait_for_transaction", transactional_id=ID, state="CompleteCommmit")


# -- the ways to ask ---------------------------------------------------------------------------------------------------


def send(broker: Minibroker, sequence: int, client_id: str = "someone") -> None:
    with closing_connection(broker) as connection:
        request = produce_request("t", 0, producer_id=5, epoch=0, sequence=sequence)
        answer: Any = connection.ask(request, 9, client_id, SECONDS)
        assert answer.responses[0].partition_responses[0].error_code in (0, 45)


def closing_connection(broker: Minibroker) -> closing[Connection]:
    return closing(Connection(parse_address(broker.bootstrap_servers), SECONDS))


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[Minibroker]:
    with Minibroker(topics={"t": 1, "bytes": 1}, process=request.param, record=100, ephemeral=True) as running:
        send(running, 0)
        send(running, 7)  # out of order
        yield running


def test_from_python(broker: Minibroker) -> None:
    (record,) = broker.records("t", isolation="read_committed")
    assert (record.topic, record.partition, record.offset, record.key, record.value) == ("t", 0, 0, None, b"0")
    assert (record.producer_id, record.transactional) == (5, False)
    assert broker.committed("g") == {}
    assert broker.transactions() == []
    first, second = broker.requests("Produce", client_id="some*")
    assert (first.errors, first.outcome) == ((), "answered")
    assert second.errors[0].startswith("OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert second.reasons
    assert broker.requests("EndTxn") == []
    with pytest.raises(FaultError, match="no API 'EndTx', did you mean EndTxn"):
        broker.requests("EndTx")
    with pytest.raises(TimeoutError, match="t has 1 of 2 records"):
        broker.wait_for_records("t", 2, timeout=0.1)


async def test_from_a_coroutine(broker: Minibroker) -> None:
    assert [r.value for r in await broker.wait_for_records_async("t")] == [b"0"]
    assert await broker.records_async("t") == broker.records("t")
    assert await broker.committed_async("g") == {}
    assert await broker.transactions_async() == []
    assert await broker.requests_async("Produce") == broker.requests("Produce")


def test_bytes_that_are_no_text_and_headers_arrive_as_they_are(broker: Minibroker) -> None:
    headers = [("h", b"\xff"), ("n", None), ("t", b"ext")]
    batch = build_batch([Record(0, 5, b"\x80", None, headers), Record(1, 6, b"", "ä".encode(), [])])
    request = produce_request("bytes", 0, producer_id=5, epoch=0, sequence=0)
    request.topic_data[0].partition_data[0] = ProduceRequest.PartitionProduceData(index=0, records=batch)
    if not broker.records("bytes"):
        with closing_connection(broker) as connection:
            connection.ask(request, 9, "bytes", SECONDS)
    one, two = broker.records("bytes")
    assert (one.key, one.value, one.headers, one.timestamp_ms) == (b"\x80", None, tuple(headers), 5)
    assert (two.key, two.value) == (b"", "ä".encode())


def test_what_arrives_later_is_waited_for() -> None:
    with Minibroker(topics={"t": 1}, ephemeral=True) as broker:
        later = threading.Thread(target=lambda: (time.sleep(0.05), send(broker, 0)))
        later.start()
        assert [record.value for record in broker.wait_for_records("t", timeout=30)] == [b"0"]
        later.join()
        with pytest.raises(FaultError, match=r"exchanges are not recorded.*Minibroker\(record=1000\)"):
            broker.requests()


def test_over_http_and_on_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Minibroker(topics={"t": 1}, process=True, ephemeral=True, record=10, page=True) as broker:
        send(broker, 0)
        served = urlsplit(broker.page_url)
        monkeypatch.setenv("MINIBROKER_CONTROL_TOKEN", served.fragment.removeprefix("token="))

        def control(*arguments: str) -> int:
            return main(["control", "--control", served.netloc, *arguments])

        assert control("read.wait_for_records", "topic=t", "isolation=read_committed") == 0
        (record,) = json.loads(capsys.readouterr().out)
        assert (record["value"], record["offset"]) == ("0", 0)
        assert control("read.requests", "api=Produce") == 0
        assert [exchange["api"] for exchange in json.loads(capsys.readouterr().out)] == ["Produce"]
        assert control("read.wait_for_records", "topic=t", "count=2", "timeout_ms=50") == 1
        assert "t has 1 of 2 records" in capsys.readouterr().err
        assert control("read.wait_for_committed", "group=g", "topic=t", "offset=1", "timeout_ms=50") == 1
        assert "group g has committed no offset of t-0, not 1 after 50 ms" in capsys.readouterr().err
        assert control("state.hang_transaction", "topic=t", "partition=0") == 0
        assert json.loads(capsys.readouterr().out) == 1
        assert control("read.wait_for_transaction", "transactional_id=hanging", "state=Empty") == 0
        assert json.loads(capsys.readouterr().out)["producer_epoch"] == 0
        assert control("cluster.reset", "topics=true") == 0
        assert broker.requests() == []
        assert list(broker.control.describe()["topics"]) == ["__transaction_state"]


@pytest.fixture
def own() -> Iterator[Minibroker]:
    with Minibroker(record=10, ephemeral=True) as running:
        yield running


def test_a_transaction_hangs_until_an_administrator_ends_it(
    own: Minibroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `find-hanging` sees it, and a second time with the next sequence."""
    own.state.create_topic("hung")
    at = ["--bootstrap", own.bootstrap_servers]
    for start in (0, 2):
        assert own.hang_transaction("hung") == start
        with pytest.raises(FaultError, match="a transaction of hanging is open on hung-0 already"):
            own.hang_transaction("hung")
        assert own.wait_for_transaction("hanging", "Empty").partitions == ()
        assert len(own.records("hung", isolation="read_committed")) == 0
        assert main(["transactions", "find-hanging", *at, "--topic", "hung"]) == 0
        *_, row = capsys.readouterr().out.splitlines()
        assert [row.split()[column] for column in (0, 1, 4, 6)] == ["hung", "0", str(start), "hanging"]
        where = ["--topic", "hung", "--partition", "0", "--start-offset", str(start)]
        assert main(["transactions", "abort", *at, *where]) == 0
    assert len(own.records("hung")) == 2
    assert main(["transactions", "find-hanging", *at, "--topic", "hung"]) == 0
    assert "hanging" not in capsys.readouterr().out


def test_reset_leaves_nothing_of_a_test(own: Minibroker) -> None:
    own.state.create_topic("t")
    send(own, 0)
    send(own, 7)
    rule = own.faults.inject("EndTxn", "close")
    own.clock.freeze()
    own.state.hold_markers()
    own.state.pause_broker()
    assert repr(own.faults) == "<Faults: 1 rule, 0 acted>"
    assert repr(own.clock) == f"<Clock: {own.clock.now_ms} ms, frozen>"
    assert repr(own.state) == "<State: 1 broker running, 1 topic>"
    assert repr(rule) == "<Fault: fault 1 (close on api=['EndTxn'], nth=1, times=1), fired 0 times>"
    state = own.state
    own.reset()
    assert (own.faults.list(), own.faults.expected, own.clock.frozen) == ([], (), False)
    known = own.control.describe()
    assert (known["paused_brokers"], known["held_markers"], list(known["topics"])) == ([], [], ["t"])
    assert (own.requests(), own.control.refusals()) == ([], [])
    assert [record.value for record in own.records("t")] == [b"0"]
    own.reset(topics=True)
    assert list(own.control.describe()["topics"]) == []
    own.state.create_topic("t")
    assert own.records("t") == []
    own.stop()
    assert repr(state).startswith("<State: not known, ")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_wait_in_a_running_loop_warns_and_names_its_async_form(own: Minibroker) -> None:
    """A client in that loop cannot do what is waited for."""
    own.state.create_topic("t")
    rule = own.faults.inject("EndTxn", "close", expected=False)

    async def sync() -> None:
        own.wait_for_records("t", timeout=0.01)

    async def sync_rule() -> None:
        rule.wait(timeout=0.01)

    for wait, method in ((sync, "wait_for_records"), (sync_rule, "wait")):
        with pytest.warns(RuntimeWarning, match=f"^{method} blocks the event loop") as caught:  # noqa: SIM117
            with pytest.raises(TimeoutError, match=rf"use `await {method}_async\("):
                asyncio.run(wait())
        assert caught[0].filename == __file__

    async def in_thread() -> None:
        with pytest.raises(TimeoutError, match=r"0 of 1 record .*ms$"):
            await own.wait_for_records_async("t", timeout=0.01)

    asyncio.run(in_thread())

    async def callback() -> None:
        called = asyncio.get_running_loop().create_future()

        def wait() -> None:
            with pytest.raises(TimeoutError):
                rule.wait(timeout=0.01)
            called.set_result(None)

        asyncio.get_running_loop().call_soon(wait)
        await called

    for fast in (False, True):  # callbacks of uvloop have no frame of the loop above them
        with (
            pytest.warns(RuntimeWarning, match="^wait blocks the event loop"),
            asyncio.Runner(loop_factory=partial(new_event_loop, uvloop=fast)) as runner,
        ):
            runner.run(callback())
    own.stop()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_wait_beside_a_suspended_loop_does_not_warn(own: Minibroker) -> None:
    """Playwright's sync API runs its loop in a greenlet and leaves it half-way: asyncio calls it the running one."""
    suspended = asyncio.new_event_loop()
    _set_running_loop(suspended)
    try:
        with pytest.raises(TimeoutError, match=r"no topic 't' after 10 ms$"):
            own.wait_for_records("t", timeout=0.01)
    finally:
        _set_running_loop(None)
        suspended.close()
        own.stop()
