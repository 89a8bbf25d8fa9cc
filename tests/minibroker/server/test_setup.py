"""A file of topics, users, access control entries, rules and the clock."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.config.types import ConfigError
from minibroker.server.options import behaviour_arguments, make_options
from minibroker.server.service import Service
from minibroker.server.setup import load, parse

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "setup.toml"


def test_the_example_is_what_a_broker_begins_with() -> None:
    """Every table of the page's example: once the broker serves, all of it is there."""

    async def look() -> None:
        service = Service(make_options(ephemeral=True, setup=str(EXAMPLE)))
        await service.start()
        try:
            assert service.cluster is not None
            image = service.cluster.image
            assert {name: len(topic.partitions) for name, topic in image.topics.items()} == {"payments": 3, "orders": 1}
            assert image.topics["orders"].configs == {"cleanup.policy": "compact"}
            assert len(image.acls) == 6
            assert {entry.principal for entry in image.acls} == {"User:app"}
            (rule,) = service.commands.call("fault.list", {})
            assert (rule["rule"]["api"], rule["rule"]["action"]["name"]) == (["EndTxn"], "drop_reply")
            assert service.commands.call("clock.get", {})["frozen"]
            assert service.settings.get_string("minibroker.security.protocol") == "SASL_PLAINTEXT"
            assert service.settings.get_string("super.users") == "User:admin"
        finally:
            await service.stop()

    asyncio.run(look())


def test_topics_that_exist_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "setup.toml").write_text("topics = { kept = 3, new = 1 }")
    with Minibroker(topics={"kept": 1}, data_dir=str(tmp_path / "data")):
        pass
    with Minibroker(data_dir=str(tmp_path / "data"), setup=tmp_path / "setup.toml") as broker:
        topics = broker.control.describe()["topics"]
    assert {name: len(partitions) for name, partitions in topics.items()} == {"kept": 1, "new": 1}


def test_what_config_says_comes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[config]\nnum.partitions = 2\n"log.retention.ms" = 5\ncleanup = { "x" = true }')
    options = make_options(setup=str(tmp_path / "s.toml"), config={"num.partitions": "7"})
    assert options.config == {"num.partitions": "7", "log.retention.ms": "5", "cleanup.x": "true"}
    assert behaviour_arguments(options)[-2:] == ["--setup", str(tmp_path / "s.toml")]


def test_users_are_added_and_their_passwords_are_in_no_text() -> None:
    given = {
        "config": {"minibroker.sasl.users": "a:1", "minibroker.security.protocol": "SASL_SSL"},
        "users": {"b": "secret"},
    }
    setup = parse(given)
    assert setup.config == {"minibroker.sasl.users": "a:1,b:secret", "minibroker.security.protocol": "SASL_SSL"}
    assert "secret" not in repr(setup)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[topic]\norders = 1", "a setup has no 'topic', did you mean topics?"),
        ("topics = 3", "topics is a table, such as [topics]"),
        ("[topics]\norders = 0", "topic 'orders' needs a number of partitions from 1 on, not 0"),
        ('[topics]\norders = "3"', "topics: 'orders' is a number of partitions or a table, not '3'"),
        ("[topics]\norders = { partition = 3 }", "topics: 'orders' has no 'partition', did you mean partitions?"),
        ("[topics]\norders = { replication_factor = 0 }", "'orders' needs a replication_factor from 1 on, not 0"),
        ("[topics]\n'a/b' = 1", "a/b"),
        ("[users]\napp = 3", "users: 'app' needs a password"),
        ("[users]\napp = 'a,b'", "users: 'app' needs a password, a text without a comma"),
        ("[acls]\nx = 1", "each entry of acls begins with [[acls]]"),
        (
            "[[acls]]\nprincipal = 'User:a'\ntopic = 't'",
            "acls, entry 1: it has principal, operations, and one",
        ),
        (
            "[[acls]]\nprincipal = 'User:a'\noperations = ['REED']\ntopic = 't'",
            "acls, entry 1: operations has no 'REED', did you mean READ?",
        ),
        ("[[acls]]\nprincipal = 'User:a'\noperations = 'ALTER'\ncluster = 'x'", "acls, entry 1: cluster is true"),
        (
            "[[rules]]\napi = 'EndTxm'\naction = 'close'",
            "rules, entry 1: there is no API 'EndTxm', did you mean EndTxn?",
        ),
        ("[[rules]]\napi = 'EndTxn'\naktion = 'close'", "rules, entry 1: a rule has no field 'aktion'"),
        ("[clock]\nfrozen = 1", "clock: frozen is true or false, not 1"),
        ("[clock", "Expected"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "setup.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^the setup cannot be read: .*none\.toml: No such file or directory$"):
        make_options(setup=str(tmp_path / "none.toml"))


def test_what_the_cluster_refuses_ends_the_start(tmp_path: Path) -> None:
    """More replicas than brokers; nothing is left behind."""
    from minibroker.server.service import StartError

    (tmp_path / "setup.toml").write_text("[topics]\norders = { replication_factor = 3 }")
    with pytest.raises(StartError, match="INVALID_REPLICATION_FACTOR"):
        Minibroker(ephemeral=True, setup=tmp_path / "setup.toml").start()


def test_access_control_entries_are_those_of_createacls() -> None:
    given: dict[str, Any] = tomllib.loads(
        "[[acls]]\nprincipal = 'User:a'\noperations = 'all'\ncluster = true\npermission = 'deny'\nhost = '127.0.0.1'"
    )
    setup = parse(given)
    (entry,) = setup.acls
    assert (entry.resource_type, entry.resource_name, entry.resource_pattern_type) == (4, "kafka-cluster", 3)
    assert (entry.operation, entry.permission_type, entry.host) == (2, 2, "127.0.0.1")
    assert "StandardAuthorizer" in setup.config["authorizer.class.name"]
