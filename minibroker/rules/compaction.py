"""What compaction may have taken from a log.

`cleanup.policy` says whether it may take anything, and the batches that are there say what it took: offsets of no
batch, and batches with fewer records than offsets. `cleaner-offset-checkpoint` says neither. It is written after a
whole pass, which replaces segments group by group (Kafka's Cleaner.doClean, LogCleanerManager.doneCleaning); a stop
within a pass leaves it as it was; a replica that copies a compacted log gets no entry; an entry stays when the policy
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from minibroker.controller.journal import configs_in
from minibroker.controller.kraft import KraftMetadata
from minibroker.rules.rows import CONSUMER_OFFSETS, EVERYTHING, TRANSACTION_STATE

COMPACTED = frozenset({TRANSACTION_STATE, CONSUMER_OFFSETS})
"""Topics that the coordinators keep compacted, whatever else is known."""
NEVER_COMPACTED = frozenset({"__cluster_metadata"})
"""Kafka deletes what a snapshot of it has."""


class Compaction(TypedDict):
    """Fields of `LogFacts`."""

    cleaned_offset: int
    compacts: bool


def may_miss(topic: str, compacts: Mapping[str, bool | None], *, cleaned: int | None = None) -> Compaction:
    """What is known of a log before it is read.

    compacts: known topic → whether its cleanup.policy has compact.
    cleaned: the offset that the cleaner's checkpoint has for the log, None without. Above 0 it says that a pass was
        finished, 0 says nothing.
    """
    policy = topic in COMPACTED or (topic not in NEVER_COMPACTED and compacts.get(topic))
    unknown = policy is None or cleaned is not None
    return Compaction(cleaned_offset=EVERYTHING if policy or unknown else 0, compacts=bool(policy) or bool(cleaned))


def policies_of(*metadata: KraftMetadata | None, journal: bytes = b"") -> dict[str, bool | None]:
    """Topic -> whether its cleanup.policy has compact, of the topics that the controller's journal or a metadata log
    has. A topic without one of its own has the brokers', which their server.properties may say too."""
    topics, brokers = configs_in(journal)
    for image in filter(None, metadata):
        topics |= {topic.name: topic.configs for topic in image.topics.values()}
        brokers += image.broker_configs.values()
    return {name: compacts(configs, brokers) for name, configs in topics.items()}


def compacts(topic: Mapping[str, str], brokers: Iterable[Mapping[str, str]]) -> bool | None:
    """Whether cleanup.policy has compact, by a topic's own configurations and the brokers' (None: a broker's default
    may be meant, which is compact)."""
    policy = topic.get("cleanup.policy")
    if policy is not None:
        return "compact" in policy
    return None if any("compact" in broker.get("log.cleanup.policy", "") for broker in brokers) else False
