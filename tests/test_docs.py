"""The pages: links lead somewhere, generated tables are up to date, code parses, commands are ones there are."""

from __future__ import annotations

import argparse
import ast
import codeop
import functools
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import admin_tools
import pytest
import yaml
from broker import installed_command
from free_ports import free_port
from packages import TOPS
from reference import TABLES, rewritten

from minibroker.cli import commands
from minibroker.client.connection import Connection
from minibroker.config.keys import TOPIC_KEYS
from minibroker.config.settings import Settings, environment_config
from minibroker.server.listener_config import listener_configs
from minibroker_lab.conformance import command as conformance

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = commands()
PAGES = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("findings/*.md"),
        *ROOT.glob("museum/*.md"),
        *ROOT.glob("integrations/*/*.md"),
    ]
    if ".venv" not in path.parts
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?P<language>[a-z]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(minibroker [a-z][^`]*)`(?!`)")
PATH = re.compile(r"`((?:(?:minibroker|protocol|storage|pipeline|lab|tests|tools)/[\w./-]+)|[\w./-]+\.py)`")
ELSEWHERE = {"sender.py"}
"""Files of kafka-python."""
PICTURES_OF_README = {ROOT / "docs" / "images" / "page.png"}
COMPOSE = ROOT / "docker" / "compose.yaml"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Those that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(language: str) -> list[Any]:
    """Code of a language on any page, each with the page and the line it begins on as its name."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match["language"] == language:
                line = text.count("\n", 0, match.start("code")) + 1
                found.append(pytest.param(match["code"], id=f"{name_of(page)}:{line}"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = []
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    """And files beside the pages, by links and links of links; a link to a folder reaches what is in it."""
    docs = ROOT / "docs"
    reached: set[Path] = set()
    waiting = [docs / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or docs not in page.parents:
            continue
        reached.add(page)
        if page.is_dir():
            waiting += page.iterdir()
        elif page.suffix == ".md":
            targets = [match[1] or match[2] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
            waiting += [
                (page.parent / target.partition("#")[0]).resolve()
                for target in targets
                if ":" not in target and target[0] != "#"
            ]
    assert {path for path in docs.rglob("*") if path.is_file()} - reached - PICTURES_OF_README == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_in_sentences_are_there(page: Path) -> None:
    """`minibroker/x/y.py`, or the end of such a path; not in the changelog, which speaks of its time."""
    if page.name == "CHANGELOG.md":
        return
    named = PATH.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    named = [name for name in named if name not in ELSEWHERE]
    assert not [name for name in named if not any(f"/{file}".endswith(f"/{name.rstrip('/')}") for file in files())]


@functools.cache
def files() -> frozenset[str]:
    """Files of the sources, and the folders they are in, from the root of the repository."""
    found = [
        path.relative_to(ROOT)
        for top in (*TOPS, "tests", "tools", "docs", "docker", "benchmarks")
        for path in ROOT.joinpath(top).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    return frozenset(one.as_posix() for path in found for one in (path, *path.parents))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_rows_of_a_table_are_indented_alike(page: Path) -> None:
    """One that is not ends the table, and the list that it is in."""
    pairs = re.finditer(r"^( *)\|.*\n(?!\1\|)( *\|.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert not [pair[2] for pair in pairs]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if any(f"<!-- begin {name} -->" in text for name in TABLES):
        assert rewritten(text) == text, f"run: PYTHONPATH=tools python -m reference {name_of(page)}"


def test_the_page_of_settings_has_the_default_of_every_topic_setting() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^- `(\S+)`(?:\\\*)? ← (.*)$", page, re.MULTILINE))
    assert len(rows) > 15
    defaults = Settings({})
    for name, origins in rows.items():
        first, in_brackets = re.fullmatch(r"`(\S+?)`.*?(?: \(`(.*)`\))?", origins).groups()  # type: ignore[union-attr]
        default = defaults.topic_value(name, {})
        assert in_brackets == (TOPIC_KEYS[name].format(default) if defaults.get(first) is None else None), name
        assert in_brackets or defaults.get(first) == default, name


def test_there_are_blocks_of_each_kind() -> None:
    assert all(blocks(language) for language in ("python", "sh", "yaml"))


@pytest.mark.parametrize("code", blocks("python"))
def test_python_parses_and_what_it_imports_of_ours_is_there(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minibroker"):
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing


def commands_of(script: str) -> list[list[str]]:
    """The calls of minibroker in a shell script, as lists of arguments."""
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", "\n; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    calls: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|<>()"):
            calls.append([])
        else:
            calls[-1].append(word)
    return [call[1:] for call in calls if call and Path(call[0]).name == "minibroker"]


def check_arguments(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the program takes them, up to where it would begin."""
    from minibroker import cli

    module = importlib.import_module(COMMANDS[arguments[0]].module)
    monkeypatch.setattr(module, "run", lambda parsed: 0)
    assert cli.main(arguments) == 0


@pytest.mark.parametrize("code", [*blocks("sh"), *blocks("bat")])
def test_commands_in_scripts_are_ones_there_are(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in commands_of(code.replace("\\Scripts\\", "/Scripts/")):
        check_arguments(arguments, monkeypatch)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Of a command and its subcommands."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(options_of(inner) for inner in action.choices.values()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_have_the_options_they_are_named_with(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in INLINE.finditer(text):
        _, name, *words = match[1].split()
        assert name in COMMANDS, match[0]
        parser = argparse.ArgumentParser()
        importlib.import_module(COMMANDS[name].module).add_arguments(parser)
        named = {word.partition("=")[0].strip("[].,") for word in words if word.startswith(("-", "[-"))}
        if "--" in words:  # what follows is another program's
            named = {word for word in words[: words.index("--")] if word.startswith("-")}
        assert named - {"-", "--"} <= options_of(parser), match[0]


@pytest.mark.parametrize("code", blocks("yaml"))
def test_yaml_parses(code: str) -> None:
    assert yaml.safe_load(code)


# -- the compose file and the snippets for CI ------------------------------------------------------------------------


def test_the_compose_file_is_one_that_the_image_understands() -> None:
    service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["minibroker"]
    build = service["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == ROOT / "docker" / "Dockerfile"
    config, warnings = environment_config(service["environment"])
    assert len(config) == len(service["environment"])
    assert warnings == []
    settings = Settings(config)
    assert settings.ignored == ()
    listeners = {listener.name: listener for listener in listener_configs(settings, 1)}
    assert listeners["HOST"].advertised == ("localhost", 9092)
    assert listeners["COMPOSE"].advertised == ("minibroker", listeners["COMPOSE"].port)
    published = [port.split(":") for port in service["ports"]]
    assert published == [["127.0.0.1", "9092", str(listeners["HOST"].port)]]
    exposed = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^EXPOSE .*\b9092\b", exposed, re.MULTILINE)


def ci_steps() -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for block in FENCE.finditer((ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")):
        if block["language"] == "yaml":
            content = yaml.safe_load(block["code"])
            steps += content if isinstance(content, list) else content["jobs"]["test"]["steps"]
    return steps


def test_the_snippets_for_ci_are_steps_of_a_workflow() -> None:
    steps = ci_steps()
    assert len(steps) >= 6
    for step in steps:
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"uses", "with", "run", "env", "name", "if"}
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))


def test_the_step_that_runs_the_suite_has_its_options() -> None:
    (step,) = (step for step in ci_steps() if "minibroker conformance" in step.get("run", ""))
    parser = argparse.ArgumentParser()
    conformance.add_arguments(parser)
    arguments = parser.parse_args(shlex.split(step["run"])[2:])
    assert arguments.baseline.name in (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    assert {"json", "junit"} <= set(arguments.report)


@pytest.mark.skipif(sys.platform != "linux", reason="the step is for a runner with Linux")
def test_the_step_that_starts_a_broker_starts_one(tmp_path: Path) -> None:
    (step,) = (step for step in ci_steps() if "minibroker serve" in step.get("run", ""))
    port, control = free_port(), free_port()
    script = step["run"].replace("9092", str(port)).replace("9094", str(control))
    environment = installed_command(tmp_path) | dict.fromkeys(step["env"], "token")
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        assert process.wait(60) == 0
        Connection(("127.0.0.1", port), 5).close()
        assert f"control=127.0.0.1:{control}" in (tmp_path / "broker.out").read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)


def test_the_page_of_admin_tools_is_up_to_date() -> None:
    page = (ROOT / "benchmarks" / "results" / "admin-tools.md").read_text(encoding="utf-8")
    assert page == admin_tools.document(), "run: python tests/support admin_tools"


def test_blocks_of_the_tutorial_can_be_pasted_at_the_prompt() -> None:
    """Python before 3.13 takes a statement for ended only at a blank line, and refuses what follows at the margin."""
    text = (ROOT / "docs" / "tutorial" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    for block in blocks:
        typed: list[str] = []
        for line in [*block.splitlines(), ""]:
            typed.append(line)
            if codeop.compile_command("\n".join(typed)) is not None:
                typed.clear()
        assert typed == []
