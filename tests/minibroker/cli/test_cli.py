from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest

from minibroker import __version__
from minibroker.cli import Command, commands, main
from minibroker.kernel.asyncio_runtime import new_event_loop
from minibroker.kernel.extras import install
from minibroker.program import SAME_SECONDS
from minibroker.server.signals import StopSignals
from minibroker_protocol.records.native import IS_NATIVE


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--version"]])
def test_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):  # argparse's way
        assert main(arguments) == 0
    walked = "by compiled code" if IS_NATIVE else "in Python"
    assert capsys.readouterr().out == f"minibroker {__version__} (records are walked {walked})\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in commands())


@pytest.mark.parametrize("arguments", [[], ["sevre"]])
def test_no_or_unknown_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "serve" in capsys.readouterr().err


WRITING_OPTIONS = [
    ["judge", "--traces"],
    ["judge", "--found"],
    ["judge", "--report-dir"],
    ["museum", "--traces"],
    ["conformance", "--report-dir"],
    ["simulate", "--trace"],
    ["trace", "--pcapng"],
    ["trace", "view", "-", "--out"],
]
LOCAL_ONLY = "only paths of this machine can be written here"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", ""], "unrecognized arguments: ''"),
        (["simulate", "=1"], "unrecognized arguments: =1"),
        (["conformance", "--boostrap", "x:1"], "unrecognized arguments: --boostrap, did you mean --bootstrap?"),
        (["conformance", "--quiet"], "the following arguments are required: --bootstrap"),
        (
            ["transactions", "list", "--bootstap=x:1"],
            "unrecognized arguments: --bootstap=x:1, did you mean --bootstrap?",
        ),
        (
            ["transactions", "--bootstap", "x:1", "list"],
            "unrecognized arguments: --bootstap, did you mean --bootstrap?",
        ),
        (["transactions", "--json", "lst"], "'skip-producer-ids'), did you mean list?"),
        (["judge", "--timeout", "-1", "--", "true"], "--timeout: expected a time above 0, got '-1'"),
        (["judge", "--timeout", "inf", "--", "true"], "expected a time above 0, got 'inf'"),
        (["simulate", "--seed", "1", "--seeds", "2"], "argument --seeds: not allowed with argument --seed"),
        (["judge", "--report-dir", __file__, "--", "true"], f"--report-dir: {__file__} is not a directory"),
        *(([*words, "s3://b/x"], f"{words[-1]}: s3://b/x is a URI: {LOCAL_ONLY}") for words in WRITING_OPTIONS),
        (["judge", "--traces", f"{__file__}/a/b", "--", "true"], f"--traces: {__file__} is not a directory"),
    ],
)
def test_what_is_typed_wrong_is_one_line_that_names_it(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minibroker: ")
    assert f"{said} (see minibroker" in line


def a_number_may_be(value: ast.expr) -> bool:
    values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    return any(isinstance(one, ast.Constant) and type(one.value) is int for one in values)


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_its_parts(name: str) -> None:
    module = import_module(commands()[name].module)
    last = module.__name__.rpartition(".")[2]
    assert last == "command" or last.endswith("_command")
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    statuses = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Return) and node.value is not None and a_number_may_be(node.value))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "fail" and any(map(a_number_may_be, node.args)))
    ]
    assert statuses == [], "exit statuses are those of minibroker.exit_codes"
    module.add_arguments(argparse.ArgumentParser())
    assert callable(module.run)


def test_a_command_that_cannot_be_loaded_is_listed_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other packages announce commands; one that is broken, or lacks what it imports, takes no other with it."""
    broken = [
        EntryPoint("away", "minibroker_away.commands:AWAY", "minibroker.commands"),
        EntryPoint("audit", "minibroker.cli:NOTHING", "minibroker.commands"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: EntryPoints(broken).select(group=group))
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "  away          cannot be loaded: ModuleNotFoundError: No module named 'minibroker_away'" in listed
    assert "  serve         run a broker" in listed
    assert main(["audit", "x"]) == 2
    assert capsys.readouterr().err == (
        "minibroker: the command 'audit' cannot be loaded: "
        "AttributeError: module 'minibroker.cli' has no attribute 'NOTHING'\n"
    )
    assert main(["awai"]) == 2
    assert "unknown command 'awai', did you mean away?" in capsys.readouterr().err


def test_what_the_executable_file_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its list of commands is that of the package; what it was built without is not in it."""
    absent = [
        EntryPoint("away", "minibroker_away.commands:AWAY", "minibroker.commands"),
        EntryPoint("half", "half_there:HALF", "minibroker.commands"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: EntryPoints(absent).select(group=group))
    half = ModuleType("half_there")
    half.HALF = Command("half_there.command", "half of a command")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "half_there", half)
    monkeypatch.setattr("sys.frozen", True, raising=False)
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.splitlines()
    hint = "is not in the executable file: install minibroker with pip for it"
    assert {f"  {name:<12}  {hint}" for name in ("away", "half")} <= set(listed)
    assert main(["half"]) == 2
    assert capsys.readouterr().err == f"minibroker: the command 'half' {hint}\n"
    assert install("audit") == 'install "minibroker[audit]" with pip: the executable file does not have it'


def test_asking_for_the_version_loads_next_to_nothing() -> None:
    code = (
        "import sys; from minibroker.cli import main; main(['--version']);"
        "heavy = {'asyncio', 'argparse', 'structlog', 'crc32c', 'cramjam', 'minibroker.config.settings'};"
        "heavy &= set(sys.modules);"
        "assert not heavy, heavy"
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=30, stdout=subprocess.DEVNULL)


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
@pytest.mark.parametrize("loop_handlers", [True, False])
@pytest.mark.parametrize("uvloop", [True, False])
def test_signals_reach_the_loop_by_either_way(
    loop_handlers: bool, uvloop: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    exits: list[int] = []
    loop = new_event_loop(uvloop=uvloop)

    async def story() -> None:
        stopping = asyncio.Event()
        signals = StopSignals(loop, stopping.set, loop_handlers=loop_handlers, exit_now=exits.append)
        signals.install()
        loop.call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stopping.wait(), 60)
        assert exits == []
        since = loop.time()
        async with asyncio.timeout(60):
            while not exits:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.1)
        assert loop.time() - since > SAME_SECONDS - 0.2
        assert exits[0] == 128 + signal.SIGINT
        assert capfd.readouterr().err.startswith("minibroker: interrupted\n")
        signals.remove()

    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "watch",
    [
        "",
        "sys.settrace(lambda *_: None)",
        pytest.param("sys.setprofile(lambda *_: None)", marks=pytest.mark.slow),
        pytest.param(
            "sys.monitoring.use_tool_id(1, 'coverage')",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12"),
        ),
    ],
)
def test_a_broker_that_stopped_ends_at_once_unless_it_is_watched(watch: str) -> None:
    """A tracer, such as coverage's, writes what it found at the interpreter's end, which is left out otherwise."""
    program = (
        "import atexit, sys; atexit.register(print, 'taken apart'); sys.argv[1:] = ['serve', '-c', 'no.such.name=1']\n"
        f"{watch}\n"
        "from minibroker.cli import program; print('said before'); program()"
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), PYTHONUNBUFFERED="")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert "no.such.name" in done.stderr
    assert done.stdout.split("\n")[:-1] == ["said before", "taken apart"][: 2 if watch else 1]


def test_a_data_directory_is_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--data-dir", "s3://bucket/data"]) == 2
    said = "the data directory s3://bucket/data is a URI: it must be a path of this machine"
    assert said in capsys.readouterr().err
