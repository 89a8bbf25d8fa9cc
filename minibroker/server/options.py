"""Start options of a broker, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minibroker.config.types import ConfigError
from minibroker.kernel.arguments import is_uri
from minibroker.server.topic_check import check_topic

if TYPE_CHECKING:
    from minibroker.server.setup import Setup

DEFAULT_HOST = "127.0.0.1"
_MAX_BROKERS = 100
_MAX_TRANSACTION_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One cluster to start. Made by `make_options`, which checks it.

    ports: one a broker, 0 for a free one.
    data_dir: kept; None: in memory when `ephemeral`, else a directory that is removed at the end.
    transaction_version: None for the semantics' own.
    as_version: the release of Kafka to answer as, None for the newest.
    topics: name → partitions.
    control: address of the control API, None for none.
    control_token: None for a new one.
    metrics: address of the page for Prometheus, None for none.
    page: the control API shows the live page, too.
    setup: what the broker begins with.
    """

    host: str
    ports: tuple[int, ...]
    data_dir: str | None
    ephemeral: bool
    semantics: str
    transaction_version: int | None
    as_version: str | None
    topics: Mapping[str, int]
    config: Mapping[str, Any] = field(repr=False)  # passwords are among them
    control: tuple[str, int] | None = None
    control_token: str | None = field(default=None, repr=False)
    metrics: tuple[str, int] | None = None
    page: bool = False
    setup: Setup | None = None


def make_options(
    *,
    host: str = DEFAULT_HOST,
    brokers: int = 1,
    port: int = 0,
    ports: Sequence[int] | None = None,
    data_dir: str | None = None,
    ephemeral: bool = False,
    semantics: str = "kafka",
    transaction_version: int | None = None,
    as_version: str | None = None,
    topics: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
    not_yet: bool = False,
    control: tuple[str, int] | None = None,
    control_token: str | None = None,
    metrics: tuple[str, int] | None = None,
    page: bool = False,
    setup: str | None = None,
) -> Options:
    """Checked options. `ports` names every broker's port; `port` the first one's, the others take the next numbers.

    not_yet: the setting minibroker.not.yet.answers.
    setup: the path of a file (`minibroker.server.setup`); `config` comes before its settings.

    With `page` and no `control` address the API is served on a free port of the loopback interface.

    Raises ConfigError with one line.
    """
    if not 1 <= brokers <= _MAX_BROKERS:
        raise ConfigError(f"brokers must be between 1 and {_MAX_BROKERS}, not {brokers}")
    if data_dir == "":
        raise ConfigError("the data directory has no name; leave it out for a temporary one")
    if data_dir is not None and is_uri(data_dir):
        raise ConfigError(f"the data directory {data_dir} is a URI: it must be a path of this machine")
    if data_dir is not None and ephemeral:
        raise ConfigError("a data directory and ephemeral exclude each other")
    if transaction_version is not None and not 0 <= transaction_version <= _MAX_TRANSACTION_VERSION:
        raise ConfigError(f"transaction version must be 0, 1 or 2, not {transaction_version}")
    if not isinstance(topics or {}, Mapping):
        raise ConfigError(f"topics are names and how many partitions, such as {{'orders': 1}}, not {topics!r}")
    for name, partitions in (topics or {}).items():
        check_topic(name, partitions)
    begin = None
    if setup is not None:
        from minibroker.server.setup import load

        begin = load(str(setup))
    return Options(
        host=host,
        ports=_ports(brokers, port, ports),
        data_dir=data_dir,
        ephemeral=ephemeral,
        semantics=semantics,
        transaction_version=transaction_version,
        as_version=as_version,
        topics=dict(topics or {}),
        config={
            **({"minibroker.not.yet.answers": "true"} if not_yet else {}),
            **(begin.config if begin is not None else {}),
            **(config or {}),
        },
        control=(DEFAULT_HOST, 0) if page and control is None else control,
        control_token=control_token,
        metrics=metrics,
        page=page,
        setup=begin,
    )


def behaviour_arguments(options: Options) -> list[str]:
    """What `options` say of the broker's behaviour and topics, as arguments of `minibroker serve`; settings aside."""
    arguments = ["--semantics", options.semantics]
    if options.transaction_version is not None:
        arguments += ["--transaction-version", str(options.transaction_version)]
    if options.as_version is not None:
        arguments += ["--as-version", options.as_version]
    for name, partitions in options.topics.items():
        arguments += ["--topic", f"{name}:{partitions}"]
    if options.setup is not None:
        arguments += ["--setup", options.setup.path]
    return arguments


def parse_topic(text: str) -> tuple[str, int]:
    """``name:partitions``; a name alone has one partition."""
    name, _, count = text.rpartition(":") if ":" in text else (text, ":", "1")
    if not name:
        raise ConfigError(f"expected NAME:PARTITIONS, got {text!r}, which has no name")
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"expected NAME:PARTITIONS, got {text!r}: partitions are a number from 1 on, not {count!r}")
    return name, int(count)


def parse_ports(text: str) -> tuple[int, ...]:
    """``9092`` or ``9092,9093``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"expected a port or ports separated by commas, got {text!r}")
    return tuple(int(part) for part in parts)


def _ports(brokers: int, port: int, ports: Sequence[int] | None) -> tuple[int, ...]:
    if ports is None:
        ports = [0] * brokers if port == 0 else range(port, port + brokers)
    elif len(ports) != brokers:
        raise ConfigError(f"{brokers} broker(s) need as many ports, not {len(ports)}")
    for number in ports:
        if not 0 <= number <= 65535:
            raise ConfigError(f"port {number} is not between 0 and 65535")
    fixed = [number for number in ports if number]
    if len(set(fixed)) != len(fixed):
        raise ConfigError("two brokers cannot have the same port")
    return tuple(ports)
