"""Each rule on a client that breaks it, the scripts, and what the command does with what is wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minibroker.cli import main
from minibroker.trace.saved import read
from minibroker.trace.view import page
from minibroker_lab.judge.history import HistoryError, read_history
from minibroker_lab.judge.lineage import Lineage
from minibroker_lab.judge.report import Judged, about, circumstances
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import Script, ScriptError, Step, as_toml, bundled, load, parse
from minibroker_lab.judge.trial import Task, try_out

pytestmark = pytest.mark.waits

CLIENT = Path(__file__).parents[2] / "support" / "applications" / "wrong_client.py"
TOPICS = ["--topic", "orders:1", "--topic", "in:1", "--topic", "out:1", "--lineage", "in=out"]
SCRIPTS = {
    "duplicate_record": "lost-produce-replies",
    "duplicate_record_by_new_id": "lost-produce-replies",
    "duplicate_record_by_the_network": "duplicate-delivery",
}
"""Of those that need help to go wrong."""


def judged(tmp_path: Path, way: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of one run of the mini-client."""
    report = tmp_path / "judge.json"
    reports = ["--report", "html,junit,json", "--report-dir", str(tmp_path)]
    command = [sys.executable, str(CLIENT), way]
    status = main(["judge", *TOPICS, *reports, "--timeout", "30", *options, "--", *command])
    return status, json.loads(report.read_text())[0]


@pytest.mark.parametrize("script", ["calm", "lost-produce-replies", "duplicate-delivery", "lost-end-txn-reply"])
def test_a_right_client_holds(tmp_path: Path, script: str) -> None:
    status, report = judged(tmp_path, "right", "--script", script)
    assert (status, report["verdict"], report["broken"]) == (4, "held", [])
    assert report["failures"] or script == "calm"


@pytest.mark.parametrize(
    ("way", "rule", "api"),
    [
        ("duplicate_record", "duplicate-record", "Produce"),
        ("duplicate_record_by_new_id", "duplicate-record", "Produce"),
        ("duplicate_record_by_the_network", "duplicate-record", "Produce"),
        ("duplicate_record_by_history", "duplicate-record", "Produce"),
        ("duplicate_content", "duplicate-content", "Produce"),
        ("lost_record", "lost-record", "Produce"),
        ("lost_record_by_history", "lost-record", "Produce"),
        ("torn_transaction", "torn-transaction", "Produce"),
        ("aborted_read", "aborted-read", "Produce"),
        ("order", "order", "Produce"),
        ("stray_record", "stray-record", "Produce"),
        ("no_producer_id", "no-producer-id", "Produce"),
        ("offset_end", "offset-end", "OffsetCommit"),
        ("lineage_lost", "lineage-lost", "Produce"),
        ("lineage_duplicate", "lineage-duplicate", "Produce"),
        ("lineage_stray", "lineage-stray", "Produce"),
    ],
)
def test_each_wrong_client_breaks_its_rule_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, rule: str, api: str
) -> None:
    script = SCRIPTS.get(way, "calm")
    status, report = judged(tmp_path, way, "--script", script)
    assert (status, {one["rule"] for one in report["broken"]}) == (1, {rule})
    (marked,) = [line for line in report["timeline"] if line.startswith(">")]
    assert f" {api} v" in marked
    assert f"first violating exchange: {report['broken'][0]['exchange']}, {api} of mini" in capsys.readouterr().out


def test_a_saved_trace_has_the_verdict_and_says_where(tmp_path: Path) -> None:
    judged(tmp_path, "duplicate_record", "--script", "lost-produce-replies", "--traces", str(tmp_path / "traces"))
    (saved,) = (tmp_path / "traces").iterdir()
    assert saved.name == "lost-produce-replies.jsonl"
    trace = read(saved.read_text().splitlines())
    assert trace.said[0] == "lost-produce-replies: exactly-once broken"
    (broken,) = [one for one in trace.exchanges if "broken" in one]
    assert broken["api"] == "Produce"
    assert "lost-produce-replies" in page(trace, "t")


