"""The museum's runner on a small client of two versions, what makes no sense, and the cases of the repository."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from museum_case import CASE, SCRIPT, write_case

from minibroker.cli import main
from minibroker.museum import clients, command
from minibroker.museum.cases import CaseError, find, read, read_all
from minibroker.museum.clients import ClientError, interpreter, parse_client

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "tests" / "support" / "wrong_client.py"
WAYS = {"1.0": "duplicate_record", "2.0": "right", "3.0": "order"}
"""How the mini-client of each version goes."""
PROGRAM = f"""
import os, runpy, sys
sys.argv[1:] = [os.environ["MINI_WAY"]]
runpy.run_path({str(CLIENT)!r}, run_name="__main__")
"""


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one case; every version of its client but 9.9 is there."""

    def installed(name: str, version: str) -> Path:
        if version == "9.9":
            raise ClientError(f"{name}=={version} cannot be installed: no such version")
        monkeypatch.setenv("MINI_WAY", WAYS[version])
        return Path(sys.executable)

    monkeypatch.setattr(command, "interpreter", installed)
    write_case(tmp_path / "cases" / "mini-7", PROGRAM)
    return tmp_path / "cases"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        # The version that shows it, when none is named.
        (["--times", "2"], 1, "mini-7 on mini 1.0: duplicate-record in 2 of 2 runs"),
        (["--client", "mini==2.0"], 0, "mini-7 on mini 2.0: duplicate-record in 0 of 1 run"),
        (["--calm"], 0, "mini-7 on mini 1.0: duplicate-record in 0 of 1 run"),
        # Another rule than the one of the case decides nothing.
        (["--client", "mini==3.0"], 2, "mini-7 on mini 3.0: duplicate-record in 0 of 1 run"),
        (["--client", "mini==9.9"], 77, "mini-7 on mini 9.9: SKIPPED: mini==9.9 cannot be installed: no such version"),
        (["--client", "mini==9.9", "--client", "mini==1.0"], 1, "mini-7 on mini 1.0: duplicate-record in 1 of 1 run"),
    ],
)
def test_the_rate_of_a_version(
    cases: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int, said: str
) -> None:
    assert main(["museum", "run", "mini-7", "--cases", str(cases), *options]) == status
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == said
    assert ("first violating exchange" in printed) == (status == 1 or "3.0" in said)


def test_what_is_there_is_listed_and_shown(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["museum", "--cases", str(cases)]) == 0
    assert capsys.readouterr().out == "mini-7  mini 1.0: It repeats itself\n"
    assert main(["museum", "show", "mini-7", "--cases", str(cases)]) == 0
    shown = capsys.readouterr().out
    for wanted in ("A record is there twice.", "example/mini#7", "9 of 10 on mini 1.0, 2026-11-23", "A lost answer."):
        assert wanted in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "mini-8"], "there is no case 'mini-8', did you mean mini-7?"),
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
        ("runs = 10", "runs = 0", "runs of 1 or more"),
        ("runs = 10", "run = 10", "Measured has no 'run', did you mean runs"),
        ("topics = {", "topics = 1 #", "topics is a table"),
        ("about", "= about", "case.toml: "),
    ],
)
def test_a_case_that_cannot_be(tmp_path: Path, old: str, new: str, said: str) -> None:
    write_case(tmp_path / "c", "", CASE.replace(old, new))
    with pytest.raises(CaseError, match=said):
        read(tmp_path / "c")


def test_a_case_without_its_files(tmp_path: Path) -> None:
    write_case(tmp_path / "c", "", script=SCRIPT.replace("drop_reply", "drop"))
    with pytest.raises(CaseError, match="fault 1"):
        read(tmp_path / "c").script()
    (tmp_path / "c" / "client.py").unlink()
    with pytest.raises(CaseError, match=r"a case has a client\.py"):
        read(tmp_path / "c")


# Installing


@pytest.mark.parametrize("text", ["mini", "mini==", "mini>=1.0", "--pre==1.0==2", "a b==1", "mini==1.0;x"])
def test_a_client_is_a_name_and_a_version(text: str) -> None:
    assert parse_client("confluent-kafka==2.3.0") == ("confluent-kafka", "2.3.0")
    with pytest.raises(ValueError, match="expected NAME==VERSION"):
        parse_client(text)


@pytest.mark.skipif(os.name == "nt", reason="python.exe")
def test_a_version_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []

    def run(words: Sequence[str], place: str) -> None:
        asked.append(words[-1])
        if "venv" in words:
            Path(words[-1], "bin").mkdir(parents=True)
            Path(words[-1], "bin", "python").touch()
        elif words[-1] == "mini==9.9":
            raise ClientError("no such version")

    monkeypatch.setattr(clients, "_run", run)
    first, again = interpreter("mini", "1.0"), interpreter("mini", "1.0")
    assert first == again
    assert first.is_file()
    assert first.is_relative_to(tmp_path / "minibroker" / "clients")
    assert asked[1:] == ["mini==1.0"]
    with pytest.raises(ClientError, match="no such version"):
        interpreter("mini", "9.9")
    assert [path.name for path in first.parents[2].iterdir()] == [f"{sys.implementation.cache_tag}-mini==1.0"]


def test_what_pip_says_is_one_line(tmp_path: Path) -> None:
    said = "import sys; print('WARNING: slow'); print('ERROR: No matching'); print('hint'); sys.exit(1)"
    with pytest.raises(ClientError, match=r"^mini==1 cannot be installed: No matching$"):
        clients._run([sys.executable, "-c", said, "mini==1"], str(tmp_path))


# The cases of the repository


def test_every_case_is_whole() -> None:
    cases = read_all(ROOT / "museum" / "cases")
    assert len(cases) >= 6
    for case in cases:
        assert case.script().steps, case.id
        assert len(case.program.read_text().splitlines()) <= 40, case.id
        assert any(one.broken * 2 > one.runs for one in case.measured), case.id
        assert any(not one.broken for one in case.measured), f"{case.id}: never seen to hold"
