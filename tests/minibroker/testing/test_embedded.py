"""`Minibroker` in a program: it starts, serves, and leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minibroker
from minibroker import ConfigError, Minibroker, StartError
from minibroker.control.client import NeverFired
from minibroker_protocol.messages import MetadataRequest, MetadataResponse

KINDS: list[dict[str, Any]] = [{}, {"ephemeral": True}, {"process": True}, {"config": {"minibroker.uvloop": False}}]
KIND_NAMES = ["thread", "memory", "process", "asyncio"]


def topics(bootstrap: str, *wanted: str) -> dict[str, int]:
    """What Metadata says of all topics, or of those wanted, asked over a socket of one's own until all are there."""
    named = [MetadataRequest.MetadataRequestTopic(name=name) for name in wanted] or None
    while 0 in (found := _topics(bootstrap, named)).values():
        time.sleep(0.01)
    return found


def _topics(bootstrap: str, named: list[MetadataRequest.MetadataRequestTopic] | None) -> dict[str, int]:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    body = b"\0\3\0\x09\0\0\0\1\0\1x\0" + MetadataRequest(topics=named).encode(9)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(len(body).to_bytes(4, "big") + body)
        with connection.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    return {t.name or "": len(t.partitions) for t in MetadataResponse.decode(answer, 9, 5).topics}


def refuses(bootstrap: str) -> bool:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def handles() -> int:
    return len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, for this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def _first_of_all() -> None:
    """libuv opens two handles for signals once a process and keeps them."""
    with Minibroker():
        pass


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
def test_serves_inside_the_block_and_is_gone_after_it(kind: dict[str, Any], temporary: Path) -> None:
    threads, open_before = threading.active_count(), handles()
    with Minibroker(topics={"t": 3}, **kind) as broker:
        bootstrap = broker.bootstrap_servers
        assert topics(bootstrap) == {"t": 3}
    assert refuses(bootstrap)
    assert threading.active_count() == threads
    assert handles() == open_before
    assert list(temporary.iterdir()) == []
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.bootstrap_servers


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
async def test_the_same_from_a_coroutine_whose_loop_runs_on(kind: dict[str, Any], temporary: Path) -> None:
    threads = threading.active_count()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.001)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    async with Minibroker(**kind) as broker:
        counted = beats
        host, _, port = broker.bootstrap_servers.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await asyncio.sleep(0.01)
    assert beats > counted
    beating.cancel()
    assert threading.active_count() == threads
    assert os.listdir(temporary) == []


def test_a_broker_can_be_started_again(temporary: Path) -> None:
    broker = Minibroker(topics={"t": 1})
    for _ in range(2):
        broker.start()
        assert topics(broker.bootstrap_servers) == {"t": 1}
        with pytest.raises(RuntimeError, match="already"):
            broker.start()
        broker.stop()
        broker.stop()


def test_an_error_in_the_block_comes_out_of_it(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), Minibroker():
        _ = 1 // 0
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["thread", "process"])
def test_many_at_once_with_several_brokers_each(process: bool, temporary: Path) -> None:
    running = [Minibroker(brokers=2, topics={f"t{i}": 2}, process=process) for i in range(2)]
    try:
        for broker in running:
            broker.start()
        assert [topics(broker.bootstrap_servers) for broker in running] == [{f"t{i}": 2} for i in range(2)]
        assert len({a for broker in running for a in broker.bootstrap_servers.split(",")}) == 4
    finally:
        for broker in running:
            broker.stop()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["thread", "process"])