def test_reports_show_the_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = judged(tmp_path, "duplicate_record", "--script", "calm", "--script", "lost-produce-replies")
    assert status == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 held, 1 broken, 0 undecided"
    suites = ElementTree.fromstring((tmp_path / "judge.xml").read_text())
    assert [(case.get("name"), case.find("failure") is None) for case in suites.iter("testcase")] == [
        ("calm", True),
        ("lost-produce-replies", False),
    ]
    failure = next(suites.iter("failure"))
    assert "duplicate-record" in (failure.get("message") or "")
    assert "first violating exchange" in (failure.text or "")
    page = (tmp_path / "judge.html").read_text()
    broken = page.partition('id="lost-produce-replies"')[2]
    number = json.loads((tmp_path / "judge.json").read_text())[1]["first_violation"]
    assert f'<tr class="first"><td>{number}</td>' in broken
    assert 'class="first" style="left:' in broken
    assert 'class="fault" style="left:' in broken
    assert 'class="first"' not in page.partition('id="lost-produce-replies"')[0]


def test_progress_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    main(["judge", "--script", "calm", "--", sys.executable, "-c", "import time; time.sleep(0.6)"])
    assert "calm (1 of 1): " in terminal.getvalue()


def test_a_command_that_hangs_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = judged(tmp_path, "no_progress", "--timeout", "2")
    assert (status, [one["rule"] for one in report["broken"]]) == (1, ["no-progress"])
    assert "  error: no-progress: the command did not end within 2 s (exchange " in capsys.readouterr().out


def test_a_client_that_gives_up_made_no_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = judged(tmp_path, "gave_up")
    assert (status, [one["rule"] for one in report["broken"]]) == (1, ["no-progress"])
    assert "  error: no-progress: the client gave up: every try failed (exchange " in capsys.readouterr().out


@pytest.mark.parametrize(("program", "ended"), [("", "ended with 0"), ("import time; time.sleep(60)", "was ended")])
def test_a_command_that_talks_to_another_broker_proves_nothing(
    capsys: pytest.CaptureFixture[str], program: str, ended: str
) -> None:
    assert main(["judge", "--script", "all", "--timeout", "0.5", "--", sys.executable, "-c", program]) == 2
    first, second = capsys.readouterr().out.splitlines()  # no other script is run
    assert first == (
        f"{bundled()[0]}: exactly-once undecided: "
        "the command never reached the broker: it must take the address from BOOTSTRAP_SERVERS"
    )
    assert second.startswith(f"  command {ended} after 0.")


def test_the_second_try_is_the_violating_one(tmp_path: Path) -> None:
    _, report = judged(tmp_path, "duplicate_record", "--script", "lost-produce-replies")
    (marked,) = [at for at, line in enumerate(report["timeline"]) if line.startswith(">")]
    assert "fault" in report["timeline"][marked - 1]


def test_a_script_that_never_acts_decides_nothing(tmp_path: Path) -> None:
    status, report = judged(tmp_path, "lineage_lost", "--script", "lost-end-txn-reply", "--lineage", "none=none")
    assert (status, report["failures"]) == (1, 0)  # what is broken is broken, whoever did it
    status, report = judged(tmp_path, "right", "--script", "connection-resets", "-c", "log.retention.ms=-1")
    assert status == 4
    quiet = tmp_path / "quiet.toml"
    quiet.write_text('[[fault]]\napi = "DeleteTopics"\naction = "close"\n')
    status, report = judged(tmp_path, "right", "--script", str(quiet))
    assert (status, report["doubt"]) == (2, f"{NONE_FITTED} DeleteTopics (0 came)")
    assert report["verdict"] == "not applicable"


