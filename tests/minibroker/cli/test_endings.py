"""How commands end: Ctrl-C, SIGTERM, a reader that goes away, a full disk behind stdout: one line, nothing left."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from museum_case import write_case
from outside import Silent, Started, clean_environment

from minibroker import program
from minibroker.cli import commands
from minibroker.client.cluster import ClusterClient
from minibroker.client.transactions import TransactionsClient
from minibroker_protocol import messages as m
from minibroker_protocol.records import Record, build_batch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")

LOG = "orders-0/00000000000000000000.log"
TOKEN = {"MINIBROKER_CONTROL_TOKEN": "s3cret"}
INTERRUPTED, ENDED, BROKEN_PIPE, FULL = 130, 143, 141, 1


class World(NamedTuple):
    """What commands are pointed at: a broker that answers, its control API, one that does not, and files.

    museum: a folder of cases, and the user's cache with the client that they are about.
    """

    bootstrap: str
    control: str
    silent: Silent
    data: Path
    trace: Path
    museum: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**TOKEN, "XDG_CACHE_HOME": str(self.museum)}


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a broker and of its control API."""
    arguments = ("--port", "0", "--ephemeral", "--topic", "orders:1", "--control", "127.0.0.1:0")
    broker = Started("serve", *arguments, tmp=tmp_path_factory.mktemp("served"), **TOKEN)
    assert broker.process.stdout is not None
    first, second = (broker.process.stdout.readline().decode().strip() for _ in range(2))
    bootstrap = first.partition("=")[2]
    take_transactional_id(bootstrap)
    yield bootstrap, second.partition("=")[2]
    broker.process.terminate()
    assert broker.end() == 0


