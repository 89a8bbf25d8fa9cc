"""Older releases of Kafka that this broker can answer as (KIP-360's clients among older brokers).

A release is what ApiVersions lists of it, and where the texts of KIP-360 and KIP-588 care, what it did. Highest
versions are those that brokers of the release list themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from minibroker.releases.semantics import KAFKA, Advertised, Semantics
from minibroker_storage.producer_rules import ProducerRules

_N: Final = -1
"""The release does not have the API."""

_NAMES: Final = ("2.3", "2.8", "3.9", "4.0", "4.3")
_MAX_VERSIONS: Final = (
    # API key, then its highest version in each of those releases
    (0, 7, 9, 11, 12, 13),  # Produce
    (1, 11, 12, 17, 17, 18),  # Fetch
    (2, 5, 6, 9, 10, 11),  # ListOffsets
    (3, 8, 11, 12, 13, 13),  # Metadata
    (8, 7, 8, 9, 9, 10),  # OffsetCommit
    (9, 5, 7, 9, 9, 10),  # OffsetFetch
    (10, 2, 3, 6, 6, 6),  # FindCoordinator
    (11, 5, 7, 9, 9, 9),  # JoinGroup
    (12, 3, 4, 4, 4, 4),  # Heartbeat
    (13, 2, 4, 5, 5, 5),  # LeaveGroup
    (14, 3, 5, 5, 5, 5),  # SyncGroup
    (15, 3, 5, 5, 6, 6),  # DescribeGroups
    (16, 2, 4, 5, 5, 5),  # ListGroups
    (17, 1, 1, 1, 1, 1),  # SaslHandshake
    (18, 2, 3, 4, 4, 4),  # ApiVersions
    (19, 3, 7, 7, 7, 7),  # CreateTopics
    (20, 3, 6, 6, 6, 6),  # DeleteTopics
    (21, 1, 2, 2, 2, 2),  # DeleteRecords
    (22, 1, 4, 5, 5, 5),  # InitProducerId
    (23, 3, 4, 4, 4, 4),  # OffsetForLeaderEpoch
    (24, 1, 3, 5, 5, 5),  # AddPartitionsToTxn
    (25, 1, 3, 4, 4, 4),  # AddOffsetsToTxn
    (26, 1, 3, 4, 5, 5),  # EndTxn
    (27, 0, 1, 1, 1, 2),  # WriteTxnMarkers
    (28, 2, 3, 4, 5, 5),  # TxnOffsetCommit
    (29, 1, 2, 3, 3, 3),  # DescribeAcls
    (30, 1, 2, 3, 3, 3),  # CreateAcls
    (31, 1, 2, 3, 3, 3),  # DeleteAcls
    (32, 2, 4, 4, 4, 4),  # DescribeConfigs
    (33, 1, 2, 2, 2, 2),  # AlterConfigs
    (35, 1, 2, 4, 4, 5),  # DescribeLogDirs
    (36, 1, 2, 2, 2, 2),  # SaslAuthenticate
    (37, 1, 3, 3, 3, 3),  # CreatePartitions
    (42, 1, 2, 2, 2, 2),  # DeleteGroups
    (43, 0, 2, 2, 2, 2),  # ElectLeaders
    (44, 0, 1, 1, 1, 1),  # IncrementalAlterConfigs
    (45, _N, 0, 0, 0, 1),  # AlterPartitionReassignments
    (46, _N, 0, 0, 0, 0),  # ListPartitionReassignments
    (47, _N, 0, 0, 0, 0),  # OffsetDelete
    (48, _N, 1, 1, 1, 1),  # DescribeClientQuotas
    (50, _N, 0, 0, 0, 0),  # DescribeUserScramCredentials
    (55, _N, _N, _N, 2, 2),  # DescribeQuorum
    (57, _N, 0, 1, 2, 2),  # UpdateFeatures
    (60, _N, 0, 1, 2, 2),  # DescribeCluster
    (61, _N, 0, 0, 0, 0),  # DescribeProducers
    (64, _N, _N, _N, 0, 0),  # UnregisterBroker
    (65, _N, _N, 0, 0, 0),  # DescribeTransactions
    (66, _N, _N, 1, 1, 2),  # ListTransactions
    (68, _N, _N, 0, 1, 1),  # ConsumerGroupHeartbeat
    (69, _N, _N, 0, 1, 1),  # ConsumerGroupDescribe
    (74, _N, _N, _N, 0, 1),  # ListConfigResources
    (75, _N, _N, _N, 0, 0),  # DescribeTopicPartitions
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of Kafka.

    settings: defaults that differ from today's. behaviour: what it does otherwise, and not_emulated: what it did
    otherwise and this broker does not, each in a few words for the documentation.
    """

    name: str
    semantics: Semantics
    settings: Mapping[str, str]
    behaviour: tuple[str, ...]
    not_emulated: tuple[str, ...]


