"""Features of a cluster (KIP-584): their names and levels, and what a release advertises of features and APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

GROUP_VERSION: Final = "group.version"
METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"


class Feature(NamedTuple):
    """Levels of a feature: the lowest and highest that a broker supports, and what a new cluster finalizes."""

    lowest: int
    highest: int
    finalized: int


class Advertised(NamedTuple):
    """What an older release tells clients and serves: API name → highest version, and its features by name."""

    max_versions: Mapping[str, int]
    features: Mapping[str, Feature]
