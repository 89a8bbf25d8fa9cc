"""Client metrics subscriptions (KIP-714, Kafka's ClientMetricsConfigs): stored and described. Clients do not push."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from minibroker.config.java_patterns import is_java_pattern
from minibroker.config.settings import ConfigEntry, ConfigSource, Settings
from minibroker.config.types import ConfigError, ConfigKey, ConfigType, Scope
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import UNHURRIED, Pace

_LEAST_MS, _MOST_MS = 100, 3_600_000
_MATCHED = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

CLIENT_METRICS_KEYS: Mapping[str, ConfigKey] = MappingProxyType(
    {
        key.name: key._replace(scope=Scope.CLIENT_METRICS, effect=False)
        for key in (
            ConfigKey("interval.ms", ConfigType.INT, 300_000, "How often clients send metrics."),
            ConfigKey("match", ConfigType.LIST, (), "Which clients: NAME=PATTERN,…."),
            ConfigKey("metrics", ConfigType.LIST, (), "Prefixes of the metrics."),
        )
    }
)


def validate_client_metrics(
    overrides: Mapping[str, str], checked: Mapping[str, ConfigError | None] = MappingProxyType({})
) -> None:
    """Raises ApiError INVALID_REQUEST and ConfigError, in Kafka's words.

    checked: values of `match` that are known already (`refusal_of_match`).
    """
    for name in overrides:
        if name not in CLIENT_METRICS_KEYS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    for name, text in overrides.items():
        if name == "match":
            refusal = checked[text] if text in checked else refusal_of_match(text)
            if refusal is not None:
                raise refusal
            continue
        value = CLIENT_METRICS_KEYS[name].parse(text)
        if isinstance(value, int) and not _LEAST_MS <= value <= _MOST_MS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {value} for interval.ms, interval must be between {_LEAST_MS} and {_MOST_MS} (1 hour)",
            )


def refusal_of_match(text: str, pace: Pace = UNHURRIED) -> ConfigError | None:
    """The error with which Kafka refuses this value of `match`; None for a valid one. Up to 10 µs a character."""
    try:
        parts = CLIENT_METRICS_KEYS["match"].parse(text)
        for part in parts if isinstance(parts, tuple) else ():
            pace(len(part))
            _check_pattern(part)
    except ConfigError as error:
        return error.with_traceback(None)
    return None


def _check_pattern(part: str) -> None:
    """ClientMetricsConfigs.parseMatchingPatterns: one sign of equality, those at the end aside."""
    name, *patterns = part.rstrip("=").split("=")
    if name.strip() not in _MATCHED or len(patterns) != 1 or not is_java_pattern(patterns[0].strip()):
        raise ConfigError(f"Illegal client matching pattern: {part}")


def describe_client_metrics(
    overrides: Mapping[str, str], settings: Settings, names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """A subscription's configuration for DescribeConfigs."""
    return [
        settings.describe_override(key, overrides.get(name), ConfigSource.CLIENT_METRICS_CONFIG, ())
        for name, key in CLIENT_METRICS_KEYS.items()
        if names is None or name in names
    ]
