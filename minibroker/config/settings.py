"""Configuration as immutable snapshots: the user's settings, later changes, and Kafka's defaults below both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, cast

from minibroker.config.keys import BROKER_KEYS, THROTTLED_REPLICAS, TOPIC_KEYS, check_throttled_replicas
from minibroker.config.types import ConfigError, ConfigKey, ConfigType, Scope, Value
from minibroker.kernel.words import near
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.config import LogConfig

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS",
    "ConfigEntry",
    "ConfigError",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Scope",
    "Settings",
    "broker_key",
    "environment_config",
    "environment_name",
    "environment_of",
    "parse_assignment",
    "validate_topic_config",
]

_OF_THE_AUTHORIZER = ("super.users", "allow.everyone.if.no.acl.found")
"""Kafka's ConfigDef lacks them."""
_HOUR_MS = 3600 * 1000
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]+")
_MINUTE_MS = 60 * 1000


class ConfigSource(IntEnum):
    """Where a value comes from; the values are those of DescribeConfigs (Kafka's ``ConfigSource``)."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """A value that would hold, or holds, under `name` from `source`."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One row of a DescribeConfigs answer; synonyms are in the order in which they win."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    type: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


class Settings:
    """The configuration of one broker at one time.

    `static` is what the broker was started with, `cluster` what AlterConfigs set for all brokers, `broker` what it set
    for this one; each later layer wins. Values may be text or of the key's own type. Raises ConfigError naming the key
    for an unknown name (with the nearest known one), a value out of range, or two that contradict.

    absent: names that the emulated release does not have; they are neither shown nor accepted from clients.
    unknown: names by layer that Kafka does not know, but keeps, as a plug-in might, and shows without a value.
    """

    __slots__ = ("_layers", "_topic_defaults", "_topic_entries", "_values", "absent", "ignored", "jaas", "unknown")

    def __init__(
        self,
        static: Mapping[str, Any] | None = None,
        *,
        cluster: Mapping[str, Any] | None = None,
        broker: Mapping[str, Any] | None = None,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        self.absent = absent
        self.ignored: tuple[str, ...] = ()
        #: The lines of login modules, under their whole names.
        self.jaas: dict[str, str] = {}
        self._layers: tuple[tuple[ConfigSource, dict[str, Value]], ...] = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, self._parse(broker or {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self._parse(cluster or {})),
            (ConfigSource.STATIC_BROKER_CONFIG, self._parse(static or {})),
        )
        static_only = dict.fromkeys(name for name in _OF_THE_AUTHORIZER if name in self._layers[-1][1])
        self.unknown: dict[ConfigSource, Mapping[str, None]] = {ConfigSource.STATIC_BROKER_CONFIG: static_only}
        self._values: dict[str, Value] = {name: key.default for name, key in BROKER_KEYS.items()}
        for _, layer in reversed(self._layers):
            self._values.update(layer)
        self._topic_defaults: dict[str, Value] | None = None
        self._topic_entries: dict[str, ConfigEntry] = {}
        self._check_together()

    def get_int(self, name: str) -> int:
        """The value of an INT, SHORT or LONG key that has one. Raises KeyError for a name that the registry lacks."""
        return cast("int", self._values[name])

    def get_boolean(self, name: str) -> bool:
        return cast("bool", self._values[name])

    def get_string(self, name: str) -> str:
        return cast("str", self._values[name])

    def get_list(self, name: str) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self._values[name])

    def get(self, name: str) -> Value:
        """The value of any key, None while it has none."""
        return self._values[name]

    # -- topics ------------------------------------------------------------------------------------------------------

    def log_config(self, topic_overrides: Mapping[str, str] | None = None) -> LogConfig:
        """The log configuration of a topic with these overrides. Raises ConfigError as `validate_topic_config` finds
        it."""
        values = self._effective(topic_overrides or {})
        fields: dict[str, Any] = {}
        for name, value in values.items():
            field = name.replace(".", "_")
            if field in LogConfig.__dataclass_fields__:
                fields[field] = value
        fields["cleanup_policy"] = frozenset(cast("tuple[str, ...]", values["cleanup.policy"]))
        if values["internal.segment.bytes"] is not None:
            fields["segment_bytes"] = values["internal.segment.bytes"]
        if self.get_boolean("minibroker.acknowledge.after.sync"):
            fields["flush_messages"] = 1
        return LogConfig(**fields)

    def topic_value(self, name: str, topic_overrides: Mapping[str, str]) -> Value:
        """One topic key's value with these overrides (already validated)."""
        if name in topic_overrides:
            return TOPIC_KEYS[name].parse(topic_overrides[name])
        return self._defaults()[name]

    def _effective(self, overrides: Mapping[str, str]) -> dict[str, Value]:
        values = dict(self._defaults())
        for name, text in overrides.items():
            values[name] = _topic_key(name, self.absent).parse(text)
        if cast("int", values["min.compaction.lag.ms"]) > cast("int", values["max.compaction.lag.ms"]):
            raise ConfigError(
                f"conflict topic config setting min.compaction.lag.ms ({values['min.compaction.lag.ms']}) > "
                f"max.compaction.lag.ms ({values['max.compaction.lag.ms']})"
            )
        if values["remote.storage.enable"]:
            raise ConfigError(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
        return values

    def _defaults(self) -> dict[str, Value]:
        if self._topic_defaults is None:
            self._topic_defaults = {name: self._topic_default(key) for name, key in TOPIC_KEYS.items()}
        return self._topic_defaults

    def _topic_default(self, key: ConfigKey) -> Value:
        if not key.synonyms:
            return key.default
        broker_name = key.synonyms[0]
        value = self._values[broker_name]
        for coarser in BROKER_KEYS[broker_name].synonyms:
            if value is None and self._values[coarser] is not None:
                value = self.get_int(coarser) * _unit_ms(coarser)
        if value is None:
            return key.default
        if broker_name == "log.retention.ms" and cast("int", value) < 0:
            return -1
        return value

    # -- changes -----------------------------------------------------------------------------------------------------

    def altered(self, *, cluster: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None) -> Settings:
        """A snapshot with one or both dynamic layers replaced; the static layer stays."""
        layers: dict[ConfigSource, Mapping[str, Any]] = dict(self._layers)
        unknown = dict(self.unknown)
        for source, changes in (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, broker),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, cluster),
        ):
            if changes is not None:
                layers[source], unknown[source] = _dynamic_only(changes)
        made = Settings(
            layers[ConfigSource.STATIC_BROKER_CONFIG],
            cluster=layers[ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG],
            broker=layers[ConfigSource.DYNAMIC_BROKER_CONFIG],
            absent=self.absent,
        )
        made.unknown = unknown
        return made

    def with_defaults(self, defaults: Mapping[str, Any]) -> Settings:
        """A snapshot in which `defaults` hold as given at the start, where the user gave nothing; for None the name
        is absent."""
        layers = dict(self._layers)
        chosen = {name: value for name, value in defaults.items() if value is not None}
        return Settings(
            {**self._parse(chosen), **layers[ConfigSource.STATIC_BROKER_CONFIG]},
            cluster=layers[ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG],
            broker=layers[ConfigSource.DYNAMIC_BROKER_CONFIG],
            absent=self.absent.union(defaults.keys() - chosen.keys()),
        )

    # -- description -------------------------------------------------------------------------------------------------

    def describe(self, names: Iterable[str] | None = None) -> list[ConfigEntry]:
        """The broker's own configuration for DescribeConfigs; left out are unknown names and, as in Kafka, internal
        ones that were not given (ConfigHelperUtils.createResponseConfig)."""
        set_at_start = self._layers[-1][1].keys() - set(_OF_THE_AUTHORIZER)
        known = [
            self._broker_entry(key)
            for name, key in {**BROKER_KEYS, **_unused()}.items()
            if (not key.internal or name in set_at_start)
            and (names is None or name in names)
            and name not in self.absent
        ]
        unknown = dict.fromkeys(name for held in self.unknown.values() for name in held)
        return known + [self._unknown_entry(name) for name in unknown if names is None or name in names]

    def _unknown_entry(self, name: str) -> ConfigEntry:
        """An unknown setting. Its value may be a secret, so it is not shown."""
        sources = sorted(source for source, held in self.unknown.items() if name in held)
        synonyms = tuple(ConfigSynonym(name, None, source) for source in sources)
        return ConfigEntry(name, None, sources[0], True, ConfigType.UNKNOWN, "", synonyms)

    def describe_topic(self, overrides: Mapping[str, str], names: Iterable[str] | None = None) -> list[ConfigEntry]:
        """A topic's configuration for DescribeConfigs."""
        return [
            self._topic_entry(key, overrides)
            for name, key in TOPIC_KEYS.items()
            if (not key.internal or name in overrides) and (names is None or name in names) and name not in self.absent
        ]

    def value_of(self, name: str) -> Value:
        """The value of any key that Kafka's brokers have, also of one that changes nothing here; None if it has
        none."""
        if name in self._values:
            return self._values[name]
        unused = _unused().get(name)
        return None if unused is None else unused.default

    def describe_override(
        self, key: ConfigKey, own: str | None, source: ConfigSource, defaults: tuple[ConfigSynonym, ...]
    ) -> ConfigEntry:
        """The row of a resource that has its `own` text for a key (None: it has none), else the first of `defaults`."""
        synonyms = defaults if own is None else (ConfigSynonym(key.name, key.format(key.parse(own)), source), *defaults)
        return ConfigEntry(
            key.name,
            synonyms[0].value if synonyms else key.format(key.default),
            synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            False,
            key.type,
            key.doc,
            synonyms,
        )

    def _broker_entry(self, key: ConfigKey) -> ConfigEntry:
        synonyms = self.synonyms_of(key.name)
        return ConfigEntry(
            key.name,
            key.format(self.value_of(key.name)),
            synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            not key.dynamic,
            key.type,
            key.doc,
            synonyms,
        )

    def _topic_entry(self, key: ConfigKey, overrides: Mapping[str, str]) -> ConfigEntry:
        if key.name in overrides:
            return self._new_topic_entry(key, overrides)
        entry = self._topic_entries.get(key.name)
        if entry is None:  # every topic that is created is described, with all its keys
            entry = self._topic_entries[key.name] = self._new_topic_entry(key, {})
        return entry

    def _new_topic_entry(self, key: ConfigKey, overrides: Mapping[str, str]) -> ConfigEntry:
        defaults = self.synonyms_of(key.synonyms[0]) if key.synonyms else ()
        entry = self.describe_override(key, overrides.get(key.name), ConfigSource.TOPIC_CONFIG, defaults)
        return entry._replace(value=key.format(self.topic_value(key.name, overrides)))

    def synonyms_of(self, name: str) -> tuple[ConfigSynonym, ...]:
        """Kafka's order: every layer from the top with the finer name first, then the defaults."""
        known = BROKER_KEYS if name in BROKER_KEYS else _unused()
        names = (name, *known[name].synonyms)
        layers = [*self._layers, (ConfigSource.DEFAULT_CONFIG, {n: known[n].default for n in names})]
        synonyms = [
            ConfigSynonym(n, known[n].format(layer[n]), source)
            for source, layer in layers
            for n in names
            if layer.get(n) is not None
        ]
        # As Kafka's ConfigHelper: what stands before the key's own name is dropped, so all of it where the key has no
        # value.
        start = next((i for i, synonym in enumerate(synonyms) if synonym.name == name), len(synonyms))
        return tuple(synonyms[start:])

    # -- checks ------------------------------------------------------------------------------------------------------

    def _parse(self, texts: Mapping[str, Any]) -> dict[str, Value]:
        parsed: dict[str, Value] = {}
        for name, value in texts.items():
            key = BROKER_KEYS.get(name)
            if key is not None:
                parsed[name] = key.parse(_text(value))
            elif _is_jaas_key(name):
                self.jaas[name] = _text(value) or ""
            else:
                _refuse_unknown(name)
                self.ignored = (*self.ignored, name)
                unused = _unused().get(name)
                if unused is not None:
                    parsed[name] = unused.parse(_text(value))
        return parsed

    def _check_together(self) -> None:
        for low, high in _ORDERED:
            if self.get_int(low) > self.get_int(high):
                raise ConfigError(f"{low} ({self.get_int(low)}) must not be greater than {high} ({self.get_int(high)})")
        cluster_id = self._values["minibroker.cluster.id"]
        if cluster_id is not None and not _CLUSTER_ID.fullmatch(str(cluster_id)):
            raise ConfigError(f"minibroker.cluster.id: {cluster_id!r} is not made of letters, digits, - and _ only")
        for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
            if self._values[name] == 0:
                raise ConfigError(f"{name} must be unlimited (-1) or, equal or greater than 1")