def take_transactional_id(bootstrap: str) -> None:
    """One for `minibroker transactions` to list."""
    with TransactionsClient(bootstrap) as client:
        client.init_producer_id("app-1", 60_000)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory about which dump, check and audit have more to say than a pipe takes."""
    root = tmp_path_factory.mktemp("data")
    (root / "meta.properties").write_text("version=1\nbroker.id=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n")
    (root / LOG).parent.mkdir()
    batches = [build_batch([Record(value=b"v" * 10)], base_offset=n, base_timestamp=0) for n in range(2000)]
    (root / LOG).write_bytes(b"".join(batches))
    for number in range(2500):
        (root / f"{number:06}-no-directory-of-a-partition").mkdir()
    return root


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ApiVersions request, as `minibroker trace --frames` writes it."""
    frame = base64.b64encode((18).to_bytes(2, "big") + bytes(6) + b"\xff\xff").decode()
    exchange = {"request_frame": frame, "response_frame": "", "response": {}, "client": "c", "api": "ApiVersions"}
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(json.dumps(exchange | {"version": 0, "errors": {}, "outcome": "answered"}) + "\n")
    return path


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One case, whose client is this Python and whose program sleeps."""
    root = tmp_path_factory.mktemp("museum")
    write_case(root / "sleeper", SLEEPER)
    inside = root / "minibroker" / "clients" / f"{sys.implementation.cache_tag}-mini==1.0" / "bin"
    inside.mkdir(parents=True)
    (inside / "python").symlink_to(sys.executable)
    return root


@pytest.fixture
def world(served: tuple[str, str], silent: Silent, data: Path, trace: Path, museum: Path) -> World:
    return World(*served, silent, data, trace, museum)


def asked_silent(world: World, started: Started) -> None:
    world.silent.take()


def said_something(world: World, started: Started) -> None:
    started.first_byte()


def progress(text: str) -> Callable[[World, Started], None]:
    return lambda world, started: started.wait_for(lambda: text in started.said)


def at_work(world: World, started: Started) -> None:
    started.wait_for(started.has_workers)


def ask_for_metadata(world: World, started: Started) -> None:
    """A trace has something to say once a client says something."""
    progress("tracing")(world, started)
    with ClusterClient(world.bootstrap) as client:
        client.metadata(["orders"])


def topics_of(bootstrap: str) -> set[str]:
    with ClusterClient(bootstrap) as client:
        return {topic.name or "" for topic in client.metadata(None).topics}


@dataclass(frozen=True)
class Case:
    """A command that works until it is interrupted, and one that has something to say on stdout.

    under_way: returns once there is something to interrupt. own: its exit status after a signal, when a signal is its
    ordinary end. speaks: the arguments with which it says something; None: the same.
    """

    works: Callable[[World], list[str]]
    under_way: Callable[[World, Started], None]
    own: int | None = None
    speaks: Callable[[World], list[str]] | None = None
    while_speaking: Callable[[World, Started], None] = lambda world, started: None


SLEEPER = "import time; print('sleeps', flush=True); time.sleep(600)"
CASES = {
    "serve": Case(lambda w: ["--port", "0"], said_something, own=0),
    "proxy": Case(lambda w: ["--upstream", w.bootstrap], said_something, own=0),
    "trace": Case(lambda w: ["--control", w.control], progress("tracing"), own=0, while_speaking=ask_for_metadata),
    "replay": Case(
        lambda w: [str(w.trace), "--bootstrap", w.silent.address],
        asked_silent,
        speaks=lambda w: [str(w.trace), "--bootstrap", w.bootstrap],
    ),
    "control": Case(
        lambda w: ["--control", w.silent.address, "fault.list"], asked_silent, speaks=lambda w: ["--control", w.control]
    ),
    "demo": Case(lambda w: [], progress("three members share the work"), speaks=lambda w: ["--records", "500"]),
    "conformance": Case(
        lambda w: ["--bootstrap", w.bootstrap, "--select", "transactions"],
        said_something,
        speaks=lambda w: ["--bootstrap", w.bootstrap, "--only", "api-versions*"],
    ),
    "dump": Case(lambda w: [str(w.data / LOG)], said_something),
    "check": Case(lambda w: [str(w.data)], said_something),
    "audit": Case(lambda w: [str(w.data), "--show", "orders-0"], said_something),
    "pipeline": Case(lambda w: ["demo", "--orders", "30"], said_something),
    "judge": Case(
        lambda w: ["--", sys.executable, "-c", SLEEPER],
        progress("sleeps"),
        speaks=lambda w: ["--any-exit", "--", sys.executable, "-c", ""],
    ),
    "museum": Case(
        lambda w: ["run", "sleeper", "--cases", str(w.museum)],
        progress("sleeps"),
        speaks=lambda w: ["--cases", str(w.museum)],
    ),
    "transactions": Case(
        lambda w: ["list", "--bootstrap", w.silent.address],
        asked_silent,
        speaks=lambda w: ["list", "--bootstrap", w.bootstrap],
    ),
    "simulate": Case(
        lambda w: ["--seeds", "100000", "--jobs", "2"],
        at_work,
        speaks=lambda w: ["--seeds", "1"],
    ),
}
# Whatever is slow to begin is for the tier `slow`, which CI runs in its part `elsewhere`.
_LATE = {"pipeline": (pytest.mark.slow, pytest.mark.skipif(find_spec("pyspark") is None, reason="needs pyspark"))}
QUICK = ("dump", "check", "replay", "serve")


def cases(*names: str, quick: tuple[str, ...] = QUICK) -> list[object]:
    return [pytest.param(n, marks=() if n in quick else _LATE.get(n, pytest.mark.slow)) for n in names]


def test_every_command_is_in_the_table() -> None:
    assert CASES.keys() == commands().keys()


def assert_one_line(started: Started, wanted: str) -> None:
    """The last line on stderr, and nothing of Python's before it."""
    lines = started.said.splitlines()
    assert "Traceback" not in started.said
    assert "Exception ignored" not in started.said
    assert [line for line in lines if line.startswith("minibroker: ") and line != "minibroker: tracing"] == [wanted]


