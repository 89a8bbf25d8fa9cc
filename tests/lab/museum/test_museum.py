"""The museum's runner on a small client of two versions, what makes no sense, and the cases of the repository."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from museum_case import CASE, SCRIPT, write_case

from minibroker.cli import main
from minibroker_lab.judge.report import Judged
from minibroker_lab.judge.scripts import Script
from minibroker_lab.judge.trial import Task, TryOut, try_out
from minibroker_lab.museum import command
from minibroker_lab.museum.cases import CaseError, Measured, find, read, read_all, save
from minibroker_lab.museum.clients import ClientError, installed, parse_client, program

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "tests" / "support" / "applications" / "wrong_client.py"
WAYS = {
    "1.0": "duplicate_record",
    "2.0": "right",
    "3.0": "order",
    "4.0": "no_progress",
    "5.0": "gave_up",
    "6.0": "lineage_duplicate",
}
"""How the mini-client of each version goes."""
PROGRAM = f"""
import runpy
runpy.run_path({str(CLIENT)!r}, run_name="__main__")
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A folder with one case."""
    write_case(tmp_path / "cases" / "mini-7", PROGRAM)
    return tmp_path / "cases"


@contextmanager
def program_of_mini(name: str, version: str, sources: Sequence[Path]) -> Iterator[list[str]]:
    """Every version of the client but 9.9 is there."""
    if version == "9.9":
        raise ClientError(f"{name}=={version} cannot be installed: no such version")
    yield [sys.executable, str(sources[0]), WAYS[version]]


def run_mini(*words: str, try_out: TryOut = try_out) -> int:
    """`minibroker museum run mini-7` with these words."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(["run", "mini-7", *words]), program=program_of_mini, try_out=try_out)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        # The version that shows it, when none is named.
        (["--times", "2"], 1, "mini-7 on mini 1.0: duplicate-record in 2 of 2 runs"),
        (["--client", "mini==2.0"], 0, "mini-7 on mini 2.0: duplicate-record in 0 of 1 run"),
        (["--calm"], 0, "mini-7 on mini 1.0 without failures: duplicate-record in 0 of 1 run"),
        # Another rule than the one of the case decides nothing.
        (["--client", "mini==3.0"], 2, "mini-7 on mini 3.0: duplicate-record in 0 of 1 run"),
        (["--matrix"], 1, "mini-7 on mini 2.0: duplicate-record in 0 of 1 run"),
        (["--client", "mini==2.0@4.0"], 0, "mini-7 on mini 2.0@4.0: duplicate-record in 0 of 1 run"),
        (["--client", "mini==9.9"], 77, "mini-7 on mini 9.9: SKIPPED: mini==9.9 cannot be installed: no such version"),
        (["--client", "mini==9.9", "--client", "mini==1.0"], 1, "mini-7 on mini 1.0: duplicate-record in 1 of 1 run"),
    ],
)
def test_the_rate_of_a_version(
    cases: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int, said: str
) -> None:
    traces = cases / "traces"
    assert run_mini("--cases", str(cases), "--traces", str(traces), *options) == status
    printed = capsys.readouterr().out
    if options == ["--calm"]:
        assert [path.name for path in traces.iterdir()] == ["mini-7-on-mini-1.0-without-failures-1.jsonl"]
    assert printed.splitlines()[-1] == said
    assert ("first violating exchange" in printed) == (status == 1 or "3.0" in said)


@pytest.mark.parametrize(
    ("version", "status", "said"),
    [
        ("4.0", 2, "mini-7 on mini 4.0 without failures: run 1: undecided (the command had to be ended after "),
        ("5.0", 1, "mini-7 on mini 5.0 without failures: run 1: broken ("),
    ],
)
def test_a_program_that_does_not_return_has_no_verdict_and_no_rate(
    cases: Path, capsys: pytest.CaptureFixture[str], version: str, status: int, said: str
) -> None:
    case = cases / "mini-7" / "case.toml"
    seconds = 0.5 if status == 2 else 30
    case.write_text(CASE.replace("duplicate-record", "no-progress") + f"timeout = {seconds}\n")
    options = ["--cases", str(cases), "--calm", "--save", "--client", f"mini=={version}"]
    assert run_mini(*options) == status
    assert said in capsys.readouterr().out
    assert [one.version for one in read_all(cases)[0].measured] == ([] if status == 2 else [version])


