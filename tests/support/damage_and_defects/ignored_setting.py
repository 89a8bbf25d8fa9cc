"""A pytest plugin that plants one defect: no code reads a setting, so that its default holds.

MINIBROKER_TEST_IGNORED_SETTING names it; ``topic:NAME`` is a key of topics, ``group:NAME`` one of groups. What
describes settings still shows the value that was given. Of a setting of the semantics, Kafka's value holds whoever gave
another one: setting, preset, release or test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from minibroker.config.keys import BROKER_KEYS, SEMANTICS_PREFIX
from minibroker.config.settings import Settings
from minibroker.releases.semantics import FIELDS, KAFKA, Semantics
from minibroker_storage.producer_rules import ProducerRules

VARIABLE = "MINIBROKER_TEST_IGNORED_SETTING"


def pytest_configure(config: pytest.Config) -> None:
    scope, _, name = os.environ[VARIABLE].rpartition(":")
    if name.startswith(SEMANTICS_PREFIX):
        _ignore_field(name.removeprefix(SEMANTICS_PREFIX))
    else:
        {"": _ignore_broker_key, "topic": _ignore_topic_key, "group": _ignore_group_key}[scope](name)


def _ignore_field(name: str) -> None:
    (spec,) = (spec for spec in FIELDS if spec.name == name)
    value = spec.of(KAFKA)
    owner = ProducerRules if spec.of_producer else Semantics
    setattr(owner, name, property(lambda _: value, lambda *_: None))


def _ignore_broker_key(name: str) -> None:
    default = BROKER_KEYS[name].default

    def reading(read: Callable[[Settings, str], Any]) -> Callable[[Settings, str], Any]:
        return lambda settings, key: default if key == name else read(settings, key)

    shown, describe = Settings.value_of, Settings.describe
    for getter in ("get_int", "get_boolean", "get_string", "get_list", "get", "value_of"):
        setattr(Settings, getter, reading(getattr(Settings, getter)))
    ignoring = Settings.value_of

    def describing(settings: Settings, names: Any = None) -> Any:
        Settings.value_of = shown  # type: ignore[method-assign]
        try:
            return describe(settings, names)
        finally:
            Settings.value_of = ignoring  # type: ignore[method-assign]

    Settings.describe = describing  # type: ignore[method-assign]
    _ignore_default_of_topics(name)


def _ignore_default_of_topics(name: str) -> None:
    """Topics have their defaults from settings as they would be without this one."""
    make, of_topic, value = Settings.__init__, Settings.log_config, Settings.topic_value
    others: dict[int, Settings] = {}

    def making(settings: Settings, static: Mapping[str, Any] | None = None, **changed: Any) -> None:
        make(settings, static, **changed)
        layers = {layer: changed.get(layer) or {} for layer in ("cluster", "broker")}
        others[id(settings)] = other = Settings.__new__(Settings)
        rest = [{key: text for key, text in layer.items() if key != name} for layer in (static or {}, *layers.values())]
        make(other, rest[0], cluster=rest[1], broker=rest[2], absent=changed.get("absent", frozenset()))

    Settings.__init__ = making  # type: ignore[method-assign]
    Settings.log_config = lambda settings, *overrides: of_topic(others[id(settings)], *overrides)  # type: ignore[method-assign]
    Settings.topic_value = lambda settings, key, overrides: value(others[id(settings)], key, overrides)  # type: ignore[method-assign]


def _ignore_topic_key(name: str) -> None:
    of_topic, value = Settings.log_config, Settings.topic_value

    def rest(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
        return {key: text for key, text in (overrides or {}).items() if key != name}

    Settings.log_config = lambda settings, *overrides: of_topic(settings, rest(*overrides))  # type: ignore[method-assign]
    Settings.topic_value = lambda settings, key, overrides: value(settings, key, rest(overrides))  # type: ignore[method-assign]


def _ignore_group_key(name: str) -> None:
    from minibroker.coordinators.groups import environment

    effective = environment.with_overrides

    def ignoring(config: Any, overrides: Mapping[str, str]) -> Any:
        return effective(config, {key: text for key, text in overrides.items() if key != name})

    environment.with_overrides = ignoring
