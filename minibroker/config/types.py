"""A configuration key: its type, its range, and how its text is parsed (Kafka's ``ConfigDef``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, IntEnum
from math import isfinite, isnan
from typing import NamedTuple

from minibroker.kernel.addresses import Address, parse_address

Value = bool | int | float | str | tuple[str, ...] | None

# Python refuses to read a number of some thousand digits, with an error that is no ConfigError.
_NUMBER = re.compile(r"[+-]?\d{1,100}", re.ASCII)
# Each digit has one way to match: a long text that is no number takes no longer than one that is.
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)


class ConfigError(ValueError):
    """An unknown key or an invalid value; the text is one line that names both."""


def configured_address(text: str, what: str) -> Address:
    """``HOST:PORT``; port 0 is a free one. `what` names the address in the ConfigError for anything else."""
    try:
        return parse_address(text, least_port=0)
    except ValueError:
        raise ConfigError(f"{what} is HOST:PORT, not {text!r}") from None


def _as_java(value: float) -> str:
    """The text of Java's Double.toString."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(value)
    shortest = next(text for digits in range(1, 17) if float(text := f"{value:.{digits}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa}E{int(exponent)}"


class ConfigType(IntEnum):
    """Kafka's ``ConfigDef.Type``; the values are those of DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(Enum):
    """What a key configures; MINIBROKER: the broker, by a setting that Kafka lacks."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"
    MINIBROKER = "minibroker"


_BITS = {ConfigType.INT: 31, ConfigType.SHORT: 15, ConfigType.LONG: 63}


class ConfigKey(NamedTuple):
    """One key. ``minimum``, ``maximum`` and ``choices`` bound its values; ``besides`` is a legal value outside these
    bounds.

    ``dynamic`` keys change while the broker runs.

    synonyms: for a topic key the broker key that gives its default; for a broker key coarser keys that stand in while
        it is unset.
    deviation: why the default is not Kafka's.
    effect: False for topic keys that are described and stored as in Kafka but change nothing here.
    refusal: what is wrong with a text, None for nothing.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    besides: int | None = None
    scope: Scope = Scope.BROKER
    dynamic: bool = False
    internal: bool = False
    synonyms: tuple[str, ...] = ()
    deviation: str = ""
    effect: bool = True
    refusal: Callable[[str], str | None] | None = None

    def parse(self, text: str | None) -> Value:
        """The typed value of `text`; ConfigError, in the words of Kafka's ConfigDef, when it has none."""
        if text is None:
            raise ConfigError(f"Invalid value null for configuration {self.name}: entry must be non null")
        value = self._typed(text)
        self._check(value)
        reason = None if self.refusal is None else self.refusal(text.strip())
        if reason is not None:
            raise self._invalid(value, reason)
        return value

    def format(self, value: Value) -> str | None:
        """`value` as DescribeConfigs shows it; a password never."""
        if value is None or self.type is ConfigType.PASSWORD:
            return None
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return _as_java(value)
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def _typed(self, written: str) -> Value:
        kind, text = self.type, written.strip()
        if kind in _BITS:
            if not _NUMBER.fullmatch(text) or not -(1 << _BITS[kind]) <= int(text) < 1 << _BITS[kind]:
                raise self._invalid(written, f"Not a number of type {kind.name}")
            return int(text)
        if kind is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(written, "Expected value to be either true or false")
            return text.lower() == "true"
        if kind is ConfigType.DOUBLE:
            if not _DOUBLE.fullmatch(text):
                raise self._invalid(written, "Not a number of type DOUBLE")
            return float(text.rstrip("fFdD"))
        if kind is ConfigType.LIST:
            items = tuple(item.strip() for item in text.split(",")) if text else ()
            return tuple(dict.fromkeys(items)) if self.scope is Scope.TOPIC else items
        return text

    def _check(self, value: Value) -> None:
        if value is not None and value == self.besides:
            return
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            # Written so that NaN, which compares false with everything, is refused as well.
            low = self.minimum is not None and not value >= self.minimum
            if low or (self.maximum is not None and not value <= self.maximum):
                bound = f"at least {self.minimum}" if low else f"no more than {self.maximum}"
                if self.besides is not None:
                    bound = f"between {self.minimum} and {self.maximum} or equal to {self.besides}"
                raise self._invalid(value, f"Value must be {bound}")
        elif self.choices and isinstance(value, tuple):
            if len(set(value)) != len(value):
                raise self._invalid(value, "Duplicate values")
            for item in value:
                self._check(item)
        elif value == "" and self.type is ConfigType.LIST:
            raise ConfigError(f"Configuration '{self.name}' values must not be empty.")
        elif self.choices and value not in self.choices:
            raise self._invalid(value, f"String must be one of: {', '.join(self.choices)}")

    def _invalid(self, value: Value, reason: str) -> ConfigError:
        return ConfigError(f"Invalid value {self.format(value)} for configuration {self.name}: {reason}")