@pytest.mark.parametrize("name", cases(*CASES))
@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, INTERRUPTED, "minibroker: interrupted"),
        pytest.param(signal.SIGTERM, ENDED, "minibroker: ended by SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_one_line_and_nothing_is_left(
    name: str, number: int, status: int, line: str, world: World, tmp_path: Path
) -> None:
    case = CASES[name]
    started = Started(name, *case.works(world), tmp=tmp_path, **world.environment)
    case.under_way(world, started)
    started.process.send_signal(number)
    # What nobody reads must not hold up the end.
    assert started.end() == (status if case.own is None else case.own), started.said
    if case.own is None:
        assert_one_line(started, line)
    assert started.leftovers() == []
    assert {topic for topic in topics_of(world.bootstrap) if topic.startswith("mb-")} == set()


def test_a_proxy_that_asks_a_silent_upstream_ends_at_once(silent: Silent, tmp_path: Path) -> None:
    """Otherwise it would end with status 1, once its question has timed out."""
    started = Started("proxy", "--upstream", silent.address, tmp=tmp_path)
    silent.take()
    started.process.send_signal(signal.SIGINT)
    assert started.end() == INTERRUPTED
    assert_one_line(started, "minibroker: interrupted")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(["conformance", "--select", "groups"], "ok ", id="conformance"),
        pytest.param(["demo"], "three members share the work", marks=pytest.mark.slow, id="demo"),
    ],
)
def test_an_interrupt_leaves_nothing_on_a_broker_of_others(
    arguments: list[str], text: str, served: tuple[str, str], tmp_path: Path
) -> None:
    started = Started(*arguments, "--bootstrap", served[0], tmp=tmp_path)
    if arguments[0] == "demo":
        started.wait_for(lambda: text in started.said)
    else:
        started.first_byte()
    started.process.send_signal(signal.SIGINT)
    assert started.end() == INTERRUPTED
    assert topics_of(served[0]) <= {"orders", "__transaction_state", "__consumer_offsets"}
    with ClusterClient(served[0]) as client:
        assert client.ask_any(m.ListGroupsRequest(), m.ListGroupsResponse, 2).groups == []


@pytest.mark.parametrize("name", cases(*CASES, quick=("serve", "dump")))
def test_a_reader_that_has_seen_enough(name: str, world: World, tmp_path: Path) -> None:
    case = CASES[name]
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as stdout:
        started = Started(name, *(case.speaks or case.works)(world), tmp=tmp_path, stdout=stdout, **world.environment)
    case.while_speaking(world, started)
    assert started.end() == BROKEN_PIPE, started.said
    assert "Traceback" not in started.said
    assert "Broken pipe" not in started.said
    assert started.leftovers() == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("name", cases(*CASES, quick=("serve", "check")))
def test_a_stdout_that_takes_nothing_is_one_line(name: str, world: World, tmp_path: Path) -> None:
    case = CASES[name]
    with open("/dev/full", "wb") as stdout:
        started = Started(name, *(case.speaks or case.works)(world), tmp=tmp_path, stdout=stdout, **world.environment)
    case.while_speaking(world, started)
    assert started.end() == FULL, started.said
    assert_one_line(started, "minibroker: cannot write to stdout: No space left on device")
    assert started.leftovers() == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["dump", "--help"]])
def test_a_stdout_that_takes_nothing_whatever_is_said(arguments: list[str], unbuffered: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as stdout:
        started = Started(*arguments, tmp=tmp_path, stdout=stdout, PYTHONUNBUFFERED=unbuffered)
    assert started.end() == FULL
    assert len(started.said.splitlines()) == 1
    assert "No space left on device" in started.said


def test_a_reader_of_stderr_that_is_gone_ends_nothing(data: Path, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "minibroker", "serve", "--port", "0", "-c", "no.such.setting=1"]
    done = subprocess.run(command, env=clean_environment(tmp_path), stdout=subprocess.DEVNULL, stderr=write, timeout=60)
    os.close(write)
    assert done.returncode == 2


AT_IMPORT = """
import os, signal, sys
from minibroker.cli import program
seen = 0
def interrupt(event, arguments):
    global seen
    if event == "import":
        seen += 1
        if seen == {number}:
            os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
sys.argv[1:] = {arguments!r}
program()
"""


@pytest.mark.parametrize("number", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 20, 60))])
def test_an_interrupt_while_it_is_being_loaded(number: int, tmp_path: Path) -> None:
    code = AT_IMPORT.format(number=number, arguments=["serve", "--port", "0", "--ephemeral"])
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "minibroker: interrupted\n")


