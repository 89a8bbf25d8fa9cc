"""Configurations of single groups (Kafka's GroupConfig, KIP-848, KIP-932, KIP-1071): keys, checks, description."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from minibroker.config.settings import ConfigEntry, ConfigSource, ConfigSynonym, Settings
from minibroker.config.types import ConfigError, ConfigKey, ConfigType, Scope, Value

_DURATION = re.compile(
    r"by_duration:P(?=.)(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+(?:[.,]\d{0,9})?S)?)?", re.ASCII | re.IGNORECASE
)
_LEVELS = ("read_committed", "read_uncommitted")
_KINDS = ("consumer", "share", "streams")


def _reset_refusal(text: str) -> str | None:
    """Kafka's ShareGroupAutoOffsetResetStrategy."""
    if text in ("earliest", "latest") or _DURATION.fullmatch(text):
        return None
    return (
        f"Invalid value `{text}` for configuration share.auto.offset.reset. The value must be either 'earliest', "
        "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


def _assignor_refusal(text: str) -> str | None:
    """Kafka's StreamsGroup assignors."""
    if text == "sticky":
        return None
    return f"streams.assignor.name '{text}' is not a registered task assignor. Registered assignors are: [sticky]."


def _rows() -> Iterable[ConfigKey]:
    def number(name: str, default: int, minimum: int, doc: str) -> ConfigKey:
        return ConfigKey(
            name, ConfigType.INT, default, doc, minimum, None, synonyms=(f"group.{name}",), scope=Scope.GROUP,
            effect=name.startswith("consumer."),
        )  # fmt: skip

    for kind in _KINDS:
        members = "members of a streams group" if kind == "streams" else f"{kind} group members"
        yield number(f"{kind}.session.timeout.ms", 45_000, 1, f"Session timeout of {members}.")
        yield number(f"{kind}.heartbeat.interval.ms", 5000, 1, f"Heartbeat interval told to {members}.")
        yield number(f"{kind}.assignment.interval.ms", 1000, 0, "Least time between two target assignments.")
    yield number("share.record.lock.duration.ms", 30_000, 1000, "How long a record is one consumer's.")
    yield number("share.delivery.count.limit", 5, 2, "Most deliveries of a record.")
    yield number("share.partition.max.record.locks", 2000, 100, "Most records of a partition under way.")
    yield number("streams.num.standby.replicas", 0, 0, "Standby replicas of a task.")
    yield number("streams.initial.rebalance.delay.ms", 3000, 0, "Wait for more members before the first assignment.")
    texts = (
        ("share.auto.offset.reset", "latest", "Where a share group begins.", (), _reset_refusal),
        ("share.isolation.level", "read_uncommitted", "Isolation level of a share group.", _LEVELS, None),
    )
    for name, default, doc, choices, refusal in texts:
        yield ConfigKey(
            name, ConfigType.STRING, default, doc, choices=choices, scope=Scope.GROUP, effect=False, refusal=refusal
        )
    doc = "Whether a consumer may renew its hold."
    yield ConfigKey("share.renew.acknowledge.enable", ConfigType.BOOLEAN, True, doc, scope=Scope.GROUP, effect=False)
    doc = "Dead letters of share groups."
    for name, kind_, default_ in (
        ("errors.deadletterqueue.copy.record.enable", ConfigType.BOOLEAN, False),
        ("errors.deadletterqueue.topic.name", ConfigType.STRING, ""),
    ):
        yield ConfigKey(name, kind_, default_, doc, scope=Scope.GROUP, effect=False)
    yield ConfigKey(
        "streams.assignor.name", ConfigType.STRING, "sticky", "Assignor of a streams group.",
        synonyms=("group.streams.assignors",), scope=Scope.GROUP, effect=False, refusal=_assignor_refusal,
    )  # fmt: skip
    yield ConfigKey(
        "streams.rack.aware.assignment.tags", ConfigType.LIST, (), "Tags by which standbys are spread.",
        synonyms=("group.streams.rack.aware.assignment.tags",), scope=Scope.GROUP, effect=False,
    )  # fmt: skip


GROUP_KEYS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _rows()})
"""Settings of share and streams groups are stored and described; such groups are not served."""


def validate_group_config(overrides: Mapping[str, str], settings: Settings) -> dict[str, Value]:
    """The values of a group's overrides. Raises ConfigError, in Kafka's words."""
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        key = GROUP_KEYS.get(name)
        if key is None or name in settings.absent:
            raise ConfigError(f"Unknown group config name: {name}")
        values[name] = key.parse(text)
    for name, value in values.items():
        _check_bounds(name, value, settings)
    for kind in _KINDS:
        session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if (session in values or interval in values) and _at(values, session, settings) <= _at(
            values, interval, settings
        ):
            raise ConfigError(f"{session} must be greater than {interval}")
    return values


def _check_bounds(name: str, value: Value, settings: Settings) -> None:
    """Check a value against the bounds that the broker sets for groups; none has only a least one (GroupConfig)."""
    kind, _, rest = name.partition(".")
    rest = rest.removeprefix("num.")
    least, most = (settings.value_of(f"group.{kind}.{bound}.{rest}") for bound in ("min", "max"))
    low = least if isinstance(least, int) else 0
    if isinstance(value, int) and isinstance(most, int) and not low <= value <= most:
        bounds = f"less than or equal to {most}" if least is None else f"in the range {least} to {most} inclusive."
        raise ConfigError(f"{name} must be {bounds}")


def _at(values: Mapping[str, Value], name: str, settings: Settings) -> int:
    value = values.get(name, settings.value_of(f"group.{name}"))
    assert isinstance(value, int)
    return value


def describe_group(
    overrides: Mapping[str, str], settings: Settings, names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """A group's configuration for DescribeConfigs; a group need not exist to have one."""
    entries = []
    for name, key in GROUP_KEYS.items():
        if (names is not None and name not in names) or name in settings.absent:
            continue
        if key.synonyms:
            defaults = settings.synonyms_of(key.synonyms[0])
        else:
            defaults = (ConfigSynonym(name, key.format(key.default), ConfigSource.DEFAULT_CONFIG),)
        entries.append(settings.describe_override(key, overrides.get(name), ConfigSource.GROUP_CONFIG, defaults))
    return entries
