"""How the internal topics are created: partition counts, replication and configs (Kafka's AutoTopicCreationManager)."""

from __future__ import annotations

from minibroker.config.settings import Settings
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_protocol.messages.topics import CreateTopicsRequest


def creatable(name: str, settings: Settings) -> CreateTopicsRequest.CreatableTopic:
    """The CreateTopics entry for an internal topic, or for an ordinary one with the broker's defaults."""
    if name == TRANSACTION_STATE_TOPIC:
        return _topic(
            name,
            settings.get_int("transaction.state.log.num.partitions"),
            settings.get_int("transaction.state.log.replication.factor"),
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(settings.get_int("transaction.state.log.segment.bytes")),
                "min.insync.replicas": str(settings.get_int("transaction.state.log.min.isr")),
                "unclean.leader.election.enable": "false",
            },
        )
    if name == CONSUMER_OFFSETS_TOPIC:
        return _topic(
            name,
            settings.get_int("offsets.topic.num.partitions"),
            settings.get_int("offsets.topic.replication.factor"),
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.get_int("offsets.topic.segment.bytes")),
            },
        )
    return _topic(name, -1, -1, {})


def _topic(name: str, count: int, factor: int, configs: dict[str, str]) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
    )


_REPLICATED = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
"""Kafka's defaults, which a single broker cannot meet."""


def replicated_internals(settings: Settings, brokers: int) -> Settings:
    """The settings of a cluster of `brokers`: internal topics have Kafka's replication but no more than there are
    brokers, unless the user set it."""
    if brokers == 1:
        return settings
    return settings.with_defaults({key: min(value, brokers) for key, value in _REPLICATED.items()})
