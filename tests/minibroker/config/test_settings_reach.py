"""Settings reach the configuration of logs and coordinators, and the topics that are created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from group_client import GroupClient
from many_brokers import ManyBrokers
from memory_cluster import MemoryCluster

from minibroker.config.groups import GROUP_KEYS, validate_group_config
from minibroker.config.keys import BROKER_KEYS, TOPIC_KEYS
from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError, ConfigKey, ConfigType
from minibroker.coordinators.groups.environment import GroupConfig, with_overrides
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.server.edge import Limits
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.config import LogConfig


def another(key: ConfigKey) -> tuple[str, Any]:
    """A value that is not the default, as text and as it is read."""
    if key.type is ConfigType.BOOLEAN:
        return ("false", False) if key.default else ("true", True)
    if key.choices:
        default = key.default if isinstance(key.default, tuple) else (key.default,)
        other = next(choice for choice in key.choices if choice not in default[:1])
        return other, (other,) if key.type is ConfigType.LIST else other
    if key.type is ConfigType.DOUBLE:
        return "0.25", 0.25
    number = 8 if key.maximum is not None and key.maximum < 100 else (key.minimum or 0) + 7
    return str(number), number


def of_log(settings: Settings, overrides: Mapping[str, str], name: str) -> Any:
    value = getattr(settings.log_config(overrides), name.replace(".", "_"))
    return tuple(value) if isinstance(value, frozenset) else value


OF_LOGS = [
    name for name, key in TOPIC_KEYS.items() if key.effect and name.replace(".", "_") in LogConfig.__dataclass_fields__
]
OF_BROKERS = [
    (broker, name) for name in OF_LOGS for synonym in TOPIC_KEYS[name].synonyms[:1]
    for broker in (synonym, *BROKER_KEYS[synonym].synonyms)
]  # fmt: skip
UNITS = {"hours": 3_600_000, "minutes": 60_000}


@pytest.mark.parametrize("name", OF_LOGS)
def test_a_topics_setting_reaches_its_log(name: str) -> None:
    text, value = another(TOPIC_KEYS[name])
    assert of_log(Settings({}), {name: text}, name) == value != of_log(Settings({}), {}, name)


def test_a_topics_segment_size_for_tests_reaches_its_log() -> None:
    assert of_log(Settings({}), {"internal.segment.bytes": "100"}, "segment.bytes") == 100


@pytest.mark.parametrize(("broker", "name"), OF_BROKERS)
def test_a_brokers_setting_reaches_its_logs(broker: str, name: str) -> None:
    text, value = another(BROKER_KEYS[broker])
    value = value * UNITS.get(broker.rpartition(".")[2], 1) if isinstance(value, int) else value
    assert of_log(Settings({broker: text}), {}, name) == value != of_log(Settings({}), {}, name)


# -- coordinators ------------------------------------------------------------------------------------------------------

OF_GROUPS = {
    "group.consumer.assignment.interval.ms": ("consumer_assignment_interval_ms", "70", 70),
    "group.consumer.assignors": ("consumer_assignors", "range", ("range",)),
    "group.consumer.heartbeat.interval.ms": ("consumer_heartbeat_interval_ms", "5001", 5001),
    "group.consumer.max.size": ("consumer_max_size", "7", 7),
    "group.consumer.migration.policy": ("consumer_migration_policy", "disabled", "disabled"),
    "group.consumer.regex.refresh.interval.ms": ("consumer_regex_refresh_interval_ms", "10001", 10_001),
    "group.consumer.session.timeout.ms": ("consumer_session_timeout_ms", "45001", 45_001),
    "group.coordinator.rebalance.protocols": ("consumer_enabled", "classic", False),
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_ms", "70", 70),
    "group.max.session.timeout.ms": ("max_session_timeout_ms", "7000", 7000),
    "group.max.size": ("max_size", "7", 7),
    "group.min.session.timeout.ms": ("min_session_timeout_ms", "7000", 7000),
    "offset.metadata.max.bytes": ("offset_metadata_max_chars", "70", 70),
    "offsets.retention.minutes": ("offsets_retention_ms", "7", 420_000),
}
OF_TRANSACTIONS = {
    "transaction.max.timeout.ms": ("max_timeout_ms", "7000", 7000),
    "transaction.two.phase.commit.enable": ("two_phase_commit_enabled", "true", True),
    "transactional.id.expiration.ms": ("id_expiration_ms", "7000", 7000),
}


def test_settings_reach_the_coordinators() -> None:
    given = {name: text for table in (OF_GROUPS, OF_TRANSACTIONS) for name, (_, text, _) in table.items()}
    changed, unchanged = GroupClient(given), GroupClient()
    for name, (field, _, value) in OF_GROUPS.items():
        read, default = (getattr(client.shard().env.config(), field) for client in (changed, unchanged))
        assert read == value != default, name
    for name, (field, _, value) in OF_TRANSACTIONS.items():
        read, default = (
            getattr(client.broker.coordinators.transactions.config, field) for client in (changed, unchanged)
        )
        assert read == value != default, name
    changed.stop()
    unchanged.stop()


@pytest.mark.parametrize("name", [name for name, key in GROUP_KEYS.items() if key.effect])
def test_a_groups_setting_reaches_its_configuration(name: str) -> None:
    text, value = another(GROUP_KEYS[name])
    field = name.replace(".", "_")
    assert getattr(with_overrides(GroupConfig(), {name: text}), field) == value != getattr(GroupConfig(), field)


@pytest.mark.parametrize(
    ("bound", "of_broker", "of_group"),
    [
        ("min.session.timeout.ms", 6000, 6000),
        ("max.session.timeout.ms", 70_000, 70_000),
        ("min.heartbeat.interval.ms", 1000, 1000),
        ("max.heartbeat.interval.ms", 20_000, 20_000),
        ("max.assignment.interval.ms", 20_000, 20_000),
    ],
)
def test_a_broker_says_how_far_its_groups_may_go(bound: str, of_broker: int, of_group: int) -> None:
    name = f"consumer.{bound[4:]}"
    assert validate_group_config({name: str(of_group)}, Settings({f"group.consumer.{bound}": of_broker}))
    with pytest.raises(ConfigError, match=rf"{name} must be in the range \d+ to \d+ inclusive"):
        validate_group_config({name: str(of_group)}, Settings())


def test_a_broker_says_how_often_a_group_may_be_assigned_at_most() -> None:
    settings = Settings({"group.consumer.min.assignment.interval.ms": 50, "group.consumer.assignment.interval.ms": 60})
    assert validate_group_config({"consumer.assignment.interval.ms": "50"}, settings)
    with pytest.raises(ConfigError, match="must be in the range 50 to 15000 inclusive"):
        validate_group_config({"consumer.assignment.interval.ms": "49"}, settings)


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("connections.max.idle.ms", "connections_max_idle_ms"),
        ("max.connections", "max_connections"),
        ("minibroker.queued.max.response.bytes", "queued_max_response_bytes"),
        ("queued.max.request.bytes", "queued_max_request_bytes"),
        ("socket.listen.backlog.size", "backlog"),
        ("socket.request.max.bytes", "max_frame_bytes"),
    ],
)
def test_settings_reach_the_limits_of_connections(setting: str, field: str) -> None:
    assert Limits.of(Settings({setting: "1234567"})) == Limits.of(Settings())._replace(**{field: 1_234_567})


# -- topics that are created, and requests -----------------------------------------------------------------------------


def test_settings_reach_the_topics_that_are_created() -> None:
    settings = {
        "num.partitions": "3",
        "default.replication.factor": "2",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "2",
        "offsets.topic.segment.bytes": "2000001",
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": "2",
        "transaction.state.log.segment.bytes": "2000002",
        "transaction.state.log.min.isr": "2",
    }
    brokers = ManyBrokers(2, settings)
    topic = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1)
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    assert brokers.call(1, request, m.CreateTopicsResponse, 7).topics[0].error_code == ErrorCode.NONE
    brokers.coordinator("g", 0)
    brokers.coordinator("x", 1)
    topics = brokers.cluster.image.topics
    shapes = {name: (len(t.partitions), {len(p.replicas) for p in t.partitions}) for name, t in topics.items()}
    assert shapes == {"t": (3, {2}), CONSUMER_OFFSETS_TOPIC: (4, {2}), TRANSACTION_STATE_TOPIC: (5, {2})}
    assert topics[CONSUMER_OFFSETS_TOPIC].configs["segment.bytes"] == "2000001"
    own = topics[TRANSACTION_STATE_TOPIC].configs
    assert (own["segment.bytes"], own["min.insync.replicas"]) == ("2000002", "2")
    brokers.stop()


def test_a_topic_is_not_deleted_where_that_is_disabled() -> None:
    cluster = MemoryCluster({"delete.topic.enable": "false"}, topics={"t": 1})
    answer = cluster.call(m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), m.DeleteTopicsResponse, 4)
    assert answer.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    cluster.stop()


def test_a_description_of_topics_has_so_many_partitions() -> None:
    cluster = MemoryCluster({"max.request.partition.size.limit": "2"}, topics={"t": 3})
    named = m.DescribeTopicPartitionsRequest.TopicRequest(name="t")
    answer = cluster.call(m.DescribeTopicPartitionsRequest(topics=[named]), m.DescribeTopicPartitionsResponse, 0)
    assert [partition.partition_index for partition in answer.topics[0].partitions] == [0, 1]
    cluster.stop()


@pytest.mark.parametrize("slots", [0, 1])
def test_there_are_so_many_fetch_sessions(slots: int) -> None:
    cluster = MemoryCluster({"max.incremental.fetch.session.cache.slots": str(slots)}, topics={"t": 1})
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = m.FetchRequest.FetchTopic(topic="t", partitions=[partition])
    ids = [
        cluster.call(
            m.FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[topic]), m.FetchResponse, 12
        ).session_id
        for _ in range(2)
    ]
    assert [session_id != 0 for session_id in ids] == [slots > 0, False]
    cluster.stop()
