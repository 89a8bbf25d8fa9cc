"""The pytest plugin: brokers, unique names, clients, faults that must happen, and a report when a test fails.

Loaded by pytest through the entry point ``minibroker``; imports nothing of a broker or client until a fixture is used.
One broker a set of options and a process serves all tests (so every worker of pytest-xdist has its own); names keep the
tests apart, and faults, frozen clocks and held markers end with the test that made them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from minibroker.kernel.words import near
from minibroker.testing import brokers_of_test
from minibroker.testing.brokers_of_test import BrokersOfTest
from minibroker.testing.hang_report import HangWatch
from minibroker.testing.hang_report import text as hang_text

if TYPE_CHECKING:
    from pathlib import Path

    from minibroker.testing.embedded import Minibroker
    from minibroker.testing.factories import (
        AiokafkaConsumerFactory,
        AiokafkaProducerFactory,
        ConfluentConsumerFactory,
        ConfluentProducerFactory,
    )
    from minibroker.testing.proxy import Proxy

__tracebackhide__ = True  # pytest shows the line of the test

MARKER = "minibroker"
_NAMES = ("brokers", "semantics", "as_version", "transaction_version", "not_yet", "setup")
_CLUSTER_BROKERS = 3
_REPLICAS = 3
_EXCHANGES_SHOWN = 20
_HANG_SECONDS = 30.0
_EXCHANGES_KEPT = 2000
_BROKERS = pytest.StashKey[BrokersOfTest]()
_STDERR = pytest.StashKey[int]()
_WAITS: pytest.StashKey[str] = pytest.StashKey()
_TRACES: pytest.StashKey[Path] = pytest.StashKey()

Factory = Callable[..., Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("minibroker", "a Kafka broker for the tests")
    group.addoption("--minibroker-brokers", type=int, metavar="N", help="brokers of `minibroker` (default: 1)")
    group.addoption("--minibroker-semantics", metavar="NAME", help="kafka (default) or kip")
    group.addoption(
        "--minibroker-as-version",
        metavar="RELEASE",
        help="answer as this release of Kafka did (minibroker serve --help)",
    )
    group.addoption("--minibroker-transaction-version", type=int, metavar="V", help="0, 1 or 2")
    group.addoption(
        "--minibroker-not-yet",
        action="store_const",
        const=True,
        help="tell clients to wait and ask again wherever Kafka does",
    )
    group.addoption(
        "--minibroker-setup", metavar="FILE", help="topics, users, ACLs, rules and the clock (minibroker serve --setup)"
    )
    group.addoption(
        "--minibroker-upstream",
        metavar="HOST:PORT[,…]",
        help="the cluster that `minibroker_proxy` stands in front of (default: the broker of the test)",
    )
    group.addoption(
        "--minibroker-config", action="append", default=[], metavar="KEY=VALUE", help="set one of Kafka's settings"
    )
    group.addoption(
        "--minibroker-fault",
        action="append",
        default=[],
        metavar="RULE",
        help="a fault rule, as JSON, active in every test: "
        '\'{"api": "EndTxn", "action": "drop_reply", "probability": 0.1, "times": null}\'',
    )
    group.addoption(
        "--minibroker-hang-after",
        type=float,
        default=_HANG_SECONDS,
        metavar="SECONDS",
        help="print what the brokers of a test wait for, once it has run for so long; 0: never (default: %(default)g)",
    )
    group.addoption(
        "--minibroker-exchanges",
        type=int,
        default=_EXCHANGES_SHOWN,
        metavar="N",
        help="lines about exchanges in the report of a failed test (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "minibroker(brokers=1, semantics='kafka', as_version=None, transaction_version=2, not_yet=False, setup=None, "
        "config={}, faults=[]): the "
        "broker that this test's fixtures give, and rules that are set for it",
    )
    # A copy, as pytest captures what is written to the descriptor itself while a test runs.
    with suppress(OSError, ValueError):
        config.stash[_STDERR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _STDERR in config.stash:
        os.close(config.stash[_STDERR])
        del config.stash[_STDERR]


# -- brokers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def minibroker_pool(request: pytest.FixtureRequest) -> Iterator[Callable[..., Minibroker]]:
    """``pool(brokers=…, semantics=…, …)``: a running broker with these options of `Minibroker`, started once."""
    from minibroker.testing.embedded import Minibroker

    running: dict[str, Minibroker] = {}

    def pool(**options: Any) -> Minibroker:
        key = repr(sorted(options.items()))
        if key not in running:
            running[key] = Minibroker(**options).start()
            brokers_of_test.pooled(running[key])
        return running[key]

    yield pool
    for broker in running.values():
        broker.stop()


@pytest.fixture(scope="session")
def minibroker_session(request: pytest.FixtureRequest, minibroker_pool: Factory) -> Minibroker:
    """The broker that `minibroker` gives to tests without a marker, for fixtures that live as long as the session.
    What a test changes stays; nothing is cleaned up."""
    broker: Minibroker = minibroker_pool(**_with(*_of_the_command_line(request.config)))
    return broker


@pytest.fixture(scope="session")
def minibroker_cluster_session(request: pytest.FixtureRequest, minibroker_pool: Factory) -> Minibroker:
    """The cluster that `minibroker_cluster` gives to tests without a marker, as `minibroker_session`."""
    options = _with(*_of_the_command_line(request.config))
    cluster: Minibroker = minibroker_pool(**{"brokers": _CLUSTER_BROKERS, **options})
    return cluster


@pytest.fixture
def minibroker(request: pytest.FixtureRequest, minibroker_pool: Factory) -> Iterator[Minibroker]:
    """A running broker, as the marker and the command line want it."""
    yield from _lent(request, minibroker_pool(**_options(request)))


@pytest.fixture
def minibroker_cluster(request: pytest.FixtureRequest, minibroker_pool: Factory) -> Iterator[Minibroker]:
    """A running cluster, of three brokers unless the marker says another number."""
    yield from _lent(request, minibroker_pool(**{"brokers": _CLUSTER_BROKERS, **_options(request)}))


@pytest.fixture
def minibroker_proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """A proxy in front of the cluster of ``--minibroker-upstream``, without it in front of this test's broker. Clients
    of the plugin reach that cluster through the proxy, so its `faults` act on them."""
    from minibroker.testing.proxy import Proxy

    upstream = request.config.getoption("--minibroker-upstream")
    own = upstream is None
    if own:  # which has the rules of the marker and the command line already
        upstream = request.getfixturevalue("minibroker_of_test").bootstrap_servers
    with Proxy(upstream, record=_EXCHANGES_KEPT) as proxy:
        if not own:
            _inject(request, proxy)
        yield proxy


@pytest.fixture
def minibroker_of_test(request: pytest.FixtureRequest) -> Minibroker:
    """The broker of this test: `minibroker_cluster` in a test that asks for that, else `minibroker`. Topics and
    clients of the plugin are on it; a fixture of this name of your own puts them on another."""
    wanted = "minibroker_cluster" if "minibroker_cluster" in request.fixturenames else "minibroker"
    broker: Minibroker = request.getfixturevalue(wanted)
    return broker


@pytest.fixture
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """``HOST:PORT`` of `minibroker_proxy` in a test that asks for that, else of `minibroker_of_test`."""
    wanted = "minibroker_proxy" if "minibroker_proxy" in request.fixturenames else "minibroker_of_test"
    servers: str = request.getfixturevalue(wanted).bootstrap_servers
    return servers


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    options, settings = _of_the_command_line(request.config)
    # The nearest marker comes first, so the farthest is applied first.
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"the marker {MARKER} takes keyword arguments only")
        keywords = dict(marker.kwargs)
        keywords.pop("faults", None)
        settings.update(keywords.pop("config", {}))
        unknown = keywords.keys() - set(_NAMES)
        if unknown:
            name = min(unknown)
            raise pytest.UsageError(f"the marker {MARKER} has no {name!r}{near(name, (*_NAMES, 'config', 'faults'))}")
        options.update(keywords)
    return _with(options, settings)


def _of_the_command_line(config: pytest.Config) -> tuple[dict[str, Any], dict[str, str]]:
    options: dict[str, Any] = {}
    for name in _NAMES:
        value = config.getoption(f"--minibroker-{name.replace('_', '-')}")
        if value is not None:
            options[name] = value
    return options, dict(text.partition("=")[::2] for text in config.getoption("--minibroker-config"))


def _with(options: dict[str, Any], settings: dict[str, str]) -> dict[str, Any]:
    return {**options, "config": settings} if settings else options


def _rule(text: str) -> dict[str, Any]:
    try:
        rule = json.loads(text)
    except ValueError as error:
        raise pytest.UsageError(f"--minibroker-fault takes JSON: {error}") from None
    if not isinstance(rule, dict):
        raise pytest.UsageError("--minibroker-fault takes a JSON object")
    return rule


def _inject(request: pytest.FixtureRequest, broker: Minibroker | Proxy) -> None:
    """The rules of the marker and of the command line."""
    for marker in request.node.iter_markers(MARKER):
        for fault in marker.kwargs.get("faults", []):
            broker.faults.inject(**fault)
    for text in request.config.getoption("--minibroker-fault"):
        broker.faults.inject(**{"api": None, **_rule(text)}, expected=False)


def _lent(request: pytest.FixtureRequest, broker: Minibroker) -> Iterator[Minibroker]:
    """The broker for one test; afterwards everything the test changed but its records is undone."""
    request.node.stash[_BROKERS].lend(broker)
    with suppress(pytest.FixtureLookupError):  # pytest -p no:tmpdir
        request.node.stash[_TRACES] = request.getfixturevalue("tmp_path_factory").getbasetemp() / "minibroker"
    broker.control.record(_EXCHANGES_KEPT)
    if broker.setup is not None:
        broker.faults.clear()  # counts begin anew
        for rule in broker.setup.rules:
            broker.faults.inject(**{"api": None, **rule}, expected=False)
        if broker.setup.clock_frozen:
            broker.clock.freeze()
    _inject(request, broker)
    yield broker
    broker.faults.clear()
    if broker.clock.frozen:
        broker.clock.unfreeze()
    broker.state.restore()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Know every broker that runs while the test does, and say what they wait for when it does not end."""
    seconds = item.config.getoption("--minibroker-hang-after")
    watch = HangWatch(seconds, lambda: _say_waits(item, seconds)) if seconds > 0 else None
    with BrokersOfTest(watch) as brokers:
        item.stash[_BROKERS] = brokers
        return (yield)