@pytest.mark.parametrize(("lineage", "status"), [('lineage = ["in=out"]', 1), ("", 0)])
def test_a_case_names_its_lineage(cases: Path, capsys: pytest.CaptureFixture[str], lineage: str, status: int) -> None:
    text = CASE.replace("duplicate-record", "lineage-duplicate")
    (cases / "mini-7" / "case.toml").write_text(f"{text}{lineage}\n")
    assert run_mini("--cases", str(cases), "--calm", "--client", "mini==6.0") == status
    assert f"lineage-duplicate in {status} of 1 run" in capsys.readouterr().out


def test_the_name_of_a_trace_is_one_of_a_file() -> None:
    assert command.trace_name("kafkajs-1 on @platformatic/kafka 1.2", 3) == "kafkajs-1-on-@platformatic-kafka-1.2-3"


def test_what_is_there_is_listed_and_shown(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["museum", "--cases", str(cases)]) == 0
    assert capsys.readouterr().out == "mini-7  mini 1.0: It repeats itself\n"
    assert main(["museum", "show", "mini-7", "--cases", str(cases)]) == 0
    shown = capsys.readouterr().out
    for wanted in ("A record is there twice.", "example/mini#7", "A lost answer."):
        assert wanted in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "mini-8"], "there is no case 'mini-8', did you mean mini-7?"),
        (
            ["run", "mini-7", "--report", "html"],
            "--report is for matrix, not for run",
        ),
        (["run", "mini-7", "--failure", "timeout"], "--failure is for scoreboard, not for run"),
        (["matrix", "--save"], "--save is for run, scoreboard, not for matrix"),
        (["list", "mini-7"], "list shows every case: leave out mini-7"),
        (["run", "--all", "mini-7"], "--all is every case: leave out mini-7"),
        (["list", "--calm"], "--calm is for run, not for list"),
        (["scoreboard"], "--cases is for list, show, run, matrix, not for scoreboard"),
        (
            ["run", "mini-7", "--upstream", "kafka:1", "--save"],
            "--save keeps rates measured on a broker of our own: run without --upstream, or do not save",
        ),
        (["show"], "name a case: minibroker museum show CASE"),
        (["run", "mini-7", "--client", "maxi==1.0"], "the case mini-7 is about mini, not maxi"),
        (["--cases", "nowhere"], "there are no cases in nowhere: each is a folder with a case.toml"),
    ],
)
def test_what_makes_no_sense(cases: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["museum", "--cases", str(cases), *arguments]) == 2
    assert capsys.readouterr().err == f"minibroker: {said}\n"


def test_cases_are_those_of_the_working_directory_or_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(None) == ROOT / "museum" / "cases"
    write_case(tmp_path / "museum" / "cases" / "mini-7", PROGRAM)
    assert [case.id for case in read_all(find(None))] == ["mini-7"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'rule = "duplicate-record"',
            'rule = "duplicate-records"',
            "no rule 'duplicate-records', did you mean duplicate",
        ),
        ('rule = "duplicate-record"', 'rules = "x"', "Case has no 'rules', did you mean rule"),
        ('fixed = "2.0"', "fixed = 2", "fixed cannot be 2"),
        ('fixed = "2.0"', "", "missing 1 required positional argument: 'fixed'"),
        ('bad = ["1.0"]', "bad = []", "bad names the versions"),
        ('good = ["2.0"]', 'good = "2.0"', "good is a list of texts"),
        ('fixed = "2.0"', 'fixed = "2.0"\nplan = [1]', "plan is a list of texts"),
        ('fixed = "2.0"', 'fixed = "2.0"\nplan = ["comit"]', "there is no step 'comit', did you mean commit"),
        ('fixed = "2.0"', 'fixed = "2.0"\nlineage = ["in"]', "expected IN=OUT, got 'in'"),
        ("topics = {", "topics = 1 #", "topics is a table"),
        ("about", "= about", "case.toml: "),
    ],
)
def test_a_case_that_cannot_be(tmp_path: Path, old: str, new: str, said: str) -> None:
    write_case(tmp_path / "c", "", CASE.replace(old, new))
    with pytest.raises(CaseError, match=said):
        read(tmp_path / "c")


def test_a_release_that_does_not_exist(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_mini("--cases", str(cases), "--client", "mini==2.0@0.9") == 2
    assert "0.9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "options"),
    [("2.0", {}), ("2.0@4.0", {"as_version": "4.0"}), ("2.0@kip", {"semantics": "kip"})],
)
def test_a_version_names_its_broker(cases: Path, version: str, options: dict[str, str]) -> None:
    asked: list[dict[str, object]] = []

    def tried(task: Task, script: Script, what: str) -> Judged:
        asked.append(dict(task.broker))
        return try_out(task, script, what)

    assert run_mini("--cases", str(cases), "--client", f"mini=={version}", try_out=tried) == 0
    topics = asked[0].pop("topics")
    assert (topics, asked) == ({"orders": 1, "in": 1, "out": 1}, [options])


