"""What a broker may be started with, to the last value that is taken, and all of what a service makes of it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from minibroker.config.settings import ConfigError, Settings
from minibroker.server.command import _options, add_arguments
from minibroker.server.listener_config import ListenerConfig, advertised_by_port, listener_configs, told_outside
from minibroker.server.options import Options, behaviour_arguments, make_options, parse_ports, parse_topic
from minibroker.server.service import Service, _logged, _transaction_version

DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1", "ports": (0,), "data_dir": None, "ephemeral": False, "semantics": "kafka",
    "transaction_version": None, "as_version": None, "topics": {}, "config": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({}, {}),
        ({"brokers": 100}, {"ports": (0,) * 100}),
        ({"brokers": 2, "port": 65534}, {"ports": (65534, 65535)}),
        ({"brokers": 2, "ports": [65535, 1]}, {"ports": (65535, 1)}),
        ({"brokers": 2, "ports": [0, 0]}, {"ports": (0, 0)}),
        ({"data_dir": "d"}, {"data_dir": "d"}),
        ({"ephemeral": True}, {"ephemeral": True}),
        ({"transaction_version": 0}, {"transaction_version": 0}),
        ({"transaction_version": 2}, {"transaction_version": 2}),
        ({"topics": {"t": 1}}, {"topics": {"t": 1}}),
        ({"config": {"a": 1}}, {"config": {"a": 1}}),
        ({"page": True}, {"page": True, "control": ("127.0.0.1", 0)}),
        ({"page": True, "control": ("h", 1)}, {"page": True, "control": ("h", 1)}),
        ({"control": ("h", 1), "control_token": "x"}, {"control": ("h", 1), "control_token": "x"}),
        ({"metrics": ("h", 2)}, {"metrics": ("h", 2)}),
    ],
)
def test_options_that_are_taken(given: dict[str, Any], differs: dict[str, Any]) -> None:
    assert make_options(**given) == Options(**(DEFAULTS | differs))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"brokers": 0}, "brokers must be between 1 and 100, not 0"),
        ({"brokers": 101}, "brokers must be between 1 and 100, not 101"),
        ({"data_dir": ""}, "the data directory has no name"),
        ({"data_dir": "d", "ephemeral": True}, "exclude each other"),
        ({"transaction_version": -1}, "must be 0, 1 or 2, not -1"),
        ({"transaction_version": 3}, "must be 0, 1 or 2, not 3"),
        ({"topics": ["t"]}, "topics are names"),
        ({"topics": {"t": 0}}, "from 1 on, not 0"),
        ({"topics": {"t": "1"}}, "from 1 on, not '1'"),
        ({"topics": {"": 1}}, "name"),
        ({"ports": [1, 2]}, "1 broker"),
        ({"port": -1}, "port -1 is not between 0 and 65535"),
        ({"port": 65535, "brokers": 2}, "port 65536 is not between 0 and 65535"),
        ({"brokers": 2, "ports": [7, 7]}, "two brokers cannot have the same port"),
    ],
)
def test_options_that_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_options(**given)


def test_words_of_the_command_line() -> None:
    assert [parse_topic(text) for text in ("t", "t:3", "a:b:1")] == [("t", 1), ("t", 3), ("a:b", 1)]
    assert [parse_ports(text) for text in ("1", "1, 2")] == [(1,), (1, 2)]
    for text in (":1", "t:0", "t:x", "t:"):
        with pytest.raises(ConfigError):
            parse_topic(text)
    for text in ("", "x", "1,", "-1"):
        with pytest.raises(ConfigError):
            parse_ports(text)
    said = behaviour_arguments(make_options(transaction_version=0, as_version="3.9", topics={"t": 3}))
    assert said == ["--semantics", "kafka", "--transaction-version", "0", "--as-version", "3.9", "--topic", "t:3"]
    assert behaviour_arguments(make_options(semantics="kip")) == ["--semantics", "kip"]


def test_not_yet_is_the_setting_of_that_name() -> None:
    name = "minibroker.not.yet.answers"
    assert make_options(not_yet=True).config == {name: "true"}
    assert make_options(not_yet=True, config={name: "false"}).config == {name: "false"}
    assert make_options().config == {}


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({}, None),
        ({"transaction_version": 1}, 1),
        ({"as_version": "3.9"}, 0),
        ({"as_version": "4.0"}, 2),
        ({"as_version": "4.0", "transaction_version": 1}, 1),
    ],
)
def test_a_release_has_its_own_transaction_version(given: dict[str, Any], level: int | None) -> None:
    assert _transaction_version(make_options(**given)) == level


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"as_version": "3.9", "transaction_version": 1}, "Kafka 3.9 has no transaction.version above 0, not 1"),
        ({"as_version": "1.0"}, "version '1.0' is not one of"),
        ({"as_version": "4.0", "semantics": "kip"}, "no release of Kafka has the semantics kip"),
        ({"semantics": "x"}, "semantics 'x' is not one of"),
        ({"config": {"log.dirs": "/a,/b"}}, "one directory"),
    ],
)
def test_what_no_release_has_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Service(make_options(**given))


@pytest.mark.parametrize(
    ("given", "data_dir"),
    [
        ({}, None),
        ({"config": {"log.dirs": "/a"}}, "/a"),
        ({"config": {"log.dir": "/a"}}, "/a"),
        ({"config": {"log.dirs": "/a", "log.dir": "/b"}}, "/a"),
        ({"config": {"log.dirs": "/a"}, "data_dir": "/c"}, "/c"),
        ({"config": {"log.dirs": "/a"}, "ephemeral": True}, None),
    ],
)
def test_log_dirs_counts_where_nothing_else_says_where_data_goes(given: dict[str, Any], data_dir: str | None) -> None:
    assert Service(make_options(**given)).options.data_dir == data_dir


@pytest.mark.parametrize(
    ("listeners", "found"),
    [
        ("", []),
        ("A://h:0", [("A", "h", 0)]),
        ("a://h:65535, B://[::1]:1,", [("A", "h", 65535), ("B", "::1", 1)]),
        ("A://:9092,CONTROLLER://h:1", [("A", "", 9092)]),
    ],
)
def test_listeners_that_are_taken(listeners: str, found: list[tuple[str, str, int]]) -> None:
    made = listener_configs(make_settings(listeners), 1)
    assert [(one.name, one.host, one.port) for one in made] == found


@pytest.mark.parametrize("listeners", ["A://h:65536", "A://h:", "A://h", "A:h:1", "://", "A://h:-1"])
def test_listeners_that_are_refused(listeners: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME://HOST:PORT"):
        listener_configs(make_settings(listeners), 1)


def make_settings(listeners: str) -> Settings:
    return Settings({"listeners": listeners, "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"})


class Bound:
    """A listening socket, of which only the address counts."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._address