@pytest.mark.parametrize(
    ("options", "status", "doubt"),
    [
        ([], 2, "the command ended with 3 (--any-exit accepts that)"),
        (["--any-exit"], 1, ""),
    ],
)
def test_what_a_command_that_failed_has_not_read_is_not_lost(
    tmp_path: Path, options: list[str], status: int, doubt: str
) -> None:
    said, report = judged(tmp_path, "lineage_unfinished", "--lineage", "in=out", *options)
    assert (said, report["doubt"]) == (status, doubt)


@pytest.mark.matrix
def test_a_script_that_does_not_apply_leaves_the_others_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = tmp_path / "quiet.toml"
    quiet.write_text('[[fault]]\napi = "DeleteTopics"\naction = "close"\n')
    command = [*TOPICS, "--allow-unmet", "--script", str(quiet), "--", sys.executable, str(CLIENT), "right"]
    assert main(["judge", "--script", "calm", "--repeat", "2", *command]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-3:] == [
        "calm   held 2 of 2",
        "quiet  not applicable 2 of 2",
        "2 held, 0 broken, 0 undecided, 2 not applicable",
    ]
    assert f"quiet-2: not applicable: {NONE_FITTED} DeleteTopics (0 came)" in said
    assert main(["judge", "--repeat", "2", *TOPICS, "--", sys.executable, str(CLIENT), "order"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["calm  broken 2 of 2", "0 held, 2 broken, 0 undecided"]


@pytest.mark.parametrize("given", ["0", "-1", "x"])
def test_runs_are_counted(capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit):
        main(["judge", "--repeat", given, "--", "x"])
    assert "expected a number from 1 on" in capsys.readouterr().err


def test_a_request_is_held_until_others_are_answered(tmp_path: Path) -> None:
    """The mini-client waits for each answer, so an EndTxn can wait for a Produce before it, not for another."""
    late = tmp_path / "late.toml"
    late.write_text(HELD.replace("Produce", "EndTxn") + '{ until = "Produce" }\n')
    status, report = judged(tmp_path, "right", "--script", str(late))
    assert (status, report["failures"]) == (4, 1)
    # Two InitProducerId succeed; what the coordinator answered first was an error.
    nothing = 'until = "InitProducerId", times = 3'
    for never in ('until = "EndTxn"', 'until = "Produce", since_held = true', nothing):
        late.write_text(HELD.replace("Produce", "EndTxn") + f"{{ {never} }}\n")
        status, report = judged(tmp_path, "right", "--script", str(late), "--timeout", "3")
        assert (status, report["status"], report["failures"]) == (1, None, 1)


def test_a_fault_may_count_from_a_hold_on(tmp_path: Path) -> None:
    """The second EndTxn is held, so the first one after it is the third. An exchange has the number of its fault in the
    script, whenever the broker got it."""
    dropped = '[[fault]]\naction = "drop_reply"\napi = '
    text = HELD.replace("Produce", "EndTxn") + f'{{ advance_ms = 1 }}\nnth = 2\n{dropped}"EndTxn"\nafter_hold = true\n'
    script = parse(f'{text}{dropped}"OffsetCommit"\n', "s")
    assert parse(as_toml(script), "s") == script
    topics = {"topics": {"orders": 1, "in": 1, "out": 1}}
    run = try_out(Task([sys.executable, str(CLIENT), "right"], 30, topics), script, "s").run
    ends = [exchange["fault"] for exchange in run.exchanges if exchange["api"] == "EndTxn"]
    assert ends == [0, 1, 2, 0]
    assert [exchange["api"] for exchange in run.exchanges if exchange["fault"] == 3] == ["OffsetCommit"]
    assert (run.status, run.fired) == (0, 3)


NONE_FITTED = "no request fitted what the script makes fail:"


def test_what_came_of_the_requests_that_a_script_makes_fail() -> None:
    run = JudgedRun(load("lost-produce-replies"), status=0, exchanges=[{"api": "Produce"}])
    assert Judged(run, []).doubt == f"{NONE_FITTED} Produce from number 2 on (1 came)"
    run.script = load("connection-resets")
    assert about(run) == "Produce from number 2 on (1 came), EndTxn (0 came), Fetch from number 2 on (0 came)"
    run.script = Script("x", "", [Step({"nth": 3, "action": {"name": "close"}, "client_id": "other"}, False)])
    assert about(run) == "any request from number 3 on (1 came)"


RESTARTED = """
import os, sys, wrong_client
from wrong_client import m
restarts = os.environ["MINIBROKER_RESTARTS"]
client = wrong_client.Client()
if restarts == "0":
    kind = m.JoinGroupRequest
    protocol = kind.JoinGroupRequestProtocol(name="range", metadata=b"")
    member = {"member_id": "", "protocol_type": "consumer", "protocols": [protocol]}
    while client.call(kind(group_id="g", session_timeout_ms=6000, **member), 0).error_code:
        client.call(m.FindCoordinatorRequest(key="g"), 0)
else:
    (group,) = client.call(m.DescribeGroupsRequest(groups=["g"]), 0).groups
    assert not group.members, "the killed one is a member"
producer = client.init(name="tx")
client.send("v" + restarts, producer, 0, name="tx")
client.end(producer, commit=True)
"""


@pytest.mark.parametrize(("when", "committed"), [("before", ["v1"]), ("after", ["v0", "v1"])])
def test_a_client_is_killed_and_started_again_between_two_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, committed: list[str]
) -> None:
    """A held request is never applied, a held answer never sent; before the second start the clock moves, and no group
    has the killed one as a member any more."""
    monkeypatch.setenv("PYTHONPATH", str(CLIENT.parent))
    action = f'action = {{ name = "hold", when = "{when}" }}\n'
    script = parse(
        f'[[fault]]\napi = "EndTxn"\n{action}meanwhile = {{ restart_client = true, advance_ms = 60000 }}\n', "s"
    )
    # Of each committed record the lineage says that the empty topic lacks it.
    task = Task([sys.executable, "-c", RESTARTED], 30, {"topics": {"orders": 1}}, lineage=[Lineage("orders", "none")])
    judged = try_out(task, script, "s")
    run = judged.run
    assert (run.status, run.restarts, run.fired, [ms for _, ms in run.moved]) == (0, 1, 1, [60000])
    ends = [e for e in run.exchanges if e["api"] == "EndTxn"]
    assert [e["outcome"] == "answered" for e in ends] == [False, True]
    assert run.unapplied == ({ends[0]["number"]} if when == "before" else set())
    assert [one.finding.message.split("'")[1] for one in judged.broken] == committed
    assert circumstances(run).endswith(", 1 restart")


@pytest.mark.parametrize(("start", "status"), [(30.0, 0), (0.0, None)])
def test_the_time_of_a_command_may_begin_with_its_first_request(start: float, status: int | None) -> None:
    program = (
        "import os, socket, struct, time; time.sleep(3)\n"
        "host, port = os.environ['BOOTSTRAP_SERVERS'].split(':')\n"
        "with socket.create_connection((host, int(port))) as broker:\n"
        "    broker.sendall(struct.pack('>ihhih', 10, 18, 0, 1, -1))\n"  # ApiVersions
        "    broker.recv(1)\n"
        "    time.sleep(0.2)\n"
    )
    task = Task([sys.executable, "-c", program], 2.5, start=start)
    assert try_out(task, load("calm"), "late").run.status == status


def test_the_clock_ends_a_transaction_while_its_end_is_held(tmp_path: Path) -> None:
    """The mini-client takes every refusal for its end, so its status tells whether EndTxn came too late."""
    status, report = judged(tmp_path, "right", "--script", "timeout-mid-transaction")
    assert (status, report["status"], report["failures"], report["broken"]) == (2, 1, 1, [])
    assert "clock +1 h" in (tmp_path / "judge.html").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that takes nothing")
def test_a_report_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "judge.json"
    report.symlink_to("/dev/full")
    arguments = ["--report", "json", "--report-dir", str(tmp_path), "--", sys.executable, "-c", ""]
    assert main(["judge", *arguments]) == 2
    assert capsys.readouterr().err == f"minibroker: {report}: No space left on device\n"


@pytest.mark.parametrize(("extra", "expected"), [([], 2), (["--any-exit"], 4), (["--any-exit", "--allow-unmet"], 0)])
def test_a_failed_command(capsys: pytest.CaptureFixture[str], extra: list[str], expected: int) -> None:
    program = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True); raise SystemExit(3)"
    command = [sys.executable, "-c", program, sys.executable, str(CLIENT), "right"]
    assert main(["judge", *TOPICS, *extra, "--", *command]) == expected
    assert "ended with 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--script", "lost-produce-reply"],
        ["--script", "nowhere.toml"],
        ["--semantics", "x"],
        ["--lineage", "a"],
        ["--lineage", "a=b", "--lineage-key", "keys"],
        ["--topic", "a:b"],
        ["--history", "nowhere.jsonl"],
    ],
)
def test_what_makes_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["judge", *arguments, "--", sys.executable, "-c", ""]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--", "no-such-command-here"]) == 2
    assert "no-such-command-here" in capsys.readouterr().err


