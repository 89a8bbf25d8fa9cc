from __future__ import annotations

import re
import time

import pytest

from minibroker.config.keys import BROKER_KEYS, TOPIC_KEYS
from minibroker.config.names import JVM_VARIABLES, without_effect
from minibroker.config.settings import (
    ConfigError,
    ConfigSource,
    ConfigType,
    Scope,
    Settings,
    environment_config,
    environment_name,
    environment_of,
    parse_assignment,
    validate_topic_config,
)
from minibroker.config.types import ConfigKey
from minibroker.kernel.words import near
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.config import INT64_MAX, LogConfig

# Kafka 4.3's defaults, taken from AbstractKafkaConfig.CONFIG_DEF and LogConfig.
KAFKA_DEFAULTS = {
    "transaction.max.timeout.ms": 900_000,
    "transactional.id.expiration.ms": 604_800_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "producer.id.expiration.ms": 86_400_000,
    "producer.id.expiration.check.interval.ms": 600_000,
    "transaction.state.log.num.partitions": 50,
    "offsets.topic.num.partitions": 50,
    "socket.request.max.bytes": 104_857_600,
    "message.max.bytes": 1_048_588,
    "group.min.session.timeout.ms": 6000,
    "group.max.session.timeout.ms": 1_800_000,
    "replica.lag.time.max.ms": 30_000,
}

DEVIATIONS = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "queued.max.request.bytes": 256 * 1024 * 1024,
    "socket.listen.backlog.size": 1024,
    "group.consumer.assignment.interval.ms": 0,
    "group.coordinator.rebalance.protocols": ("classic", "consumer"),
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "sasl.enabled.mechanisms": ("PLAIN",),
}


def test_defaults_are_kafkas_but_for_the_ones_that_say_why_not() -> None:
    settings = Settings()
    for name, value in KAFKA_DEFAULTS.items():
        assert settings.get_int(name) == value, name
    assert {name: settings.get(name) for name, key in BROKER_KEYS.items() if key.deviation} == DEVIATIONS


def test_every_default_is_legal_and_survives_text() -> None:
    for key in [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]:
        text = key.format(key.default)
        if text is not None:
            assert key.parse(text) == key.default, key.name


def test_the_log_defaults_of_both_packages_are_the_same() -> None:
    assert Settings().log_config() == LogConfig()


def test_topic_overrides_win_over_broker_settings_and_these_over_defaults() -> None:
    settings = Settings({"log.segment.bytes": 2_000_000, "log.retention.ms": 5000, "message.max.bytes": "77"})
    config = settings.log_config({"retention.ms": "9", "cleanup.policy": "compact,delete"})
    assert (config.segment_bytes, config.retention_ms, config.max_message_bytes) == (2_000_000, 9, 77)
    assert config.cleanup_policy == {"compact", "delete"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": 2}, 7_200_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 180_000),
        ({"log.retention.minutes": 3, "log.retention.ms": 4}, 4),
        ({"log.retention.ms": -1}, -1),
        ({"log.retention.hours": -1}, -1),
    ],
)
def test_the_finer_retention_setting_wins(given: dict[str, int], expected: int) -> None:
    assert Settings(given).log_config().retention_ms == expected


