"""Configurations of groups, client metrics and loggers; the answers are those of a live Kafka 4.3.1."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from watched_loop import watched

from minibroker.config.keys import TOPIC_KEYS
from minibroker.config.unused import UNUSED_KEYS
from minibroker.controller.configs import AlterConfigOpType, _list_changed
from minibroker_protocol.messages import configs as c

GROUP, CLIENT_METRICS, LOGGER, BROKER, TOPIC = 32, 16, 8, 4, 2
SET, DELETE, APPEND, SUBTRACT = range(4)
NONE, UNKNOWN, INVALID_CONFIG, INVALID_REQUEST = 0, -1, 40, 42


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster()
    yield made
    made.stop()


def described(cluster: MemoryCluster, kind: int, name: str) -> c.DescribeConfigsResponse.DescribeConfigsResult:
    resource = c.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = c.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    return cluster.call(request, c.DescribeConfigsResponse, 4).results[0]


def altered(
    cluster: MemoryCluster, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [
        c.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = c.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = c.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    answer = cluster.call(request, c.IncrementalAlterConfigsResponse, 1).responses[0]
    return answer.error_code, answer.error_message


def replaced(cluster: MemoryCluster, kind: int, name: str, configs: dict[str, str | None]) -> tuple[int, str | None]:
    rows = [c.AlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in configs.items()]
    resource = c.AlterConfigsRequest.AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
    answer = cluster.call(
        c.AlterConfigsRequest(resources=[resource], validate_only=False), c.AlterConfigsResponse, 2
    ).responses[0]
    return answer.error_code, answer.error_message


SESSION, BEAT, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "interval.ms"
REFUSED = [
    (GROUP, "g", SESSION, "5", f"{SESSION} must be in the range 45000 to 60000 inclusive."),
    (GROUP, "g", SESSION, "x", f"Invalid value x for configuration {SESSION}: Not a number of type INT"),
    (GROUP, "g", SESSION, "0", f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
    (GROUP, "g", SESSION, "60001", f"{SESSION} must be in the range 45000 to 60000 inclusive."),
    (GROUP, "g", BEAT, "1", f"{BEAT} must be in the range 5000 to 15000 inclusive."),
    (GROUP, "g", BEAT, "50000", f"{BEAT} must be in the range 5000 to 15000 inclusive."),
    (
        GROUP,
        "g",
        "consumer.assignment.interval.ms",
        "50000",
        "consumer.assignment.interval.ms must be in the range 0 to 15000 inclusive.",
    ),
    (
        GROUP,
        "g",
        "share.record.lock.duration.ms",
        "1000",
        "share.record.lock.duration.ms must be in the range 15000 to 60000 inclusive.",
    ),
    (
        GROUP,
        "g",
        "streams.num.standby.replicas",
        "3",
        "streams.num.standby.replicas must be less than or equal to 2",
    ),
    (
        GROUP,
        "g",
        "share.auto.offset.reset",
        "by_duration:x",
        (
            "Invalid value by_duration:x for configuration share.auto.offset.reset: Invalid value `by_duration:x` for "
            "configuration share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the format "
            "'by_duration:<PnDTnHnMn.nS>'."
        ),
    ),
    (GROUP, "g", "nope", "1", "Unknown group config name: nope"),
    (CLIENT_METRICS, "m", INTERVAL, "x", f"Invalid value x for configuration {INTERVAL}: Not a number of type INT"),
    (CLIENT_METRICS, "m", "match", "nope=x", "Illegal client matching pattern: nope=x"),
    (CLIENT_METRICS, "m", "match", "client_id=[", "Illegal client matching pattern: client_id=["),
    (CLIENT_METRICS, "m", "match", "client_id", "Illegal client matching pattern: client_id"),
    (LOGGER, "1", "nope", "INFO", "Logger nope does not exist!"),
    (
        LOGGER,
        "1",
        "root",
        "debug",
        (
            "Cannot set the log level of root to debug as it is not a supported log level. Valid log levels are DEBUG, "
            "ERROR, FATAL, INFO, TRACE, WARN"
        ),
    ),
]


@pytest.mark.parametrize(("kind", "name", "key", "value", "message"), REFUSED)
def test_values_kafka_refuses(cluster: MemoryCluster, kind: int, name: str, key: str, value: str, message: str) -> None:
    before = described(cluster, kind, name)
    assert altered(cluster, kind, name, (key, SET, value)) == (INVALID_CONFIG, message)
    assert described(cluster, kind, name) == before


THROTTLED = (
    "{0} must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
OF_TOPICS = [
    ("cleanup.policy", "delete, 1:0,x", "1:0", "String must be one of: compact, delete"),
    ("compression.gzip.level", "-2", "-2", "Value must be between 1 and 9 or equal to -1"),
    ("compression.gzip.level", "100", "100", "Value must be between 1 and 9 or equal to -1"),
    ("flush.ms", "zstd ", "zstd ", "Not a number of type LONG"),
    ("min.cleanable.dirty.ratio", " ", " ", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "1_000", "1_000", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "2147483647", "2.147483647E9", "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "9223372036854775808", "9.223372036854776E18", "Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "Infinity", "Infinity", "Value must be no more than 1"),
    ("leader.replication.throttled.replicas", "abc", "[abc]", THROTTLED),
    ("leader.replication.throttled.replicas", "1:0, *", "[1:0, *]", THROTTLED),
    ("follower.replication.throttled.replicas", "zstd ", "[zstd]", THROTTLED),
    ("follower.replication.throttled.replicas", "*, *", "[*, *]", THROTTLED),
]
NOT_EMPTY = "Configuration 'cleanup.policy' values must not be empty."
TIERED = "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."


def test_values_of_topics_in_kafkas_words() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    for key, value, shown, reason in OF_TOPICS:
        message = f"Invalid value {shown} for configuration {key}: {reason.format(key)}"
        assert altered(cluster, TOPIC, "t", (key, SET, value)) == (INVALID_CONFIG, message)
    assert altered(cluster, TOPIC, "t", ("cleanup.policy", SET, "delete,")) == (INVALID_CONFIG, NOT_EMPTY)
    assert altered(cluster, TOPIC, "t", ("remote.storage.enable", SET, "TRUE")) == (INVALID_CONFIG, TIERED)
    for key, value, shown in (
        ("min.cleanable.dirty.ratio", "0.00001", "1.0E-5"),
        ("min.cleanable.dirty.ratio", "1.25e-4", "1.25E-4"),
        ("min.cleanable.dirty.ratio", "1e-3d", "0.001"),
        ("leader.replication.throttled.replicas", "1:0,2:1,", "1:0,2:1,"),
        ("follower.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "*,", "*,"),
    ):
        assert altered(cluster, TOPIC, "t", (key, SET, value)) == (NONE, None)
        (entry,) = [entry for entry in described(cluster, TOPIC, "t").configs if entry.name == key]
        assert entry.value == entry.synonyms[0].value == shown
    cluster.stop()


INVALID = [
    (GROUP, "", (SESSION, SET, "50000"), "Default group resources are not allowed."),
    (GROUP, "g", (SESSION, SET, None), f"Null value not supported for : {SESSION}"),
    (CLIENT_METRICS, "", (INTERVAL, SET, "1000"), "Subscription name can't be empty"),
    (
        CLIENT_METRICS,
        "m",
        (INTERVAL, SET, "99"),
        "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
    ),
    (CLIENT_METRICS, "m", ("nope", SET, "a"), "Unknown client metrics configuration: nope"),
    (LOGGER, "", ("root", SET, "INFO"), "Node id must be an integer, but it is: "),
    (LOGGER, "x", ("root", SET, "INFO"), "Node id must be an integer, but it is: x"),
    (LOGGER, "2", ("root", SET, "INFO"), "Unexpected node id. Expected 1, but received 2"),
    (LOGGER, "1", ("root", DELETE, None), "Removing the log level of the root logger is not allowed"),
    (LOGGER, "1", ("root", APPEND, "INFO"), "APPEND operation is not allowed for the BROKER_LOGGER resource"),
    (LOGGER, "1", ("root", SET, None), "Null value not supported for : root"),
    (64, "g", ("a", SET, "b"), "Unknown resource type 64"),
]


@pytest.mark.parametrize(("kind", "name", "change", "message"), INVALID)
def test_requests_kafka_refuses(
    cluster: MemoryCluster, kind: int, name: str, change: tuple[str, int, str | None], message: str
) -> None:
    assert altered(cluster, kind, name, change) == (INVALID_REQUEST, message)


def test_an_unknown_name_of_client_metrics_comes_before_a_wrong_value(cluster: MemoryCluster) -> None:
    answer = altered(cluster, CLIENT_METRICS, "m", (INTERVAL, SET, "x"), ("log.dirs", SET, "a"))
    assert answer == (INVALID_REQUEST, "Unknown client metrics configuration: log.dirs")


def test_lists_are_not_lists_to_the_change_of_a_group_or_of_client_metrics(cluster: MemoryCluster) -> None:
    for kind, key in ((GROUP, SESSION), (CLIENT_METRICS, "metrics")):
        for operation, word in ((APPEND, "APPEND"), (SUBTRACT, "SUBTRACT")):
            message = f"Can't {word} to key {key} because its type is not LIST."
            assert altered(cluster, kind, "n", (key, operation, "1")) == (INVALID_CONFIG, message)


def test_a_group_has_its_own_values_and_the_brokers_for_the_rest(cluster: MemoryCluster) -> None:
    assert altered(cluster, GROUP, "g", (SESSION, SET, "50000"), ("streams.num.standby.replicas", SET, "1")) == (
        0,
        None,
    )
    rows = {
        row.name: (row.value, row.config_source, row.config_type, [(s.name, s.value, s.source) for s in row.synonyms])
        for row in described(cluster, GROUP, "g").configs
    }
    assert len(rows) >= 17
    broker = f"group.{SESSION}"
    assert rows[SESSION] == ("50000", 8, 3, [(SESSION, "50000", 8), (broker, "45000", 5)])
    assert rows[BEAT] == ("5000", 5, 3, [(f"group.{BEAT}", "5000", 5)])
    reset = "share.auto.offset.reset"
    assert rows[reset] == ("latest", 5, 2, [(reset, "latest", 5)])
    standby = "streams.num.standby.replicas"
    assert rows[standby] == ("1", 8, 3, [(standby, "1", 8), (f"group.{standby}", "0", 5)])


def test_what_was_set_is_listed_until_it_is_deleted_and_survives_a_restart() -> None:
    first = MemoryCluster()
    assert altered(first, GROUP, "g", (SESSION, SET, "50000")) == (0, None)
    assert altered(first, GROUP, "seen", (SESSION, SET, "50000"), validate_only=True) == (0, None)
    assert altered(first, CLIENT_METRICS, "m", ("match", SET, "client_id=a.*"), ("metrics", SET, "a,b")) == (0, None)
    assert replaced(first, GROUP, "gone", {SESSION: "46000"}) == (0, None)
    assert replaced(first, GROUP, "gone", {}) == (0, None)
    assert replaced(first, LOGGER, "1", {"root": "INFO"}) == (INVALID_REQUEST, "Unknown resource type 8")
    first.stop()
    second = MemoryCluster(disk=first.disk, now_ms=1_700_000_100_000, seed=8)
    listed = second.call(c.ListConfigResourcesRequest(resource_types=[]), c.ListConfigResourcesResponse, 1)
    found = [(r.resource_type, r.resource_name) for r in listed.config_resources]
    assert found == [(32, "g"), (16, "m"), (8, "1"), (4, "1")]
    old = second.call(c.ListConfigResourcesRequest(), c.ListConfigResourcesResponse, 0)
    assert [(r.resource_type, r.resource_name) for r in old.config_resources] == [(16, "m")]
    rows = {row.name: (row.value, row.config_source) for row in described(second, CLIENT_METRICS, "m").configs}
    assert rows == {"interval.ms": ("300000", 5), "match": ("client_id=a.*", 7), "metrics": ("a,b", 7)}
    assert altered(second, GROUP, "g", (SESSION, DELETE, None), ("nope", DELETE, None)) == (0, None)
    assert not second.broker.image.configs_of(GROUP, "g")
    second.stop()


def test_the_level_of_a_logger_acts(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "minibroker.broker.broker"
    logger = logging.getLogger(name)
    monkeypatch.setattr(logging.getLogger(name), "level", logger.level)
    assert altered(cluster, LOGGER, "1", (name, SET, "FATAL")) == (0, None)
    assert not logger.isEnabledFor(logging.ERROR)
    rows = {
        row.name: (row.value, row.config_source, row.config_type) for row in described(cluster, LOGGER, "1").configs
    }
    assert rows[name] == ("FATAL", 6, 0)
    assert "root" in rows
    assert altered(cluster, LOGGER, "1", (name, DELETE, None)) == (0, None)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (GROUP, "", "Group name must not be empty"),
        (CLIENT_METRICS, "", "Client metrics subscription name must not be empty"),
        (LOGGER, "", "Broker id must not be empty"),
        (LOGGER, "x", "Broker id must be an integer, but it is: x"),
        (LOGGER, "2", "Unexpected broker id, expected 1 but received 2"),
    ],
)
def test_names_that_have_no_configuration(cluster: MemoryCluster, kind: int, name: str, message: str) -> None:
    answer = described(cluster, kind, name)
    assert (answer.error_code, answer.error_message, answer.configs) == (INVALID_REQUEST, message, [])


def test_a_broker_shows_the_settings_that_change_nothing_here(cluster: MemoryCluster) -> None:
    rows = {row.name: row for row in described(cluster, BROKER, "1").configs}
    assert not UNUSED_KEYS.keys() - rows.keys()
    assert (rows["num.io.threads"].value, rows["num.io.threads"].config_type) == ("8", 3)
    assert not rows["num.io.threads"].read_only
    assert rows["controller.socket.timeout.ms"].read_only


def test_names_that_no_broker_knows_are_kept_and_shown_without_a_value(cluster: MemoryCluster) -> None:
    """A plug-in may know them (a live Kafka 4.4.0)."""
    assert altered(cluster, BROKER, "", ("nope", SET, "x"), ("log.retention.ms", SET, "777")) == (NONE, None)
    assert altered(cluster, BROKER, "1", ("nope", SET, "y"), ("retention.ms", SET, "1")) == (NONE, None)

    def shown(name: str) -> list[tuple[str, str | None, int, bool, int, list[int]]]:
        return sorted(
            (row.name, row.value, row.config_source, row.read_only, row.config_type, [s.source for s in row.synonyms])
            for row in described(cluster, BROKER, name).configs
            if row.name in ("nope", "retention.ms")
        )

    assert shown("1") == [("nope", None, 2, True, 0, [2, 3]), ("retention.ms", None, 2, True, 0, [2])]
    assert cluster.broker.settings.get_int("log.retention.ms") == 777
    assert altered(cluster, BROKER, "1", ("nope", DELETE, None), ("retention.ms", DELETE, None)) == (NONE, None)
    assert shown("1") == shown("") == [("nope", None, 3, True, 0, [3])]
    code, _ = altered(cluster, BROKER, "", ("nope", SET, "x"), ("node.id", SET, "7"))
    assert code == INVALID_REQUEST


@pytest.mark.parametrize(
    ("node", "expected"),
    [("x", "Node id must be an integer, but it is: x"), (" 1", "Node id must be an integer, but it is:  1"),
     ("-1", "Unexpected broker id, expected 1, but received -1"), ("+1", None), ("01", None)],
)  # fmt: skip
def test_the_id_of_a_broker(cluster: MemoryCluster, node: str, expected: str | None) -> None:
    code = INVALID_REQUEST if expected else NONE
    assert altered(cluster, BROKER, node, ("log.retention.ms", SET, "5")) == (code, expected)
    assert cluster.broker.settings.get("log.retention.ms") == (None if expected else 5)


def patterns_of(size: int) -> Iterator[str]:
    """Harmless ones, in one entry and in many."""
    yield "client_id=" + "(?:a|b)?" * (size // 8)
    yield ",".join(["client_id=a.*"] * (size // 14))
    yield "client_id=[" + "a-c" * (size // 3) + "]"


def test_long_patterns_of_clients_are_looked_at_elsewhere() -> None:
    """58 KB in two subscriptions, one of which is wrong at its end: no turn of the loop grows with them."""
    with watched() as loop:

        def turns(*matches: str) -> list[int]:
            resources = [
                c.IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=CLIENT_METRICS,
                    resource_name=f"m{index}",
                    configs=[
                        c.IncrementalAlterConfigsRequest.AlterableConfig(name="match", config_operation=SET, value=text)
                    ],
                )
                for index, text in enumerate(matches)
            ]
            request = c.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
            answer = loop.cluster.decode(type(request), 1, loop.serve(request, 1))
            codes.append([one.error_code for one in answer.responses])
            return list(loop.turns)

        codes: list[list[int]] = []
        turns("client_id=a", "client_id=a**")  # imports, and compiles
        short = turns("client_id=a", "client_id=a**")
        for long in patterns_of(29_000):
            assert max(turns(long, long + "**")) < max(short) + 2000
            assert loop.cluster.broker.image.configs_of(CLIENT_METRICS, "m0")["match"] == long
        assert codes == [[0, INVALID_CONFIG]] * 5


class Compared(str):
    """Counts how often one of its items is compared."""

    times = 0

    def split(self, *separator: Any) -> list[str]:  # type: ignore[override]
        return [Compared(item) for item in super().split(*separator)]

    def rstrip(self, *letters: Any) -> Compared:
        return Compared(super().rstrip(*letters))

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_changes_of_a_list_are_linear(operation: int) -> None:
    key = TOPIC_KEYS["cleanup.policy"]
    there, change = (Compared(",".join(f"{letter}{i}" for i in range(2000))) for letter in "ab")
    Compared.times = 0
    result = _list_changed(key, {key.name: there}, change, AlterConfigOpType(operation))
    assert result == (f"{there},{change}" if operation == APPEND else there)
    assert Compared.times < 10 * 2000


def test_changes_of_a_list_are_those_of_kafka() -> None:
    """AbstractConfig values: APPEND adds what is not there, SUBTRACT removes the first of each."""
    key = TOPIC_KEYS["cleanup.policy"]
    current = {key.name: "a,b,,a"}
    assert _list_changed(key, current, "c,b,c,d", AlterConfigOpType.APPEND) == "a,b,a,c,d"
    assert _list_changed(key, current, "a,c", AlterConfigOpType.SUBTRACT) == "b,a"
    assert _list_changed(key, current, "a,a,a", AlterConfigOpType.SUBTRACT) == "b"
    assert _list_changed(key, current, "c,,", AlterConfigOpType.APPEND) == "a,b,a,c"
    assert _list_changed(key, current, ",,", AlterConfigOpType.APPEND) == "a,b,a"
    assert _list_changed(key, current, "", AlterConfigOpType.APPEND) == "a,b,a,"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1 ", "Broker id must be an integer, but it is: 1 "),
        ("1_0", "Broker id must be an integer, but it is: 1_0"),
        ("2147483648", "Broker id must be an integer, but it is: 2147483648"),
        ("9" * 5000, "Broker id must be an integer, but it is: " + "9" * 5000),
        ("-2147483648", "Unexpected broker id, expected 1 or empty string, but received -2147483648"),
        ("0" * 5000 + "2", "Unexpected broker id, expected 1 or empty string, but received " + "0" * 5000 + "2"),
        ("+1", ""),
        ("٠١", ""),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_ids_of_brokers_are_read_as_java_reads_them(cluster: MemoryCluster, name: str, message: str) -> None:
    result = described(cluster, BROKER, name)
    assert (result.error_code, result.error_message) == (INVALID_REQUEST if message else NONE, message)


def test_a_setting_that_no_broker_knows_is_sensitive(cluster: MemoryCluster) -> None:
    """Measured on Apache Kafka 4.4.0 (kafka-configs prints `zork=null sensitive=true`)."""
    assert altered(cluster, BROKER, "1", ("zork", 0, "7"), ("log.cleaner.threads", 0, "2"))[0] == NONE
    rows = {row.name: row for row in described(cluster, BROKER, "1").configs}
    assert [(rows[name].value, rows[name].is_sensitive) for name in ("zork", "log.cleaner.threads", "broker.rack")] == [
        (None, True),
        ("2", False),
        (None, False),
    ]