@pytest.mark.parametrize(
    ("declared", "bound", "told", "outside"),
    [
        ("A://h:1", "10.0.0.1", ("10.0.0.1", 1), ("10.0.0.1", 1)),
        ("A://h:1", "0.0.0.0", ("", 1), ("me", 1)),
        ("A://h:1", "::", ("", 1), ("me", 1)),
        ("SSL://h:1", "10.0.0.1", ("", 1), ("me", 1)),  # the name that the client asked for must match a certificate
        (None, "10.0.0.1", None, ("10.0.0.1", 1)),
        (None, "0.0.0.0", None, ("me", 1)),
    ],
)
def test_what_clients_are_told_of_a_listener(
    declared: str | None, bound: str, told: tuple[str, int] | None, outside: tuple[str, int]
) -> None:
    listeners = listener_configs(make_settings(declared), 1) if declared else ()
    sockets: list[Any] = [Bound(bound, 1)]
    assert advertised_by_port(listeners, sockets).get(1) == told
    assert told_outside(listeners, sockets, "me") == [outside]
    advertised = [ListenerConfig(one.name, one.host, one.port, ("a", 7), one.protocol) for one in listeners]
    assert told_outside(advertised, sockets, "me") == ([("a", 7)] if declared else [outside])


def test_a_first_port_and_a_port_for_each() -> None:
    def ports(*words: str) -> tuple[int, ...]:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        return _options(parser.parse_args(words)).ports

    assert ports("--port", "9092", "--brokers", "3") == (9092, 9093, 9094)
    assert ports("--port", "7,9", "--brokers", "2") == (7, 9)


async def test_what_fails_while_it_stops_is_logged_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with _logged("closing"):
        raise ZeroDivisionError
    assert caplog.messages == ["closing failed"]
