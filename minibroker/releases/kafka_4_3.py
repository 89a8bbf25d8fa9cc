"""Apache Kafka 4.3: no topic ids in TxnOffsetCommit (KIP-1319), no cluster and broker in ApiVersions (KIP-1242)."""

from __future__ import annotations

from typing import Final

from minibroker.releases import kafka_4_4 as newer
from minibroker.releases.features import Feature
from minibroker.releases.release import Release

RELEASE: Final = Release(
    name="4.3",
    next=newer.RELEASE,
    apis={"ApiVersions": 4, "TxnOffsetCommit": 5, "DeleteGroups": 2},
    features={"metadata.version": Feature(7, 30, 30)},
    behaviours={"unreadable_subscription": "UNKNOWN_SERVER_ERROR"},
    does_otherwise=(
        "TxnOffsetCommit has no topic ids and no codes about member epochs",
        "a classic member whose topics cannot be read joins no consumer group: UNKNOWN_SERVER_ERROR",
    ),
)