def test_what_is_ignored_stays_ignored(silent: Silent, tmp_path: Path) -> None:
    """A shell's job in the background does not see the Ctrl-C of its terminal, a job under nohup not its end."""
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)]
    try:
        started = Started("transactions", "list", "--bootstrap", silent.address, tmp=tmp_path)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    silent.take()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        started.process.send_signal(number)
    assert started.end() == ENDED
    assert_one_line(started, "minibroker: ended by SIGTERM")


def test_an_error_that_no_command_expects_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys, minibroker.inspection.dump_command as d; d.run = lambda arguments: 1 / 0;"
        "sys.argv[1:] = ['dump', 'x']; from minibroker.cli import program; program()"
    )
    for variables, lines in (({}, 1), ({"MINIBROKER_TRACEBACK": "1"}, 8)):
        environment = clean_environment(tmp_path, **variables)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 70
        said = done.stderr.splitlines()
        assert "unexpected ZeroDivisionError: division by zero" in said[-1]
        assert len(said) >= lines
        assert (len(said) == 1) == (not variables)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError(24, 'Too many open files')", "Too many open files: see `ulimit -n`"),
        ("PermissionError(13, 'Permission denied', 'notes/of-another')", "notes/of-another: Permission denied"),
        ("FileNotFoundError(2, 'No usable temporary directory found in')", "No usable temporary directory found in"),
        ("os.rmdir(os.getcwd()) or os.getcwd()", "the current directory does not exist any more"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="a current directory cannot be removed there")
def test_what_the_process_lacks_is_named(raised: str, said: str, tmp_path: Path) -> None:
    """Also where it leads to another error on the way out."""
    code = (
        "import os, sys, minibroker.inspection.dump_command as d\n"
        f"def run(arguments):\n  try:\n    raise {raised}\n  finally:\n    raise RuntimeError('not closed')\n"
        "d.run = run; sys.argv[1:] = ['dump', 'x']\nfrom minibroker.cli import program; program()"
    )
    (tmp_path / "gone").mkdir()
    environment = clean_environment(tmp_path, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path / "gone", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, f"minibroker: {said}\n")


HALF_WAY = """
import contextlib, os, signal
from minibroker import program
@contextlib.contextmanager
def resource():
    ({first}) and os.kill(os.getpid(), signal.SIGINT)
    print("begun")
    try:
        yield
    finally:
        (not {first}) and os.kill(os.getpid(), signal.SIGINT)
        print("ended", flush=True)
def command():
    with program.whole(resource()):
        print("used")
    return 0
program.run(lambda: command)
"""


@pytest.mark.parametrize(("first", "said"), [(True, "begun ended"), (False, "begun used ended")])
def test_what_is_begun_or_ended_is_not_left_half_way(first: bool, said: str, tmp_path: Path) -> None:
    code = HALF_WAY.format(first=first)
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (
        INTERRUPTED,
        said.split(),
        "minibroker: interrupted\n",
    )


def test_a_resource_learns_what_was_raised() -> None:
    """A broker whose block was interrupted does not complain of rules that could not act."""
    seen: list[object] = []

    class Resource:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: object, raised: object, traceback: object) -> None:
            seen.append(raised)

    error = program.Interrupted(signal.SIGINT)
    with pytest.raises(program.Interrupted), program.whole(Resource()):
        raise error
    with program.whole(Resource()):
        pass
    assert seen == [error, None]
