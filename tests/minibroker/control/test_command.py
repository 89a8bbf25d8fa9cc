"""`minibroker serve --control` and `minibroker control`, as a person uses them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import ROOT, start_minibroker
from command_process import run_command, start_command

from minibroker import Minibroker
from minibroker.control import trace_command
from minibroker.control.command import TOKEN_VARIABLE
from minibroker.control.commands import all_commands
from minibroker.testing import failure_report


def environment(**changes: str) -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "protocol"), str(ROOT / "storage"), *filter(None, sys.path)]
    kept = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **changes}


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env=environment(**variables), timeout=30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, str]]:
    """(control address, token file, bootstrap)"""
    directory = tmp_path_factory.mktemp("control")
    token = directory / "token"
    token.write_text("from-a-file\n")
    broker = start_minibroker(
        directory / "log", "--ephemeral", "--control", "127.0.0.1:0", "--control-token-file", str(token)
    )
    stdout = broker.process.stdout
    assert stdout
    address = stdout.readline().strip()
    assert address.startswith("control=127.0.0.1:")
    yield address.removeprefix("control="), token, broker.bootstrap
    assert broker.stop() == 0
    assert "from-a-file" not in (directory / "log").read_text()


def test_commands_take_names_and_values(served: tuple[str, Path, str]) -> None:
    where = ("--control", served[0], "--token-file", str(served[1]))
    added = command("control", *where, "fault.add", "api=EndTxn", "action=drop_reply", "transactional_id=app", "nth=2")
    assert added.returncode == 0, added.stderr
    rule = json.loads(added.stdout)
    assert rule["rule"]["transactional_id"] == "app"
    assert rule["rule"]["nth"] == 2
    assert json.loads(command("control", *where, "fault.remove", f"id={rule['id']}").stdout)["fired"] == 0


def test_a_pause_is_seen_and_ends(served: tuple[str, Path, str]) -> None:
    where = ("--control", served[0], "--token-file", str(served[1]))
    for name, paused in (("state.pause_broker", [1]), ("state.resume_broker", [])):
        assert command("control", *where, name, "broker=1").returncode == 0
        assert json.loads(command("control", *where, "cluster.describe").stdout)["paused_brokers"] == paused


def test_without_a_command_all_are_listed_with_their_parameters() -> None:
    listed = command("control")  # of no broker
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    assert "state.move_leader topic=TEXT partition=NUMBER to=NUMBER" in lines
    assert "fault.wait id=NUMBER [times=1] [timeout_ms=10000]" in lines
    assert {line.split()[0] for line in lines if not line.startswith((" ", "ACTION"))} == set(all_commands())
    (rule,) = (line for line in lines if line.startswith("fault.add"))
    assert "[transactional_id=…]" in rule
    assert "drop_reply (close)" in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "reason"),
    [
        (("clock.get",), {}, 2, "no token"),
        (("clock.get",), {TOKEN_VARIABLE: "wrong"}, 1, "missing or wrong"),
        (("clock.advance",), {TOKEN_VARIABLE: "from-a-file"}, 2, "needs ms, seconds, minutes, hours or days"),
        (("clock.advance", "5"), {TOKEN_VARIABLE: "from-a-file"}, 2, "NAME=VALUE"),
        (("state.kill_broker", "broker=7"), {TOKEN_VARIABLE: "from-a-file"}, 1, "broker 7 is not running"),
        (
            ("clock get",),
            {TOKEN_VARIABLE: "from-a-file"},
            2,
            "there is no command 'clock%20get', did you mean clock.get?",
        ),
        (("clöck.get?a=1\n",), {TOKEN_VARIABLE: "from-a-file"}, 2, "there is no command 'cl%C3%B6ck.get%3Fa%3D1%0A'"),
        (
            ("clock.get", "--control", "127.0.0.1:x"),
            {TOKEN_VARIABLE: "t"},
            2,
            "address is HOST:PORT, not '127.0.0.1:x'",
        ),
        (("clock.get", "--control", "127.0.0.1:70000"), {TOKEN_VARIABLE: "t"}, 2, "address is HOST:PORT, not"),
        (("clock.get", "--control", "http://[::1"), {TOKEN_VARIABLE: "t"}, 2, "address is HOST:PORT, not"),
        (("clock.get",), {TOKEN_VARIABLE: "two lines\n"}, 2, f"{TOKEN_VARIABLE} holds no token: it has other"),
        (("clock.get", "--token-file", "none"), {}, 2, "cannot read the control API's token from none: No such file"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    served: tuple[str, Path, str], arguments: tuple[str, ...], variables: dict[str, str], code: int, reason: str
) -> None:
    result = command("control", "--control", served[0], *arguments, **variables)
    assert result.returncode == code
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xc5\xff\n", "holds no token: it has other characters"),
        (b"a\nb", "it has other"),
        (b" \n", "holds no token\n"),
    ],
)
def test_a_file_without_a_token_is_said_by_both_sides(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    for words in (("control", "clock.get", "--token-file"), ("serve", "--port", "0", "--control-token-file")):
        result = command(*words, str(tmp_path / "token"))
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"minibroker: {tmp_path / 'token'} holds")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_token_of_its_own_is_said_once_on_stderr(tmp_path: Path) -> None:
    broker = start_minibroker(tmp_path / "log", "--ephemeral", "--control", "127.0.0.1:0")
    assert broker.process.stdout
    address = broker.process.stdout.readline().strip().removeprefix("control=")
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "token" in line]
    assert len(lines) == 1
    token = lines[0].rpartition(" ")[2]
    assert command("control", "--control", address, "clock.get", **{TOKEN_VARIABLE: token}).returncode == 0
    assert broker.stop() == 0


def test_off_by_default(tmp_path: Path) -> None:
    broker = start_minibroker(tmp_path / "log", "--ephemeral")
    broker.process.terminate()
    assert broker.process.stdout
    assert broker.process.stdout.read() == ""
    assert broker.stop() == 0


@pytest.mark.parametrize("arguments", [("--control", "nowhere"), ("--control-token-file", "/no/such/file")])
def test_bad_options(arguments: tuple[str, ...]) -> None:
    result = command("serve", "--port", "0", *arguments)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_a_broker_in_a_child_process_obeys_too() -> None:
    with Minibroker(process=True, topics={"t": 1}) as broker:
        fault = broker.faults.inject("EndTxn", "close", expected=False)
        before = broker.clock.freeze()
        assert broker.clock.advance(hours=1) == before + 3_600_000
        assert fault.fired == 0
        fault.remove()
        assert broker.state.held_markers() == []


def test_trace_and_replay(served: tuple[str, Path, str], tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    from confluent_kafka import Producer

    lines = traced(served, "--frames", "--count", "3", "--api", "Produce", "--containing", "traced")
    producer = Producer({"bootstrap.servers": served[2], "linger.ms": 0, "acks": "all", "log_level": 0})
    for value in (b"1", b"2", b"3"):
        producer.produce("traced", value)
        producer.flush(10)
    exchanges = [json.loads(line) for line in lines()]
    assert [e["api"] for e in exchanges] == ["Produce"] * 3
    assert exchanges[0]["request"]["topic_data"][0]["partition_data"][0]["records"][0]["records"] == 1
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(e) + "\n" for e in exchanges))
    replayed = command("replay", str(trace), "--bootstrap", served[2])
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert replayed.stdout.splitlines()[-1] == "3 requests sent, 0 answered differently"
    with Minibroker() as other:  # which has no such topic
        replayed = command("replay", str(trace), "--bootstrap", other.bootstrap_servers)
    assert replayed.returncode == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION (3)" in replayed.stdout


def traced(served: tuple[str, Path, str], *arguments: str) -> Any:
    """Start `minibroker trace`; the result waits for its end and gives its lines."""
    process = start_command(
        *("trace", "--control", served[0], "--token-file", str(served[1]), "--seconds", "20", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr
    assert "tracing" in process.stderr.readline()
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(process.stdout or []))
    reader.start()

    def lines() -> list[str]:
        reader.join(25)
        process.wait(10)
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        process.stderr.close()
        return found

    return lines


@pytest.mark.waits
def test_a_capture_file_for_wireshark(served: tuple[str, Path, str], tmp_path: Path) -> None:
    from confluent_kafka import Producer

    capture = tmp_path / "trace.pcapng"
    lines = traced(served, "--pcapng", str(capture), "--seconds", "4")
    producer = Producer(
        {"bootstrap.servers": served[2], "transactional.id": "captured", "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("captured", b"x" * 50_000)
    producer.commit_transaction(10)
    lines()
    assert capture.stat().st_size > 1000
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    port = served[2].rpartition(":")[2]
    argv = ["tshark", "-r", str(capture), "-d", f"tcp.port=={port},kafka", "-T", "fields", "-e", "kafka.request_key"]
    decoded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert {"18", "3", "10", "22"} <= set(decoded)
    problems = subprocess.run(
        ["tshark", "-r", str(capture), "-d", f"tcp.port=={port},kafka", "-Y", "_ws.malformed"],
        capture_output=True,
        text=True,
        check=True,
    )
    # A version that is newer than the dissector is no fault of the file.
    assert [line for line in problems.stdout.splitlines() if "Unsupported API version" not in line] == []


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_what_clients_send_moves_no_cursor(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    trace_command.add_arguments(parser)
    name = "x\x1b[2J\x9b1m\x7f\r\nforged"
    exchange = {
        "client_id": name,
        "client": "127.0.0.1:4711",
        "broker": 1,
        "api": "Metadata",
        "version": 9,
        "time_ms": 0,
        "took_ms": 0.1,
        "request": {"topics": [{"name": name}]},
        "errors": [f"topics[{name}]: INVALID_TOPIC_EXCEPTION"],
        "reasons": [name],
        "outcome": "answered",
        "fault": 0,
    }
    with trace_command._sink(parser.parse_args([*option])) as write:
        write(exchange)
    (line,) = capsys.readouterr().out.splitlines()
    if option:
        assert json.loads(line) == exchange
    else:
        assert line.isprintable()
        assert line.count(r"x\x1b[2J\x9b1m\x7f\r\nforged") == 3
    assert failure_report.line(exchange).isprintable()