@pytest.mark.parametrize(("version", "status"), [("2.0", 0), ("2.0@4.0", 77)])
def test_a_case_runs_on_a_cluster_elsewhere_unless_it_needs_a_broker_of_our_own(
    cases: Path, capsys: pytest.CaptureFixture[str], version: str, status: int
) -> None:
    asked: list[str] = []

    def tried(task: Task, script: Script, what: str) -> Judged:
        asked.append(task.upstream)
        return try_out(task._replace(upstream=""), script, what)

    options = ["--cases", str(cases), "--client", f"mini=={version}", "--upstream", "kafka:1"]
    assert run_mini(*options, try_out=tried) == status
    assert asked == (["kafka:1"] if status == 0 else [])
    assert ("SKIPPED: it needs as_version of a broker of our own" in capsys.readouterr().out) == (status == 77)


@pytest.mark.matrix
def test_rates_are_saved(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--cases", str(cases), "--save"]
    for more in (["--matrix", "--times", "2"], ["--client", "mini==9.9"], ["--calm"], []):
        run_mini(*options, *more)
    rates = {(one.version, one.failures): one.rate for one in read_all(cases)[0].measured}
    assert rates == {("1.0", True): "1 of 1", ("2.0", True): "0 of 2", ("1.0", False): "0 of 1"}
    capsys.readouterr()
    assert main(["museum", "show", "mini-7", "--cases", str(cases)]) == 0
    assert "measured:  1 of 1 on mini 1.0, 20" in capsys.readouterr().out
    (cases.parent / "rates.json").write_text('{"mini-7": [{"version": "1.0", "run": 1}]}')
    assert main(["museum", "--cases", str(cases)]) == 2
    assert "Measured has no 'run', did you mean runs?" in capsys.readouterr().err


def test_rates_that_are_saved_at_the_same_time_are_all_there(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"mini-{number}" for number in range(8)]
    for name in names[:7]:
        write_case(cases / name, PROGRAM)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: save(cases, name, Measured("1.0", 1, 1, "2026-11-23")), names))
    assert [case.id for case in read_all(cases) if case.measured] == names
    (cases.parent / ".rates.json.lock").touch()
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", lambda seconds: waits.append(seconds))
    with pytest.raises(CaseError, match=r"another run writes rates\.json; if there is none, remove .*\.lock$"):
        save(cases, "mini-7", Measured("1.0", 1, 1, "2026-11-23"))
    assert len(waits) > 10


def test_a_case_has_a_program_of_its_own_or_a_plan(tmp_path: Path) -> None:
    folder = tmp_path / "cases" / "c"
    write_case(folder, "")
    assert [path.name for path in read(folder).sources] == ["client.py"]
    assert read(folder).command(["it"]) == ["it"]
    (folder / "client.py").unlink()
    with pytest.raises(CaseError, match=r"a case has a client\.\*, or a plan for a client that has a program"):
        read(folder)
    text = CASE.replace('"mini"', '"franz-go"') + 'plan = ["open", "send a"]\nsettings = { x = 1 }\n'
    (folder / "case.toml").write_text(text)
    assert [path.relative_to(tmp_path) for path in read(folder).sources] == [
        Path("programs", name) for name in ("steps_franz.go", "open_franz.go", "steps.go", "told.go")
    ]
    plan = [sys.executable, "-P", "-m", "minibroker_lab.museum.plan", '["open", "send a"]']
    assert read(folder).command(["it"]) == [*plan, "it", '{"x": 1}']


def test_what_is_measured_of_a_case(tmp_path: Path) -> None:
    write_case(tmp_path / "good", "")
    assert read(tmp_path / "good").column == [("1.0", True), ("2.0", True)]
    open_upstream = CASE.replace('good = ["2.0"]', "good = []")
    write_case(tmp_path / "open", "", open_upstream)
    assert read(tmp_path / "open").column == [("1.0", True), ("1.0", False)]
    write_case(tmp_path / "bare", "", open_upstream, 'about = "Nothing fails."')
    assert read(tmp_path / "bare").column == [("1.0", True)]


