"""Every setting that the documentation calls effective is read by code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import minibroker
import minibroker_storage
from minibroker.config.client_metrics import CLIENT_METRICS_KEYS
from minibroker.config.groups import GROUP_KEYS
from minibroker.config.keys import BROKER_KEYS, SEMANTICS_PREFIX, TOPIC_KEYS
from minibroker.config.types import ConfigKey
from minibroker.coordinators.groups.environment import GroupConfig
from minibroker.releases.semantics import FIELDS
from minibroker_storage.config import LogConfig

PACKAGES = tuple(Path(package.__file__).parent for package in (minibroker, minibroker_storage) if package.__file__)


_TEXT = re.compile(r'"([^"\n]+)"')
_READ = re.compile(r"\.(\w+)\b(?!\s*=[^=])")


@cache
def words_of(packages: tuple[Path, ...]) -> tuple[set[str], set[str]]:
    """Quoted texts of all modules, and names of attributes that are read."""
    texts: set[str] = set()
    attributes: set[str] = set()
    for package in packages:
        for path in package.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            texts.update(_TEXT.findall(text))
            attributes.update(_READ.findall(text))
    return texts, attributes


def unread(keys: Iterable[ConfigKey], texts: set[str], attributes: set[str]) -> list[str]:
    """Effective keys that no code names: neither by themselves, nor as a field of `LogConfig`, `GroupConfig` or the
    semantics, nor as what another key that is read falls back to."""
    names = [*LogConfig.__dataclass_fields__, *GroupConfig.__dataclass_fields__]
    fields = {name.replace("_", ".") for name in names if name in attributes}
    fields |= {f"{SEMANTICS_PREFIX}{field.name}" for field in FIELDS if field.name in attributes}
    every = list(keys)
    read = {key.name for key in every if key.name in texts or key.name in fields}
    while fallbacks := {name for key in every if key.name in read for name in key.synonyms} - read:
        read |= fallbacks
    effective = {key.name for key in every if key.effect and "without effect" not in key.doc}
    return sorted(effective - read)


KEYS = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values(), *CLIENT_METRICS_KEYS.values()]


def test_every_effective_setting_is_read() -> None:
    assert unread(KEYS, *words_of(PACKAGES)) == []


def test_one_that_no_code_reads_is_found() -> None:
    read, planted = BROKER_KEYS["log.retention.check.interval.ms"], "log.planted.interval.ms"
    keys = [*KEYS, read._replace(name=planted), TOPIC_KEYS["retention.ms"]._replace(name="planted.ms")]
    texts, attributes = words_of(PACKAGES)
    assert unread(keys, texts, attributes) == [planted, "planted.ms"]
    assert unread(KEYS, texts - {read.name}, attributes) == [read.name]
    assert "flush.ms" in unread(KEYS, texts, attributes - {"flush_ms"})
