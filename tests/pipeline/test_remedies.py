"""What the audit says an operator can do: run as it is printed, it ends the finding."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("confluent_kafka")

from abandoned import ID, abandon, committed_values
from runbook_scenes import BOOTSTRAP, hanging_transaction

from minibroker import Minibroker
from minibroker.cli import main
from minibroker.rules.catalogue import finding
from minibroker.rules.rows import Log
from minibroker_pipeline.remedies import remedies_of

LATER = ("--as-of", str(1 << 42))
"""A time when every transaction is late."""


def audit(bootstrap: str, out: Path) -> list[dict[str, Any]]:
    main(["audit", "--bootstrap", bootstrap, *LATER, "--json", str(out), "--html", str(out.with_suffix(".html"))])
    return list(json.loads(out.read_text())["shown"])


@pytest.mark.parametrize(("action", "values"), [("abort", []), ("commit", [b"a", b"b", b"c"])])
def test_a_hanging_transaction_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, values: list[bytes]
) -> None:
    with Minibroker(ephemeral=True) as broker:
        abandon(broker.bootstrap_servers)
        found = audit(broker.bootstrap_servers, tmp_path / "s.json")
        hanging = [one for one in found if one["rule"] == "hanging-transaction"]
        assert sorted((one["topic"], one["partition"]) for one in hanging) == [
            ("__consumer_offsets", hanging[0]["partition"]),
            ("t", 0),
            ("t", 1),
        ]
        assert {one["transactional_id"] for one in hanging} == {ID}
        told = capsys.readouterr().out
        commands = {shlex.split(one["command"])[2]: one for one in hanging[-1]["remedies"]}
        assert list(commands) == ["abort", "commit", "find-hanging"]
        page = (tmp_path / "s.html").read_text()
        for remedy in commands.values():
            assert remedy["risk"] in told
            assert remedy["risk"] in page
        assert told.count(commands["commit"]["risk"]) == 1  # once a rule
        words = shlex.split(next(r["command"] for r in hanging[-1]["remedies"] if f" {action} " in r["command"]))[1:]
        assert main(words) == 0
        if action == "commit":
            assert committed_values(broker.bootstrap_servers) == []  # it is a dry run
            words.remove("--dry-run")
            assert main(words) == 0
        assert committed_values(broker.bootstrap_servers) == values
        assert [one for one in audit(broker.bootstrap_servers, tmp_path / "s.json") if one["severity"] == "error"] == []


def test_the_remedies_of_what_no_coordinator_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one lists it, the last one ends it, and the application is not fenced. Nothing was decided about it."""
    with hanging_transaction(tmp_path) as words:
        bootstrap = words[BOOTSTRAP]
        (hanging,) = [one for one in audit(bootstrap, tmp_path / "s.json") if one["rule"] == "hanging-transaction"]
        find, commit, abort = [shlex.split(one["command"])[1:] for one in hanging["remedies"]]
        capsys.readouterr()
        assert main(find) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["orders", "0"]
        assert main(commit) == 1
        assert "its decision: none" in capsys.readouterr().err
        assert main(abort) == 0
        assert [one for one in audit(bootstrap, tmp_path / "s.json") if one["severity"] == "error"] == []


def test_a_remedy_that_needs_what_is_not_known_is_not_named() -> None:
    log = Log("", "a topic", 3)
    nameless = finding("hanging-transaction", log, "", producer_id=7, producer_epoch=2, first_offset=5, last_offset=9)
    commands = [one.command for one in remedies_of(nameless, "/data")]
    assert commands == [
        "minibroker transactions find-hanging --bootstrap HOST:PORT --topic 'a topic' --older-than-ms 0",
        "minibroker transactions commit --bootstrap HOST:PORT --topic 'a topic' --partition 3 --start-offset 5",
        "minibroker transactions abort --bootstrap HOST:PORT --topic 'a topic' --partition 3 --start-offset 5",
    ]
    (read,) = remedies_of(
        finding("duplicate", log, "", first_offset=5, last_offset=9), "--bootstrap h:1 --command-config f"
    )
    assert "--bootstrap-server h:1 --topic 'a topic' --partition 3 --offset 5 --max-messages 5 " in read.command
    assert remedies_of(finding("duplicate", log, ""), "/data") == []


@pytest.mark.parametrize(
    ("source", "commands"),
    [("/a dir", ["minibroker dump '/a dir/t-0/0.index'"]), ("s3://a/dir", []), ("--bootstrap h:1", [])],
)
def test_a_file_is_named_where_it_can_be_read(source: str, commands: list[str]) -> None:
    found = finding("offset-index", Log("", "t", 0), "", file="t-0/0.index")
    assert [one.command for one in remedies_of(found, source) if " dump " in one.command] == commands
