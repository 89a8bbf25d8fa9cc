"""Every configuration key this broker obeys, under Kafka's name, with type, default, range and meaning.

The one table, `keys.json`, behind ``-c key=value``, the ``KAFKA_*`` environment, DescribeConfigs and the documentation.
A row has the fields of `ConfigKey`. Types and defaults are those of Kafka 4.4's ``AbstractKafkaConfig`` and
``LogConfig`` except where ``deviation`` says why not. Topic keys with ``"effect": false`` are there because Kafka lists
them for every topic, and tools that show a topic expect them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from minibroker.config.types import ConfigError, ConfigKey, ConfigType, Scope
from minibroker.kernel.package_data import package_text
from minibroker.releases.semantics import FIELDS, KAFKA, TRANSACTION_VERSION_FIELD

SEMANTICS_PREFIX = "minibroker.semantics."
THROTTLED_REPLICAS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
_REPLICAS = re.compile(r"(\d+:\d+)?", re.ASCII)


def _read() -> dict[str, dict[str, ConfigKey]]:
    table = json.loads(package_text(__name__, "keys.json"))
    return {
        scope: {name: _key(Scope(scope), name, **row) for name, row in rows.items()} for scope, rows in table.items()
    }


def _key(scope: Scope, name: str, type: str, doc: str, default: Any = None, **more: Any) -> ConfigKey:
    values = {"default": default, **more}
    values |= {field: tuple(value) for field, value in values.items() if isinstance(value, list)}
    dynamic = values.pop("dynamic", scope is Scope.TOPIC)
    return ConfigKey(name=name, type=ConfigType[type], doc=doc, scope=scope, dynamic=dynamic, **values)


def check_throttled_replicas(name: str, text: str) -> None:
    """Raises ConfigError as Kafka's ThrottledReplicaListValidator. No part of `parse`: earlier versions took and stored
    any text, and a topic that has one must go on."""
    items = [item.strip() for item in text.split(",")]
    if "".join(items) != "*" and not all(map(_REPLICAS.fullmatch, items)):
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        reason = f"{name} must be the literal '*' or a list of replicas in the following format: {form}"
        raise ConfigError(f"Invalid value [{', '.join(items)}] for configuration {name}: {reason}")


def _semantics_keys() -> dict[str, ConfigKey]:
    """One key for each difference between the semantics; unset, the value is that of the chosen semantics."""
    keys = {}
    for spec in FIELDS:
        if spec.name == TRANSACTION_VERSION_FIELD:
            continue
        value = spec.of(KAFKA)
        kind = ConfigType.STRING
        if isinstance(value, bool):
            kind = ConfigType.BOOLEAN
        elif isinstance(value, int) and not spec.choices:
            kind = ConfigType.INT
        name = f"{SEMANTICS_PREFIX}{spec.name}"
        keys[name] = ConfigKey(name, kind, None, spec.doc, choices=spec.choices, scope=Scope.MINIBROKER)
    return keys


_KEYS = _read()
BROKER_KEYS: Mapping[str, ConfigKey] = _KEYS["broker"] | _KEYS["minibroker"] | _semantics_keys()
TOPIC_KEYS: Mapping[str, ConfigKey] = _KEYS["topic"]