def _say_waits(item: pytest.Item, seconds: float) -> None:
    """Print what the brokers of a slow test wait for; called on the thread of the watch."""
    waits = item.stash[_BROKERS].waits()
    said = item.stash[_WAITS] = hang_text(f"minibroker: {item.nodeid} has run for {seconds:g} s", waits)
    if _STDERR in item.config.stash:
        with suppress(OSError):
            os.write(item.config.stash[_STDERR], f"\n{said}\n".encode())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A rule that never acted fails the test that set it."""
    brokers = item.stash[_BROKERS]
    brokers.begin_call()
    yield
    brokers.verify()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the exchanges that matter to the report of a failed test."""
    report = yield
    if report.failed:
        if _WAITS in item.stash:
            report.sections.append(("minibroker: what it waited for", item.stash[_WAITS]))
        with suppress(Exception):  # a report without this is better than none
            report.sections += _sections(item)
    return report


def _sections(item: pytest.Item) -> list[tuple[str, str]]:
    """Title and text for each broker of the test; with several, the title has the address."""
    from minibroker.testing.failure_report import report

    name = re.sub(r"[^A-Za-z0-9._-]+", "-", item.nodeid.rpartition("/")[2])[-100:]
    most = item.config.getoption("--minibroker-exchanges")
    recorded = item.stash[_BROKERS].exchanges()
    sections = []
    for number, (servers, exchanges) in enumerate(recorded, 1):
        numbered = f"{name}-{number}" if len(recorded) > 1 else name
        file = item.stash[_TRACES] / f"{numbered}.jsonl" if _TRACES in item.stash else None
        title = "minibroker: what was refused" + (f" at {servers}" if len(recorded) > 1 else "")
        sections.append((title, report(exchanges, most, file)))
    return sections


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """``unique_name("orders")``: a name with this prefix that no other test has."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:60].strip("-")

    def name(prefix: str) -> str:
        return f"{prefix}-{test}-{uuid.uuid4().hex[:8]}"

    return name


@pytest.fixture
def unique_topic(request: pytest.FixtureRequest, unique_name: Callable[[str], str]) -> str:
    """The name of a topic that exists and is empty, with one partition on up to three brokers. For others give a
    `unique_name` to ``minibroker.state.create_topic(topic=…, partitions=…)``, or ``minibroker_proxy.create_topic``."""
    name = unique_name("topic")
    if request.config.getoption("--minibroker-upstream") is not None and "minibroker_proxy" in request.fixturenames:
        request.getfixturevalue("minibroker_proxy").create_topic(name)
        return name

    minibroker_of_test: Minibroker = request.getfixturevalue("minibroker_of_test")
    replicas = min(_REPLICAS, len(minibroker_of_test.control.describe()["brokers"]))
    minibroker_of_test.state.create_topic(topic=name, replication_factor=replicas)
    return name


@pytest.fixture
def unique_group(unique_name: Callable[[str], str]) -> str:
    """The name of an unused consumer group."""
    return unique_name("group")


@pytest.fixture
def unique_transactional_id(unique_name: Callable[[str], str]) -> str:
    """An unused transactional id."""
    return unique_name("txn")


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def confluent_producer(bootstrap_servers: str) -> Iterator[ConfluentProducerFactory]:
    """``confluent_producer({"transactional.id": …})``: a `confluent_kafka.Producer`, without linger unless told."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    made: list[Any] = []

    def producer(config: Mapping[str, Any] | None = None) -> Any:
        made.append(
            confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, **(config or {})})
        )
        return made[-1]

    yield producer
    for client in made:
        with suppress(Exception):  # a fenced client refuses even this
            client.purge()
            client.flush(0)