def test_a_data_directory_is_kept_and_has_one_owner(process: bool, tmp_path: Path) -> None:
    data = tmp_path / "data"
    second = Minibroker(data_dir=str(data))
    with (
        Minibroker(data_dir=str(data), topics={"t": 2}, process=process),
        pytest.raises(StartError, match="by process"),
    ):
        second.start()
    with Minibroker(data_dir=str(data), process=process) as broker:
        assert topics(broker.bootstrap_servers) == {"t": 2}


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_start_that_fails_says_why_and_leaves_nothing(process: bool, temporary: Path) -> None:
    threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Minibroker(port=port, process=process)
        with pytest.raises(StartError, match=f"127.0.0.1:{port} is in use"):
            broker.start()
    broker.stop()
    time.sleep(0.05)
    assert threading.active_count() == threads
    assert list(temporary.iterdir()) == []
    with broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"config": {"num.partition": 3}}, "did you mean num.partitions?"),
        ({"semantics": "kpi"}, "kafka, kip"),
        ({"brokers": 2, "ports": [1]}, "as many ports"),
        ({"topics": {"t": 0}}, "a number of partitions from 1 on, not 0"),
        ({"topics": {"t": "3"}}, "a number of partitions from 1 on, not '3'"),
        ({"topics": ["t"]}, r"such as \{'orders': 1\}, not \['t'\]"),
        ({"topics": "t"}, "such as .*, not 't'"),
        ({"ephemeral": True, "data_dir": "x"}, "exclude"),
        ({"transaction_version": 3}, "0, 1 or 2"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        Minibroker(**arguments)


def test_settings_reach_a_child_process_as_they_are(temporary: Path) -> None:
    config = {"num.partitions": 5, "auto.create.topics.enable": True, "log.cleanup.policy": ["compact", "delete"]}
    with Minibroker(config=config, semantics="kip", transaction_version=1, process=True) as broker:
        assert topics(broker.bootstrap_servers) == {}
        assert topics(broker.bootstrap_servers, "made") == {"made": 5}


@pytest.mark.parametrize("process", [False, True])
def test_variables_for_another_kafka_are_not_meant_for_this_one(
    process: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    monkeypatch.setenv("KAFKA_NODE_ID", "no number")
    with Minibroker(process=process) as broker:
        assert topics(broker.bootstrap_servers, "made") == {"made": 1}


@pytest.mark.skipif(not [*Path("/proc/self/task").glob("*/children")], reason="the system does not show them so")
def test_a_password_is_not_on_a_command_line(temporary: Path) -> None:
    with Minibroker(config={"ssl.key.password": "open sesame"}, process=True) as broker:
        assert broker.bootstrap_servers
        children = Path("/proc/self/task").glob("*/children")  # of the thread that started each
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for one in children for pid in one.read_text().split()]
        assert [line for line in lines if b"serve" in line]
        assert not [line for line in lines if b"sesame" in line]


def cycles(count: int, make: Callable[[], Minibroker]) -> None:
    for _ in range(count):
        with make() as broker:
            assert broker.bootstrap_servers


@pytest.mark.matrix
def test_200_cycles_leak_nothing(temporary: Path) -> None:
    def make() -> Minibroker:
        return Minibroker(topics={"t": 1})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cycles(5, make)  # what is made once for the process
        gc.collect()
        before = (threading.active_count(), handles())
        objects = len(gc.get_objects())
        cycles(195, make)
        gc.collect()
        assert (threading.active_count(), handles()) == before
        assert len(gc.get_objects()) < objects + 2000  # ten a cycle would be 1,950
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kill -9 is of POSIX")
def test_a_child_process_ends_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    code = (
        "from minibroker import Minibroker; import time; b = Minibroker(process=True).start();"
        "print(b.bootstrap_servers, flush=True); time.sleep(60)"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), TMPDIR=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        bootstrap = parent.stdout.readline().strip()
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 10
    while not refuses(bootstrap) or list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.02)


def test_a_program_that_forgets_to_stop_leaves_nothing(tmp_path: Path) -> None:
    code = "from minibroker import Minibroker; Minibroker().start(); Minibroker(process=True).start()"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), TMPDIR=str(tmp_path), TEMP=str(tmp_path))
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment, timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_the_public_names() -> None:
    assert sorted(minibroker.__all__) == ["ConfigError", "Minibroker", "Proxy", "StartError", "__version__"]
    assert all(getattr(minibroker, name) for name in minibroker.__all__)
    assert set(minibroker.__all__) <= set(dir(minibroker))
    with pytest.raises(AttributeError, match="Minibrokers"):
        _ = minibroker.Minibrokers


def test_importing_the_package_loads_next_to_nothing() -> None:
    code = "import sys, minibroker; assert not {'asyncio', 'logging', 'minibroker.config'} & set(sys.modules)"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=30)


def test_refusals_and_lost_producers_of_a_running_broker() -> None:
    from minibroker.client.transactions import TransactionsClient
    from minibroker.kernel.fault_error import FaultError

    with Minibroker(topics={"t": 1}, as_version="2.8") as broker:
        assert broker.refusals() == []
        with TransactionsClient(broker.bootstrap_servers) as client:
            states = client.describe_state(["nobody"])
        assert states["nobody"].producer_id == -1
        (refusal,) = broker.refusals()
        assert (refusal.api, refusal.subject) == ("DescribeTransactionState", "nobody")
        assert broker.cluster.lose_producers("t", cause="expiration") == []
        with pytest.raises(FaultError, match="does not exist"):
            broker.cluster.lose_producers("nowhere", cause="expiration")
        with pytest.raises(FaultError, match="begins at an offset"):
            broker.cluster.lose_producers("t", cause="lost-tail")
    with pytest.raises(RuntimeError):
        broker.refusals()


def test_a_release_reaches_a_child_process() -> None:
    from minibroker.server.options import make_options
    from minibroker.testing.in_process import _arguments

    assert "--as-version 3.9" in " ".join(_arguments(make_options(as_version="3.9")))
    with pytest.raises(ConfigError, match=r"'0\.9' is not one of"):
        Minibroker(as_version="0.9")


def test_a_rule_that_never_acted_fails_the_block() -> None:
    async def by_coroutines() -> None:
        async with Minibroker(ephemeral=True) as broker:
            broker.faults.inject("EndTxn", "drop_reply")

    with pytest.raises(NeverFired), Minibroker(ephemeral=True) as broker:
        broker.faults.inject("EndTxn", "drop_reply")
    assert repr(broker) == "<Minibroker that is not running>"
    with pytest.raises(NeverFired):
        asyncio.run(by_coroutines())
    with Minibroker(ephemeral=True) as broker:
        broker.faults.inject("EndTxn", "drop_reply", expected=False)
    with pytest.raises(ZeroDivisionError), Minibroker(ephemeral=True) as broker:
        broker.faults.inject("EndTxn", "drop_reply")
        _ = 1 // 0
