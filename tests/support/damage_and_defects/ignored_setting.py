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
    topic_default = Settings._topic_default

    def without(settings: Settings, key: Any) -> Any:
        values = settings._values
        settings._values = {**values, name: default}
        try:
            return topic_default(settings, key)
        finally:
            settings._values = values

    Settings._topic_default = without  # type: ignore[method-assign]


def _ignore_topic_key(name: str) -> None:
    effective, value = Settings._effective, Settings.topic_value

    def rest(overrides: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in overrides.items() if key != name}

    Settings._effective = lambda settings, overrides: effective(settings, rest(overrides))  # type: ignore[method-assign]
    Settings.topic_value = lambda settings, key, overrides: value(settings, key, rest(overrides))  # type: ignore[method-assign]


def _ignore_group_key(name: str) -> None:
    from minibroker.coordinators.groups import environment

    effective = environment.with_overrides

    def ignoring(config: Any, overrides: Mapping[str, str]) -> Any:
        return effective(config, {key: text for key, text in overrides.items() if key != name})

    environment.with_overrides = ignoring