@pytest.fixture
def confluent_consumer(bootstrap_servers: str, unique_group: str) -> Iterator[ConfluentConsumerFactory]:
    """``confluent_consumer({…})``: a `confluent_kafka.Consumer` of this test's group, from the earliest offset on,
    reading what is committed."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    made: list[Any] = []

    def consumer(config: Mapping[str, Any] | None = None) -> Any:
        defaults = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": unique_group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
        made.append(confluent_kafka.Consumer({**defaults, **(config or {})}))
        return made[-1]

    yield consumer
    for client in made:
        with suppress(RuntimeError):  # closed by the test
            client.close()


@pytest.fixture
def confluent_admin(bootstrap_servers: str) -> Any:
    """A `confluent_kafka.admin.AdminClient`."""
    pytest.importorskip("confluent_kafka")
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap_servers})


@pytest.fixture
def aiokafka_producer(bootstrap_servers: str) -> AiokafkaProducerFactory:
    """``async with aiokafka_producer(transactional_id=…) as producer``, under any plugin that runs coroutines."""
    aiokafka = pytest.importorskip("aiokafka")

    def producer(**config: Any) -> Any:
        return aiokafka.AIOKafkaProducer(**{"bootstrap_servers": bootstrap_servers, **config})

    return producer


@pytest.fixture
def aiokafka_consumer(bootstrap_servers: str, unique_group: str) -> AiokafkaConsumerFactory:
    """``async with aiokafka_consumer(topic) as consumer``: of this test's group, from the earliest offset on, reading
    what is committed."""
    aiokafka = pytest.importorskip("aiokafka")

    def consumer(*topics: str, **config: Any) -> Any:
        defaults = {
            "bootstrap_servers": bootstrap_servers,
            "group_id": unique_group,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
        }
        return aiokafka.AIOKafkaConsumer(*topics, **{**defaults, **config})

    return consumer