def test_every_bundled_script_is_read() -> None:
    assert len(bundled()) == 26
    for name in bundled():
        script = load(name)
        assert script.about
        assert bool(script.steps) == (name != "calm")


HELD = '[[fault]]\napi = "Produce"\naction = "hold"\nmeanwhile = '


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "s: "),
        ("steps = 1", "not steps"),
        ('[[fault]]\napi = "Produce"\naction = "drop_replies"', "did you mean drop_reply"),
        ('[[fault]]\napi = "Produce"\naction = "close"\nmeanwhile = { advance_ms = 1 }', "needs the action hold"),
        ('[[fault]]\napi = "Produce"\naction = "hold"\nmeanwhile = { advance_ms = 0 }', "1 or more"),
        (HELD + '{ until = "Produces" }', "no API 'Produces', did you mean Produce"),
        (HELD + '{ until = "Produce", times = 0 }', "1 or more"),
        (HELD + "{ times = 2 }", "either advance_ms or until"),
        (HELD + '{ until = "Produce", advance_ms = 1 }', "either advance_ms or until"),
        (HELD + "{ unto = 2 }", "with advance_ms, with until and times, or with restart_client"),
        (HELD + "{ restart_client = false }", "has restart_client = true"),
        (HELD + '{ until = "Produce", since_held = false }', "has since_held = true with until"),
        (HELD + "{ advance_ms = 1, since_held = true }", "has since_held = true with until"),
        (HELD + '{ restart_client = true, until = "Produce" }', "restart_client without until"),
        ("[[fault]]\ntimes = 2" + HELD.removeprefix("[[fault]]") + "{ restart_client = true }", "with times = 1"),
        (
            '[[fault]]\napi = "Produce"\naction = "close"\nafter_hold = true',
            "after_hold needs a fault with the action hold",
        ),
        ('[[fault]]\naction = "close"\nafter_hold = 1', "after_hold is true or false"),
        ("fault = [1]", "fault 1"),
        ("brokers = 0", "brokers is a number from 1 to 9, not 0"),
        ("brokers = true", "brokers is a number"),
    ],
)
def test_a_script_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(ScriptError, match=said):
        parse(text, "s")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1"),
        (['{"event": "send", "topic": "t"}'], "'value' is missing"),
        (['{"event": "ack", "topic": "t", "value": "v"}'], "was not sent"),
        (['{"event": "send", "topic": "t", "value": "v"}'] * 2, "line 2.*before"),
        (['{"event": "end", "transaction": 1, "outcome": "yes"}'], "commit or abort"),
        (['{"event": "went"}'], "not 'went'"),
        (["1"], "line 1"),
    ],
)
def test_a_history_that_cannot_be_read(lines: list[str], said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        read_history(lines)