def test_a_case_without_its_files(tmp_path: Path) -> None:
    write_case(tmp_path / "c", "", script=SCRIPT.replace("drop_reply", "drop"))
    with pytest.raises(CaseError, match="fault 1"):
        read(tmp_path / "c").script()


# Installing


@pytest.mark.parametrize(
    "text", ["mini", "mini==", "mini>=1.0", "--pre==1.0==2", "a b==1", "mini==1.0;x", "mini==1.0@kiq"]
)
def test_a_client_is_a_name_and_a_version(text: str) -> None:
    assert parse_client("confluent-kafka==2.3.0") == ("confluent-kafka", "2.3.0")
    assert parse_client("@platformatic/kafka==2.12.1@3.9") == ("@platformatic/kafka", "2.12.1@3.9")
    assert parse_client("mini==1.0@kip") == ("mini", "1.0@kip")
    with pytest.raises(ValueError, match="expected NAME==VERSION"):
        parse_client(text)


@pytest.mark.skipif(os.name == "nt", reason="python.exe")
@pytest.mark.parametrize(
    ("name", "folder", "asked", "sources", "started"),
    [
        ("mini", f"{sys.implementation.cache_tag}-mini==1.0", "mini==1.0", ["a.py"], "env/bin/python a.py"),
        (
            "faust-streaming",
            f"{sys.implementation.cache_tag}-faust-streaming==1.0",
            ":all: --no-binary opentracing faust-streaming==1.0",
            ["a.py"],
            "env/bin/python a.py",
        ),
        ("kafka-clients", "maven-kafka-clients==1.0", "dependency:copy", ["A.java"], "java A"),
        ("franz-go", "go-franz-go==1.0", "github.com/twmb/franz-go@v1.0", ["a.go", "b.go"], "program"),
        ("kafkajs", "npm-kafkajs==1.0", "kafkajs@1.0", ["a.mjs"], "node a.mjs"),
        ("krafka", "cargo-krafka==1.0", "--manifest-path", ["client.rs"], "program"),
        (
            "@platformatic/kafka",
            "npm-@platformatic+kafka==1.0",
            "@platformatic/kafka@1.0 node-",
            ["a.mjs"],
            "node a.mjs",
        ),
    ],
)
def test_a_version_is_installed_once_and_programs_run_on_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    folder: str,
    asked: str,
    sources: list[str],
    started: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    ran: list[str] = []

    def start(words: Sequence[str], cwd: Path, **_: Any) -> Any:
        place = Path(cwd)
        assert place.is_dir()
        ran.append(" ".join(words))
        if "init" in words:
            (place / "go.mod").touch()
            (place / "go.sum").touch()
        if "--target-dir" in words:
            (Path(words[-1]) / "debug").mkdir(parents=True, exist_ok=True)
            (Path(words[-1]) / "debug" / "program").touch()
            (place / "Cargo.lock").touch()
        if "venv" in words:
            Path(words[-1]).mkdir()
        for own in (word.partition("@")[0] for word in words if word.startswith("node-")):
            (place / "node_modules" / own / "bin").mkdir(parents=True)
            (place / "node_modules" / own / "bin" / "node").touch()
        return SimpleNamespace(wait=lambda *_: 0, poll=lambda: 0)

    monkeypatch.setattr("subprocess.Popen", start)
    for source in sources:
        (tmp_path / source).touch()
    paths = [tmp_path / source for source in sources]
    for _ in range(2):
        with program(name, "1.0", paths) as words:
            place = next((tmp_path / "cache" / "minibroker" / "clients" / folder).glob(".program-*"))
            assert (place / "src" / "main.rs").is_file() or all((place / source).is_file() for source in sources)
            last = [Path(word).name for word in (words[0], words[-1])]
            assert ("java" in words) == (f"-Djava.io.tmpdir={place}" in words)
        assert not place.exists()
    assert " ".join(dict.fromkeys(last)) == started.removeprefix("env/bin/")
    assert sum(asked in line for line in ran) == 1
    # The one that needs a newer Node than the system's has it from npm.
    assert ("node_modules" in words[0]) == (name == "@platformatic/kafka")


