"""A release of Kafka as its difference from the next newer one, and the whole that the differences make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from minibroker.releases.features import TRANSACTION_VERSION, Advertised, Feature
from minibroker.releases.semantics import KAFKA, Semantics, mixed

ABSENT: Final = None
"""The release does not have the API, the feature or the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a release of Kafka has otherwise than `next`; the newest one (`next` None) says everything that it has.

    about: what sets the release apart, a phrase.
    apis: name → highest version that its brokers list, or ABSENT; only what this broker serves in any release.
    features: name → its levels, or ABSENT.
    behaviours: fields of `Semantics` and `ProducerRules`; those of the newest release are its difference from `KAFKA`.
    settings: defaults of settings, or ABSENT.
    does_otherwise: its behaviours, settings and gaps in a few words each, for the documentation.
    not_emulated: what the release does otherwise and this broker does not, likewise.
    """

    name: str
    about: str = ""
    next: Release | None = None
    apis: Mapping[str, int | None] = field(default_factory=dict)
    features: Mapping[str, Feature | None] = field(default_factory=dict)
    behaviours: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, str | None] = field(default_factory=dict)
    does_otherwise: Sequence[str] = ()
    not_emulated: Sequence[str] = ()

    def and_newer(self) -> Iterator[Release]:
        """This release, the next newer one, and so on up to the newest."""
        release: Release | None = self
        while release is not None:
            yield release
            release = release.next

    def _whole(self, part: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for release in reversed(list(self.and_newer())):
            values |= getattr(release, part)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A release with everything that it inherits filled in.

    apis: name → highest version.
    features: name → its levels.
    settings: defaults that differ from this broker's, None for a setting that is not there.
    """

    name: str
    apis: Mapping[str, int]
    features: Mapping[str, Feature]
    settings: Mapping[str, str | None]
    semantics: Semantics


def assemble(release: Release) -> Assembled:
    """The differences from the newest release down to `release`, applied in that order."""
    apis = _present(release._whole("apis"))
    features = _present(release._whole("features"))
    level = features[TRANSACTION_VERSION].finalized if TRANSACTION_VERSION in features else 0
    semantics = replace(
        mixed(KAFKA, release._whole("behaviours").get),
        name=f"kafka {release.name}",
        advertised=Advertised(max_versions=apis, features=features),
        transaction_version=level,
    )
    settings = MappingProxyType(release._whole("settings"))
    return Assembled(name=release.name, apis=apis, features=features, settings=settings, semantics=semantics)


def _present(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({name: value for name, value in values.items() if value is not ABSENT})