def _release(
    name: str,
    *,
    features: Mapping[str, tuple[int, int, int]],
    producer: ProducerRules | None = None,
    transaction_version: int,
    expires_with_transactional_ids: bool = False,
    settings: Mapping[str, str] | None = None,
    behaviour: tuple[str, ...],
    not_emulated: tuple[str, ...] = (),
) -> Release:
    column = 1 + _NAMES.index(name)
    versions = {row[0]: row[column] for row in _MAX_VERSIONS if row[column] != _N}
    semantics = replace(
        KAFKA,
        name=f"kafka {name}",
        advertised=Advertised(max_versions=MappingProxyType(versions), features=MappingProxyType(dict(features))),
        producer=producer or KAFKA.producer,
        transaction_version=transaction_version,
        # No release up to 4.3 logs it (KAFKA-20357).
        persist_last_epoch=False,
    )
    if expires_with_transactional_ids:
        semantics = replace(semantics, producer_state_expiration="transactional.id.expiration.ms")
    return Release(
        name=name,
        semantics=semantics,
        settings=MappingProxyType(dict(settings or {})),
        behaviour=behaviour,
        not_emulated=not_emulated,
    )


_NO_VERIFICATION: Final = {"transaction.partition.verification.enable": "false"}
_OLD_VERSIONS: Final = "versions of its APIs that Kafka 4 does not serve any more (KIP-896)"
_EXPIRY: Final = "producer state expires with transactional.id.expiration.ms"
_NOT_VERIFIED: Final = "transactional batches are not verified with the coordinator (KIP-890 came with 3.6)"
_NOT_LOGGED: Final = "the last epoch is not in the log: a retried InitProducerId is fenced after a failover"

RELEASES: Final[Mapping[str, Release]] = MappingProxyType(
    {
        release.name: release
        for release in (
            _release(
                "2.3",
                features={},
                transaction_version=0,
                producer=ProducerRules(
                    unknown_producer_sequence="unknown_producer_id_before_2.4", forget_with_records=True
                ),
                expires_with_transactional_ids=True,
                settings=_NO_VERIFICATION,
                behaviour=(
                    "producer state goes with the last record; a non-zero sequence then gets UNKNOWN_PRODUCER_ID",
                    "InitProducerId takes no producer id and epoch: clients cannot bump their epoch",
                    "no request version knows PRODUCER_FENCED",
                    _NOT_VERIFIED,
                    _EXPIRY,
                ),
                not_emulated=(_OLD_VERSIONS, "WriteTxnMarkers v0, and so the API", "throttling before the answer"),
            ),
            _release(
                "2.8",
                features={},
                transaction_version=0,
                expires_with_transactional_ids=True,
                settings=_NO_VERIFICATION,
                behaviour=(_NOT_VERIFIED, _EXPIRY, _NOT_LOGGED),
                not_emulated=(_OLD_VERSIONS, "finalized features of a cluster with ZooKeeper"),
            ),
            _release(
                "3.9",
                features={"metadata.version": (1, 21, 21)},
                transaction_version=0,
                behaviour=("transaction.version 0: no end of a transaction bumps the epoch", _NOT_LOGGED),
                not_emulated=(_OLD_VERSIONS,),
            ),
            _release(
                "4.0",
                features={
                    "group.version": (0, 1, 1),
                    "metadata.version": (7, 25, 25),
                    "transaction.version": (0, 2, 2),
                },
                transaction_version=2,
                behaviour=("Produce has no topic ids", _NOT_LOGGED),
                not_emulated=("markers without the transaction version (KIP-1228)",),
            ),
            _release(
                "4.3",
                features={
                    "group.version": (0, 1, 1),
                    "metadata.version": (7, 30, 30),
                    "transaction.version": (0, 2, 2),
                },
                transaction_version=2,
                behaviour=(_NOT_LOGGED,),
            ),
        )
    }
)


def difference_rows() -> list[tuple[str, str, str, str]]:
    """(release, versions of the transactional APIs, behaviour, what is not emulated) for the documentation."""
    shown = {"Produce": 0, "InitProducerId": 22, "AddPartitionsToTxn": 24, "EndTxn": 26, "TxnOffsetCommit": 28}
    rows = []
    for release in RELEASES.values():
        advertised = release.semantics.advertised
        assert advertised is not None
        versions = ", ".join(f"{name} ≤ {advertised.max_versions[key]}" for name, key in shown.items())
        rows.append((release.name, versions, "; ".join(release.behaviour), "; ".join(release.not_emulated)))
    return rows
