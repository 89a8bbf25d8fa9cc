"""Every command of docs/how-to/runbooks.md, run on the case that its section is about, prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from runbook_scenes import LATER, SCENES

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.rules.catalogue import RULES
from minibroker_pipeline.follow_metrics import Figures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "runbooks.md"
BLOCK = re.compile(r"^```console *(?P<scene>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "…"


def sessions() -> dict[str, list[tuple[str, list[str]]]]:
    """Scene → its commands with the lines they print; a block without a name goes on with the one before."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    scene = ""
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        scene = block["scene"] or scene
        for line in block["text"].splitlines():
            if line.startswith("$ "):
                found.setdefault(scene, []).append((line[2:], []))
            else:
                found[scene][-1][1].append(line)
    return found


def printed(lines: list[str]) -> re.Pattern[str]:
    """What fits lines in which a line of `…` stands for any number of them, and within a line for anything."""
    parts = [r"(?:.*\n)*?" if line == ANY else ".*".join(map(re.escape, line.split(ANY))) + r" *\n" for line in lines]
    return re.compile("".join(parts))


def test_every_scene_is_on_the_page() -> None:
    assert sessions().keys() == SCENES.keys()


@pytest.mark.parametrize("scene", SCENES)
def test_its_commands(scene: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SCENES[scene](tmp_path) as words:
        for command, lines in sessions()[scene]:
            real = command
            for word, stands_for in words.items():
                real = real.replace(word, stands_for)
            lines = [line.replace(LATER, words.get(LATER, LATER)) for line in lines]
            program, *arguments = shlex.split(real)
            if program == "rm":
                os.unlink(arguments[0])
                continue
            assert program == "minibroker"
            main(arguments)
            out = capsys.readouterr().out
            assert printed(lines).fullmatch(out), f"{command}\n{out[:3000]}"


def test_the_findings_of_its_table_are_rules() -> None:
    rows = re.findall(r"^\| \[(.+?)\]\(#", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(SCENES) - 2  # one finding has two causes, and a rehearsal
    assert {name for row in rows for name in re.findall(r"`(.+?)`", row)} < RULES.keys()


def test_its_alerts_name_metrics_there_are() -> None:
    from minibroker.metrics.gauges import REPLICA_MANAGER
    from minibroker.metrics.names import Bean, prometheus_name

    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    figures = Figures(open={("t", 0): (0, 1)})
    suffixes = {"counter": "_total", "gauge": ""}
    names = {prometheus_name(bean) + suffixes[bean.kind] for bean, _, _ in figures.samples()}
    names |= {prometheus_name(Bean("kafka.server", "ReplicaManager", name)) for name in REPLICA_MANAGER}
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    assert len(rules) == 5
    for rule in rules:
        named = re.findall(r"(?:minibroker|kafka)_\w+", rule["expr"])
        assert named, rule
        assert {*named} <= names, rule
        for label in re.findall(r'rule="([^"]+)"', rule["expr"]):
            assert label in RULES