# Checks of several settings together, as in AbstractKafkaConfig and GroupCoordinatorConfig.
_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)


def validate_topic_config(overrides: Mapping[str, str | None], settings: Settings | None = None) -> None:
    """Refuse topic overrides as Kafka's CreateTopics and AlterConfigs do: ApiError(INVALID_CONFIG) with the reason."""
    try:
        for name, value in overrides.items():
            if value is None:
                raise ConfigError(f"Null value not supported for topic configs: {name}")
            if name in THROTTLED_REPLICAS:
                check_throttled_replicas(name, value)
        (settings or Settings())._effective(cast("Mapping[str, str]", overrides))
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None


def parse_assignment(text: str) -> tuple[str, str]:
    """``key=value`` of the command line; the value may hold further equal signs."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"expected key=value, got {text!r}")
    return name.strip(), value.strip()


def environment_config(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(configuration, warnings) of ``KAFKA_*`` variables, by the rule of the apache/kafka image.

    ``_`` stands for a dot, ``__`` for an underscore, ``___`` for a dash. Names unknown to Kafka cause only a warning:
    variables of other programs share the prefix.
    """
    settings: dict[str, str] = {}
    warnings: list[str] = []
    variables = sorted(variable for variable in environ if variable.startswith("KAFKA_"))
    if not variables:
        return settings, warnings
    from minibroker.config.names import JVM_VARIABLES, without_effect

    for variable in variables:
        name = variable.removeprefix("KAFKA_").lower()
        name = name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
        if variable in JVM_VARIABLES:
            warnings.append(f"{variable} is for Kafka's JVM and has no effect here")
        elif name in BROKER_KEYS or without_effect(name):
            settings[name] = environ[variable]
        else:
            hint = near(name, BROKER_KEYS)
            warnings.append(f"{variable} ({name}) is not a setting of this broker and has no effect{hint}")
    return settings, warnings