def test_a_program_that_needs_minibroker_runs_where_its_package_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's workers import our sink. What the environment has now counts, not what it had."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "a.py"
    source.touch()
    for version in ("1.0", "2.0"):
        (tmp_path / f"pyspark-{version}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: pyspark\nVersion: {version}\n"
        (tmp_path / f"pyspark-{version}.dist-info" / "METADATA").write_text(text)
        with program("pyspark", version, [source]) as (python, path):
            assert (python, Path(path).name) == (sys.executable, "a.py")
        shutil.rmtree(tmp_path / f"pyspark-{version}.dist-info")
    (tmp_path / "pyspark-3.0.dist-info").mkdir()
    (tmp_path / "pyspark-3.0.dist-info" / "METADATA").write_text(text.replace("2.0", "3.0"))
    with pytest.raises(ClientError, match=r"^pyspark 1\.0 has to be installed beside minibroker: there is 3\.0$"):
        installed("pyspark", "1.0")


def test_what_cannot_be_installed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda tool: None)
    for name, tool in (("kafka-clients", "mvn"), ("sarama", "go"), ("kafkajs", "npm"), ("krafka", "cargo")):
        with pytest.raises(ClientError, match=rf"^{tool} is not installed$"):
            installed(name, "1.0")
    assert list((tmp_path / "minibroker" / "clients").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["WARNING: slow", "ERROR: first", "ERROR: No matching", "hint"], "No matching"),
        (["\x1b[0m[ERROR] Could not find artifact", "[ERROR] ", "[ERROR] [Help 1]"], "Could not find artifact"),
        (["npm error code ETARGET", "npm error notarget No matching version"], "notarget No matching version"),
        (["error: no matching package", "required by program"], "no matching package"),
        (["go: downloading", "\tgo: unknown revision v9", ""], "go: unknown revision v9"),
        ([], "exit status 1"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_what_an_installer_says_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], reason: str
) -> None:
    tool = tmp_path / "npm"
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint({chr(10).join(said)!r})\nsys.exit(1)\n")
    tool.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: str(tool))
    with pytest.raises(ClientError, match=f"^kafkajs 1 cannot be installed: {re.escape(reason)}$"):
        installed("kafkajs", "1")


# The cases of the repository


def test_a_person_reads_at_most_forty_lines_of_a_program() -> None:
    files = [*(ROOT / "museum" / "programs").iterdir(), *(ROOT / "museum" / "cases").glob("*/client.*")]
    assert len(files) >= 20
    assert [path.name for path in files if len(path.read_text().splitlines()) > 40] == []


def test_every_case_is_whole() -> None:
    cases = read_all(ROOT / "museum" / "cases")
    assert len(cases) >= 40
    for case in cases:
        failing = case.script().steps or case.broker or not case.good
        assert failing or case.script().about == "Nothing fails.", case.id
        assert all(path.is_file() for path in case.sources), case.id
        rates = {(one.version, one.failures): one for one in case.measured}
        assert set(case.column) <= set(rates), f"{case.id}: minibroker museum run {case.id} --matrix --save"
        assert rates[case.shown_on, True].broken * 2 > rates[case.shown_on, True].runs, case.id
        good = [rates[key] for key in case.column if key[0] in case.good or not key[1]]
        assert not any(one.broken for one in good), case.id


SHORT = {
    "segmentio-kafka-go-1332": "is in every release, and needs no failure",
    "segmentio-kafka-go-1446": "is in every release, and needs no failure",
    "librdkafka-aio-refused-record": "is in every release, and needs no failure",
    "platformatic-empty-transaction": "is in every release, and needs no failure",
    "krafka-empty-commit": "is in every release, and needs no failure",
    "platformatic-restarted-fenced": "is in every release, and needs no failure",
    "platformatic-aborted-twice": "is in every release, and needs no failure",
    "kafkajs-zero-key": "is in every release, and needs no failure",
    "kafkajs-aborted-order": "is in every release, and needs no failure",
}
"""Cases that are not run ten times with the bug and twenty times without; museum/README.md says so too."""


def test_every_case_is_seen_nine_times_of_ten_and_never_in_twenty() -> None:
    page = (ROOT / "museum" / "README.md").read_text(encoding="utf-8")
    rated = []
    for case in (cases := read_all(ROOT / "museum" / "cases")):
        rates = {(one.version, one.failures): one for one in case.measured}
        bad = rates[case.shown_on, True]
        never = [rates[key] for key in case.column if key[0] in case.good or not key[1]]
        if bad.runs >= 10 and bad.broken * 10 >= bad.runs * 9 and any(one.runs >= 20 for one in never):
            rated.append(case.id)
    assert {case.id for case in cases} - set(rated) == set(SHORT)
    assert len(rated) >= 15
    assert f"{len(rated)} of {len(cases)} were broken" in page
    assert all(f"`{name}`" in page.partition("Where it can be had")[2].partition("\n\n")[0] for name in SHORT)