def test_a_small_segment_for_tests() -> None:
    assert Settings().log_config({"internal.segment.bytes": "1024"}).segment_bytes == 1024


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transaction.max.timout.ms": 1}, "transaction.max.timout.ms, did you mean transaction.max.timeout.ms?"),
        ({"retention.ms": 1}, "retention.ms is a setting of topics; its default for all topics is log.retention.ms"),
        ({"num.partitions": 0}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ({"num.partitions": "1_0"}, "Not a number of type INT"),
        ({"num.partitions": "٣"}, "Not a number of type INT"),
        ({"num.partitions": 1 << 31}, "Not a number of type INT"),
        ({"num.partitions": "NaN"}, "Not a number of type INT"),
        ({"log.cleaner.min.cleanable.ratio": "NaN"}, "at least 0"),
        ({"log.cleaner.min.cleanable.ratio": "nan"}, "Not a number of type DOUBLE"),
        ({"auto.create.topics.enable": "yes"}, "Expected value to be either true or false"),
        ({"log.cleanup.policy": "compact,shred"}, "log.cleanup.policy"),
        ({"log.cleanup.policy": "compact,compact"}, "Duplicate"),
        ({"log.message.timestamp.type": "Never"}, "String must be one of: CreateTime, LogAppendTime"),
        ({"compression.gzip.level": 0}, "compression.gzip.level"),
        ({"log.retention.ms": 0}, "log.retention.ms must be unlimited"),
        ({"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 9}, "must not be greater"),
        ({"num.partitions": None}, "num.partitions"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_long_text_that_is_no_number_is_refused_at_once() -> None:
    """Clients choose the text, and the loop reads it. Backtracking over 30,000 digits took 20 seconds of CPU time."""
    begun = time.process_time()
    for text in ("1" * 30_000 + "x", "1." + "1" * 30_000 + "x", "1e" + "1" * 30_000 + "x"):
        with pytest.raises(ConfigError, match="Not a number of type DOUBLE"):
            TOPIC_KEYS["min.cleanable.dirty.ratio"].parse(text)
    assert time.process_time() - begun < 2


def test_a_topic_that_has_a_text_which_is_refused_by_now_goes_on() -> None:
    """A broker that cannot read the settings of a topic cannot open its log, and does not start after a crash."""
    name = "leader.replication.throttled.replicas"
    stored = {name: "abc", "retention.ms": "7"}
    assert Settings().log_config(stored).retention_ms == 7
    assert [(entry.name, entry.value) for entry in Settings().describe_topic(stored, [name])] == [(name, "abc")]
    with pytest.raises(ApiError, match="Invalid value"):
        validate_topic_config(stored)


def test_kafkas_other_settings_are_taken_and_told() -> None:
    taken = {"num.io.threads": 8, "ssl.protocol": "TLSv1.3", "zookeeper.connect": "localhost:2181"}
    settings = Settings({**taken, "num.partitions": 2})
    assert settings.ignored == tuple(taken)
    assert settings.get_int("num.partitions") == 2


def test_no_name_is_both_obeyed_and_without_effect() -> None:
    assert not [name for name in BROKER_KEYS if without_effect(name)]


def test_every_own_key_says_whose_it_is() -> None:
    for name, key in BROKER_KEYS.items():
        assert (key.scope is Scope.MINIBROKER) == name.startswith("minibroker."), name
        assert key.doc.endswith("."), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ({"no.such": "1"}, "Unknown topic config name: no.such"),
        ({"retention.mss": "1"}, "did you mean retention.ms?"),
        ({"retention.ms": None}, "Null value not supported"),
        ({"segment.bytes": "1024"}, "Value must be at least 1048576"),
        ({"remote.storage.enable": "true"}, "Tiered Storage"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "conflict topic config"),
    ],
)
def test_topic_overrides_are_refused_with_kafkas_code(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        validate_topic_config(overrides)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert message in refused.value.message
    validate_topic_config({"retention.ms": "-1", "cleanup.policy": "compact"})


def test_altered_settings_are_a_new_snapshot_on_top_of_what_was_given() -> None:
    first = Settings({"producer.id.expiration.ms": 4000, "message.max.bytes": 10})
    second = first.altered(cluster={"message.max.bytes": "20"})
    third = second.altered(broker={"message.max.bytes": "30"})
    assert [s.get_int("message.max.bytes") for s in (first, second, third)] == [10, 20, 30]
    assert third.altered(broker={}).get_int("message.max.bytes") == 20
    assert third.get_int("producer.id.expiration.ms") == 4000
    with pytest.raises(ConfigError, match=r"Cannot update these configs dynamically: \[num.partitions\]"):
        first.altered(cluster={"num.partitions": "3"})


def test_description_names_the_source_and_what_else_would_hold() -> None:
    settings = Settings({"log.retention.ms": 5000}).altered(cluster={"log.retention.ms": "6000"})
    (entry,) = settings.describe_topic({"retention.ms": "7000"}, ["retention.ms"])
    assert (entry.value, entry.source, entry.type, entry.read_only) == (
        "7000",
        ConfigSource.TOPIC_CONFIG,
        ConfigType.LONG,
        False,
    )
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("retention.ms", "7000", ConfigSource.TOPIC_CONFIG),
        ("log.retention.ms", "6000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.ms", "5000", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]
    (plain,) = Settings().describe_topic({}, ["retention.ms"])
    assert (plain.value, plain.source, plain.synonyms) == ("604800000", ConfigSource.DEFAULT_CONFIG, ())


def test_internal_settings_are_described_where_they_were_given() -> None:
    """Measured on Apache Kafka 4.4.0 with StandardAuthorizer, whose settings no ConfigDef has: secrets."""
    given = {"producer.id.expiration.check.interval.ms": 7, "super.users": "User:a"}
    names = [*given, "unstable.api.versions.enable", "allow.everyone.if.no.acl.found"]
    static = ConfigSource.STATIC_BROKER_CONFIG
    for asked in (None, names):
        rows = {row.name: row for row in Settings(given).altered(cluster={}).describe(asked) if row.name in names}
        assert {name: (row.value, row.type, row.source) for name, row in rows.items()} == {
            "producer.id.expiration.check.interval.ms": ("7", ConfigType.INT, static),
            "super.users": (None, ConfigType.UNKNOWN, static),
        }
        assert [(one.value, one.source) for one in rows["super.users"].synonyms] == [(None, static)]
    segment = "internal.segment.bytes"
    assert Settings().describe_topic({}, [segment]) == []
    assert [row.value for row in Settings().describe_topic({segment: "9"}, [segment])] == ["9"]


def test_description_of_the_broker() -> None:
    entries = {entry.name: entry for entry in Settings({"num.partitions": 4}).describe()}
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["num.partitions"].read_only
    assert not entries["message.max.bytes"].read_only
    assert "unstable.api.versions.enable" not in entries  # Kafka keeps internal ones to itself
    assert entries["log.flush.interval.messages"].value == str(INT64_MAX)


def test_the_environment_is_read_as_the_kafka_image_does() -> None:
    config, warnings = environment_config(
        {
            "KAFKA_TRANSACTION_MAX_TIMEOUT_MS": "60000",
            "KAFKA_NODE_ID": "2",
            "KAFKA_NUM_NETWORK_THREADS": "8",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_NUM_PARTITION": "3",
            "PATH": "/bin",
        }
    )
    assert config == {"transaction.max.timeout.ms": "60000", "node.id": "2", "num.network.threads": "8"}
    assert Settings(config).ignored == ("num.network.threads",)
    near = "num.partitions"
    assert warnings == [
        "KAFKA_HEAP_OPTS is for Kafka's JVM and has no effect here",
        f"KAFKA_NUM_PARTITION (num.partition) is not a setting of this broker and has no effect, did you mean {near}?",
    ]


def test_a_configuration_goes_through_the_environment_unchanged() -> None:
    assert {environment_name(name) for name in BROKER_KEYS}.isdisjoint(JVM_VARIABLES)
    for name in BROKER_KEYS:
        assert environment_config({environment_name(name): "x"}) == ({name: "x"}, [])
    config = {"num.partitions": 3, "log.cleanup.policy": ["compact", "delete"], "delete.topic.enable": False}
    found, warnings = environment_config(environment_of(config))
    assert (found, warnings) == (
        {"num.partitions": "3", "log.cleanup.policy": "compact,delete", "delete.topic.enable": "false"},
        [],
    )
    assert Settings(found).get_list("log.cleanup.policy") == ("compact", "delete")


def test_an_assignment_keeps_further_equal_signs() -> None:
    assert parse_assignment(" a.b = c=d ") == ("a.b", "c=d")
    for bad in ("a.b", "=c"):
        with pytest.raises(ConfigError, match="key=value"):
            parse_assignment(bad)


def test_a_name_that_the_release_does_not_have_is_neither_shown_nor_taken() -> None:
    name = "max.decompressed.message.bytes"
    older = Settings().with_defaults({name: None}).altered(cluster={})
    for settings, there in ((Settings(), True), (older, False)):
        assert [entry.name for entry in settings.describe([name])] == [name] * there
        assert [entry.name for entry in settings.describe_topic({}, [name])] == [name] * there
    assert older.log_config().max_decompressed_message_bytes == 2_147_483_639
    with pytest.raises(ConfigError, match="Unknown topic config name"):
        older.log_config({name: "1"})


@pytest.mark.parametrize(("kind", "bits"), [(ConfigType.SHORT, 15), (ConfigType.INT, 31), (ConfigType.LONG, 63)])
def test_the_range_of_whole_numbers(kind: ConfigType, bits: int) -> None:
    key = ConfigKey("k", kind, 0, "")
    for value, good in ((2**bits - 1, True), (2**bits, False), (-(2**bits), True), (-(2**bits) - 1, False)):
        if good:
            assert key.parse(str(value)) == value
        else:
            with pytest.raises(ConfigError, match=f"Not a number of type {kind.name}"):
                key.parse(str(value))


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_records_are_kept_for_some_time_or_for_ever(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        Settings({name: "0"})
    assert Settings({name: "-1"}).get_int(name) == -1


def test_a_variable_names_every_setting() -> None:
    names = ["log.retention.ms", "listener.name.in-side.ssl.key_store", "controller.a_b-c"]
    variables = environment_of(dict.fromkeys(names, "1"))
    assert sorted(variables) == [
        "KAFKA_CONTROLLER_A__B___C",
        "KAFKA_LISTENER_NAME_IN___SIDE_SSL_KEY__STORE",
        "KAFKA_LOG_RETENTION_MS",
    ]
    assert environment_config(variables) == (dict.fromkeys(names, "1"), [])


def test_a_number_of_thousands_of_digits_is_refused_as_any_other_that_is_too_large() -> None:
    for digits in ("9" * 50, "9" * 5000):
        with pytest.raises(ConfigError, match="Not a number of type INT"):
            BROKER_KEYS["log.retention.check.interval.ms"]._replace(type=ConfigType.INT).parse(digits)


def test_a_setting_that_a_release_lacks_is_not_taken_for_a_mistyped_one() -> None:
    assert near("compression.type", ["compression.typ", "compression.type"]) == ""
    assert near("compresion.type", ["compression.type"]) == ", did you mean compression.type?"