def environment_name(name: str) -> str:
    """The variable that `environment_config` reads as the setting `name`."""
    return "KAFKA_" + name.replace("_", "__").replace(".", "_").replace("-", "___").upper()


def environment_of(config: Mapping[str, Any]) -> dict[str, str]:
    """A configuration as variables; a list is joined with commas."""
    return {environment_name(name): _text(value) or "" for name, value in config.items()}


def _unit_ms(name: str) -> int:
    if name.endswith(".hours"):
        return _HOUR_MS
    return _MINUTE_MS if name.endswith(".minutes") else 1


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return ",".join(value)


def _topic_key(name: str, absent: frozenset[str]) -> ConfigKey:
    key = TOPIC_KEYS.get(name)
    if key is None or name in absent:
        raise ConfigError(f"Unknown topic config name: {name}{near(name, TOPIC_KEYS)}")
    return key


def _refuse_unknown(name: str) -> None:
    """Raises ConfigError unless Kafka knows the name."""
    if name in TOPIC_KEYS:
        synonyms = TOPIC_KEYS[name].synonyms
        hint = f"; its default for all topics is {synonyms[0]}" if synonyms else ""
        raise ConfigError(f"{name} is a setting of topics{hint}")
    from minibroker.config.names import without_effect

    if not without_effect(name):
        raise ConfigError(f"unknown setting {name}{near(name, BROKER_KEYS)}")


def broker_key(name: str) -> ConfigKey | None:
    """A setting of Kafka's brokers or of this one's, also one without effect; None for an unknown name."""
    return BROKER_KEYS.get(name) or _unused().get(name)


def _unused() -> Mapping[str, ConfigKey]:
    """Kafka's other settings; most brokers never ask for one."""
    from minibroker.config.unused import UNUSED_KEYS

    return UNUSED_KEYS


def _is_jaas_key(name: str) -> bool:
    from minibroker.config.names import jaas_listener

    return jaas_listener(name) is not None


def _dynamic_only(changes: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, None]]:
    """(known settings, unknown names in their order). Raises ConfigError for a setting that cannot change at run
    time."""
    known = BROKER_KEYS if all(name in BROKER_KEYS for name in changes) else {**_unused(), **BROKER_KEYS}
    fixed = [name for name in changes if name in known and not known[name].dynamic]
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    unknown = dict.fromkeys(name for name in changes if name not in known and not _is_jaas_key(name))
    return {name: value for name, value in changes.items() if name not in unknown}, unknown
