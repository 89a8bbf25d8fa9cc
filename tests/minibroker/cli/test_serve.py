"""`minibroker serve` as a process: what it prints, how it ends, what it leaves."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_process import run_command, start_command

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.server import command, serving
from minibroker_protocol.messages import (
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from minibroker_protocol.records import Record, build_batch

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

ANY_PORT = ("--port", "0")


def request_header(api_key: int, version: int, *, flexible: bool) -> bytes:
    client_id = b"test"
    fields = struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id
    return fields + b"\0" if flexible else fields


class Served:
    """A running `minibroker serve`."""

    def __init__(
        self, *arguments: str, tmp: Path, portable_signals: bool = False, stdin: int = subprocess.DEVNULL
    ) -> None:
        command = []
        if portable_signals:
            code = (
                "import sys, minibroker.server.signals as s;"
                "s.StopSignals.__init__.__kwdefaults__['loop_handlers'] = False;"
                "from minibroker.cli import main; sys.exit(main())"
            )
            command = [sys.executable, "-c", code]
        self.log = tmp / f"serve-{time.monotonic_ns()}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KAFKA_")}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp), "TEMP": str(tmp)}
        with self.log.open("w") as stderr:
            streams: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": stderr, "text": True}
            if command:
                self.process = subprocess.Popen([*command, "serve", *arguments], env=environment, **streams)
            else:
                self.process = start_command("serve", *arguments, env=environment, **streams)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        assert self.line.startswith("bootstrap.servers="), self.log.read_text()
        pairs = [part.rpartition(":") for part in self.line.strip().partition("=")[2].split(",")]
        return [(host, int(port)) for host, _, port in pairs]

    def connect(self, broker: int = 0) -> socket.socket:
        return socket.create_connection(self.addresses[broker], timeout=60)

    def end(self, seconds: float = 5) -> tuple[int, str]:
        """Exit code and what came on stdout after the first line."""
        assert self.process.stdout is not None
        code = self.process.wait(seconds)
        with self.process.stdout as out:
            return code, out.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[list[Served]]:
    running: list[Served] = []
    yield running
    for broker in running:
        if broker.process.poll() is None:
            broker.kill()


def ask(connection: socket.socket, request: object, version: int) -> bytes:
    """Send one request; the body of the answer, behind its header."""
    api_key: int = type(request).__api_key__  # type: ignore[attr-defined]
    flexible = version >= type(request).__flexible__  # type: ignore[attr-defined]
    body = request_header(api_key, version, flexible=flexible) + request.encode(version)  # type: ignore[attr-defined]
    connection.sendall(len(body).to_bytes(4, "big") + body)
    return answer(connection)[4 + flexible :]


def answer(connection: socket.socket) -> bytes:
    size = int.from_bytes(exactly(connection, 4), "big")
    return exactly(connection, size)


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError(f"closed after {len(data)} of {count} bytes")
        data += more
    return data


def topics(connection: socket.socket) -> dict[str, int]:
    response = MetadataResponse.decode(ask(connection, MetadataRequest(topics=None), 9), 9)
    return {topic.name or "": len(topic.partitions) for topic in response.topics}


class Refused(Exception):
    pass


def produce(connection: socket.socket, topic: str, value: bytes) -> int:
    partition = ProduceRequest.PartitionProduceData(
        index=0, records=build_batch([Record(0, int(time.time() * 1000), None, value, [])])
    )
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[data])
    response = ProduceResponse.decode(ask(connection, request, 9), 9)
    answered = response.responses[0].partition_responses[0]
    if answered.error_code:
        raise Refused(f"{answered.error_code}: {answered.error_message}")
    return answered.base_offset


def fetch_frame(topic: str, offset: int, max_wait_ms: int) -> bytes:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
    )
    body = request_header(1, 11, flexible=False) + request.encode(11)
    return len(body).to_bytes(4, "big") + body


def leftovers(tmp: Path) -> list[str]:
    return sorted(p.name for p in tmp.iterdir() if p.name.startswith("minibroker-"))


def test_prints_one_line_once_every_port_is_served(served: list[Served], tmp_path: Path) -> None:
    broker = Served(*ANY_PORT, "--brokers", "3", "--topic", "t:3", "--topic", "one", tmp=tmp_path)
    served.append(broker)
    assert len(set(broker.addresses)) == 3
    for index in range(3):
        with broker.connect(index) as connection:
            assert topics(connection) == {"t": 3, "one": 1}
    broker.process.terminate()
    code, rest = broker.end()
    assert rest == ""
    if os.name == "posix":
        assert code == 0
        assert leftovers(tmp_path) == []


@posix
@pytest.mark.parametrize("portable", [False, True], ids=["loop", "portable"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(served: list[Served], tmp_path: Path, number: int, portable: bool) -> None:
    broker = Served(*ANY_PORT, "--topic", "t:1", tmp=tmp_path, portable_signals=portable)
    served.append(broker)
    with broker.connect() as producer, broker.connect() as fetcher:
        assert produce(producer, "t", b"v") == 0
        fetcher.sendall(fetch_frame("t", 1, 60_000))
        time.sleep(0.1)
        started = time.monotonic()
        broker.process.send_signal(number)
        assert broker.end() == (0, "")
        assert time.monotonic() - started < 5
    assert leftovers(tmp_path) == []


@posix
def test_it_lives_as_long_as_its_stdin_and_talks_like_kafkas_image(served: list[Served], tmp_path: Path) -> None:
    arguments = ("--ephemeral", "--port", "0", "--until-stdin-closes", "--like-kafka-image")
    broker = Served(*arguments, tmp=tmp_path, stdin=subprocess.PIPE)
    served.append(broker)
    broker.connect().close()
    assert broker.process.poll() is None
    assert broker.process.stdin is not None
    broker.process.stdin.close()
    code, more = broker.end(30)
    assert (code, more.splitlines()[-1]) == (0, "Kafka Server started")


async def test_a_stdin_that_cannot_be_read_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = asyncio.Event()

    def broken(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EBADF, "bad file descriptor")

    monkeypatch.setattr(command.os, "read", broken)
    serving.watch_stdin(asyncio.get_running_loop(), stopping)
    await asyncio.wait_for(stopping.wait(), 60)


def test_a_signal_that_comes_twice_at_once_is_one(served: list[Served], tmp_path: Path) -> None:
    """As npm and make pass on what the terminal has sent. The client never takes its answers: the orderly stop is
    not over when the second comes."""
    broker = Served(*ANY_PORT, "--topic", "t:1", tmp=tmp_path)
    served.append(broker)
    with broker.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(8):
            produce(deaf, "t", bytes(1_000_000))
        for _ in range(8):
            deaf.sendall(fetch_frame("t", 0, 0))
        time.sleep(0.3)
        broker.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert broker.process.poll() is None
        broker.process.send_signal(signal.SIGTERM)
        assert broker.end(30)[0] == 0
    assert "stopping" in broker.log.read_text()


def test_data_stays_where_it_was_asked_to(served: list[Served], tmp_path: Path) -> None:
    data = tmp_path / "data"
    for offset in range(2):
        broker = Served(*ANY_PORT, "--data-dir", str(data), "--topic", "t:1", tmp=tmp_path)
        served.append(broker)
        with broker.connect() as connection:
            assert produce(connection, "t", b"v") == offset
        broker.process.terminate()
        broker.end()
    assert (data / "t-0" / "00000000000000000000.log").stat().st_size > 0


def test_a_data_directory_has_one_owner(served: list[Served], tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = Served(*ANY_PORT, "--data-dir", data, tmp=tmp_path)
    second = Served(*ANY_PORT, "--data-dir", data, tmp=tmp_path)
    served += [first, second]
    assert second.line == ""
    code, _ = second.end()
    assert code == 1
    (line,) = second.log.read_text().splitlines()
    assert f"in use by process {first.process.pid}" in line


def test_a_data_directory_remembers_how_many_brokers_made_it(served: list[Served], tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = Served(*ANY_PORT, "--data-dir", data, "--brokers", "2", tmp=tmp_path)
    served.append(first)
    first.process.terminate()
    first.end()
    second = Served(*ANY_PORT, "--data-dir", data, tmp=tmp_path)
    served.append(second)
    assert second.end()[0] == 2
    assert "that of 2 broker(s), not of 1" in second.log.read_text()


def test_what_a_killed_broker_left_is_removed_by_the_next(served: list[Served], tmp_path: Path) -> None:
    killed = Served(*ANY_PORT, tmp=tmp_path)
    served.append(killed)
    killed.kill()
    left = leftovers(tmp_path)
    assert len(left) == 2  # the directory and its lock
    following = Served(*ANY_PORT, tmp=tmp_path)
    served.append(following)
    deadline = time.monotonic() + 5
    while set(left) & set(leftovers(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(leftovers(tmp_path)) == 2
    with following.connect() as connection:
        assert topics(connection) == {}


def test_ephemeral_makes_no_files_and_refuses_when_full(served: list[Served], tmp_path: Path) -> None:
    broker = Served(
        *ANY_PORT, "--ephemeral", "-c", "minibroker.ephemeral.max.bytes=2000000", "--topic", "t:1", tmp=tmp_path
    )
    served.append(broker)
    with broker.connect() as connection:
        produce(connection, "t", bytes(900_000))
        with pytest.raises(Refused, match="memory limit of 2000000 bytes"):
            for _ in range(4):
                produce(connection, "t", bytes(900_000))
        assert topics(connection) == {"t": 1}  # it goes on
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-c", "transaction.max.timout.ms=1"], "did you mean transaction.max.timeout.ms?"),
        (["-c", "num.partitions=none"], "Invalid value none for configuration num.partitions"),
        (["-c", "nonsense"], "expected key=value"),
        (["--brokers", "0"], "brokers must be between"),
        (["--port", "70000"], "port 70000"),
        (["--port", "http"], "expected a port"),
        (["--port", "1,1", "--brokers", "2"], "the same port"),
        (["--topic", "t:0"], "NAME:PARTITIONS"),
        (["--semantics", "kipp"], "kafka, kip"),
        (["--transaction-version", "7"], "0, 1 or 2"),
        (["--ephemeral", "--data-dir", "x"], "exclude each other"),
        (["--data-dir", ""], "has no name"),
        (["--topic", "a b:1"], "characters other than"),
        (["--log-level", "loud"], "--log-level: invalid choice: 'loud'"),
        (["--log-level", "warn"], "did you mean warning?"),
        (["--prot", "0"], "unrecognized arguments: --prot 0, did you mean --port?"),
    ],
)
def test_bad_configuration_is_one_line_and_exit_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    port = [] if "--port" in arguments else ANY_PORT
    try:
        status = main(["serve", *port, *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert said in line
    assert [*tmp_path.iterdir()] == []


@posix
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a place where nobody can make a directory")
def test_a_data_directory_that_cannot_be_made_is_named(served: list[Served], tmp_path: Path) -> None:
    broker = Served(*ANY_PORT, "--data-dir", "/proc/self/nowhere", tmp=tmp_path)
    served.append(broker)
    assert broker.end()[0] == 1
    (line,) = broker.log.read_text().splitlines()
    assert "/proc/self/nowhere" in line


@posix
@pytest.mark.parametrize("to", ["nowhere", "link"])
def test_a_data_directory_that_links_to_nothing_is_named(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / to)
    assert main(["serve", *ANY_PORT, "--data-dir", str(tmp_path / "link")]) == 2
    assert capsys.readouterr().err == f"minibroker: data directory {tmp_path}/link is not a directory\n"
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("brokers", ["1", "3"])
def test_a_broker_does_not_settle_among_other_files(tmp_path: Path, brokers: str) -> None:
    """They may be somebody's whose directory is called as a partition's would be, and whose files a broker deletes."""
    for name in ("main.py", "python-3", "src", "README.md"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.rglob("*"))
    argv = ("serve", "--port", "0", "--brokers", brokers, "--until-stdin-closes", "--data-dir", str(tmp_path))
    done = run_command(*argv, env=os.environ, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        f"minibroker: data directory {tmp_path} has no meta.properties, but README.md, main.py, src: "
        "name an empty directory, or a new one\n"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_it_settles_where_a_volume_or_kafka_left_something(tmp_path: Path) -> None:
    """A volume's own directory, hidden files, and Kafka's directory without the file that names its cluster."""
    for name in ("lost+found", ".hidden", "orders-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    with Minibroker(data_dir=str(tmp_path)) as broker:
        assert broker.cluster.run(lambda cluster: set(cluster.image.topics)) == {"orders"}


@posix
def test_a_data_directory_on_a_full_disk_is_named(tmp_path: Path) -> None:
    """No byte can be written: the lock is the first file that would have one."""
    argv = [sys.executable, "-m", "minibroker", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *argv]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        f"minibroker: the data directory, {tmp_path / 'data'}, cannot be used: File too large (.lock)\n"
    )


@posix
@pytest.mark.parametrize("files", [8, 14, 16, 18])
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("proxy", "--upstream", "127.0.0.1:1", "--port", "0")])
def test_too_few_file_descriptors_are_one_line(files: int, command: tuple[str, ...]) -> None:
    """Of uvloop's loop too, which logs as well that it was not closed; and where it could start, but not serve."""
    argv = [sys.executable, "-m", "minibroker", *command]
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *argv]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "minibroker: Too many open files: see `ulimit -n`\n")


