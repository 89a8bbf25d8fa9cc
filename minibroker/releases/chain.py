"""Releases of Kafka that this broker can answer as (`--as-version`): the chain of files from the oldest up.

Each file says what its release has otherwise than the next newer one, which it names. Highest versions are those that
brokers of the release list themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from minibroker.releases import kafka_2_3 as oldest
from minibroker.releases.release import Assembled, Release, assemble

CHAIN: Final[tuple[Release, ...]] = tuple(oldest.RELEASE.and_newer())
"""Every release, the oldest first."""

RELEASES: Final[Mapping[str, Assembled]] = MappingProxyType({release.name: assemble(release) for release in CHAIN})
"""The same by name, each with all that it has."""

NEWEST: Final = RELEASES[CHAIN[-1].name]
"""What this broker serves without `--as-version`, but for the behaviours in which it is ahead of every release."""
