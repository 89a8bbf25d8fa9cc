"""Releases of Kafka that this broker can answer as (`--as-version`): the rows of `releases.json`, the oldest first.

Each row says what its release has otherwise than the next newer one, which is the next row; the last row is complete.
Highest versions are those that brokers of the release list themselves. null: the release does not have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from minibroker.kernel.package_data import package_text
from minibroker.releases.features import Feature
from minibroker.releases.release import ABSENT, Assembled, Release, assemble


def _newest_first() -> Iterator[Release]:
    newer: Release | None = None
    for row in reversed(json.loads(package_text(__name__, "releases.json"))):
        levels = row.pop("features", {})
        features = {name: ABSENT if three is None else Feature(*three) for name, three in levels.items()}
        newer = Release(next=newer, features=features, **row)
        yield newer


CHAIN: Final[tuple[Release, ...]] = tuple(reversed(list(_newest_first())))
"""Every release, the oldest first."""

RELEASES: Final[Mapping[str, Assembled]] = MappingProxyType({release.name: assemble(release) for release in CHAIN})
"""The same by name, each with all that it has."""

NEWEST: Final = RELEASES[CHAIN[-1].name]
"""What this broker serves without `--as-version`, except for the behaviours in which it is ahead of every release."""