@posix
@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_it_runs_without_a_standard_stream(tmp_path: Path, closed: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = f'exec "$0" -m minibroker serve --port {port} {closed}'
    process = subprocess.Popen(["sh", "-c", command, sys.executable], env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                    assert topics(connection) == {}
                break
            except ConnectionRefusedError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_taken_port_is_one_line_and_exit_1(served: list[Served], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Served("--port", str(port), tmp=tmp_path)
        served.append(broker)
        assert broker.end()[0] == 1
    (line,) = broker.log.read_text().splitlines()
    assert f"127.0.0.1:{port} is in use" in line
    assert leftovers(tmp_path) == []


def test_logs_are_json_where_nobody_watches(served: list[Served], tmp_path: Path) -> None:
    broker = Served(*ANY_PORT, "-c", "num.io.threads=3", tmp=tmp_path)
    served.append(broker)
    first = json.loads(broker.log.read_text().splitlines()[0])
    assert "num.io.threads" in first["event"]


def test_starting_loads_nothing_it_does_not_need_yet(tmp_path: Path) -> None:
    """Start-up time is import time: a tenth of a second to the first answer leaves no room for these."""
    code = (
        "import asyncio, sys; import minibroker.server.command; from minibroker.server.options import make_options;"
        "from minibroker.server.service import Service; s = Service(make_options()); loop = asyncio.new_event_loop();"
        "run = loop.run_until_complete; run(s.start()); loaded = set(sys.modules); run(s.stop()); loop.close();"
        "needless = {'structlog', 'rich', 'crc32c', 'cramjam', 'difflib', 'uuid', 'yaml', 'concurrent.futures.thread',"
        "'minibroker_lab', 'minibroker_pipeline', 'minibroker.testing'} & loaded; assert not needless, needless"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), TMPDIR=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=30)


LOADS_AHEAD = """
import os, sys, threading, time
from minibroker.cli import main
from minibroker.server import command
assert command.LOAD_AHEAD_SECONDS >= 1  # a broker that lives for one test is spared it
command.LOAD_AHEAD_SECONDS = 0
stdin, ending = os.pipe()
os.dup2(stdin, 0)
def wait():
    while not {"structlog", "minibroker.coordinator_runtime.group_service"} <= sys.modules.keys():
        time.sleep(0.01)
    os.close(ending)
threading.Thread(target=wait, daemon=True).start()
sys.exit(main(["serve", "--port", "0", "--ephemeral", "--until-stdin-closes", "--log-format", "text"]))
"""


def test_what_the_first_requests_need_is_loaded_ahead() -> None:
    assert subprocess.run([sys.executable, "-c", LOADS_AHEAD], capture_output=True, timeout=60).returncode == 0


def test_a_port_named_zero_is_never_given_up(served: list[Served], tmp_path: Path) -> None:
    """Two brokers started at the same time on free ports never meet."""
    brokers = [Served(*ANY_PORT, "--brokers", "2", "--ephemeral", tmp=tmp_path) for _ in range(2)]
    served += brokers
    assert len({address for broker in brokers for address in broker.addresses}) == 4
