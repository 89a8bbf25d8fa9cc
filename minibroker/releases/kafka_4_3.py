"""Apache Kafka 4.3: no topic ids in TxnOffsetCommit (KIP-1319), no cluster and broker in ApiVersions (KIP-1242)."""

from __future__ import annotations

from typing import Final

from minibroker.releases import kafka_4_4 as newer
from minibroker.releases.features import Feature
from minibroker.releases.release import ABSENT, Release

_NEW_SETTINGS: Final = (
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.topic.name.prefix",
    "group.streams.assignors",
    "group.streams.rack.aware.assignment.tags",
    "group.streams.topology.description.plugin.class",
    "log.remote.copy.lag.bytes",
    "log.remote.copy.lag.ms",
    "max.decompressed.message.bytes",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "sasl.oauthbearer.allow.unverified.audience",
    "sasl.oauthbearer.allow.unverified.issuer",
    "streams.assignor.name",
    "streams.rack.aware.assignment.tags",
)
"""Of brokers, topics and groups."""

RELEASE: Final = Release(
    name="4.3",
    next=newer.RELEASE,
    apis={"ApiVersions": 4, "TxnOffsetCommit": 5, "DeleteGroups": 2},
    features={"metadata.version": Feature(7, 30, 30)},
    settings=dict.fromkeys(_NEW_SETTINGS, ABSENT),
    behaviours={
        "unreadable_subscription": "UNKNOWN_SERVER_ERROR",
        "assignor_bumps_epoch": False,
        "empty_group_is_assigned": False,
        "unknown_logger_operation": "UNKNOWN_SERVER_ERROR",
    },
    does_otherwise=(
        "TxnOffsetCommit has no topic ids and no codes about member epochs",
        "a classic member whose topics cannot be read joins no consumer group: UNKNOWN_SERVER_ERROR",
        "so is an unknown operation on a logger",
        "another assignor of a consumer group is used from its next epoch on; an empty one keeps its assignment epoch",
    ),
)
