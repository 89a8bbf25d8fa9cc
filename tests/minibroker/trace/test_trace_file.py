"""The file that a proxy records to, and the replay of it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from running_proxy import running_proxy

from minibroker import ConfigError, Minibroker, StartError
from minibroker.cli import main
from minibroker.client.cluster import ClusterClient
from minibroker.proxy.options import proxy_options
from minibroker.trace.trace_file import TraceFile
from minibroker_protocol import messages as m
from minibroker_protocol.records import Record, build_batch


class Exchange:
    """A `Recorded` of a size. written_after: it is not written before that."""

    def __init__(
        self, number: int, api: str = "Heartbeat", *, size: int = 100, written_after: threading.Event | None = None
    ) -> None:
        self.number, self.api = number, api
        self.request_size, self.response_size = 40, size - 40
        self._written_after = written_after

    def to_json(self) -> dict[str, Any]:
        if self._written_after is not None:
            self._written_after.wait()
        return {"number": self.number, "text": "x" * 80}

    def frames(self) -> dict[str, str | None]:
        return {"request_frame": "AA==", "response_frame": "AA=="}


def add(file: TraceFile, exchange: Exchange) -> None:
    file.add(exchange)  # type: ignore[arg-type]


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def test_it_begins_anew_at_its_size_and_keeps_some(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(str(path), most_bytes=400, kept=2)
    for number in range(8):
        add(file, Exchange(number))
    file.close()
    assert [numbers(each) for each in (path, Path(f"{path}.1"), Path(f"{path}.2"))] == [[6, 7], [4, 5], [2, 3]]
    assert len(list(tmp_path.iterdir())) == 3


def test_records_are_left_out_on_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(str(path), contents=False)
    for api in ("Produce", "Fetch", "Heartbeat"):
        add(file, Exchange(1, api))
    file.close()
    assert [json.loads(line)["request_frame"] for line in path.read_text().splitlines()] == [None, None, "AA=="]


def test_what_waits_to_be_written_is_limited_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(str(path), most_waiting_bytes=1000)
    disk = threading.Event()
    for number, size in ((1, 600), (2, 600), (3, 400), (4, 41)):
        add(file, Exchange(number, size=size, written_after=disk))
    assert file.left_out == 2
    disk.set()
    file.close()
    assert numbers(path) == [1, 3]


def test_one_exchange_may_be_larger_and_what_is_written_waits_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(str(path), most_waiting_bytes=1000)
    for number in range(3):
        add(file, Exchange(number, size=2000))
        assert file.left_out == 0
        deadline = time.monotonic() + 60
        while len(numbers(path)) <= number:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    file.close()
    assert numbers(path) == [0, 1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_full_disk_is_one_line_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    file = TraceFile("/dev/full")
    (thread,) = set(threading.enumerate()) - before
    add(file, Exchange(1))
    thread.join()
    add(file, Exchange(2))
    file.close()
    assert [record.getMessage() for record in caplog.records] == [
        "/dev/full is no longer written, and lacks the exchanges that came last: No space left on device",
        "/dev/full lacks 1 exchange besides, for which the disk was too slow or full",
    ]


def session(bootstrap: str) -> None:
    """A topic, a record, and a group that does not exist."""
    with ClusterClient(bootstrap) as client:
        wanted = m.CreateTopicsRequest.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        client.ask(client.controller(), m.CreateTopicsRequest(topics=[wanted]), m.CreateTopicsResponse, 5)
        part = m.ProduceRequest.PartitionProduceData(index=0, records=build_batch([Record(value=b"secret value")]))
        topic = m.ProduceRequest.TopicProduceData(name="orders", partition_data=[part])
        client.ask(
            client.leader("orders", 0),
            m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]),
            m.ProduceResponse,
            9,
        )


@pytest.mark.parametrize("contents", [True, False])
def test_a_recorded_session_is_replayed_against_another_broker(
    contents: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "session.jsonl"
    with (
        Minibroker(ephemeral=True) as broker,
        running_proxy(broker.bootstrap_servers, record=str(path), record_contents=contents) as proxy,
    ):
        proxy.commands.set_recorder(None)  # as `trace.record kept=0` of a client of the control API does
        session(proxy.bootstrap_servers)
    apis = [json.loads(line)["api"] for line in path.read_text().splitlines()]
    assert apis.count("Produce") == apis.count("CreateTopics") == 1
    with Minibroker(ephemeral=True) as other:
        assert main(["replay", str(path), "--bootstrap", other.bootstrap_servers]) == 0
        assert len(other.records("orders")) == int(contents)
        said = capsys.readouterr().out
        assert ("1 request left out" in said) is not contents
        assert main(["replay", str(path), "--bootstrap", other.bootstrap_servers]) == 1
        assert "TOPIC_ALREADY_EXISTS" in capsys.readouterr().out


def test_bad_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--page or --record"):
        proxy_options("k:1", page=True, record="f")
    nowhere = str(tmp_path / "none" / "f")
    with (
        Minibroker(ephemeral=True) as broker,
        pytest.raises(StartError, match=r"--record: .*No such file"),
        running_proxy(broker.bootstrap_servers, record=nowhere),
    ):
        pass
